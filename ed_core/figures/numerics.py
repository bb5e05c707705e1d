"""How exactly the sums hold: their error over layers and tokens, against rounding and limit, slopes, and the first
token's norm."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from . import colours
from .canvas import number
from .curves import layer_curves
from .maps import unit_of, values_of
from .panel import Strip, View, token_panel

EXACT = 1e-12  # an error of exactly 0 has no logarithm: it is drawn at the bottom of the scale


def miss_map(result: ProbeResult, view: View) -> go.Figure:
    """The error of every layer's sum on every token, colour by logarithm; hover tells it against rounding. The strip
    holds the largest of a row."""
    shape = (result.n_layers, result.n_tokens)
    z, rounding = values_of(result, "miss", shape), values_of(result, "rounding", shape)
    low, high = colours.decades(z, (-9, -7), (-12, 1))
    worst = np.fmax.reduce(z, axis=1)
    strip = Strip(np.maximum(worst, 10.0**low), 10.0**low, 10.0**high, "largest", colours.GREY, log=True)

    def hover(row: int, column: int) -> str:
        if not np.isfinite(z[row, column]):
            return "not computed yet"
        return f"error {number(z[row, column])}<br>rounding can cause {number(rounding[row, column])}"

    return token_panel(result, view, z, colours.logarithmic(low, high), unit_of(result, "miss"), strip, hover)


def miss_curves(result: ProbeResult, height: int = 260) -> go.Figure:
    """Per layer the largest error of a token, what rounding can cause there, and the limit from which a model is
    refused."""

    def largest(name: str) -> np.ndarray:
        found: np.ndarray = np.maximum(np.fmax.reduce(result[name], axis=1), EXACT)
        return found

    limit = np.full(result.n_layers, result.provenance["limits"]["miss"])
    curves = {"largest error": largest("miss"), "rounding can cause": largest("rounding")}
    return layer_curves(curves, "", "relative", log=True, height=height, behind={"limit": limit})


def slope_curves(result: ProbeResult, height: int = 260) -> go.Figure:
    """How far the slopes of both branches are from 1, within the limit's dashed lines; no mark where a branch is below
    rounding."""
    limit = result.provenance["limits"]["slope"]
    curves = {"attention": result["slope_attn"] - 1, "MLP": result["slope_mlp"] - 1}
    fig = layer_curves(curves, "", "slope − 1", height=height)
    reach = 1.3 * max(limit, *(float(np.nanmax(np.abs(v), initial=0.0)) for v in curves.values()))
    fig.update_yaxes(range=[-reach, reach], tickvals=[-limit, 0, limit], ticktext=[number(-limit), "0", number(limit)])
    for y in (-limit, limit):
        fig.add_shape(
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            y0=y,
            y1=y,
            line=dict(color=colours.GREY, width=1.5, dash="dash"),
            name="limit",
        )
    return fig


def first_token_norm(result: ProbeResult, height: int = 260) -> go.Figure:
    """Length of the first token's stream at every depth, against the median and the largest of the others."""
    norms = result["resid_norm"]
    curves = {
        "first token": norms[:, 0],
        "others' median": np.median(norms[:, 1:], axis=1),
        "others' largest": norms[:, 1:].max(1),
    }
    return layer_curves(curves, "", unit_of(result, "resid_norm"), log=True, x="depth", height=height)
