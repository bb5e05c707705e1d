"""Two results in one figure: verdicts on one ruler, curves over each other, and maps of what differs. And maps between
two models: how far each is off, which match best, what the controls say; and what replacing a layer by a linear map
costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import plotly.graph_objects as go

from ..depth import matching, side_by_side
from ..depth.verdict import Verdict
from ..lenses.measured import Maps, Replacement
from ..types import ProbeResult
from . import colours
from .canvas import (
    GRID,
    PLAIN,
    STEADY,
    Canvas,
    axis_title,
    escaped,
    first_place,
    log_ticks,
    number,
    size,
    tick_step,
    whole_ticks,
)
from .curves import MARGIN
from .maps import mean_title
from .panel import (
    Strip,
    View,
    add_heatmap,
    add_hover,
    add_strip,
    beyond,
    frame,
    layers_across,
    mean_over_tokens,
    token_panel,
    without,
)
from .ruler import ROWS, Rows, bound
from .skips import hatch

SYMBOLS, DASHES = ("circle", "diamond"), ("solid", "dash")
PAIR_RULER_HEIGHT, PAIR_LEFT = 224, 78
BAR = 0.52  # where a side's bar of layers is, in rows from the middle
CURVES, BARS = (0.3, 1.0), (0.0, 0.2)  # shares of the height: curves above, their difference below


def pair_ruler(
    verdicts: tuple[Verdict | None, Verdict | None], n_layers: tuple[int, int], names: tuple[str, str]
) -> go.Figure:
    """Both verdicts on one axis of relative depth: A's marks above its bar of layers, B's below its own, in the rows
    and with the marks of `Rows`. Depth d is at `d / L`, a papers' rule at its ratio, `(ED + 1) / L`. A bar
    has the colours of the mean cosine that rule and turn read, both bars in one colour scale, and is plain without it;
    a side that is not measured yet (None) has its bar alone. `names`: what the sides are called, escaped here."""
    canvas = Canvas(PAIR_RULER_HEIGHT, (PAIR_LEFT, 8, 4, 24), uirevision="pair-ruler", width_px=1100)
    shade = bound(*verdicts)
    for i, sign in enumerate((1, -1)):
        side, n, verdict = side_by_side.SIDES[i], n_layers[i], verdicts[i]
        rows = Rows(canvas, n, True, sign * BAR, sign, f"{side} ", f"<b>{side}</b> {escaped(names[i])}<br>")
        rows.bar(verdict, shade)
        rows.write(f"<b>{side}</b> {n} layers", sign * BAR)
        for name in ROWS:
            rows.name(name)
        if verdict is not None:
            rows.marks(verdict)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    canvas.layout["xaxis"] = dict(
        PLAIN, range=[0, 1.005], tickvals=ticks, ticktext=["0", "¼", "½ of the depth", "¾", "1"]
    )
    canvas.layout["yaxis"] = dict(PLAIN, range=[-5.1, 5.1], visible=False)
    return canvas.figure()


def pair_curves(pair: side_by_side.Pair, names: tuple[str, str], height: int = 300) -> go.Figure:
    """A (solid, circles) and B (dashed, diamonds) on one axis: layers where both models have as many, with B - A in
    bars below; else relative depth, without bars, because no layer of one is a layer of the other."""
    n, unit, curve, first = max(len(pair.a), len(pair.b)), pair.curve.unit, pair.curve, first_place(pair.curve.x)
    canvas = Canvas(height, MARGIN, uirevision="pair")
    for side, values in enumerate((pair.a, pair.b)):
        x = (
            side_by_side.relative_depth(len(values), pair.n_layers[side])
            if pair.relative
            else first + np.arange(len(values))
        )
        of = f" of {pair.n_layers[side]}" if pair.relative else ""
        place = [f"{curve.x} {i}{of}" for i in range(first, first + len(values))]
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
        range=[first - 0.5, first + n - 0.5],
        title=axis_title(curve.x, 8),
        **whole_ticks(n, first),
    )
    canvas.legend(bgcolor=colours.CLEAR)
    canvas.layout["xaxis"] = PLAIN | (ends if pair.relative else layers)
    upright = log_ticks((pair.a, pair.b)) if curve.log else dict(type="linear")
    canvas.layout["yaxis"] = dict(GRID, title=axis_title(unit), **upright)
    if not curve.log:
        canvas.across_zero((pair.a, pair.b))
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
        x=np.arange(len(pair.difference)) + first_place(pair.curve.x),
        y=pair.difference,
        yaxis="y2",
        name="B − A",
        showlegend=False,
        marker=dict(color=shades),
        hovertemplate=hover,
    )
    canvas.layout["yaxis"]["domain"] = CURVES
    canvas.layout["xaxis"]["anchor"] = "y2"
    ticks = dict(tickvals=[-bound, 0, bound], ticktext=[size(v) for v in (-bound, 0.0, bound)])
    canvas.layout["yaxis2"] = dict(
        GRID, domain=BARS, range=[-1.1 * bound, 1.1 * bound], title=axis_title("B − A"), **ticks
    )


def difference_map(a: ProbeResult, b: ProbeResult, measure: str, view: View, first_token: bool = True) -> go.Figure:
    """B - A cell by cell, diverging, 0 in the middle; a `ValueError` where cells of the two do not mean the same. Of
    models of different depth the rows are the shallower one's layers (`side_by_side.nearest`). The colours' range
    (`_most`) is over tokens without the first, whose stream is huge in many models, and without the view's sinks,
    which the strip leaves out too unless they count; the strip's holds all of its values."""
    z, spec = side_by_side.difference(a, b, measure), a.measures[measure].spec
    values, rows = side_by_side.common(a, b, measure), min(a, b, key=lambda r: r.n_layers)

    def hover(row: int, column: int) -> str:
        sides = [f"{name} {number(v[row, column])}" for name, v in zip(side_by_side.SIDES, values)]
        return (
            f"B − A {number(z[row, column])} {spec.unit}<br>{', '.join(sides)}"
            if np.isfinite(z[row, column])
            else "not on both sides"
        )

    if "pos" not in spec.dims:
        return _square(z, view, spec.dims, spec.unit, hover)
    shade, means = colours.signed(_most(without(z, {0, *view.sinks}))), view.mean(z, first_token)
    strip = Strip(means, -_bound(means), _bound(means), mean_title(first_token, view.uncounted), colours.GREY)
    return token_panel(rows, view, z, shade, spec.unit, strip, hover, spec.dims[0])


