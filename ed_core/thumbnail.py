"""A case study's picture for lists: a measure as a few whole numbers, drawn from the numbers themselves. Numpy only."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .types import ProbeResult

ROWS, COLUMNS = 24, 36
PICTURED = (("logit_lens", "top_probs"), ("layer_skip", "effect"), ("contributions", "layer_ratio"), ("residual_erasure", "effect"),
            ("integrated_gradients", "attribution"))  # fmt: skip


def thumbnail(results: Sequence[ProbeResult]) -> list[list[int]]:
    """Rows from layer 0 up, columns tokens or layers: 0 (least) to 255 (most), -1 where there is no value; empty where nothing is a map.
    The first result that is pictured stands for all; large maps are thinned to at most `ROWS` × `COLUMNS` by taking evenly spaced cells."""
    by_probe = {r.request.probe: r for r in reversed(results)}
    for probe, measure in PICTURED:
        if probe in by_probe and measure in by_probe[probe].measures:
            values = by_probe[probe][measure].astype(np.float64)
            return _thin(values[..., 0] if measure == "top_probs" else values)
    return []


def _thin(values: np.ndarray) -> list[list[int]]:
    if not values.size:
        return []
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)) for n, most in zip(values.shape, (ROWS, COLUMNS)))
    small = values[np.ix_(rows, columns)]
    known = np.isfinite(small)
    low, high = (small[known].min(), small[known].max()) if known.any() else (0.0, 1.0)
    scaled = np.where(known, (small - low) / ((high - low) or 1.0), 0.0)
    return np.where(known, (scaled * 255).round(), -1).astype(int).tolist()
