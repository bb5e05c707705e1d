"""What is drawn of a looped model, pass by pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def loop_curves(aggregates: Mapping[str, np.ndarray]) -> tuple[tuple[str, str, str, str, str, np.ndarray], ...]:
    """Return the curves to draw of a looped model, from the aggregates of the probe `loops`: of each a key, title,
    measure, x axis, name and values, NaN where there is none (the change of the first pass)."""
    n = len(aggregates["times_kl"]) // 2
    more = f"other numbers of passes (its own: {n})"
    divergence, loss = (np.array(aggregates[f"times_{name}"], np.float64) for name in ("kl", "loss"))
    divergence[0] = loss[0] = np.nan  # at 0 passes only the embedding is read, far off all others
    change = aggregates["fixed_point"].reshape(n - 1, -1).mean(1)
    return (
        ("readout", "Readout after each pass, against the output", "readout_kl", "passes run", "KL",
         aggregates["readout_kl"][n, : n + 1]),
        ("times", f"Divergence with {more}", "times_kl", "passes run", "KL",
         divergence),
        ("loss", f"Loss with {more}", "times_loss", "passes run", "loss",
         loss),
        ("block-skip", "Without one layer in every pass: divergence", "block_skip_kl", "layer left out", "KL",
         aggregates["block_skip_kl"]),
        ("fixed", "Change of the stream against the pass before (0: a fixed point)", "fixed_point", "pass, from 0",
         "change", np.append(np.nan, change)),
        ("update", "Length of what a pass adds", "update_norm", "pass, from 0", "update", aggregates["update_norm"]),
    )  # fmt: skip