def _square(z: np.ndarray, view: View, dims: tuple[str, ...], unit: str, hover: Callable[[int, int], str]) -> go.Figure:
    """A map of layers against layers, hatched where both sides are 0 by construction; its strip holds the mean over the
    cells of each row that are drawn."""
    n, shade = len(z), colours.signed(_most(z))
    row_px, domain = view.plot_height / (n + 1), view.square(n)
    canvas = frame(view, n, f"{dims[0]} layer")
    cells = np.where(np.tri(n, k=-1, dtype=bool), np.nan, z)
    means = mean_over_tokens(cells)
    add_heatmap(canvas, cells, shade, unit, domain, row_px >= 8, x0=1, y0=1)
    hatch(canvas, n, diagonal=False)
    canvas.data[0]["hoverongaps"] = False
    place, brief = "layer %{y} skipped, layer %{x} affected<br>", f"B − A %{{z:.3g}} {unit}"
    add_hover(canvas, place, lambda row, column: hover(row, column) + beyond(shade, z[row, column]), brief)
    strip = Strip(means, -_bound(means), _bound(means), "mean of the row", colours.GREY)
    add_strip(canvas, strip, "skipped layer", domain)
    layers_across(canvas, n, "affected layer", domain)
    canvas.draw_depths(view.depth_lines, row_px)
    return canvas.figure()


def _most(z: np.ndarray) -> float:
    """Where the colours of a map of differences end: the smallest of 1, 2, 5 × 10^k that holds 95 % of the differences
    outside the row with the largest mean. The first layer adds many times what any other does, and must not take the
    colours from all others; an end of the colour bar that cells lie beyond says so."""
    sizes = np.where(np.isfinite(z) & (z != 0), np.abs(z), np.nan)
    means = np.nan_to_num(mean_over_tokens(sizes))
    others = np.delete(sizes, int(np.argmax(means)), axis=0)
    finite = others[np.isfinite(others)]
    return _bound(np.quantile(finite, 0.95)) if finite.size else _bound(z)


def _bound(values: np.ndarray | np.floating) -> float:
    """The smallest of 1, 2, 5 × 10^k that holds all of them; 1 where there is nothing but 0."""
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    if not largest:
        return 1.0
    power = 10.0 ** np.floor(np.log10(largest))
    return float(next((step * power for step in (1, 2, 5) if largest <= step * power), 10 * power))


MAP_MARGIN = (54, 44, 40, 46)  # left, right, top with the colour bar, bottom
MATCHES = (54, 20, 52, 46)
ROW, LEAST, MOST = 16, 240, 640  # pixels: of a row, and of a map's cells together
LABEL, ROW_LABEL = 26, 14  # pixels that a label along x and y needs
MEASURES = {"error": "relative error", "r2": "R²"}
APART = 0.5  # rows and columns between tap 0 and the others


def map_height(maps: Maps) -> int:
    """Pixels, from the number of A's taps alone."""
    return int(np.clip(ROW * len(maps.error), LEAST, MOST)) + MAP_MARGIN[2] + MAP_MARGIN[3]


