"""A figure in one sentence, for those who cannot see it."""

from __future__ import annotations

import html

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from .maps import values_of
from .text import shown

PLURAL = {
    "layer": "layers",
    "depth": "depths",
    "pos": "tokens",
    "skipped": "skipped layers",
    "rank": "ranks",
    "boundary": "boundaries",
}


def describe(result: ProbeResult, measure: str) -> str:
    """How large it is, its smallest and largest value and where, and how much of it has a value. Plain text: tokens are
    not escaped."""
    if measure not in result.measures:
        return f"{measure}: nothing computed yet."
    spec, values = result.measures[measure].spec, values_of(result, measure, ())
    size = " × ".join(f"{n} {PLURAL.get(dim, dim)}" for n, dim in zip(values.shape, spec.dims)) or "one number"
    what, known = f"{spec.meaning} ({spec.unit}), {size}", np.isfinite(values)
    if not known.any():
        return f"{what}: nothing computed yet."
    ends = [
        (name, np.unravel_index(find(values), values.shape))
        for name, find in (("smallest", np.nanargmin), ("largest", np.nanargmax))
    ]
    found = " and ".join(f"{name} {values[at]:.3g} ({_place(at, spec.dims, result)})" for name, at in ends)
    share = "" if known.all() else f"; {known.mean():.0%} of the values are there"
    return f"{what}: {found}{share}."


def describe_curves(figure: go.Figure, about: str) -> str:
    """A figure of curves or bars: what it is `about`, and of each its smallest and largest value and where. Plain
    text."""
    along = figure.layout.xaxis.title.text or ""
    told = [said for trace in figure.data if (said := _curve(trace, along))]
    return f"{about}: {'; '.join(told)}." if told else about


def _curve(trace, along: str) -> str:
    if trace.type not in ("scatter", "bar") or trace.y is None or not trace.name or trace.hoverinfo == "skip":
        return ""
    y = np.asarray(trace.y, object)
    known = [(float(v), i) for i, v in enumerate(y) if isinstance(v, (int, float, np.number)) and np.isfinite(v)]
    if len(known) < 2:
        return ""
    where = trace.x if trace.x is not None else range(len(y))
    ends = [
        f"{name} {value:.3g} at {along} {where[i]}"
        for name, (value, i) in (("smallest", min(known)), ("largest", max(known)))
    ]
    return f"{html.unescape(trace.name)}, {ends[0]}, {ends[1]}"


def _place(at: tuple, dims: tuple[str, ...], result: ProbeResult) -> str:
    """Where in the array: "layer 3, token 2 “·of”"."""
    return ", ".join(
        f"token {i} “{shown(result.tokens[i])}”" if dim == "pos" else f"{dim} {i}" for dim, i in zip(dims, at)
    )
