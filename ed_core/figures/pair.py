"""Two results in one figure: verdicts on one ruler, curves over each other, and maps of what differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..depth import side_by_side
from ..depth.criteria import RULES, Criterion
from ..types import ProbeResult
from . import colours
from .canvas import PLAIN, STEADY, Canvas, axis_title, log_ticks, whole_ticks
from .curves import MARGIN
from .maps import crossed_out, mean_title
from .panel import (
    HEATMAP,
    Strip,
    View,
    add_heatmap,
    add_hover,
    add_strip,
    frame,
    mean_over_tokens,
    token_panel,
    without,
)
from .ruler import ROWS
from .skips import hatch
from .text import escaped, number

SYMBOLS, DASHES = ("circle", "diamond"), ("solid", "dash")
PAIR_RULER_HEIGHT = 224
RULE_ROWS = {name: row for name, row in ROWS.items() if name in RULES}
BAR = 0.5  # half of the bar's height, in rows of the ruler
CURVES, BARS = (0.3, 1.0), (0.0, 0.2)  # shares of the height: curves above, their difference below
LABEL = 0.14  # of the width, that a ruler's label may take


def pair_ruler(
    verdicts: tuple[Mapping[str, Criterion], Mapping[str, Criterion]],
    n_layers: tuple[int, int],
    names: tuple[str, str],
    unclear: tuple[Collection[str], Collection[str]] = ((), ()),
) -> go.Figure:
    """Both verdicts on one axis of relative depth: A's marks (circles) above its layers, B's (diamonds) below its own.
    A mark stands at the criterion's ratio, `(ED + 1) / L`, the upper edge of the layer; one that is not defined is
    hollow at the right end, its reason on hover; of one that is not computed yet there is the name alone. `names`: what
    the sides are called, escaped here. `unclear`: criteria of each side whose variants differ; their marks are
    hollow."""
    canvas = Canvas(PAIR_RULER_HEIGHT, (8, 8, 4, 24), uirevision="pair-ruler")
    for side, sign in enumerate((1, -1)):
        _blocks(canvas, side_by_side.SIDES[side], n_layers[side], sign * BAR)
        canvas.write(
            f"<b>{side_by_side.SIDES[side]}</b> {escaped(names[side])}, {n_layers[side]} layers",
            11,
            colours.ON_BAR[0],
            x=0,
            xanchor="left",
            xshift=4,
            y=sign * BAR,
        )
        for name, row in RULE_ROWS.items():
            _mark(canvas, side, name, sign * (row + BAR), verdicts[side], n_layers[side], name in unclear[side])
    ticks = [0, 0.25, 0.5, 0.75, 1]
    canvas.layout["xaxis"] = dict(
        PLAIN, range=[0, 1.005], tickvals=ticks, ticktext=["0", "¼", "½ of the depth", "¾", "1"]
    )
    canvas.layout["yaxis"] = dict(PLAIN, range=[-4.1, 4.1], visible=False)
    return canvas.figure()


def _blocks(canvas: Canvas, side: str, n_layers: int, y: float) -> None:
    """A side's layers; the gradient is a legend of the direction, not a measurement."""
    scale = [[0, colours.COMPOSING], [0.5, colours.BETWEEN], [1, colours.REFINING]]
    x = (np.arange(n_layers) + 0.5) / n_layers
    look = dict(
        zmin=0,
        zmax=1,
        colorscale=scale,
        showscale=False,
        xgap=1,
        ygap=2,
        hovertemplate=f"{side}: layer %{{customdata}} of {n_layers}<extra></extra>",
    )
    canvas.add(
        "heatmap",
        z=x[None],
        x=x,
        dx=1 / n_layers,
        y=[y],
        dy=2 * BAR,
        name=f"blocks {side}",
        customdata=np.arange(n_layers)[None],
        **look,
    )


