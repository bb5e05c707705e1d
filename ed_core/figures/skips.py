"""What breaks when a block is left out: the skip map."""
from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from . import colours
from .canvas import PLAIN, STEADY, Canvas, axis_title, tick_step
from .maps import missing, unit_of, values_of
from .panel import HEATMAP, OVERLAY_LIMIT, Strip, View, add_cells, add_heatmap, add_strip, frame, hover_heatmap
from .text import number

LAYER_LABEL = 20  # pixels that a layer's number needs below the map
SHADE = colours.without_zero(colours.linear(0.0, 1.0))


def skip_map(result: ProbeResult, view: View, measure: str = "effect") -> go.Figure:
    """Skipped block (upwards) × affected block (to the right): how much each update changes, colour always from 0 to 1.

    Cells above 1 carry a ring and tell their value on hover. Hatched is what is zero by construction, empty what is not computed yet. The
    strip shows the change of the output. The map is kept about square at `width_px`; its rows are those of every other panel.
    """
    n_layers, row_px = result.n_layers, view.plot_height / (result.n_layers + 1)
    z = values_of(result, measure, (n_layers, n_layers))
    domain = (0.0, min(HEATMAP[1], max(0.4, row_px * n_layers / view.plot_width)))
    canvas = frame(view, n_layers, "skipped layer")
    add_heatmap(canvas, z, SHADE, unit_of(result, measure), domain, gap=row_px >= 8)
    _hatch(canvas, n_layers, diagonal=_diagonal_is_zero(result, measure))
    _ring(canvas, z)
    _cells(canvas, result, measure, z)
    add_strip(canvas, Strip(values_of(result, "output", (n_layers,)), 0.0, 2**0.5, "output change"), "skipped layer", domain)
    ticks = list(range(0, n_layers, tick_step(n_layers, view.plot_width * domain[1] / LAYER_LABEL)))
    canvas.layout["xaxis"] = dict(PLAIN, range=[-0.5, n_layers - 0.5], tickvals=ticks, title=axis_title("affected layer"), domain=domain)
    canvas.draw_depths(view.depth_lines, row_px)
    return canvas.figure()


def _diagonal_is_zero(result: ProbeResult, measure: str) -> bool:
    """Whether a block cannot feel its own skip: when looking only behind the skipped tokens, or at direct effects."""
    return dict(result.request.parameters).get("mode") == "future" or measure == "effect_direct"


def _hatch(canvas: Canvas, n_layers: int, diagonal: bool) -> None:
    """A staircase over the cells with affected < skipped (or =): known to be zero before anything is computed."""
    x, y = [-0.5], [n_layers - 0.5]
    for row in range(n_layers - 1, -1, -1):
        edge = row - 0.5 + diagonal
        x, y = x + [edge, edge], y + [row + 0.5, row - 0.5]
    pattern = dict(shape="/", fgcolor=colours.GREY, bgcolor=colours.VEIL, size=7, solidity=0.12)
    look = dict(mode="none", fill="toself", fillpattern=pattern, hoverinfo="skip")
    canvas.add("scatter", x=[*x, -0.5], y=[*y, -0.5], name="zero by construction", **look)


def _ring(canvas: Canvas, z: np.ndarray) -> None:
    """A small ring on every cell that is beyond the colour range."""
    y, x = np.nonzero(np.nan_to_num(z) > 1.0 + 1e-6)
    ring = dict(symbol="circle-open", size=5, color=colours.DARK_EDGE, line=dict(width=1.2))
    canvas.add("scatter", x=x, y=y, mode="markers", name="above 1", hoverinfo="skip", marker=ring, **STEADY)


def _cells(canvas: Canvas, result: ProbeResult, measure: str, z: np.ndarray) -> None:
    """Hover and clicks. Above the limit hover comes from the heatmap, and the diagonal alone can be clicked."""
    n, unit, absent, zero = len(z), unit_of(result, measure), missing(result), _diagonal_is_zero(result, measure)
    floor = values_of(result, "noise_floor", (n,))

    def text(s: int, layer: int) -> str:
        if layer < s or (zero and layer == s):
            return "0 by construction"
        value = f"{number(z[s, layer])} {unit}" if np.isfinite(z[s, layer]) else absent
        return value + (f"<br>noise floor {number(floor[layer])}" if np.isfinite(floor[layer]) else "")

    cells = [(s, layer) for s in range(n) for layer in range(n)]
    if len(cells) > OVERLAY_LIMIT:
        hover_heatmap(canvas, f"layer %{{y}} skipped, layer %{{x}} affected<br>%{{z:.3g}} {unit}")
        cells = [(s, s) for s in range(n)]
    texts = [text(*cell) for cell in cells]
    add_cells(canvas, cells, texts, "layer %{customdata[0]} skipped, layer %{customdata[1]} affected<br>%{text}")
