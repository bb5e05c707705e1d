"""Maps between two models: how far each is off, which match best, what the controls say; and what replacing a layer by
a linear map costs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..depth import matching
from ..fits.measured import Maps, Replacement
from . import colours
from .canvas import PLAIN, STEADY, Canvas, axis_title, escaped, number, tick_step, whole_ticks
from .panel import add_heatmap, add_hover

MARGIN = (54, 44, 40, 46)  # left, right, top with the colour bar, bottom
CURVES = (54, 20, 52, 46)
ROW, LEAST, MOST = 16, 240, 640  # pixels: of a row, and of a map's cells together
LABEL, ROW_LABEL = 26, 14  # pixels that a label along x and y needs
MEASURES = {"error": "relative error", "r2": "R²"}
APART = 0.5  # rows and columns between tap 0 and the others


def map_height(maps: Maps) -> int:
    """Pixels, from the number of A's taps alone."""
    return int(np.clip(ROW * len(maps.error), LEAST, MOST)) + MARGIN[2] + MARGIN[3]


def map_between(maps: Maps, measure: str = "error", control: bool = False, width_px: int = 700) -> go.Figure:
    """`error` or `r2` of every pair of taps: A's upwards, B's to the right; of the maps, or with `control` of those
    fitted to other tokens. The best match of each of A's taps has a ring, hollow where it does not beat the controls;
    taps 0 stand apart behind a line. Cells beyond the colours say so on hover."""
    z = getattr(maps, f"{measure}_shuffled" if control else measure)
    (n_a, n_b), names = maps.n_layers, [escaped(name) for name in maps.names]
    height = map_height(maps)
    canvas = Canvas(height, MARGIN, uirevision="maps", width_px=width_px)
    shade = _shade(maps, measure)
    row_px = (height - MARGIN[2] - MARGIN[3]) / (n_a + 1)
    column_px = (width_px - MARGIN[0] - MARGIN[1]) / (n_b + 1)
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
    found = matching.match(maps, measure)
    size, rows = float(np.clip(cell_px * 0.5, 5, 11)), np.arange(1, len(found.best) + 1)
    symbols = ["circle" if good else "circle-open" for good in found.matches]
    for name, colour, more in (("best, edge", colours.LETTERS[1], 3.0), ("best", colours.LETTERS[0], 0.0)):
        marker = dict(symbol=symbols, size=size + more, color=colour, line=dict(color=colour, width=1.5))
        canvas.add(
            "scatter", x=found.best, y=rows, mode="markers", name=name, marker=marker, hoverinfo="skip", **STEADY
        )


def _hover(maps: Maps, measure: str, control: bool, i: int, j: int) -> str:
    end = "_shuffled" if control else ""
    told = [f"error {number(getattr(maps, f'error{end}')[i, j])}, R² {number(getattr(maps, f'r2{end}')[i, j])}"]
    if not control:
        told.append(f"shuffled: error {number(maps.error_shuffled[i, j])}, R² {number(maps.r2_shuffled[i, j])}")
    told.append(f"mean only: error {number(maps.error_mean[j])}, R² {number(maps.r2_mean[j])}")
    return "<br>" + "<br>".join(told)


def best_matches(maps: Maps, height: int = 280, width_px: int = 500) -> go.Figure:
    """Where each of A's layers is found again in B, on relative depth, by error and by R²; along the dotted diagonal
    the deeper model does the same over more layers. Hollow: not better than the controls."""
    canvas = Canvas(height, CURVES, uirevision="matches", width_px=width_px)
    canvas.line(colours.GREY, 1, "dot", x0=0, y0=0, x1=1, y1=1, layer="below", name="diagonal")
    for (measure, title), colour, symbol in zip(MEASURES.items(), colours.SIDES, ("circle", "diamond")):
        found = matching.match(maps, measure)
        x, y = found.relative
        told = [
            f"tap {i + 1} of {maps.n_layers[0]} → tap {best} of {maps.n_layers[1]}<br>"
            f"error {number(found.error[i])}, shuffled {number(found.shuffled[i])}, mean only {number(found.mean[i])}"
            for i, best in enumerate(found.best)
        ]
        symbols = [symbol if good else f"{symbol}-open" for good in found.matches]
        canvas.add(
            "scatter",
            x=x,
            y=y,
            mode="lines+markers",
            name=f"best by {title}",
            text=told,
            hovertemplate="%{text}<extra></extra>",
            line=dict(color=colour, width=1.5, dash="solid" if measure == "error" else "dash"),
            marker=dict(symbol=symbols, size=8, line=dict(width=1.5, color=colour)),
            **STEADY,
        )
    ends = dict(range=[-0.03, 1.03], tickvals=[0, 0.25, 0.5, 0.75, 1])
    names = [escaped(name) for name in maps.names]
    canvas.layout.update(
        showlegend=True,
        legend=_legend(),
        xaxis={**PLAIN, **ends, "title": axis_title(f"relative depth in {names[0]}", 8)},
        yaxis={**PLAIN, **ends, "showgrid": True, "gridcolor": colours.FAINT, "title": axis_title(f"in {names[1]}")},
    )
    return canvas.figure()