def _mark(
    canvas: Canvas,
    side: int,
    name: str,
    y: float,
    criteria: Mapping[str, Criterion],
    n_layers: int,
    unclear: bool = False,
) -> None:
    verdict, colour, label = (
        criteria.get(name),
        colours.CRITERIA[name],
        f"{side_by_side.SIDES[side]}: {RULES[name].label}",
    )
    if verdict is None or verdict.depth is None or verdict.ratio is None:
        x, to, symbol = 1.0, "left", f"{SYMBOLS[side]}-open"
        text = f"{label} not defined" if verdict else f"{label} …"
        hover = f"{label}: {escaped(verdict.reason) if verdict else 'not computed yet'}"
    else:
        x, symbol, text = verdict.ratio, SYMBOLS[side], f"{label} {verdict.depth}"
        to = (
            "left"
            if x > 1 - LABEL
            or any(
                c.ratio is not None and RULE_ROWS[n] > RULE_ROWS[name] and x < c.ratio < x + LABEL
                for n, c in criteria.items()
            )
            else "right"
        )
        hover = (
            f"<b>{text}</b> of {n_layers} layers, ratio {number(x)}<br>stable variant: "
            f"{'not defined' if verdict.stable is None else verdict.stable}"
        )
        if unclear:
            symbol, hover = f"{symbol}-open", f"{hover}<br>not clear: its variants differ"
        canvas.line(colour, 2, x0=x, x1=x, y0=0, y1=y, opacity=0.75)
    look = dict(
        marker=dict(symbol=symbol, size=11, color=colour, line=dict(color=colour, width=2)),
        textfont=dict(size=12),
        cliponaxis=False,
    )
    words = dict(
        text=[text], textposition=f"middle {to}", customdata=[hover], hovertemplate="%{customdata}<extra></extra>"
    )
    canvas.add(
        "scatter",
        x=[x],
        y=[y],
        mode="text" if verdict is None else "markers+text",
        name=f"{side_by_side.SIDES[side]} {name}",
        **words,
        **look,
        **STEADY,
    )


def pair_curves(pair: side_by_side.Pair, names: tuple[str, str], height: int = 300) -> go.Figure:
    """A (solid, circles) and B (dashed, diamonds) on one axis: layers where both models have as many, with B - A in
    bars below; else relative depth, without bars, because no layer of one is a layer of the other."""
    n, unit, curve = max(len(pair.a), len(pair.b)), pair.curve.unit, pair.curve
    canvas = Canvas(height, MARGIN, uirevision="pair")
    for side, values in enumerate((pair.a, pair.b)):
        x = side_by_side.relative_depth(len(values), pair.n_layers[side]) if pair.relative else np.arange(len(values))
        place = [f"{curve.x} {i}" + (f" of {pair.n_layers[side]}" if pair.relative else "") for i in range(len(values))]
        colour = colours.SIDES[side]
        look = dict(
            mode="lines+markers",
            marker=dict(size=6, symbol=SYMBOLS[side]),
            line=dict(color=colour, width=2, dash=DASHES[side]),
            **STEADY,
        )
        hover = f"<b>{side_by_side.SIDES[side]}</b> %{{text}}<br>%{{y:.3g}} {unit}<extra></extra>"
        canvas.add(
            "scatter",
            x=x,
            y=values,
            name=f"{side_by_side.SIDES[side]}: {escaped(names[side])}",
            text=place,
            hovertemplate=hover,
            **look,
        )
    depth = "relative depth" if curve.x == "depth" else f"relative depth of the {curve.x}"
    ends = dict(range=[-0.02, 1.02], tickvals=[0, 0.25, 0.5, 0.75, 1], title=axis_title(depth, 8))
    layers = dict(
        range=[-0.5, n - 0.5],
        title=axis_title(curve.x, 8),
        **whole_ticks(n),
    )
    canvas.layout.update(
        showlegend=True,
        legend=dict(
            orientation="h", x=0, xanchor="left", y=1, yanchor="bottom", font=dict(size=11), bgcolor=colours.CLEAR
        ),
        xaxis={**PLAIN, **(ends if pair.relative else layers)},
        yaxis={
            **PLAIN,
            "title": axis_title(unit),
            "showgrid": True,
            "gridcolor": colours.FAINT,
            **(log_ticks((pair.a, pair.b)) if curve.log else {"type": "linear"}),
        },
    )
    if not curve.log and any(np.fmin.reduce(values, initial=0.0) < 0 for values in (pair.a, pair.b)):
        canvas.line(colours.GREY, 1, xref="paper", x0=0, x1=1, y0=0, y1=0, layer="below")
    if not pair.relative:
        _bars(canvas, pair)
    return canvas.figure()


