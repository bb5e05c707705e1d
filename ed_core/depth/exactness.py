"""What a `numerics` result comes to: whether each check passes, and by how much; what the first token changes. Numpy
only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..results.aggregate import aggregate, probe_of
from ..types import ProbeResult
from .rules import RULES
from .say import number

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


@dataclass(frozen=True)
class Row:
    """A rule's curve and layer with the first token and without it."""

    name: str
    with_first: np.ndarray
    without: np.ndarray
    depth_with: int | None
    depth_without: int | None


def text_rows(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The identities of the text in a birth certificate, each with its figure; [] where it has none."""
    found, sums = certificate.get("text"), certificate.get("identities") or {}
    if not found or "samples" not in found:
        return []
    n, differ, (before, after) = found["samples"], found["tokens_differ"], found["added"]
    added = [f"{' '.join(tokens)} {where}" for tokens, where in ((before, "before"), (after, "after")) if tokens]
    positions = [str(found["positions"] or "no limit given")]
    if found["rescaled_at"]:
        positions.append(f"rotary scaling changes at {found['rescaled_at']}")
    if (cached := sums.get("cache")) is not None:
        positions.append(f"with a cache off by {number(cached, '.1e')}")
    causal = sums.get("causality")
    head = f"{certificate['d_vocab']} × {certificate['d_model']}, {'tied to the embedding' if found['tied'] else 'own'}"
    return [
        (
            "Token ids",
            "no tokenizer.json" if differ is None else f"{n - differ} of {n} hard texts as in tokenizer.json",
        ),
        ("Special tokens", ", ".join(added) or "none added"),
        ("Round trip", f"{n - found['changed']} of {n} hard texts come back"),
        ("Chat template", "checked with each prompt" if found["template"] else "none"),
        (
            "Causality",
            "not measured" if causal is None else f"a later token moves logits by {number(causal, '.1e')}",
        ),
        ("Head", head),
        ("Positions", ", ".join(positions)),
    ]


def without_first(contributions: ProbeResult, lens: ProbeResult) -> list[Row]:
    """The three rules' curves and layers with and without the first token, from the stored sums."""

    def of_result(result: ProbeResult, first: bool) -> dict[str, np.ndarray]:
        return aggregate(probe_of(result), [result.summary], first)

    whole, rest = (of_result(contributions, first) | of_result(lens, first) for first in (True, False))
    return [
        Row(name, rule.means(whole), rule.means(rest), rule.of(whole).depth, rule.of(rest).depth)
        for name, rule in RULES.items()
    ]
