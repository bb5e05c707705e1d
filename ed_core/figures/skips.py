"""What breaks when a block is left out: the skip map."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from . import colours
from .canvas import PLAIN, STEADY, Canvas, axis_title, whole_ticks
from .curves import layer_curves
from .maps import L2, missing, unit_of, values_of
from .panel import (
    HEATMAP,
    LEFT,
    RIGHT,
    Strip,
    View,
    add_heatmap,
    add_hover,
    add_strip,
    beyond,
    frame,
    label_tokens,
)
from .text import number

SHADE = colours.without_zero(colours.linear(0.0, 1.0, scale=colours.DAMAGE))


def skip_map(result: ProbeResult, view: View, measure: str = "effect", boundary: int | None = None) -> go.Figure:
    """Skipped block (upwards) × affected block (to the right): how much each update changes, colour always from 0 to 1.

    Cells above 1 carry a ring and tell their value on hover. Hatched is what is zero by construction, empty what is not
    computed yet. The strip shows the change of the output. The map is kept about square at `width_px`; its rows are
    those of every other panel. `boundary`: the effect seen behind one boundary (by its place among the result's)
    instead of their maximum."""
    n_layers, row_px = result.n_layers, view.plot_height / (result.n_layers + 1)
    if boundary is None:
        z, output = values_of(result, measure, (n_layers, n_layers)), values_of(result, "output", (n_layers,))
    else:
        z, output = result["effect_by_boundary"][boundary], result["output_by_boundary"][boundary]
    domain = (0.0, min(HEATMAP[1], max(0.4, row_px * n_layers / view.plot_width)))
    canvas = frame(view, n_layers, "skipped layer")
    add_heatmap(canvas, z, SHADE, unit_of(result, measure), domain, gap=row_px >= 8)
    hatch(canvas, n_layers, diagonal=_diagonal_is_zero(result, measure))
    _ring(canvas, z)
    _cells(canvas, result, measure, z)
    behind = view.behind(lambda r: values_of(r, "output", (n_layers,))) if boundary is None else {}
    add_strip(canvas, Strip(output, 0.0, 2**0.5, f"output change,<br>{L2}", **behind), "skipped layer", domain)
    ticks = whole_ticks(n_layers)
    canvas.layout["xaxis"] = dict(
        PLAIN, range=[-0.5, n_layers - 0.5], title=axis_title("affected layer", 9), domain=domain, **ticks
    )
    canvas.draw_depths(view.depth_lines, row_px)
    return canvas.figure()


def boundary_map(result: ProbeResult, view: View, chosen: int | None = None) -> go.Figure:
    """Future mode's boundaries, one row each over the tokens, earliest first: dark where a block is left out, bright
    from the first token looked at; the first token, never touched, is clear. Rows other than the `chosen` one (its
    place among the result's) are faded."""
    boundaries, n = result["boundaries"], result.n_tokens
    order = np.argsort(boundaries)
    canvas = Canvas(64 + 22 * len(order), (LEFT + 14, RIGHT, 8, 44), uirevision="boundaries", width_px=view.width_px)
    t = np.arange(n)
    look = dict(
        zmin=0, zmax=1, colorscale=[[0, colours.SEQUENTIAL[1]], [1, colours.SEQUENTIAL[-1]]], showscale=False, ygap=4
    )
    for row, place in enumerate(order):
        side = np.where(t == 0, np.nan, t >= boundaries[place])
        z, words = np.full((len(order), n), np.nan), np.full((len(order), n), "", object)
        z[row], words[row] = side, np.where(side > 0, "effects looked for", "layer left out")
        hover = f"boundary {boundaries[place]}<br>token %{{x}}: %{{text}}<extra></extra>"
        opacity = 1.0 if chosen in (None, place) else 0.3
        canvas.add(
            "heatmap",
            z=z,
            name=f"boundary {boundaries[place]}",
            opacity=opacity,
            text=words.tolist(),
            hovertemplate=hover,
            hoverongaps=False,
            **look,
        )
    rows = dict(
        tickvals=list(range(len(order))),
        ticktext=[f"token {b}" for b in boundaries[order]],
        range=[len(order) - 0.5, -0.5],
    )
    canvas.layout["yaxis"] = {**PLAIN, **rows}
    label_tokens(canvas, view, result.tokens)
    canvas.layout["xaxis"]["domain"] = (0.0, 1.0)
    return canvas.figure()


def effect_on_layers(result: ProbeResult, view: View) -> go.Figure:
    """Per affected block, the largest effect that any skip before it has (none before the first); beside it the noise
    floor, what an intervention that does nothing reads there."""
    n = result.n_layers
    before = np.where(np.triu(np.ones((n, n), bool), 1), values_of(result, "effect", (n, n)), np.nan)
    curves = {"largest effect": np.fmax.reduce(before, axis=0), "noise floor": values_of(result, "noise_floor", (n,))}
    return layer_curves(
        curves, "", unit_of(result, "effect"), x="affected layer", height=view.height, uirevision="floor"
    )


def _diagonal_is_zero(result: ProbeResult, measure: str) -> bool:
    """Whether a block cannot feel its own skip: when looking only behind the skipped tokens, or at direct effects."""
    return dict(result.request.parameters).get("mode") == "future" or measure == "effect_direct"


def hatch(canvas: Canvas, n_layers: int, diagonal: bool) -> None:
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
    """What a cell tells."""
    n, unit, absent, zero = len(z), unit_of(result, measure), missing(result), _diagonal_is_zero(result, measure)
    floor = values_of(result, "noise_floor", (n,))

    def text(s: int, layer: int) -> str:
        if layer < s or (zero and layer == s):
            return "0 by construction"
        value = f"{number(z[s, layer])} {unit}" if np.isfinite(z[s, layer]) else absent
        return (
            value
            + beyond(SHADE, z[s, layer])
            + (f"<br>noise floor {number(floor[layer])}" if np.isfinite(floor[layer]) else "")
        )

    add_hover(canvas, "layer %{y} skipped, layer %{x} affected<br>", text, f"%{{z:.3g}} {unit}")