def _bars(canvas: Canvas, pair: side_by_side.Pair) -> None:
    """B - A below the curves, on a scale of its own around 0."""
    bound = _bound(pair.difference)
    hover = f"{pair.curve.x} %{{x}}<br>B − A %{{y:.3g}} {pair.curve.unit}<extra></extra>"
    shades = [colours.DIVERGING[-1] if d > 0 else colours.DIVERGING[0] for d in np.nan_to_num(pair.difference)]
    canvas.add(
        "bar",
        x=np.arange(len(pair.difference)),
        y=pair.difference,
        yaxis="y2",
        name="B − A",
        showlegend=False,
        marker=dict(color=shades),
        hovertemplate=hover,
    )
    canvas.layout["yaxis"]["domain"] = CURVES
    canvas.layout["xaxis"]["anchor"] = "y2"
    canvas.layout["yaxis2"] = {
        **PLAIN,
        "domain": BARS,
        "range": [-1.1 * bound, 1.1 * bound],
        "tickvals": [-bound, 0, bound],
        "title": axis_title("B − A"),
        "ticktext": [number(v) for v in (-bound, 0.0, bound)],
        "showgrid": True,
        "gridcolor": colours.FAINT,
    }


def difference_map(
    a: ProbeResult, b: ProbeResult, measure: str, view: View, first_token: bool = True, failed: Sequence[int] = ()
) -> go.Figure:
    """B - A cell by cell, diverging, 0 in the middle; a `ValueError` where cells of the two do not mean the same. Of
    models of different depth the rows are the shallower one's layers (`side_by_side.nearest`). The
    range is the smallest of 1, 2, 5 × 10^k that holds all values, over tokens without the first, whose stream is huge
    in many models, and without the view's sinks, which the strip leaves out too unless they count. Rows that `failed`
    on a side are crossed out."""
    z, spec = side_by_side.difference(a, b, measure), a.measures[measure].spec
    values, rows = side_by_side.common(a, b, measure), min(a, b, key=lambda r: r.n_layers)

    def hover(row: int, column: int) -> str:
        found = [f"{name} {number(v[row, column])}" for name, v in zip(side_by_side.SIDES, values)]
        return (
            f"B − A {number(z[row, column])} {spec.unit}<br>{', '.join(found)}"
            if np.isfinite(z[row, column])
            else "not on both sides"
        )

    if "pos" not in spec.dims:
        return _square(z, view, spec.dims, spec.unit, hover)
    bound = _bound(without(z, {0, *view.sinks}))
    title = mean_title(first_token, view.uncounted)
    strip = Strip(view.mean(z, first_token), -bound, bound, title, colours.GREY)
    return crossed_out(token_panel(rows, view, z, colours.signed(bound), spec.unit, strip, hover, spec.dims[0]), failed)


def _square(z: np.ndarray, view: View, dims: tuple[str, ...], unit: str, hover: Callable[[int, int], str]) -> go.Figure:
    """A map of layers against layers; its strip holds the mean over each row."""
    n, bound = len(z), _bound(z)
    row_px = view.plot_height / (n + 1)
    domain = (0.0, min(HEATMAP[1], max(0.4, row_px * n / view.plot_width)))
    canvas = frame(view, n, f"{dims[0]} layer")
    add_heatmap(canvas, z, colours.signed(bound), unit, domain, gap=row_px >= 8)
    hatch(canvas, n, diagonal=False)
    add_hover(canvas, "layer %{y} skipped, layer %{x} affected<br>", hover, f"B − A %{{z:.3g}} {unit}")
    add_strip(
        canvas, Strip(mean_over_tokens(z), -bound, bound, "mean of the row", colours.GREY), "skipped layer", domain
    )
    ticks = whole_ticks(n)
    canvas.layout["xaxis"] = dict(
        PLAIN, range=[-0.5, n - 0.5], title=axis_title("affected layer", 9), domain=domain, **ticks
    )
    canvas.draw_depths(view.depth_lines, row_px)
    return canvas.figure()


def _bound(values: np.ndarray) -> float:
    """The smallest of 1, 2, 5 × 10^k that holds all of them; 1 where there is nothing but 0."""
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    if not largest:
        return 1.0
    power = 10.0 ** np.floor(np.log10(largest))
    return float(next((step * power for step in (1, 2, 5) if largest <= step * power), 10 * power))
