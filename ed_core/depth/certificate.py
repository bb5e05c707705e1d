"""What a birth certificate says of the text, in rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .say import number


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