def best_errors(maps: Maps, height: int = 280, width_px: int = 500) -> go.Figure:
    """The error at each source tap's best match, with both controls at the same tap of B."""
    canvas = Canvas(height, CURVES, uirevision="errors", width_px=width_px)
    found = matching.match(maps)
    curves = (
        ("best match", found.error, colours.BOTH, "solid"),
        ("shuffled tokens", found.shuffled, colours.CONTROL, "dash"),
        ("mean only", found.mean, colours.CONTROL, "dot"),
    )
    x = np.arange(1, len(found.best) + 1)
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
    axis = dict(range=[0.5, n + 0.5], title=axis_title(f"layers passed in {escaped(maps.names[0])}", 8))
    canvas.layout.update(
        showlegend=True,
        legend=_legend(),
        xaxis={**PLAIN, **whole_ticks(n + 1), **axis},
        yaxis=_from_zero("relative error"),
    )
    return canvas.figure()


def replacement_bars(found: Replacement, height: int = 300, width_px: int = 700) -> go.Figure:
    """By what share of the loss each layer's linear replacement raises it: bars on held-out prompts, diamonds on the
    prompts fitted on; dashed: the 10 % from which on a layer counts as useful."""
    canvas = Canvas(height, CURVES, uirevision="replacement", width_px=width_px)
    x = np.arange(found.n_layers)
    sides = (
        ("held-out prompts", matching.raised(found.loss, found.whole), found.loss, found.whole),
        (
            "prompts fitted on",
            matching.raised(found.loss_fitted, found.whole_fitted),
            found.loss_fitted,
            found.whole_fitted,
        ),
    )
    for (name, values, loss, whole), kind, colour in zip(sides, ("bar", "scatter"), (colours.BOTH, colours.SIDES[1])):
        marker = dict(color=colour) if kind == "bar" else dict(color=colour, size=9, symbol="diamond")
        canvas.add(
            kind,
            x=x,
            y=100 * values,
            name=name,
            marker=marker,
            text=[f"{number(one)} instead of {number(whole)} nats per token" for one in loss],
            textposition="none" if kind == "bar" else None,
            hovertemplate=f"<b>{name}</b><br>layer %{{x}}: %{{y:+.3g}} %<br>%{{text}}<extra></extra>",
            **(STEADY if kind == "bar" else {"mode": "markers", **STEADY}),
        )
    canvas.line(colours.FAILED, 1.5, "dash", xref="paper", x0=0, x1=1, y0=10, y1=10, name="useful from here")
    canvas.line(colours.GREY, 1, xref="paper", x0=0, x1=1, y0=0, y1=0, layer="below")
    n = found.n_layers
    canvas.layout.update(
        showlegend=True,
        legend=_legend(),
        xaxis={**PLAIN, **whole_ticks(n), "range": [-0.6, n - 0.4], "title": axis_title("layer replaced", 8)},
        yaxis=_from_zero("loss raised by, %") | {"rangemode": "normal"},
    )
    return canvas.figure()


def _legend() -> dict[str, Any]:
    return dict(orientation="h", x=0, xanchor="left", y=1, yanchor="bottom", font=dict(size=11), bgcolor=colours.CLEAR)


def _from_zero(title: str) -> dict[str, Any]:
    return {**PLAIN, "rangemode": "tozero", "showgrid": True, "gridcolor": colours.FAINT, "title": axis_title(title)}
