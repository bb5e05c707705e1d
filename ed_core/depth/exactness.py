"""What a `numerics` result comes to: whether each check passes, and by how much. Numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..types import ProbeResult

LOGITS = ("closure", "replay", "detour")  # figures on recomputed logits that refuse a model


@dataclass(frozen=True)
class Check:
    """A figure of `numerics` and its limit: of the "sums" (the largest error, at `layer` and `token`), of the "slopes"
    (the largest distance from 1), or of recomputed logits."""

    name: str
    value: float
    limit: float
    layer: int = 0
    token: int = 0

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def checks(result: ProbeResult) -> list[Check]:
    """Everything that must hold before a curve is to be trusted, the most telling first."""
    limits = result.provenance["limits"]
    layer, token = np.unravel_index(np.argmax(np.nan_to_num(result["miss"], nan=np.inf)), result["miss"].shape)
    slopes = np.concatenate([result["slope_attn"], result["slope_mlp"]])
    return [
        Check("sums", float(result["miss"][layer, token]), limits["miss"], int(layer), int(token)),
        Check("slopes", float(np.nanmax(np.abs(slopes - 1), initial=0.0)), limits["slope"]),
        *(Check(name, float(result[name]), limits["miss"]) for name in LOGITS),
    ]
