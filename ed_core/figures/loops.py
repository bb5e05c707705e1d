"""What is drawn of a looped model, pass by pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike


def _some_passes(values: ArrayLike) -> np.ndarray:
    """Return a curve over numbers of passes with NaN at 0 passes, where only the embedding is read, far off all
    others."""
    curve = np.array(values, np.float64)
    curve[0] = np.nan
    return curve


def _change_by_pass(aggregates: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the change of the stream against the pass before (`fixed_point`), `[pass]`, mean over its layers; NaN for
    the first."""
    n = len(aggregates["times_kl"]) // 2
    return np.concatenate([[np.nan], aggregates["fixed_point"].reshape(n - 1, -1).mean(1)])


def loop_curves(aggregates: Mapping[str, np.ndarray]) -> tuple[tuple[str, str, str, str, str, np.ndarray], ...]:
    """Return the curves to draw of a looped model, from the aggregates of the probe `loops`: of each a key, title,
    measure, x axis, name and values."""
    n = len(aggregates["times_kl"]) // 2
    more = f"other numbers of passes (its own: {n})"
    return (
        ("readout", "Readout after each pass, against the output", "readout_kl", "passes run", "KL",
         aggregates["readout_kl"][n, : n + 1]),
        ("times", f"Divergence with {more}", "times_kl", "passes run", "KL",
         _some_passes(aggregates["times_kl"])),
        ("loss", f"Loss with {more}", "times_loss", "passes run", "loss",
         _some_passes(aggregates["times_loss"])),
        ("block-skip", "Without one layer in every pass: divergence", "block_skip_kl", "layer left out", "KL",
         aggregates["block_skip_kl"]),
        ("fixed", "Change of the stream against the pass before (0: a fixed point)", "fixed_point", "pass, from 0",
         "change", _change_by_pass(aggregates)),
        ("update", "Length of what a pass adds", "update_norm", "pass, from 0", "update", aggregates["update_norm"]),
    )  # fmt: skip
