"""A figure in one sentence, for those who cannot see it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..depth import say
from ..depth.side_by_side import shown_values
from ..types import ProbeResult
from .canvas import LOGARITHMIC, first_place, shown

# Of a measure's dims those that words call otherwise
CALLED = {"pos": "token", "skipped": "skipped layer", "affected": "affected layer"}


def is_map(figure: go.Figure) -> bool:
    """Return whether the figure is a heatmap of a measure's own cells; else its curves say what it shows."""
    return bool(figure.data and figure.data[0].name == "z")


def describe(result: ProbeResult, measure: str, boundary: int | None = None) -> str:
    """Return a sentence describing a map: the measure's size, smallest and largest value and their places, and the
    share that has a value. `boundary`: the index of the one shown, of a measure over several. Plain text, not
    escaped."""
    if measure not in result.measures:
        return f"{measure}: nothing computed yet."
    spec, values = result.measures[measure].spec, shown_values(result, measure)
    if boundary is not None:
        spec, values = replace(spec, dims=spec.dims[1:]), values[boundary]
    if values.dtype.kind == "i":
        values = np.where(values < 0, np.nan, values)
    size = " × ".join(say.count(n, CALLED.get(dim, dim)) for n, dim in zip(values.shape, spec.dims)) or "one number"
    what, known = f"{spec.meaning} ({spec.unit}), {size}", np.isfinite(values)
    if not known.any():
        return f"{what}: nothing computed yet."
    ends = [
        (name, np.unravel_index(find(values), values.shape))
        for name, find in (("smallest", np.nanargmin), ("largest", np.nanargmax))
    ]
    extremes = " and ".join(
        f"{name} {say.number(float(values[index]))} ({_place(index, spec.dims, result)})" for name, index in ends
    )
    share = "" if known.all() else f"; {say.share(float(known.mean()))} of the values are there"
    return f"{what}: {extremes}{share}."


def describe_curves(figure: go.Figure, about: str) -> str:
    """Return a sentence describing curves, bars or marks: `about`, the unit, and of each its smallest and largest value
    and their places. A trace with named places lists them as its `meta`. Where the upright axis is hidden, it only sets
    lines apart, and values run along the other one. Plain text."""
    axes = figure.layout.xaxis, figure.layout.yaxis
    along, up = ((axis.title.text or "").removesuffix(LOGARITHMIC) for axis in axes)
    flat = axes[1].visible is False
    curves = [words for trace in figure.data if (words := _curve(trace, along, up, flat))]
    unit = f" ({html.unescape(up)})" if up and not flat and not is_map(figure) else ""
    return f"{about}{unit}: {'; '.join(curves)}." if curves else about


def _curve(trace: Any, along: str, up: str, flat: bool) -> str:
    """Return the words for one trace; "" where it has no name, values or hover. `flat`: its values run along the x
    axis."""
    strip = trace.xaxis == "x2"  # next to a map, with its values along and its places up
    values, places, axis = (trace.x, trace.y, up) if flat or strip else (trace.y, trace.x, along)
    if trace.type not in ("scatter", "bar") or values is None or not trace.name or trace.hoverinfo == "skip":
        return ""
    values = np.asarray(values, object)
    known = [(float(v), i) for i, v in enumerate(values) if isinstance(v, (int, float, np.number)) and np.isfinite(v)]
    if not known:
        return ""
    where = places if places is not None else range(len(values))
    if isinstance(trace.meta, list | tuple):
        where = [html.unescape(name) for name in trace.meta]

    def words(end: tuple[float, int]) -> str:
        """Return a value and its place in words."""
        value, i = end
        if flat:
            return say.number(float(value))
        return f"{say.number(float(value))} at {axis} {f'{where[i]:.4g}' if isinstance(where[i], float) else where[i]}"

    ends = [words(known[0])] if len(known) == 1 else [f"smallest {words(min(known))}", f"largest {words(max(known))}"]
    edge = trace.type == "scatter" and trace.fill == "tonexty"  # of a band, whose name is in the legend
    name = trace.meta if edge else trace.name
    return f"{html.unescape(name)}, {', '.join(ends)}{f' {along}' if flat and along else ''}"


def _place(at: Sequence[np.intp], dims: tuple[str, ...], result: ProbeResult) -> str:
    """Return an array index in words: "layer 3, token 2 “·of”"."""
    return ", ".join(
        f"token {i} “{shown(result.tokens[i])}”" if dim == "pos" else f"{CALLED.get(dim, dim)} {i + first_place(dim)}"
        for dim, i in zip(dims, at)
    )
