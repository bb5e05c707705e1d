"""A benchmark's score against the layers of many models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from . import colours
from .canvas import PLAIN, STEADY, Canvas, axis_title, escaped

HEIGHT = 420
FITTED, OWN, LEFT_OUT = "in the fits", "your own", "left out"
KINDS = {FITTED: colours.BOTH, OWN: colours.MLP, LEFT_OUT: "#7F7F7F"}
SMALL = 0.3  # billions of parameters with the smallest mark
LEAST, GROWS, MOST = 5.0, 2.4, 18.0  # pixels: of it, for every e-fold, and of the largest


def score_against_layers(
    points: Sequence[Mapping[str, Any]],
    score: str,
    line: tuple[float, float] | None = None,
    adjusted: tuple[float, float] | None = None,
    held: str = "",
    width_px: int = 1100,
) -> go.Figure:
    """A mark a model, as wide as it is large. `points`: `model`, `layers`, `params` (billions), `score`, `family`,
    `source` (of the layer count), `left_out` (why it enters no fit, ""), `own` (whether somebody gave it), `depth`
    (what was measured of its mean depth here, "" where nothing was). Models in the fits are filled, others hollow; own
    ones are diamonds, measured ones have a ring. `line`: constant and slope of layers alone, solid; `adjusted`: with
    what is `held` equal at its mean, dashed."""
    canvas = Canvas(HEIGHT, (64, 16, 48, 48), uirevision="leaderboard", width_px=width_px)
    for name, colour in KINDS.items():
        if some := [p for p in points if _kind(p) == name]:
            canvas.add(
                "scatter",
                x=[p["layers"] for p in some],
                y=[p["score"] for p in some],
                mode="markers",
                name=name,
                marker=dict(
                    size=[_width(p["params"]) for p in some],
                    symbol="diamond" if name == OWN else "circle",
                    color=[colours.CLEAR if p["left_out"] else colour for p in some],
                    opacity=0.75,
                    line=dict(width=1.5, color=colour),
                ),
                text=[_told(p) for p in some],
                customdata=[p["model"] for p in some],
                hovertemplate="%{text}<extra></extra>",
                **STEADY,
            )
    if measured := [p for p in points if p["depth"]]:
        canvas.add(
            "scatter",
            x=[p["layers"] for p in measured],
            y=[p["score"] for p in measured],
            mode="markers",
            name="measured here",
            marker=dict(
                size=[_width(p["params"]) + 7 for p in measured],
                color=colours.CLEAR,
                line=dict(width=2, color=colours.CRITERIA["kl"]),
            ),
            hoverinfo="skip",
        )
    ends = np.array([min((p["layers"] for p in points), default=1), max((p["layers"] for p in points), default=80)])
    for name, fitted, dash in (("layers alone", line, "solid"), (f"{held} held fixed", adjusted, "dash")):
        if fitted is not None:
            canvas.add(
                "scatter",
                x=ends.tolist(),
                y=(fitted[0] + fitted[1] * ends).tolist(),
                mode="lines",
                name=name,
                line=dict(width=2, dash=dash, color=colours.GREY),
                hoverinfo="skip",
            )
    canvas.layout["xaxis"] = dict(PLAIN, title=axis_title("layers", 8), rangemode="tozero")
    canvas.layout["yaxis"] = dict(PLAIN, title=axis_title(score), showgrid=True, gridcolor=colours.FAINT)
    canvas.layout["showlegend"] = True
    canvas.layout["legend"] = dict(orientation="h", x=0, y=1, yanchor="bottom", xanchor="left", font=dict(size=11))
    return canvas.figure()


def _kind(p: Mapping[str, Any]) -> str:
    if p["own"]:
        return OWN
    return LEFT_OUT if p["left_out"] else FITTED


def _width(params: int | float) -> float:
    return float(np.clip(LEAST + GROWS * np.log(params / SMALL), LEAST, MOST))


def _told(p: Mapping[str, Any]) -> str:
    lines = [
        f"<b>{escaped(p['model'])}</b>",
        f"{p['layers']} layers, {p['params']:.3g} B parameters: {p['score']:.1f}",
        f"family {escaped(p['family'])}; layers read in {escaped(p['source'])}",
        escaped(p["left_out"] and f"left out of fits: {p['left_out']}"),
        escaped(p["depth"]),
    ]
    return "<br>".join(filter(None, lines))
