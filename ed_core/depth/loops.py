"""Depth in passes of a looped model, from what `loops` measures: the rules of effective depth, read off after every
pass instead of before every layer."""

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
    found = np.flatnonzero(holds[1:passes])
    return LoopDepth(name, passes, int(found[0]) + 1 if len(found) else None, None if np.isnan(mean) else mean)


def by_passes(aggregates: Mapping[str, np.ndarray], name: str) -> list[LoopDepth]:
    """The depth of the model run with 1, 2, …, 2R passes. `aggregates`: of the probe `loops`."""
    rows = aggregates[f"readout_{name}"]
    return [loop_depth(name, rows[times, : times + 1]) for times in range(1, len(rows))]


def some_passes(values: ArrayLike) -> np.ndarray:
    """The same over numbers of passes, NaN at none: there the embedding alone is read, far off all others."""
    found = np.array(values, np.float64)
    found[0] = np.nan
    return found


def change_by_pass(aggregates: Mapping[str, np.ndarray]) -> np.ndarray:
    """`[pass]`: `fixed_point`, the change of the stream against the pass before, mean over a pass's layers; NaN for the
    first pass."""
    n = len(aggregates["times_kl"]) // 2
    return np.concatenate([[np.nan], aggregates["fixed_point"].reshape(n - 1, -1).mean(1)])


def drawn(aggregates: Mapping[str, np.ndarray]) -> tuple[tuple[str, str, str, str, str, np.ndarray], ...]:
    """What is drawn of `loops`: a key, title, measure, what it runs over, the curve's name and values. Readouts, other
    numbers of passes than its own, what is left out in all of them, and what a pass moves. `aggregates`: as
    `by_passes`."""
    n = len(aggregates["times_kl"]) // 2
    more = f"other numbers of passes (its own: {n})"
    return (
        ("readout", "Readout after each pass, against the output", "readout_kl", "passes run", "KL",
         aggregates["readout_kl"][n, : n + 1]),
        ("times", f"Divergence with {more}", "times_kl", "passes run", "KL",
         some_passes(aggregates["times_kl"])),
        ("loss", f"Loss with {more}", "times_loss", "passes run", "loss",
         some_passes(aggregates["times_loss"])),
        ("block-skip", "Without one layer in every pass: divergence", "block_skip_kl", "layer left out", "KL",
         aggregates["block_skip_kl"]),
        ("fixed", "Change of the stream against the pass before (0: a fixed point)", "fixed_point", "pass, from 0",
         "change", change_by_pass(aggregates)),
        ("update", "Length of what a pass adds", "update_norm", "pass, from 0", "update", aggregates["update_norm"]),
    )  # fmt: skip
