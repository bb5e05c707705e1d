"""Curves over layers; and how exactly the sums hold: their error over layers and tokens, against rounding and limit,
slopes, and the first token's norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..depth.exits import THRESHOLDS, Headroom
from ..types import ProbeResult
from . import colours
from .canvas import FONT, OVER, Curves, escaped, number, visible, whiskers
from .maps import mean_title, unit_of, values_of
from .panel import Strip, View, token_panel

DOTTED: dict[str, Any] = dict(mode="lines+markers", marker=dict(size=4))


def layer_curves(
    curves: Mapping[str, np.ndarray],
    title: str,
    unit: str,
    *,
    height: int = 260,
    log: bool = False,
    x: str = "layer",
    width_px: int = 600,
    behind: Mapping[str, np.ndarray] = {},
    ends: Mapping[str, tuple[np.ndarray, np.ndarray]] = {},
    n_layers: int | None = None,
) -> go.Figure:
    """Return a figure of one line per curve, colour by name: attention, MLP, both, or a rule; means are dotted.

    `behind`: curves for comparison (a control's), grey and dashed. `ends`: by curve the low and high ends of its
    interval, drawn as bars. `n_layers`: the model's, where curves over depths end before the output."""
    spare = iter(colours.OTHERS * (1 + len(curves) // len(colours.OTHERS)))
    n = max((len(values) for values in curves.values()), default=1)
    canvas = Curves(n, x, unit, height, width_px, title)
    if n_layers is not None:
        canvas.along("x", n_layers)
    canvas.references(behind)
    for name, values in curves.items():
        colour = colours.colour_of(name) or next(spare)
        line = dict(color=colour, width=2, dash="dot" if name.startswith("mean") else "solid")
        bars: dict[str, Any] = {"error_y": whiskers(values, *ends[name], colour)} if name in ends else {}
        canvas.curve("scatter", values, escaped(name), **DOTTED, line=line, **bars)
    canvas.layout["showlegend"] = len(curves) + len(behind) > 1
    canvas.scale(tuple(curves.values()), log, tuple(behind.values()), type="linear")
    return canvas.figure()


def spread_curve(
    values: np.ndarray,
    quantiles: np.ndarray,
    unit: str,
    *,
    label: str = "this prompt",
    others: str = "",
    x: str = "layer",
    height: int = 260,
    width_px: int = 600,
    log: bool = False,
    behind: Mapping[str, np.ndarray] = {},
) -> go.Figure:
    """Return a figure of a curve over the spread of `others` ("10–90 % of 12 others"): grey from its lower to its upper
    end, dotted at the median.

    `quantiles`: these three rows, or none where the others are too few. `behind`: a control's curve, grey and
    dashed."""
    canvas = Curves(len(values), x, unit, height, width_px)
    if len(quantiles):
        low, median, high = quantiles
        edge: dict[str, Any] = dict(mode="lines", line=dict(width=0))
        canvas.curve("scatter", low, "lower end", **edge, showlegend=False)
        filled: dict[str, Any] = dict(showlegend=True, fill="tonexty", fillcolor=colours.FAINT, meta="upper end")
        canvas.curve("scatter", high, others, **edge, **filled)
        canvas.curve("scatter", median, "median", mode="lines", line=dict(color=colours.GREY, width=1.5, dash="dot"))
    canvas.references(behind)
    canvas.curve("scatter", values, label, **DOTTED, line=dict(color=colours.BOTH, width=2))
    canvas.layout["showlegend"] = bool(len(quantiles) or behind)
    canvas.scale((values, *quantiles, *behind.values()), log, rangemode="tozero")
    return canvas.figure()


def limit_bars(values: np.ndarray, limit: float | int, unit: str, *, name: str, limit_name: str) -> go.Figure:
    """Return a figure of one bar per layer under a line it must not pass; those that do have the colour of a
    failure."""
    canvas = Curves(len(values), "layer", unit)
    values = np.where(np.asarray(values) < 0, np.nan, values)  # -1: a whole number not computed yet
    failed = np.nan_to_num(values) > limit
    canvas.curve("bar", values, name, marker=dict(color=[colours.FAILED if bad else colours.BOTH for bad in failed]))
    canvas.across(limit, colours.GREY, 1.5, "dash")
    # above the bars, which would cover it next to its line
    canvas.write(f"┄ {limit_name}", FONT, **OVER, x=1, xref="paper", xanchor="right")
    canvas.layout["yaxis"]["range"] = [0, 1.15 * max(limit, float(np.fmax.reduce(values, initial=0.0)))]
    return canvas.figure()


def token_profile(result: ProbeResult, measure: str, token: int, view: View) -> go.Figure:
    """Return a figure of one token's curve over layers; dotted, the mean over the tokens that the view counts."""
    values = values_of(result, measure, (result.n_layers, result.n_tokens))
    return layer_curves(
        {measure.replace("_", " "): values[:, token], mean_title(uncounted=view.uncounted): view.mean(values)},
        f"token {token} <b>{visible(result.tokens[token])}</b>",
        unit_of(result, measure),
        x="depth" if len(values) > result.n_layers else "layer",
    )


def output_bars(result: ProbeResult, view: View) -> go.Figure:
    """Return a figure per skipped block: bars for the change of the predicted distribution (a control's dashed), dots
    for the share of tokens with an unchanged best prediction."""
    shape, unit = (result.n_layers,), unit_of(result, "output")
    canvas = Curves(result.n_layers, "skipped layer", "", view.height, view.width_px)
    change = values_of(result, "output", shape)
    canvas.curve("bar", change, "output change", unit=unit, marker=dict(color=colours.BOTH))
    if view.control is not None:
        canvas.references({f"{view.control_name}: output change": values_of(view.control, "output", shape)}, unit)
    dots = dict(mode="lines+markers", marker=dict(size=5), line=dict(color=colours.GREY, width=1.5))
    kept = values_of(result, "top1_kept", shape)
    canvas.curve("scatter", kept, "best token kept", unit="of the tokens", **dots)
    canvas.layout["showlegend"] = True
    canvas.layout["yaxis"].update(range=[0, 1.45], tickvals=[0, 0.5, 1])
    return canvas.figure()


EXACT = 1e-12  # an error of exactly 0 has no logarithm: it is drawn at the bottom of the scale


def miss_map(result: ProbeResult, view: View) -> go.Figure:
    """Return a heatmap, layers × tokens, of the error of a layer's sum (stream before plus additions, against stream
    after), colour by logarithm; hover adds what rounding can cause. The strip has the largest of a row."""
    shape = (result.n_layers, result.n_tokens)
    z, rounding = values_of(result, "miss", shape), values_of(result, "rounding", shape)
    low, high = colours.decades(z, (-9, -7), (-12, 1))
    worst = np.fmax.reduce(z, axis=1)
    strip = Strip(np.maximum(worst, 10.0**low), 10.0**low, 10.0**high, "largest", colours.GREY, log=True)

    def hover(row: int, column: int) -> str:
        """Return a cell's error next to what rounding can cause."""
        if not np.isfinite(z[row, column]):
            return "not computed yet"
        return f"error {number(z[row, column])}<br>rounding can cause {number(rounding[row, column])}"

    return token_panel(result, view, z, colours.logarithmic(low, high), unit_of(result, "miss"), strip, hover)


def miss_curves(result: ProbeResult, height: int = 260) -> go.Figure:
    """Return a figure per layer of the largest error of a token's sum, what rounding can cause there, and the limit
    from which a model is refused."""
    largest = {name: np.maximum(np.fmax.reduce(result[name], axis=1), EXACT) for name in ("miss", "rounding")}
    limit = np.full(result.n_layers, result.provenance["limits"]["miss"])
    curves = {"largest error": largest["miss"], "rounding can cause": largest["rounding"]}
    return layer_curves(curves, "", "relative", log=True, height=height, behind={"limit": limit})


def slope_curves(result: ProbeResult, height: int = 260) -> go.Figure:
    """Return a figure of how far the slopes of both branches (stream moved per unit added) are from 1, within the
    limit's dashed lines; no mark where a branch is below rounding."""
    limit = result.provenance["limits"]["slope"]
    curves = {"attention": result["slope_attn"] - 1, "MLP": result["slope_mlp"] - 1}
    ends = {f"limit {sign}": np.full(result.n_layers, by * limit) for sign, by in (("+", 1), ("−", -1))}
    fig = layer_curves(curves, "", "slope − 1", height=height, behind=ends)
    reach = 1.3 * max(limit, *(float(np.nanmax(np.abs(v), initial=0.0)) for v in curves.values()))
    fig.update_yaxes(range=[-reach, reach], tickvals=[-limit, 0, limit], ticktext=[number(-limit), "0", number(limit)])
    return fig


def first_token_norm(result: ProbeResult, height: int = 260) -> go.Figure:
    """Return a figure of the length of the first token's stream at every depth, against the others' median and
    largest."""
    first, others = result["resid_norm"][:, 0], result["resid_norm"][:, 1:]
    curves = {"first token": first, "others' median": np.median(others, axis=1), "others' largest": others.max(1)}
    return layer_curves(curves, "", unit_of(result, "resid_norm"), log=True, x="depth", height=height)


def spared_layers(found: Headroom) -> go.Figure:
    """Return a figure of agreement with the output against layers spared by early exits: all tokens at one depth, each
    where it is sure enough, and an oracle. Bars: 5 to 95 % over the prompts."""
    canvas = Curves(found.n_layers + 1, "layers spared on average", "share", 280, 760)
    agreement, spared = np.moveaxis(found.confident.value, -1, 0)
    left = found.n_layers - np.arange(found.n_layers + 1)
    at_depths = [f"depth {depth}" for depth in range(found.n_layers + 1)]
    confidences = [f"confidence {threshold:g}" for threshold in THRESHOLDS]
    curves: list[tuple[str, np.ndarray, np.ndarray, np.ndarray, Sequence[str]]] = [
        ("all at one depth", left, found.fixed.value, found.fixed.ends, at_depths),
        ("each where it is sure", spared, agreement, found.confident.ends[..., 0], confidences),
        ("oracle", found.oracle.value[None], np.ones(1), np.ones((2, 1)), ["by construction"]),
    ]
    for colour, (name, x, y, (low, high), text) in zip(colours.OTHERS, curves):
        look: dict[str, Any] = dict(marker=dict(size=10 if name == "oracle" else 5), line=dict(color=colour, width=2))
        if found.over.enough:
            look["error_y"] = whiskers(y, low, high, colour)
        canvas.curve("scatter", y, name, x=x, text=text, mode="lines+markers", **look)
    canvas.layout["showlegend"] = True
    canvas.layout["yaxis"].update(range=[-0.04, 1.08])
    return canvas.figure()
