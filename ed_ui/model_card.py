"""The model card: what a model is and how it is run, from its files, and from its latest result where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from ed_core.errors import EffectiveDepthError
from ed_core.machine import gigabytes
from ed_core.results import lookup
from ed_core.service import estimate
from ed_core.sources import hub, remote, sizes, specs, tokens
from ed_core.types import ModelSpec
from ed_ui import show


def card(spec: ModelSpec) -> None:
    """Everything in one list, a line each. Figures of the identities come from the latest result of this model in this
    precision."""
    made = lookup.certificate(spec)
    lines = [*_shape(spec), *_held(spec, made), *_origin(spec), *_identities(made), *_tokenizer(spec)]
    st.caption("  \n".join(f"**{name}**: {value}" for name, value in lines))


def _shape(spec: ModelSpec) -> list[tuple[str, str]]:
    try:
        size = sizes.read(specs.config_of(spec))
    except EffectiveDepthError:
        return [("Size", "known once it is downloaded")]
    heads = (
        f"{size.n_heads}"
        if size.n_kv_heads == size.n_heads
        else f"{size.n_heads}, {size.n_kv_heads} for keys and values"
    )
    counted = estimate.count(size.parameters) + ("" if size.exact else " (counted as a Llama)")
    return [
        ("Family", show.plain(size.family[:40])),
        ("Layers", str(size.n_layers)),
        ("Width", f"{size.d_model}, MLP {size.d_mlp}"),
        ("Heads", f"{heads}, of {size.head_dim}"),
        ("Vocabulary", f"{size.d_vocab}, {'tied' if size.tied else 'untied'}"),
        ("Parameters", counted),
    ]


def _held(spec: ModelSpec, made: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if remote.is_remote(spec.source):
        computes = ((made or {}).get("precision") or {}).get("computes_in", "told by its first result")
        return [("Computed", show.plain(f"{spec.device.replace('ndif at', 'at')}, in {computes}"))]
    label = sizes.PRECISION_LABELS.get(spec.precision, "")
    lines = [("Precision", show.plain(spec.precision) + (f" ({label})" if label else "")), ("Device", spec.device)]
    if made is not None and made.get("weights_bytes"):
        return [*lines, ("Memory held", f"{gigabytes(made['weights_bytes'])} of weights")]
    try:
        return [
            *lines,
            (
                "Memory",
                f"{gigabytes(sizes.read(specs.config_of(spec)).weight_bytes(spec.precision))} of weights, "
                "by the estimate",
            ),
        ]
    except EffectiveDepthError:
        return lines


def _origin(spec: ModelSpec) -> list[tuple[str, str]]:
    lines = [("Revision", f"commit {show.plain(spec.revision[:12])}")] if spec.revision else []
    lines += [("Content", f"SHA-256 {spec.content_hash[:12]}…")] if spec.content_hash else []
    return lines + (
        [("Adapter", f"{show.plain(spec.adapter)}, SHA-256 {spec.adapter_hash[:12]}…")] if spec.adapter else []
    )


def _identities(made: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """How well the sums held when the model was opened: the worst figure of each."""
    found = (made or {}).get("identities")
    if not found:
        return [("Identities", "not opened yet")]
    names = {
        "miss": "sums are off by",
        "closure": "the lens by",
        "replay": "layers by hand by",
        "suffix": "edited streams by",
    }
    told = [f"{words} {found[name]:.1g}" for name, words in names.items() if isinstance(found.get(name), (int, float))]
    return [("Identities", f"hold; at most {', '.join(told)}"), ("Read", show.plain(str(made.get("read", ""))))]


def _tokenizer(spec: ModelSpec) -> list[tuple[str, str]]:
    if not hub.is_here(spec):
        return [("Tokenizer", "known once it is downloaded")]
    special, added = tokens.special_roles(spec), tokens.added(spec)
    lines = [
        (
            "Special tokens",
            ", ".join(
                f"{show.plain(role.removesuffix('_token'))} {show.code(text, 40)}" for role, text in special.items()
            )
            or "none named",
        )
    ]
    if added is not None:
        around = [
            f"{show.code(text, 40)} {where}"
            for texts, where in zip(added, ("before", "behind"), strict=False)
            for text in texts
        ]
        lines.append(("Added to a prompt", ", ".join(around) or "nothing"))
    return [*lines, ("Chat template", "yes" if tokens.chats(spec) else "none")]
