"""What breaks when a block is left out: the skip map and the change of the output."""
from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from . import colours
from .maps import missing, unit_of, values_of
from .panel import (
    BOTTOM, HEATMAP, LEFT, MANY_ROWS, OVERLAY_LIMIT, RIGHT, STEADY, TITLE, TOP, Strip, View, add_cells, add_heatmap, add_strip, draw_depths, frame,
    tick_step,
)
from .text import number

SHADE = colours.without_zero(colours.linear(0.0, 1.0))


def skip_map(result: ProbeResult, view: View, measure: str = "effect") -> go.Figure:
    """Skipped block (upwards) × affected block (to the right): how much each update changes, colour always from 0 to 1.

    Cells above 1 carry a ring and tell their value on hover. Hatched is what is zero by construction, empty what is not computed yet. The
    strip shows the change of the output. The map is kept about square at `width_px`; its rows are those of every other panel.
    """
    n_layers = result.n_layers
    z = values_of(result, measure, (n_layers, n_layers))
    room, high = view.width_px - LEFT - RIGHT, view.height - TOP - BOTTOM - TITLE * bool(view.title)
    domain = (0.0, min(HEATMAP[1], max(0.4, high * n_layers / (n_layers + 1) / room)))
    fig = frame(view, n_layers, "skipped layer", domain)
    add_heatmap(fig, z, SHADE, unit_of(result, measure), gap=high / (n_layers + 1) >= 8)
    _hatch(fig, n_layers, diagonal=_diagonal_is_zero(result, measure))
    _ring(fig, z)
    _cells(fig, result, measure, z)
    output = values_of(result, "output", (n_layers,))
    add_strip(fig, Strip(output, 0.0, 2**0.5, "output change"), "skipped layer")
    step = tick_step(n_layers, room * domain[1] / 22)
    fig.update_layout(xaxis=dict(range=[-0.5, n_layers - 0.5], tickvals=list(range(0, n_layers, step)), title=dict(text="affected layer", standoff=4)))
    draw_depths(fig, view.depth_lines)
    return fig


def output_bars(result: ProbeResult, view: View) -> go.Figure:
    """Per skipped block: the change of the predicted distribution (bars), and the share of tokens whose best prediction stays (dots)."""
    n_layers = result.n_layers
    change, kept = values_of(result, "output", (n_layers,)), values_of(result, "top1_kept", (n_layers,))
    fig = frame(view, n_layers, "", (0.0, 1.0))
    x, hover = list(range(n_layers)), "skipped layer %{x}<br>%{y:.3g} %{meta}<extra></extra>"
    fig.add_trace(go.Bar(x=x, y=change, name="output change", marker_color=colours.BOTH, hovertemplate=hover, meta="L2 of probabilities", **STEADY))
    dots = dict(mode="lines+markers", marker_size=5, line=dict(color=colours.GREY, width=1.5))
    fig.add_trace(go.Scatter(x=x, y=kept, name="best token kept", hovertemplate=hover, meta="of tokens keep their best", **dots, **STEADY))
    step = tick_step(n_layers, (view.width_px - LEFT - RIGHT) / 22)
    fig.update_layout(
        xaxis=dict(range=[-0.5, n_layers - 0.5], tickvals=x[::step], title=dict(text="skipped layer", standoff=4)),
        yaxis=dict(range=[0, 1.45], tickvals=[0, 0.5, 1], showgrid=True, gridcolor=colours.FAINT),
        showlegend=True,
        legend=dict(orientation="h", x=0, y=1, yanchor="bottom", font_size=11, bgcolor=colours.CLEAR),
        xaxis2_visible=False,
    )
    draw_depths(fig, view.depth_lines, upright=True)
    return fig


def _diagonal_is_zero(result: ProbeResult, measure: str) -> bool:
    """Whether a block cannot feel its own skip: when looking only behind the skipped tokens, or at direct effects."""
    return dict(result.request.parameters).get("mode") == "future" or measure == "effect_direct"


def _hatch(fig: go.Figure, n_layers: int, diagonal: bool) -> None:
    """A staircase over the cells with affected < skipped (or =): known to be zero before anything is computed."""
    x, y = [-0.5], [n_layers - 0.5]
    for row in range(n_layers - 1, -1, -1):
        edge = row - 0.5 + diagonal
        x, y = x + [edge, edge], y + [row + 0.5, row - 0.5]
    pattern = dict(shape="/", fgcolor=colours.GREY, bgcolor="rgba(128,128,128,0.12)", size=7, solidity=0.12)
    fig.add_trace(
        go.Scatter(x=[*x, -0.5], y=[*y, -0.5], mode="none", fill="toself", fillpattern=pattern, name="zero by construction", hoverinfo="skip")
    )


def _ring(fig: go.Figure, z: np.ndarray) -> None:
    """A small ring on every cell that is beyond the colour range."""
    y, x = np.nonzero(np.nan_to_num(z) > 1.0 + 1e-6)
    ring = dict(symbol="circle-open", size=5, color=colours.DARK_EDGE, line_width=1.2)
    fig.add_trace(go.Scatter(x=x, y=y, mode="markers", name="above 1", hoverinfo="skip", marker=ring, **STEADY))


def _cells(fig: go.Figure, result: ProbeResult, measure: str, z: np.ndarray) -> None:
    """Hover and clicks. Above the limit hover comes from the heatmap, and the diagonal alone can be clicked."""
    n, unit, absent = len(z), unit_of(result, measure), missing(result)
    floor = values_of(result, "noise_floor", (n,))
    zero = _diagonal_is_zero(result, measure)

    def text(s: int, layer: int) -> str:
        if layer < s or (zero and layer == s):
            value = "0 by construction"
        else:
            value = f"{number(z[s, layer])} {unit}" if np.isfinite(z[s, layer]) else absent
        noise = f"<br>noise floor {number(floor[layer])}" if np.isfinite(floor[layer]) else ""
        return f"layer {s} skipped, layer {layer} affected<br>{value}{noise}"

    cells = [(s, layer) for s in range(n) for layer in range(n)]
    if len(cells) > OVERLAY_LIMIT:
        hover = f"layer %{{y}} skipped, layer %{{x}} affected<br>%{{z:.3g}} {unit}<extra></extra>"
        fig.data[0].update(hoverinfo=None, hovertemplate=hover)
        fig.update_layout(hoverdistance=8)
        cells = [(s, s) for s in range(n)]
    add_cells(fig, cells, [text(*cell) for cell in cells])
