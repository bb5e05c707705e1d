"""Two results in one figure: curves over each other, and maps of what differs. And maps between
two models: how far each is off, which match best, what the controls say; and what replacing a layer by a linear map
costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import plotly.graph_objects as go

from ..depth import matching, side_by_side
from ..lenses.measured import Maps, Replacement
from ..types import ProbeResult
from . import colours
from .canvas import (
    CURVES_MARGIN,
    GRID,
    PLAIN,
    Canvas,
    Curves,
    axis_title,
    escaped,
    first_place,
    layer_axis,
    log_ticks,
    number,
    share_axis,
    size,
    tick_step,
    whole_ticks,
)
from .maps import mean_title
from .panel import Panel, Strip, View, beyond, mean_over_tokens, token_panel, without
from .skips import hatch

SYMBOLS, DASHES = ("circle", "diamond"), ("solid", "dash")
CURVES, BARS = (0.3, 1.0), (0.0, 0.2)  # shares of the height: curves above, their difference below


def pair_curves(pair: side_by_side.Pair, names: tuple[str, str], height: int = 300) -> go.Figure:
    """Return a figure of A's curve (solid, circles) and B's (dashed, diamonds): over layers, with B - A in bars below,
    where both models have as many; else over relative depth, without bars."""
    n, unit, curve, first = max(len(pair.a), len(pair.b)), pair.curve.unit, pair.curve, first_place(pair.curve.x)
    canvas = Canvas(height, CURVES_MARGIN)
    for side, values in enumerate((pair.a, pair.b)):
        x = (
            side_by_side.relative_depth(len(values), pair.n_layers[side])
            if pair.relative
            else first + np.arange(len(values))
        )
        of = f" of {pair.n_layers[side]}" if pair.relative else ""
        name, line = side_by_side.SIDES[side], dict(color=colours.SIDES[side], width=2, dash=DASHES[side])
        look = dict(mode="lines+markers", marker=dict(size=6, symbol=SYMBOLS[side]), line=line)
        hover = [f"<b>{name}</b> {curve.x} {i}{of}<br>{number(v)} {unit}" for i, v in enumerate(values, first)]
        canvas.points(f"{name}: {escaped(names[side])}", x, values, hover, **look)
    canvas.legend()
    depth = "relative depth" if curve.x == "depth" else f"relative depth of the {curve.x}"
    canvas.layout["xaxis"] = share_axis(depth) if pair.relative else layer_axis(n, curve.x)
    upright = log_ticks((pair.a, pair.b)) if curve.log else dict(type="linear")
    canvas.layout["yaxis"] = dict(GRID, title=axis_title(unit), **upright)
    if not curve.log:
        canvas.across_zero((pair.a, pair.b))
    if not pair.relative:
        _bars(canvas, pair)
    return canvas.figure()


def _bars(canvas: Canvas, pair: side_by_side.Pair) -> None:
    """Draw B - A below the curves, on a scale of its own around 0."""
    bound = _bound(pair.difference)
    first, unit = first_place(pair.curve.x), pair.curve.unit
    hover = [f"{pair.curve.x} {i}<br>B − A {number(d)} {unit}" for i, d in enumerate(pair.difference, first)]
    shades = [colours.DIVERGING[-1] if d > 0 else colours.DIVERGING[0] for d in np.nan_to_num(pair.difference)]
    look = dict(type="bar", yaxis="y2", showlegend=False, marker=dict(color=shades), textposition="none")
    canvas.points("B − A", np.arange(len(pair.difference)) + first, pair.difference, hover, **look)
    canvas.layout["yaxis"]["domain"] = CURVES
    canvas.layout["xaxis"]["anchor"] = "y2"
    ticks = dict(tickvals=[-bound, 0, bound], ticktext=[size(v) for v in (-bound, 0.0, bound)])
    canvas.layout["yaxis2"] = dict(
        GRID, domain=BARS, range=[-1.1 * bound, 1.1 * bound], title=axis_title("B − A"), **ticks
    )


def difference_map(a: ProbeResult, b: ProbeResult, measure: str, view: View, first_token: bool = True) -> go.Figure:
    """Return a heatmap of B - A cell by cell, 0 in the middle; a `ValueError` where cells of the two do not mean the
    same.

    Of models of different depth the rows are the shallower one's layers (`side_by_side.nearest`). The colours (`_most`)
    count neither the first token, whose stream is often huge, nor the view's sinks, which the strip leaves out too
    unless `view.count_sinks`."""
    z, spec = side_by_side.difference(a, b, measure), a.measures[measure].spec
    values, rows = side_by_side.common(a, b, measure), min(a, b, key=lambda r: r.n_layers)

    def hover(row: int, column: int) -> str:
        """Return a cell's difference and both sides' values."""
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
    """Return a map of layers against layers, hatched where both sides are 0 by construction; its strip has each row's
    mean over the cells drawn."""
    n, shade, domain = len(z), colours.signed(_most(z)), view.square()
    panel = Panel(view, n, f"{dims[0]} layer")
    cells = np.where(np.tri(n, k=-1, dtype=bool), np.nan, z)
    means = mean_over_tokens(cells)
    panel.heatmap(cells, shade, unit, domain, panel.row_px >= 8, x0=1, y0=1)
    hatch(panel, n, diagonal=False)
    panel.data[0]["hoverongaps"] = False
    place, brief = "layer %{y} skipped, layer %{x} affected<br>", f"B − A %{{z:.3g}} {unit}"
    panel.hover(place, lambda row, column: hover(row, column) + beyond(shade, z[row, column]), brief)
    strip = Strip(means, -_bound(means), _bound(means), "mean of the row", colours.GREY)
    panel.strip(strip, domain)
    panel.layers_across(n, "affected layer", domain)
    panel.draw_depths(view.depth_lines, panel.row_px)
    return panel.figure()


def _most(z: np.ndarray) -> float:
    """Return where the colours of a map of differences end: the smallest of 1, 2, 5 × 10^k above 95 % of the
    differences outside the row with the largest mean. The first layer adds many times what any other does, and must not
    take their colours."""
    sizes = np.where(np.isfinite(z) & (z != 0), np.abs(z), np.nan)
    means = np.nan_to_num(mean_over_tokens(sizes))
    others = np.delete(sizes, int(np.argmax(means)), axis=0)
    finite = others[np.isfinite(others)]
    return _bound(np.quantile(finite, 0.95)) if finite.size else _bound(z)


def _bound(values: np.ndarray | np.floating) -> float:
    """Return the smallest of 1, 2, 5 × 10^k that no `|value|` exceeds; 1 where all are 0."""
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    if not largest:
        return 1.0
    power = 10.0 ** np.floor(np.log10(largest))
    return float(next((step * power for step in (1, 2, 5) if largest <= step * power), 10 * power))


MAP_WIDTH = 700  # pixels
MAP_MARGIN = (54, 44, 40, 46)  # left, right, top with the colour bar, bottom
MATCHES = (54, 20, 52, 46)
ROW, LEAST, MOST = 16, 240, 640  # pixels: of a row, and of a map's cells together
LABEL, ROW_LABEL = 26, 14  # pixels that a label along x and y needs
MEASURES = {"error": "relative error", "r2": "R²"}
APART = 0.5  # rows and columns between tap 0 and the others


def map_height(maps: Maps) -> int:
    """Return the height of a map between models in pixels, from the number of A's taps only."""
    return int(np.clip(ROW * len(maps.error), LEAST, MOST)) + MAP_MARGIN[2] + MAP_MARGIN[3]


