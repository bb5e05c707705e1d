"""The identities of the text in a birth certificate, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .say import number


def text_rows(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the checks of text, positions and head in a birth certificate as (name, text) rows; [] without any."""
    text, sums = certificate.get("text"), certificate.get("identities") or {}
    if not text or "samples" not in text:
        return []
    n, differ, (before, after) = text["samples"], text["tokens_differ"], text["added"]
    added = [f"{' '.join(tokens)} {where}" for tokens, where in ((before, "before"), (after, "after")) if tokens]
    positions = [str(text["positions"] or "no limit given")]
    if text["rescaled_at"]:
        positions.append(f"rotary scaling changes at {text['rescaled_at']}")
    if (cached := sums.get("cache")) is not None:
        positions.append(f"with a cache off by {number(cached, '.1e')}")
    causal = sums.get("causality")
    tied = "tied to the embedding" if text["tied"] else "own"
    rows = {
        "Token ids": "no tokenizer.json" if differ is None else f"{n - differ} of {n} hard texts as in tokenizer.json",
        "Special tokens": ", ".join(added) or "none added",
        "Round trip": f"{n - text['changed']} of {n} hard texts come back",
        "Chat template": "checked with each prompt" if text["template"] else "none",
        "Causality": "not measured" if causal is None else f"a later token moves logits by {number(causal, '.1e')}",
        "Head": f"{certificate['d_vocab']} × {certificate['d_model']}, {tied}",
        "Positions": ", ".join(positions),
    }
    return list(rows.items())
