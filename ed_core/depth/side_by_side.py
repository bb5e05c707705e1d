"""Two results of one probe side by side: another model or another prompt. Numpy only.

Curves of models of different depth share the axis *relative depth*, the share of the layers that have been passed:
layer `l` of `L` is at `(l + 1) / L`, as the effective depth's ratio counts (Hu et al. 2025), the stream before layer
`l` at `l / L`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ..probes import PROBES, Probe
from ..probes.base import Curve
from ..results.aggregate import summary_without
from ..types import ProbeResult
from .among_others import Likeness, curves_of, likeness_of, over_tokens

SIDES = ("A", "B")
COMPARED = tuple(probe.name for probe in PROBES if probe.curves)  # what has curves to lay over each other
DEPTHS = ("layer", "depth", "skipped")  # axes along which models of different depth are matched


def relative_depth(n: int, n_layers: int) -> np.ndarray:
    """Return the relative depth, in [0, 1], of each entry of a curve over layers (`n == L`) or depths."""
    return (np.arange(n) + (n == n_layers)) / n_layers


def matched(a: np.ndarray, b: np.ndarray, n_layers: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return two models' curves entry by entry: unchanged if the models are equally deep, else both at the relative
    depths of the shallower one, the deeper one's interpolated."""
    if n_layers[0] == n_layers[1]:
        return a, b
    x_a, x_b = (relative_depth(len(c), n) for c, n in zip((a, b), n_layers))
    return (a, np.interp(x_a, x_b, b)) if n_layers[0] < n_layers[1] else (np.interp(x_b, x_a, a), b)


@dataclass(frozen=True)
class Pair:
    """One curve of two results A and B.

    `likeness`: of their shapes; `difference`: B - A, `[layer]`, at the entries of `matched`."""

    curve: Curve
    a: np.ndarray
    b: np.ndarray
    n_layers: tuple[int, int]
    difference: np.ndarray
    likeness: Likeness

    @property
    def relative(self) -> bool:
        """Whether layers are compared by relative depth, as the sides have different numbers of them."""
        return self.n_layers[0] != self.n_layers[1]

    @property
    def largest(self) -> int | None:
        """The index of the entry where B differs most from A; None where no entry has a value in both."""
        return int(np.nanargmax(np.abs(self.difference))) if np.isfinite(self.difference).any() else None


def pairs(
    probes: tuple[Probe, Probe],
    a: ProbeResult,
    b: ProbeResult,
    sinks: tuple[Collection[int], Collection[int]] = ((), ()),
) -> list[Pair]:
    """Return every curve of a probe as a `Pair` of two complete results, each read with its own of `probes`.
    `sinks`: positions that each side's means over tokens leave out."""
    first = [getattr(p, "first_token", True) for p in probes]
    summaries = [a.summary, b.summary]
    if any(sinks) and over_tokens(probes[0]):
        summaries = [summary_without(r, places, counts) for r, places, counts in zip((a, b), sinks, first)]
        first = [True, True]  # the first token is left out already
    curves_of_both = [curves_of(p, [s], counts) for p, s, counts in zip(probes, summaries, first)]
    n_layers, out = (a.n_layers, b.n_layers), []
    for curve in probes[0].curves:
        mine, theirs = (np.asarray(curves[curve.name], np.float64) for curves in curves_of_both)
        m, t = matched(mine, theirs, n_layers)
        out.append(Pair(curve, mine, theirs, n_layers, t - m, likeness_of(curve, m, t)))
    return out


def no_difference(a: ProbeResult, b: ProbeResult, dims: tuple[str, ...]) -> str:
    """Return why two results have no map of differences, cells not meaning the same on both sides; "" where they do."""
    if "step" in dims:
        return "Each side writes its own tokens: columns do not correspond, so no map of differences is drawn."
    if "pos" in dims and a.tokens != b.tokens:
        tokens = f"The sides have different tokens ({a.n_tokens} and {b.n_tokens})"
        return f"{tokens}: columns do not correspond, so no map of differences is drawn."
    return ""


def shown_values(result: ProbeResult, measure: str) -> np.ndarray:
    """Return the array that a map of a measure shows; of a list of best tokens the first."""
    values = result[measure]
    first: np.ndarray = values[..., 0] if result.measures[measure].spec.dims[-1:] == ("rank",) else values
    return first


def nearest(n_layers: int, shallower: int, depths: bool = False) -> np.ndarray:
    """Return for every layer (or depth, of which a model has one more) of the shallower model the index of the layer,
    of `n_layers`, that is nearest in relative depth; of equals the lower."""
    first, more = (0, 1) if depths else (1, 0)
    x, own = (first + np.arange(n + more) for n in (shallower, n_layers))  # whole numbers: ties are ties
    layers: np.ndarray = np.abs(own * shallower - x[:, None] * n_layers).argmin(1)
    return layers


def common(a: ProbeResult, b: ProbeResult, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays that maps of both results show, of one shape: at the shallower model's layers."""
    both, n = [], min(a.n_layers, b.n_layers)
    for result in (a, b):
        values = shown_values(result, measure).astype(np.float64)
        for axis, dim in enumerate(result.measures[measure].spec.dims[: values.ndim]):
            if dim in DEPTHS and result.n_layers > n:
                values = values.take(nearest(result.n_layers, n, dim == "depth"), axis)
        both.append(values)
    return both[0], both[1]


def difference(a: ProbeResult, b: ProbeResult, measure: str) -> np.ndarray:
    """Return B - A of a measure, cell by cell, over `common` layers, NaN where either is missing. A `ValueError` where
    cells do not mean the same on both sides."""
    if reason := no_difference(a, b, a.measures[measure].spec.dims):
        raise ValueError(reason)
    mine, theirs = common(a, b, measure)
    return np.asarray(theirs - mine)