def map_between(maps: Maps, measure: str = "error", control: bool = False) -> go.Figure:
    """Return a heatmap of the `measure` ("error" or "r2") of affine maps between every pair of taps (streams after a
    layer): A's upwards, B's to the right. `control`: of maps fitted to other tokens.

    The best match of each of A's taps has a ring, hollow where it does not beat the controls; taps 0 are apart behind a
    line."""
    z = getattr(maps, f"{measure}_shuffled" if control else measure)
    (n_a, n_b), names = maps.n_layers, [escaped(name) for name in maps.names]
    height = map_height(maps)
    panel = Panel(View(height=height, width_px=MAP_WIDTH), margin=MAP_MARGIN)
    shade = _shade(maps, measure)
    row_px = (height - MAP_MARGIN[2] - MAP_MARGIN[3]) / (n_a + 1)
    column_px = (MAP_WIDTH - MAP_MARGIN[0] - MAP_MARGIN[1]) / (n_b + 1)
    unit = MEASURES[measure]
    panel.heatmap(z, shade, "", (0.0, 1.0), gap=min(row_px, column_px) >= 8)
    for own, other in ("xy", "yx"):  # lines between tap 0, the embedding, and the others
        ends = {f"{own}0": APART, f"{own}1": APART, f"{other}0": 0, f"{other}1": 1, f"{own}ref": own}
        panel.edge(4, 1.5, name="tap 0", **ends, **{f"{other}ref": f"{other} domain"})
    if not control:
        _rings(panel, maps, measure, min(row_px, column_px))
    place = f"{names[0]} tap %{{y}} → {names[1]} tap %{{x}}"
    panel.hover(place, partial(_hover, maps, measure, control), f"<br>{unit} %{{z:.3g}}")
    for axis, n, px, room, name in (
        ("xaxis", n_b, column_px, LABEL, names[1]),
        ("yaxis", n_a, row_px, ROW_LABEL, names[0]),
    ):
        ticks = list(range(0, n + 1, tick_step(n + 1, (n + 1) * px / room)))
        panel.layout[axis] = dict(
            PLAIN, range=[-0.5, n + 0.5], tickvals=ticks, tickangle=0, title=axis_title(f"layers passed in {name}", 8)
        )
    return panel.figure()


