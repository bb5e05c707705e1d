"""Curves over layers."""
from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from . import colours
from .maps import mean_title, part_colour, unit_of, values_of
from .panel import LEFT, RIGHT, STEADY, draw_depths, mean_over_tokens, tick_step
from .text import shown, visible

TOP, BOTTOM = 48, 38


def layer_curves(
    curves: Mapping[str, np.ndarray], title: str, unit: str, *, depth_lines: Mapping[str, int | None] = {}, height: int = 260,
    log: bool = False, x: str = "layer", width_px: int = 600, uirevision: str = "curves",
) -> go.Figure:
    """One line per curve, colour by name: attention, MLP, both, or a criterion; anything else gets a colour of its own."""
    spare = iter(colours.OTHERS * (1 + len(curves) // len(colours.OTHERS)))
    fig = go.Figure()
    for name, values in curves.items():
        colour = _colour(name) or next(spare)
        hover = f"{x} %{{x}}<br>%{{meta}}: %{{y:.3g}} {unit}<extra></extra>"
        label = visible(name, 40)
        line = dict(color=colour, width=2, dash="dot" if "mean" in name else "solid")
        fig.add_trace(go.Scatter(y=values, name=label, meta=label, mode="lines+markers", marker_size=4, line=line, hovertemplate=hover, **STEADY))
    n = max((len(values) for values in curves.values()), default=1)
    plain = dict(showgrid=False, automargin=False, fixedrange=True, tickfont_size=10, title_font_size=11, zeroline=False)
    step = tick_step(n, (width_px - LEFT - RIGHT) / 22)
    fig.update_layout(
        height=height, margin=dict(l=LEFT + 8, r=RIGHT, t=TOP, b=BOTTOM, autoexpand=False), uirevision=uirevision, hovermode="closest", dragmode=False,
        paper_bgcolor=colours.CLEAR, plot_bgcolor=colours.CLEAR, hoverlabel=dict(align="left", namelength=0),
        title=dict(text=title, x=0, xref="paper", y=1, yref="container", yanchor="top", pad_t=4, font_size=14),
        showlegend=len(curves) > 1, legend=dict(orientation="h", x=0, y=1, yanchor="bottom", font_size=11, bgcolor=colours.CLEAR),
        xaxis=dict(range=[-0.5, n - 0.5], tickvals=list(range(0, n, step)), title=dict(text=x, standoff=4), **plain),
        yaxis=dict(type="log" if log else "linear", title=dict(text=unit, standoff=4), **{**plain, "showgrid": True, "gridcolor": colours.FAINT}),
    )
    if not log and any(np.nanmin(v, initial=0.0) < 0 for v in curves.values()):
        fig.add_shape(type="line", xref="paper", x0=0, x1=1, y0=0, y1=0, line=dict(color=colours.GREY, width=1), layer="below")
    draw_depths(fig, depth_lines, upright=True)
    return fig


def token_profile(
    result: ProbeResult, measure: str | Sequence[str], token: int, *, depth_lines: Mapping[str, int | None] = {}, height: int = 260,
    log: bool = False, first_token: bool = True, width_px: int = 600,
) -> go.Figure:
    """One token's curves over layers; beside a single measure, dotted, its mean over the tokens."""
    names = (measure,) if isinstance(measure, str) else tuple(measure)
    arrays = {name: values_of(result, name, (result.n_layers, result.n_tokens)) for name in names}
    curves = {name: array[:, token] for name, array in arrays.items()}
    if len(names) == 1:
        curves[mean_title(first_token)] = mean_over_tokens(arrays[names[0]], first_token)
    rows = "depth" if len(arrays[names[0]]) > result.n_layers else "layer"
    title = f"token {token} <b>{visible(result.tokens[token])}</b>"
    return layer_curves(
        curves, title, unit_of(result, names[0]), depth_lines=depth_lines, height=height, log=log, x=rows, width_px=width_px, uirevision="profile"
    )


def describe(result: ProbeResult, measure: str) -> str:
    """One plain sentence instead of the picture: how large it is, its smallest and largest value and where, how much is computed."""
    if measure not in result.measures:
        return f"{measure}: nothing computed yet."
    spec, values = result.measures[measure].spec, values_of(result, measure, ())
    size = " × ".join(f"{n} {dim}" for n, dim in zip(values.shape, spec.dims)) or "one number"
    known = np.isfinite(values)
    if not known.any():
        return f"{spec.meaning} ({spec.unit}), {size}: nothing computed yet."
    ends = [f"{word} {values[at]:.3g} ({_place(at, spec.dims, result)})" for word, at in _extremes(values)]
    share = "" if known.all() else f"; {known.mean():.0%} of the cells have a value"
    return f"{spec.meaning} ({spec.unit}), {size}: {' and '.join(ends)}{share}."


def _extremes(values: np.ndarray):
    for word, find in (("smallest", np.nanargmin), ("largest", np.nanargmax)):
        yield word, np.unravel_index(find(values), values.shape)


def _place(at: tuple, dims: tuple[str, ...], result: ProbeResult) -> str:
    words = {"pos": "token"}
    return ", ".join(f"{words.get(d, d)} {i}" + (f" “{shown(result.tokens[i])}”" if d == "pos" else "") for d, i in zip(dims, at))


def _colour(name: str) -> str | None:
    if name.lower() in colours.CRITERIA:
        return colours.CRITERIA[name.lower()]
    first = name.split("_")[0].split(" ")[0].lower()
    return part_colour(name) if first in ("attn", "attention", "mlp", "layer", "both", "block") else None
