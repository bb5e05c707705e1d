"""Published statements about depth, each checked on a model and a prompt set. Importing this costs no torch.

To add a claim: its words and limits in `claims.toml`, a function of its name in `layers.py` or `prompts.py`, and its
made-up data (`tests/made_up_claims.py`)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ..errors import ParameterError
from ..studies.study import nearest
from . import layers, prompts
from .claim import Claim
from .judging import Quantity


def _claim(id: str, about: dict[str, Any]) -> Claim:
    """Return the claim that `claims.toml` describes under this id."""
    name = id.replace("-", "_")
    measure = vars(layers).get(name) or vars(prompts)[name]
    quantities = tuple(Quantity(**one | {"limits": tuple(one["limits"])}) for one in about["quantities"])
    return Claim(**about | {"id": id, "measure": measure, "quantities": quantities, "parts": tuple(about["parts"])})


WORDS = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
CLAIMS = tuple(_claim(id, about) for id, about in WORDS.items())


def find(name: str) -> Claim:
    """Return the claim with the id `name`; a `ParameterError` suggests the nearest known id."""
    for claim in CLAIMS:
        if claim.id == name:
            return claim
    raise ParameterError(f"There is no claim {name!r}; {nearest(name, [claim.id for claim in CLAIMS])}")
