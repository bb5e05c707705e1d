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
    """One exactness check of a model: its largest error and the limit that this must not exceed.

    `name`: "sums", "slopes" (the distance from 1), or which recomputed logits."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the error is within its limit."""
        return self.value <= self.limit


def checks(result: ProbeResult) -> list[Check]:
    """Return the exactness checks of a `numerics` result, the most telling first."""
    limits = result.provenance["limits"]
    slopes = np.concatenate([result["slope_attn"], result["slope_mlp"]])
    return [
        Check("sums", float(result["miss"].max()), limits["miss"]),
        Check("slopes", float(np.nanmax(np.abs(slopes - 1), initial=0.0)), limits["slope"]),
        *(Check(name, float(result[measure]), limits["miss"]) for measure, name in LOGITS.items()),
    ]
