"""A figure in one sentence, for those who cannot see it."""
from __future__ import annotations

import numpy as np

from ..types import ProbeResult
from .maps import values_of
from .text import shown

PLURAL = {"layer": "layers", "depth": "depths", "pos": "tokens", "skipped": "skipped layers", "rank": "ranks", "boundary": "boundaries"}


def describe(result: ProbeResult, measure: str) -> str:
    """How large it is, its smallest and largest value and where, and how much of it has a value. Plain text: tokens are not escaped."""
    if measure not in result.measures:
        return f"{measure}: nothing computed yet."
    spec, values = result.measures[measure].spec, values_of(result, measure, ())
    size = " × ".join(f"{n} {PLURAL.get(dim, dim)}" for n, dim in zip(values.shape, spec.dims)) or "one number"
    what, known = f"{spec.meaning} ({spec.unit}), {size}", np.isfinite(values)
    if not known.any():
        return f"{what}: nothing computed yet."
    ends = [(name, np.unravel_index(find(values), values.shape)) for name, find in (("smallest", np.nanargmin), ("largest", np.nanargmax))]
    found = " and ".join(f"{name} {values[at]:.3g} ({_place(at, spec.dims, result)})" for name, at in ends)
    share = "" if known.all() else f"; {known.mean():.0%} of the values are there"
    return f"{what}: {found}{share}."


def _place(at: tuple, dims: tuple[str, ...], result: ProbeResult) -> str:
    """Where in the array: "layer 3, token 2 “·of”"."""
    return ", ".join(f"token {i} “{shown(result.tokens[i])}”" if dim == "pos" else f"{dim} {i}" for dim, i in zip(dims, at))
