"""Depth in passes of a looped model, from what `loops` measures: the rules of effective depth, read after every pass
instead of before every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .mean_depth import MEAN_DEPTH
from .rules import KL_THRESHOLD, OVERLAP_THRESHOLD, more_than


@dataclass(frozen=True)
class LoopDepth:
    """Of a model run with `passes` passes. `first`: the first pass after which the readout meets the rule, counted from
    1, before the last; None where none does. `mean`: the depth without a threshold, in passes, as of layers; None where
    it is not defined."""

    name: str
    passes: int
    first: int | None
    mean: float | None

    @property
    def ratio(self) -> float | None:
        """`mean / passes`."""
        return None if self.mean is None else self.mean / self.passes


def loop_depth(name: str, curve: ArrayLike) -> LoopDepth:
    """Of one curve of readouts `[passes + 1]` against the output, entry r being read after r passes. `name`: "kl",
    whose rule is less than half of the largest divergence, or "overlap", whose rule is more than 30 % in common."""
    values = np.asarray(curve, np.float64)
    passes = len(values) - 1
    mean = float(MEAN_DEPTH[name](values[None])[0])
    holds = values < KL_THRESHOLD * values.max() if name == "kl" else more_than(values, OVERLAP_THRESHOLD)
    passing = np.flatnonzero(holds[1:passes])
    return LoopDepth(name, passes, int(passing[0]) + 1 if len(passing) else None, None if np.isnan(mean) else mean)


def by_passes(aggregates: Mapping[str, np.ndarray], name: str) -> list[LoopDepth]:
    """The depth of the model run with 1, 2, …, 2R passes. `aggregates`: of the probe `loops`."""
    rows = aggregates[f"readout_{name}"]
    return [loop_depth(name, rows[times, : times + 1]) for times in range(1, len(rows))]
