"""What a `numerics` result comes to: whether each check passes, and by how much. Numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..types import ProbeResult

LOGITS = {  # figures on recomputed logits that refuse a model
    "closure": "logits from the last residual",
    "replay": "logits layer by layer",
    "detour": "logits with another stream put in",
}


@dataclass(frozen=True)
class Check:
    """A figure of `numerics` and its limit: of the "sums" (the largest error), of the "slopes" (the largest distance
    from 1), or of recomputed logits."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def checks(result: ProbeResult) -> list[Check]:
    """Everything that must hold before a curve is to be trusted, the most telling first."""
    limits = result.provenance["limits"]
    slopes = np.concatenate([result["slope_attn"], result["slope_mlp"]])
    return [
        Check("sums", float(result["miss"].max()), limits["miss"]),
        Check("slopes", float(np.nanmax(np.abs(slopes - 1), initial=0.0)), limits["slope"]),
        *(Check(name, float(result[measure]), limits["miss"]) for measure, name in LOGITS.items()),
    ]