def _shade(maps: Maps, measure: str) -> colours.Shade:
    """Return the colours of a map between models, bright where good, to an error of 1 or an R² of 1. The control's map
    has the same."""
    z = getattr(maps, measure)[1:, 1:]
    low = float(np.clip(np.floor(10 * np.nanmin(z, initial=0.9)) / 10, 0.0, 0.9))
    return colours.linear(low, 1.0, reverse=measure == "error")


def _rings(canvas: Canvas, maps: Maps, measure: str, cell_px: float) -> None:
    """Draw a mark on the best match of each source tap from 1 on: twice, dark on light, to be seen on any cell."""
    match = matching.match(maps, measure)
    size, rows = float(np.clip(cell_px * 0.5, 5, 11)), np.arange(1, len(match.best) + 1)
    symbols = ["circle" if good else "circle-open" for good in match.matches]
    for name, colour, more in (("best, edge", colours.LETTERS[1], 3.0), ("best", colours.LETTERS[0], 0.0)):
        marker = dict(symbol=symbols, size=size + more, color=colour, line=dict(color=colour, width=1.5))
        canvas.points(name, match.best, rows, mode="markers", marker=marker)


def _hover(maps: Maps, measure: str, control: bool, i: int, j: int) -> str:
    """Return a cell's error and R², with the controls' next to them."""
    end = "_shuffled" if control else ""
    lines = [f"error {number(getattr(maps, f'error{end}')[i, j])}, R² {number(getattr(maps, f'r2{end}')[i, j])}"]
    if not control:
        lines.append(f"shuffled: error {number(maps.error_shuffled[i, j])}, R² {number(maps.r2_shuffled[i, j])}")
    lines.append(f"mean only: error {number(maps.error_mean[j])}, R² {number(maps.r2_mean[j])}")
    return "<br>" + "<br>".join(lines)


def best_matches(maps: Maps) -> go.Figure:
    """Return a figure of where each of A's layers is best matched in B, on relative depth, by error and by R²; on the
    dotted diagonal the deeper model does the same over more layers. Hollow: not better than the controls."""
    canvas = Canvas(280, MATCHES, width_px=500)
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
        line = dict(color=colour, width=1.5, dash="solid" if measure == "error" else "dash")
        marker = dict(symbol=symbols, size=8, line=dict(width=1.5, color=colour))
        canvas.points(f"best by {title}", x, y, hover, mode="lines+markers", line=line, marker=marker)
    names = [escaped(name) for name in maps.names]
    canvas.legend()
    canvas.layout["xaxis"] = share_axis(f"relative depth in {names[0]}")
    canvas.layout["yaxis"] = GRID | share_axis(f"in {names[1]}", showgrid=True)
    return canvas.figure()


def best_errors(maps: Maps) -> go.Figure:
    """Return a figure of the error at each source tap's best match, with both controls at the same tap of B."""
    title = f"layers passed in {escaped(maps.names[0])}"
    canvas = Curves(maps.n_layers[0], title, "relative error", 280, 500)
    match = matching.match(maps)
    curves = (
        ("best match", match.error, colours.BOTH, "solid"),
        ("shuffled tokens", match.shuffled, colours.CONTROL, "dash"),
        ("mean only", match.mean, colours.CONTROL, "dot"),
    )
    x = np.arange(1, len(match.best) + 1)
    for name, values, colour, dash in curves:
        line = dict(color=colour, width=2, dash=dash)
        canvas.curve("scatter", values, name, x=x, mode="lines+markers", line=line, marker=dict(size=5))
    canvas.layout["xaxis"] |= dict(range=[0.5, len(x) + 0.5], **whole_ticks(len(x), 1))
    canvas.layout["yaxis"]["rangemode"] = "tozero"
    canvas.layout["showlegend"] = True
    return canvas.figure()


def replacement_bars(found: Replacement) -> go.Figure:
    """Return a figure of the share by which each layer's linear replacement raises the loss: bars on held-out prompts,
    diamonds on the prompts fitted on; dashed: the 10 % from which on a layer counts as useful."""
    canvas = Curves(found.n_layers, "layer replaced", "loss raised by, %", 300, 700)
    bars = dict(marker=dict(color=colours.BOTH), textposition="none")
    dots = dict(mode="markers", marker=dict(color=colours.SIDES[1], size=9, symbol="diamond"))
    for kind, name, loss, baseline, look in (
        ("bar", "held-out prompts", found.loss, found.whole, bars),
        ("scatter", "prompts fitted on", found.loss_fitted, found.whole_fitted, dots),
    ):
        text = [f"{number(one)} instead of {number(baseline)} nats per token" for one in loss]
        canvas.curve(kind, 100 * (loss / baseline - 1), name, unit="%<br>%{text}", text=text, **look)
    canvas.across(10, colours.FAILED, 1.5, "dash", name="useful from here")
    canvas.across(0, colours.GREY, 1, layer="below")
    canvas.layout["showlegend"] = True
    return canvas.figure()