def map_between(maps: Maps, measure: str = "error", control: bool = False, width_px: int = 700) -> go.Figure:
    """`error` or `r2` of every pair of taps: A's upwards, B's to the right; of the maps, or with `control` of those
    fitted to other tokens. The best match of each of A's taps has a ring, hollow where it does not beat the controls;
    taps 0 are apart behind a line. Cells beyond the colours say so on hover."""
    z = getattr(maps, f"{measure}_shuffled" if control else measure)
    (n_a, n_b), names = maps.n_layers, [escaped(name) for name in maps.names]
    height = map_height(maps)
    canvas = Canvas(height, MAP_MARGIN, uirevision="maps", width_px=width_px)
    shade = _shade(maps, measure)
    row_px = (height - MAP_MARGIN[2] - MAP_MARGIN[3]) / (n_a + 1)
    column_px = (width_px - MAP_MARGIN[0] - MAP_MARGIN[1]) / (n_b + 1)
    unit = MEASURES[measure]
    add_heatmap(canvas, z, shade, "", (0.0, 1.0), gap=min(row_px, column_px) >= 8)
    _apart(canvas)
    if not control:
        _rings(canvas, maps, measure, min(row_px, column_px))
    place = f"{names[0]} tap %{{y}} → {names[1]} tap %{{x}}"
    add_hover(canvas, place, partial(_hover, maps, measure, control), f"<br>{unit} %{{z:.3g}}")
    for axis, n, px, room, name in (
        ("xaxis", n_b, column_px, LABEL, names[1]),
        ("yaxis", n_a, row_px, ROW_LABEL, names[0]),
    ):
        ticks = list(range(0, n + 1, tick_step(n + 1, (n + 1) * px / room)))
        canvas.layout[axis] = dict(
            PLAIN,
            range=[-0.5, n + 0.5],
            tickvals=ticks,
            tickangle=0,
            title=axis_title(f"layers passed in {name}", 8),
        )
    return canvas.figure()


def _shade(maps: Maps, measure: str) -> colours.Shade:
    """Bright is a good map. From the best pair without taps 0, to the tenth, to an error of 1 or an R² of 1: a map that
    is off by more says nothing. The control's map has the same colours."""
    z = getattr(maps, measure)[1:, 1:]
    low = float(np.clip(np.floor(10 * np.nanmin(z, initial=0.9)) / 10, 0.0, 0.9))
    return colours.linear(low, 1.0, reverse=measure == "error")


def _apart(canvas: Canvas) -> None:
    """Lines between tap 0, the embedding, and the others."""
    for colour, thickness in ((colours.LIGHT_EDGE, 4), (colours.DARK_EDGE, 1.5)):
        canvas.line(colour, thickness, x0=APART, x1=APART, xref="x", y0=0, y1=1, yref="y domain", name="tap 0")
        canvas.line(colour, thickness, y0=APART, y1=APART, yref="y", x0=0, x1=1, xref="x domain", name="tap 0")


def _rings(canvas: Canvas, maps: Maps, measure: str, cell_px: float) -> None:
    """A mark on the best match of each source tap from 1 on: twice, dark on light, to be seen on any cell."""
    match = matching.match(maps, measure)
    size, rows = float(np.clip(cell_px * 0.5, 5, 11)), np.arange(1, len(match.best) + 1)
    symbols = ["circle" if good else "circle-open" for good in match.matches]
    for name, colour, more in (("best, edge", colours.LETTERS[1], 3.0), ("best", colours.LETTERS[0], 0.0)):
        marker = dict(symbol=symbols, size=size + more, color=colour, line=dict(color=colour, width=1.5))
        canvas.add(
            "scatter", x=match.best, y=rows, mode="markers", name=name, marker=marker, hoverinfo="skip", **STEADY
        )


def _hover(maps: Maps, measure: str, control: bool, i: int, j: int) -> str:
    end = "_shuffled" if control else ""
    lines = [f"error {number(getattr(maps, f'error{end}')[i, j])}, R² {number(getattr(maps, f'r2{end}')[i, j])}"]
    if not control:
        lines.append(f"shuffled: error {number(maps.error_shuffled[i, j])}, R² {number(maps.r2_shuffled[i, j])}")
    lines.append(f"mean only: error {number(maps.error_mean[j])}, R² {number(maps.r2_mean[j])}")
    return "<br>" + "<br>".join(lines)


