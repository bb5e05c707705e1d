"""Published statements about depth, each checked on a model and a prompt set. Importing this costs no torch.

To add a claim: a function under `@claim(...)` in `layers.py` or `prompts.py`, its name below, and its made-up data
(`tests/made_up_claims.py`)."""

from __future__ import annotations

from ..errors import ParameterError
from ..studies.study import nearest
from . import layers, prompts, tokens
from .claim import Claim

CLAIMS: tuple[Claim, ...] = (
    layers.turn,
    layers.second_half_weak,
    prompts.static_ratio,
    prompts.no_harder_deeper,
    prompts.adaptive,
    prompts.deep_thinking,
    layers.cosine_weak_proxy,
    layers.one_layer_robust,
    layers.even_turns,
    layers.usefulness,
    layers.deep_skips_late,
    prompts.likelihood_or_generation,
    prompts.reasoning_breaks,
    *(tokens.decided_before_read, tokens.kinds_explain_depth, tokens.headroom),
)


def find(name: str) -> Claim:
    """Return the claim with the id `name`; a `ParameterError` suggests the nearest known id."""
    for claim in CLAIMS:
        if claim.id == name:
            return claim
    raise ParameterError(f"There is no claim {name!r}; {nearest(name, [claim.id for claim in CLAIMS])}")
