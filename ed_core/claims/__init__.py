"""Published statements about depth, each checked on a model and a prompt set. Importing this costs no torch.

To add a claim: a file here, a line below, and its made-up data: noise, a small effect, clear ones on which it must hold
and must not (`tests/made_up_claims.py`)."""

from __future__ import annotations

from ..errors import ParameterError
from ..studies.study import nearest
from .claim import Claim
from .layers import COSINE_WEAK_PROXY, DEEP_SKIPS_LATE, EVEN_TURNS, ROBUST, SECOND_HALF_WEAK, TURN, USEFULNESS
from .prompts import (
    ADAPTIVE,
    DEEP_THINKING,
    LIKELIHOOD_OR_GENERATION,
    NO_HARDER_DEEPER,
    REASONING,
    STATIC_RATIO,
)

CLAIMS: tuple[Claim, ...] = (
    TURN,
    SECOND_HALF_WEAK,
    STATIC_RATIO,
    NO_HARDER_DEEPER,
    ADAPTIVE,
    DEEP_THINKING,
    COSINE_WEAK_PROXY,
    ROBUST,
    EVEN_TURNS,
    USEFULNESS,
    DEEP_SKIPS_LATE,
    LIKELIHOOD_OR_GENERATION,
    REASONING,
)


def find(name: str) -> Claim:
    """The claim of that id; a `ParameterError` names the nearest known one."""
    for claim in CLAIMS:
        if claim.id == name:
            return claim
    raise ParameterError(f"There is no claim {name!r}; {nearest(name, [claim.id for claim in CLAIMS])}")