def best_matches(maps: Maps) -> go.Figure:
    """Where each of A's layers is found again in B, on relative depth, by error and by R²; along the dotted diagonal
    the deeper model does the same over more layers. Hollow: not better than the controls."""
    canvas = Canvas(280, MATCHES, uirevision="matches", width_px=500)
    canvas.line(colours.GREY, 1, "dot", x0=0, y0=0, x1=1, y1=1, layer="below", name="diagonal")
    for (measure, title), colour, symbol in zip(MEASURES.items(), colours.SIDES, ("circle", "diamond")):
        match = matching.match(maps, measure)
        x, y = match.relative
        hover = [
            f"tap {i + 1} of {maps.n_layers[0]} → tap {best} of {maps.n_layers[1]}<br>"
            f"error {number(match.error[i])}, shuffled {number(match.shuffled[i])}, mean only {number(match.mean[i])}"
            for i, best in enumerate(match.best)
        ]
        symbols = [symbol if good else f"{symbol}-open" for good in match.matches]
        canvas.add(
            "scatter",
            x=x,
            y=y,
            mode="lines+markers",
            name=f"best by {title}",
            text=hover,
            hovertemplate="%{text}<extra></extra>",
            line=dict(color=colour, width=1.5, dash="solid" if measure == "error" else "dash"),
            marker=dict(symbol=symbols, size=8, line=dict(width=1.5, color=colour)),
            **STEADY,
        )
    ends = dict(range=[-0.03, 1.03], tickvals=[0, 0.25, 0.5, 0.75, 1])
    names = [escaped(name) for name in maps.names]
    canvas.legend(bgcolor=colours.CLEAR)
    canvas.layout["xaxis"] = dict(PLAIN, title=axis_title(f"relative depth in {names[0]}", 8), **ends)
    canvas.layout["yaxis"] = dict(GRID, title=axis_title(f"in {names[1]}"), **ends)
    return canvas.figure()


def best_errors(maps: Maps) -> go.Figure:
    """The error at each source tap's best match, with both controls at the same tap of B."""
    canvas = Canvas(280, MATCHES, uirevision="errors", width_px=500)
    match = matching.match(maps)
    curves = (
        ("best match", match.error, colours.BOTH, "solid"),
        ("shuffled tokens", match.shuffled, colours.CONTROL, "dash"),
        ("mean only", match.mean, colours.CONTROL, "dot"),
    )
    x = np.arange(1, len(match.best) + 1)
    for name, values, colour, dash in curves:
        canvas.add(
            "scatter",
            x=x,
            y=values,
            mode="lines+markers",
            name=name,
            line=dict(color=colour, width=2, dash=dash),
            marker=dict(size=5),
            hovertemplate=f"<b>{name}</b><br>tap %{{x}}: error %{{y:.3g}}<extra></extra>",
            **STEADY,
        )
    n = maps.n_layers[0]
    title = axis_title(f"layers passed in {escaped(maps.names[0])}", 8)
    canvas.legend(bgcolor=colours.CLEAR)
    canvas.layout["xaxis"] = dict(PLAIN, range=[0.5, n + 0.5], title=title, **whole_ticks(n, 1))
    canvas.layout["yaxis"] = dict(GRID, rangemode="tozero", title=axis_title("relative error"))
    return canvas.figure()


def replacement_bars(found: Replacement) -> go.Figure:
    """By what share of the loss each layer's linear replacement raises it: bars on held-out prompts, diamonds on the
    prompts fitted on; dashed: the 10 % from which on a layer counts as useful."""
    n = found.n_layers
    canvas = Canvas(300, MATCHES, uirevision="replacement", width_px=700)
    bars = dict(marker=dict(color=colours.BOTH), textposition="none")
    dots = dict(mode="markers", marker=dict(color=colours.SIDES[1], size=9, symbol="diamond"))
    for kind, name, loss, baseline, look in (
        ("bar", "held-out prompts", found.loss, found.whole, bars),
        ("scatter", "prompts fitted on", found.loss_fitted, found.whole_fitted, dots),
    ):
        canvas.add(
            kind,
            x=np.arange(1, n + 1),
            y=100 * matching.raised(loss, baseline),
            name=name,
            text=[f"{number(one)} instead of {number(baseline)} nats per token" for one in loss],
            hovertemplate=f"<b>{name}</b><br>layer %{{x}}: %{{y:+.3g}} %<br>%{{text}}<extra></extra>",
            **look,
            **STEADY,
        )
    canvas.across(10, colours.FAILED, 1.5, "dash", name="useful from here")
    canvas.across(0, colours.GREY, 1, layer="below")
    canvas.legend(bgcolor=colours.CLEAR)
    canvas.layout["xaxis"] = dict(
        PLAIN, range=[0.4, n + 0.6], title=axis_title("layer replaced", 8), **whole_ticks(n, 1)
    )
    canvas.layout["yaxis"] = dict(GRID, rangemode="normal", title=axis_title("loss raised by, %"))
    return canvas.figure()
