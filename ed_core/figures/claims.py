"""What a claim is read off: the model's curve and its control's, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import plotly.graph_objects as go

from . import colours
from .canvas import PLAIN, Canvas, axis_title, whole_ticks
from .text import escaped, shown

LINES = (colours.BOTH, colours.OTHERS[0])  # the model, its control
DASHES = ("solid", "dash")
LONGEST = 14  # characters of a place's name


@runtime_checkable
class Drawn(Protocol):
    """A claim's curve, as `claims.record` has it; None where it is not defined."""

    @property
    def x_title(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def x(self) -> Sequence[float | None]: ...
    @property
    def values(self) -> Sequence[float | None]: ...
    @property
    def low(self) -> Sequence[float | None]: ...
    @property
    def high(self) -> Sequence[float | None]: ...
    @property
    def ticks(self) -> Sequence[str]: ...


def claim_curves(curves: Mapping[str, Drawn], height: int = 300, width_px: int = 1000) -> go.Figure:
    """`curves`: by its label, the first one's axes are drawn. Whiskers are the 5 and 95 % quantiles over prompts, none
    where these are None."""
    canvas = Canvas(height, (64, 16, 34, 48), uirevision="claims", width_px=width_px)
    first = next(iter(curves.values()))
    for i, (label, curve) in enumerate(curves.items()):
        x, values, low, high = map(_numbers, (curve.x, curve.values, curve.low, curve.high))
        names = curve.ticks or [f"{at:g}" for at in x]
        canvas.add(
            "scatter",
            x=x,
            y=values,
            mode="lines+markers",
            line=dict(color=LINES[i % 2], width=2, dash=DASHES[i % 2]),
            marker=dict(size=6),
            error_y=dict(
                type="data",
                symmetric=False,
                array=np.nan_to_num(high - values),
                arrayminus=np.nan_to_num(values - low),
                color=LINES[i % 2],
                thickness=1.5,
                width=3,
            ),
            name=escaped(label),
            text=[_hover(label, curve, *one) for one in zip(names, values, low, high)],
            hoverinfo="text",
        )
    places = _numbers(first.x)
    apart = max(float(np.ptp(places)), 1.0) / max(len(places) - 1, 1)
    ticks = whole_ticks(len(places))
    if first.ticks:
        ticks = dict(tickvals=places, ticktext=[escaped(shown(str(name), LONGEST)) for name in first.ticks])
    ends = [places.min() - apart / 3, places.max() + apart / 3]
    canvas.layout["xaxis"] = dict(PLAIN, range=ends, title=axis_title(escaped(first.x_title)), **ticks)
    canvas.layout["yaxis"] = dict(PLAIN, showgrid=True, gridcolor=colours.FAINT, title=axis_title(escaped(first.unit)))
    canvas.layout["showlegend"] = True
    canvas.layout["legend"] = dict(orientation="h", x=0, y=1, yanchor="bottom", xanchor="left", font=dict(size=11))
    return canvas.figure()


def _hover(label: str, curve: Drawn, name: str, value: float, low: float, high: float) -> str:
    told = f"{escaped(label)}, {escaped(curve.x_title)} {escaped(name)}<br>{value:.4g}"
    return f"{told} (5–95 %: {low:.4g} to {high:.4g})" if np.isfinite(low) else told


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], float)
