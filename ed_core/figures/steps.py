"""Depth over the steps of a training: what a model's depth comes to at each of them, and its layers at each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..depth.rules import OF_LENS, RULES
from . import colours
from .canvas import GRID, LOGARITHMIC, PLAIN, Canvas, axis_title, first_place, number, tick_step
from .lens import lens_shade
from .maps import RATIO_DECADES
from .panel import HEATMAP, LETTER, Panel, Strip, View
from .studies import MEAN, WIDTH, name_lines

HEIGHT, MARGIN = 380, (54, 16, 40, 46)
PHONE = 300  # pixels along which steps are labelled: a plot on a narrow screen
BEFORE_FIRST = 0.5  # decades from step 0 to the first step, on a logarithmic axis
DEPTHS, SINKS = (0.26, 1.0), (0.0, 0.16)  # shares of the height
TURN, PAPER = "turn", "paper"
LOOKS: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {
    **{
        (name, MEAN): (f"average depth, {rule.label}", "lines+markers", dict(symbol="circle", size=7))
        for name, rule in OF_LENS.items()
    },
    ("cosine", TURN): ("clear switch", "markers", dict(symbol="star", size=12)),
    **{
        (name, PAPER): (f"papers: {rule.label}", "markers", dict(symbol="diamond-open", size=7, line=dict(width=1.5)))
        for name, rule in RULES.items()
    },
}


def places(steps: Sequence[int], log: bool) -> np.ndarray:
    """Return the coordinates of training steps: themselves, or with `log` their logarithm to base 10, step 0 half a
    decade before the first other one."""
    positions = np.asarray(steps, float)
    if not log:
        return positions
    positive = positions > 0
    first = np.log10(positions[positive].min()) if positive.any() else 0.0
    return np.where(positive, np.log10(np.where(positive, positions, 1)), first - BEFORE_FIRST)


def depth_over_steps(
    rows: Sequence[Mapping[str, Any]],
    n_layers: int,
    sinks: Mapping[int, float | None] | None = None,
    log: bool = True,
    chosen: int | None = None,
) -> go.Figure:
    """Return a figure of depth, 0 to `n_layers`, over training steps: average depths as lines with their range over
    prompts, the turn as stars, the papers' three rules as hollow diamonds at their layer's end; below, sinks a prompt.

    `rows`: one for each step, `step`, `criterion`, `variant` ("mean", "turn", "paper"), `ratio` (None: a gap), `low`,
    `high` (layers, or None). `log`: steps on a logarithmic axis. `chosen`: a step to mark."""
    canvas = Canvas(HEIGHT, MARGIN, width_px=WIDTH)
    steps = sorted({row["step"] for row in rows})
    axis = dict(zip(steps, map(float, places(steps, log))))
    for (criterion, variant), (name, mode, marker) in LOOKS.items():
        own = [row for row in rows if (row["criterion"], row["variant"]) == (criterion, variant)]
        if not any(row["ratio"] is not None for row in own):
            continue
        colour, x = colours.CRITERIA[criterion], [axis[row["step"]] for row in own]
        y = np.array([np.nan if row["ratio"] is None else row["ratio"] * n_layers for row in own])
        if variant == MEAN:
            _range(canvas, name, x, own, colour)
        look: dict[str, Any] = dict(
            mode=mode,
            line=dict(color=colour, width=2, dash="solid" if criterion == "kl" else "dash"),
            marker=dict(color=colour) | marker,
            meta=[_short(row["step"]) for row in own],
        )
        canvas.points(name, x, y, [_hover(name, row, value) for row, value in zip(own, y)], **look)
    if shown := {step: n for step, n in (sinks or {}).items() if n is not None and step in axis}:
        look = dict(mode="lines+markers", line=dict(color=colours.GREY, width=1.5), marker=dict(size=5), yaxis="y2")
        hover = [f"step {step}<br>{number(n)} sinks a prompt" for step, n in shown.items()]
        look |= dict[str, Any](meta=[_short(step) for step in shown], showlegend=False)
        canvas.points("sinks", [axis[step] for step in shown], list(shown.values()), hover, **look)
        most = max(1.0, *shown.values())
        canvas.layout["yaxis2"] = dict(
            PLAIN, domain=SINKS, range=[-0.1 * most, 1.15 * most], nticks=3, title=axis_title("sinks"), anchor="x"
        )
    if chosen in axis:
        canvas.line(colours.GREY, 1.5, "dot", x0=axis[chosen], x1=axis[chosen], y0=0, y1=1, yref="paper", layer="below")
    along = np.array(list(axis.values()))
    canvas.layout["xaxis"] = dict(
        PLAIN,
        title=axis_title("step" + LOGARITHMIC * log),
        anchor="y2" if shown else "y",
        **_labelled(steps, along, PHONE),
    )
    ticks = list(range(0, n_layers + 1, tick_step(n_layers + 1, 9)))
    canvas.layout["yaxis"] = dict(
        GRID,
        range=[-0.02 * n_layers, 1.03 * n_layers],
        tickvals=ticks,
        title=axis_title(f"depth, of {n_layers} layers"),
        domain=DEPTHS if shown else (0.0, 1.0),
    )
    name_lines(canvas, len(LOOKS))
    return canvas.figure()


APART = 8  # pixels between a step's label and the strip's first


def layers_over_steps(
    z: np.ndarray, steps: Sequence[int], measure: str, unit: str, chosen: int | None = None, width_px: int = 560
) -> go.Figure:
    """Return a heatmap of `z` `[layer, step]`, a measure's mean over tokens, a column per training step.

    `chosen`: the index of a step to frame; its layers are in the strip, the first step's behind them. `unit`: "cosine"
    is coloured from -1 to 1, a ratio by logarithm; "nats" (the lens's divergence) is by depth."""
    row = "depth" if unit == "nats" else "layer"
    view = View(width_px=width_px, selected=chosen)
    canvas, (shade, ends) = Panel(view, len(z) - (row == "depth"), row), _shades(z, unit)
    gap = min(view.column_px(len(steps)), canvas.row_px) >= 8
    canvas.heatmap(z, shade, unit, HEATMAP, gap, y0=first_place(row))
    canvas.hover(
        f"{row} %{{y}}", lambda l, i: f" · step {steps[i]}<br>{number(z[l, i])} {unit}", f"<br>%{{z:.3g}} {unit}"
    )
    if chosen is not None:
        colour = colours.colour_of(measure) or colours.BOTH
        reference: dict[str, Any] = {} if chosen == 0 else dict(behind=z[:, 0], behind_name=f"step {steps[0]}")
        strip = Strip(z[:, chosen], *ends, f"step {steps[chosen]}", colour, shade.log, **reference)
        canvas.strip(strip)
    words = [_short(step) for step in steps]
    canvas.label_columns(words, [len(word) for word in words], ("xaxis", "xaxis3"))
    canvas.layout["xaxis"]["title"] = axis_title("step", 16)
    if chosen is not None:
        words, strip_axis = canvas.layout["xaxis"]["ticktext"], canvas.layout["xaxis2"]
        if not words[-1].startswith("<br>"):  # its labels in a line of their own, clear of the last step's
            strip_axis["ticktext"] = [f"<br>{word}" for word in strip_axis["ticktext"]]
        elif len(words) > 1:  # clear of the last step's but one
            strip_axis["ticklabelshift"] = APART
    canvas.mark_tokens(len(steps))
    return canvas.figure()


def _shades(z: np.ndarray, unit: str) -> tuple[colours.Shade, tuple[float, float]]:
    """Return the colours of a map, and the ends of its strip."""
    if unit == "nats":
        shade = lens_shade("kl", z)
        return shade, (shade.low, shade.high)
    if unit == "cosine":
        bound = colours.ceiling(z, (0.5, 1.0))
        return colours.signed(), (-bound, bound)
    low, high = colours.decades(z, RATIO_DECADES[0], (-6, 6))
    return colours.logarithmic(*colours.spread(z, RATIO_DECADES[0])), (10.0**low, 10.0**high)


def _range(canvas: Canvas, name: str, x: Sequence[float], rows: Sequence[Mapping[str, Any]], colour: str) -> None:
    """Draw the range over prompts behind a line, where at least two steps have one."""
    ranges = [(position, row["low"], row["high"]) for position, row in zip(x, rows) if row["low"] is not None]
    if len(ranges) < 2:
        return
    places, low, high = (np.asarray(one, float) for one in zip(*ranges))
    canvas.band(places, low, high, colour, name)


def _hover(name: str, row: Mapping[str, Any], depth: float) -> str:
    """Return a mark's hover text; "" without a depth."""
    if not np.isfinite(depth):
        return ""
    value = (
        f"layer {number(depth - 1)} in the papers' count" if row["variant"] == PAPER else f"after layer {number(depth)}"
    )
    text = f"step {row['step']}<br>{name}: {value}"
    if row["low"] is not None:
        text += f"<br>5 to 95 % over {row.get('over') or 'prompts'}: {number(row['low'])} to {number(row['high'])}"
    return text


def _labelled(steps: Sequence[int], x: np.ndarray, width_px: int) -> dict[str, Any]:
    """Return the labels of an axis of steps: the first, and from the last one back as many as fit."""
    pixels = (x - x.min()) / max(float(np.ptp(x)), 1e-9) * width_px
    half = np.array([(len(_short(step)) + 1) * LETTER / 2 for step in steps])
    kept, left = [0], np.inf
    for i in range(len(steps) - 1, 0, -1):
        if pixels[i] + half[i] <= left and pixels[i] - half[i] >= pixels[0] + half[0]:
            kept.append(i)
            left = pixels[i] - half[i]
    kept.sort()
    return dict(tickvals=[float(x[i]) for i in kept], ticktext=[_short(steps[i]) for i in kept], tickangle=0)


def _short(step: int) -> str:
    """Return a step as a label: 1536, 143k."""
    return f"{step // 1000}k" if step >= 10_000 and step % 1000 == 0 else str(step)
