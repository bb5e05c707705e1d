"""The pictures that lead a room: a model's course over its layers, and the depths of several models in one forest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from . import colours
from .canvas import AT_LEFT, AT_RIGHT, GRID, OVER, PLAIN, Canvas, cut, escaped, layer_axis, number, share_axis

COURSE_HEIGHT = 330  # pixels
BENT = 0.05  # nats: bars are linear up to about that, and logarithmic beyond
ROW, TOP, BOTTOM = 54, 30, 46  # pixels of a forest
NAMES, DIFFERENCES = 190, 244  # pixels left and right of its axis


def model_course(
    lens: Mapping[str, Sequence[ArrayLike]],
    copies: Mapping[str, ArrayLike],
    cost: ArrayLike,
    cheapest: int | None = None,
) -> go.Figure:
    """Return a figure of the lens's divergence from the output after each layer, with untrained copies'; below it what
    removing each layer adds to the loss.

    `lens`: by name the curve `[L + 1]` and the ends of its range; `cost` `[L]`; `cheapest`: the layer to name, from
    0."""
    cost = np.asarray(cost, np.float64)
    n = len(cost)
    canvas = Canvas(COURSE_HEIGHT, (52, 14, 26, 44), width_px=760)
    for name, (values, low, high) in lens.items():
        x, values = np.arange(n + 1), np.asarray(values, np.float64)
        canvas.band(x, np.asarray(low, np.float64), np.asarray(high, np.float64), colours.BOTH, name)
        _line(canvas, name, values, colours.BOTH, "solid")
    for name, values in copies.items():
        _line(canvas, name, np.asarray(values, np.float64), colours.CONTROL, "dash")
    bars = np.arcsinh(cost / BENT)
    hover = [f"without layer {i}: {number(v)} nats" for i, v in enumerate(cost, 1)]
    colour = [colours.DIVERGING[0] if v < 0 else colours.DIVERGING[-1] for v in cost]
    marker = dict(color=colour, opacity=[1.0 if i == cheapest else 0.55 for i in range(n)])
    look: dict[str, Any] = dict(type="bar", width=0.72, marker=marker, textposition="none", yaxis="y2")
    canvas.points("cost", np.arange(1, n + 1), bars, hover, **look)
    if cheapest is not None:
        top = max(float(np.nan_to_num(bars[cheapest])), 0.0)
        canvas.write(f"<b>{cheapest + 1}</b>", 12, x=cheapest + 1, y=top, yref="y2", yanchor="bottom", yshift=1)
    for y, text in ((1, "How far the lens is from the output (nats)"), (0.36, "Loss added when the layer is removed")):
        canvas.write(text, 12, x=0, xref="paper", xanchor="left", **OVER | dict(y=y))
    canvas.layout["xaxis"] = layer_axis(n + 1, "after layer", anchor="y2")
    canvas.layout["yaxis"] = dict(GRID, domain=[0.46, 1], rangemode="tozero", nticks=5)
    canvas.layout["yaxis2"] = dict(
        PLAIN, domain=[0, 0.34], showticklabels=False, zeroline=True, zerolinecolor=colours.FAINT
    )
    canvas.along("x", n)
    return canvas.figure()


def _line(canvas: Canvas, name: str, values: np.ndarray, colour: str, dash: str) -> None:
    """Draw a curve with its name above it."""
    hover = [f"{escaped(name)}, after layer {i}: {number(v)} nats" for i, v in enumerate(values)]
    look = dict(mode="lines", line=dict(color=colour, width=2.2, dash=dash))
    canvas.points(escaped(name), np.arange(len(values)), values, hover, **look)
    index = len(values) // 4 if dash == "solid" else (2 * len(values)) // 3
    if np.isfinite(values[index]):
        canvas.write(escaped(name), 12, x=index, y=float(values[index]), xanchor="left", yanchor="bottom", yshift=3)


@dataclass(frozen=True)
class Row:
    """A model's row in `forest`, in shares of its layers: its average depth with its interval (NaN without), its
    untrained `copies`, published `rules`; `said`: text at the right."""

    name: str
    layers: int
    share: float
    low: float = math.nan
    high: float = math.nan
    copies: tuple[float, ...] = ()
    rules: tuple[tuple[str, float], ...] = ()
    said: str = ""


def forest(rows: Sequence[Row], right: str = "") -> go.Figure:
    """Return a figure with a row per model: its average depth with its interval, its untrained copies hollow, published
    rules as ticks; `right`: the heading of the texts at the right."""
    height = TOP + BOTTOM + ROW * max(len(rows), 1)
    canvas = Canvas(height, (NAMES, DIFFERENCES if right else 16, TOP, BOTTOM), width_px=1150)
    for i, row in enumerate(rows):
        canvas.line(colours.FAINT, 1, x0=0, x1=1, y0=-i, y1=-i, layer="below")
        name = f"<b>{escaped(cut(row.name, 24))}</b><br>{row.layers} layers"
        canvas.write(name, 13, **AT_LEFT, xshift=-14, y=-i, align="right")
        if row.said:
            canvas.write(escaped(row.said), 13, **AT_RIGHT, xshift=16, y=-i, align="left")
        if np.isfinite(row.share):
            canvas.write(f"<b>{100 * row.share:.0f} %</b>", 13, x=row.share, y=-i, yanchor="bottom", yshift=8)
        if np.isfinite(row.low):
            canvas.line(colours.ATTENTION, 4, x0=row.low, x1=row.high, y0=-i, y1=-i)

    def marks(name: str, points: list[tuple[float, int, str]], **look: Any) -> None:
        """Draw marks at shares of the depth, each with its row and what it says."""
        hover = [f"{escaped(rows[i].name)}, {text}" for _, i, text in points]
        canvas.points(name, [x for x, *_ in points], [-i for _, i, _ in points], hover, mode="markers", marker=look)

    def layer(row: Row, share: float) -> str:
        """Return a share as a layer of the row's model."""
        return f"layer {share * row.layers:.1f} of {row.layers}"

    each, grey = list(enumerate(rows)), dict(width=2, color=colours.GREY)
    ruled = [(x, i, f"{n}: layer {x * r.layers - 1:.0f} in the papers' count") for i, r in each for n, x in r.rules]
    marks("published rules", ruled, symbol="line-ns", size=15, line=grey)
    copies = [(x, i, f"untrained copy: {layer(r, x)}") for i, r in each for x in r.copies]
    marks("untrained copy", copies, size=12, color=colours.CLEAR, line=grey)
    name = "average depth, with its 90 % interval"
    own = [(r.share, i, f"{name}: {layer(r, r.share)}") for i, r in each if np.isfinite(r.share)]
    marks(name, own, size=12, color=colours.ATTENTION)
    if right:
        canvas.write(right, 12, **AT_RIGHT, **OVER, xshift=16)
    canvas.layout["xaxis"] = share_axis("share of the depth", tickformat=".0%")
    canvas.layout["yaxis"] = dict(PLAIN, range=[0.6 - len(rows), 0.6], visible=False)
    canvas.legend(traceorder="reversed")
    return canvas.figure()
