"""Every family measured: small random models, their identities in float32 and bfloat16, and the table made of them
(docs/models.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer as Words
from tokenizers.models import WordLevel
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ..types import ModelSpec
from . import looped  # noqa: F401  makes its families known
from .architecture import Architecture
from .families import find
from .identities import Identities
from .language_model import LanguageModel
from .loading import DTYPES
from .modules import Pretrained, Tokenizer
from .small import VARIANTS, config_fields
from .verify import verify


def random_hf(variant: str, seed: int = 0, **overrides: Any) -> Pretrained:
    """An untrained transformers model of a variant, float32. Norm weights are jittered, because at initialisation they
    are all ones and hide a forgotten norm; matrices are larger than at initialisation, so that updates are comparable
    to the stream."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(VARIANTS[variant][0], **config_fields(variant, overrides))
    hf = AutoModelForCausalLM.from_config(config).eval()
    jitter(hf)
    return hf


@torch.no_grad()
def jitter(hf: nn.Module) -> None:
    """Norms' weights off 1 and larger maps, so that a module left out is seen in the numbers."""
    for name, weight in hf.named_parameters():
        if "norm" in name or ".ln_" in name:
            weight.add_(0.3 * torch.randn_like(weight))
        elif weight.dim() >= 2:
            weight.mul_(3)
    for name, buffer in hf.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.fill_(0.8)


def random_model(variant: str, precision: str = "fp32", tokenizer: Tokenizer = None, **overrides: Any) -> LanguageModel:
    """The same behind its family's description; identities not yet checked. Without a tokenizer all text is unknown to
    it, and evenly spread ids are read in its place (`verify.short_prompt`)."""
    tokenizer = tokenizer or PreTrainedTokenizerFast(tokenizer_object=Words(WordLevel({"?": 0}, unk_token="?")))
    hf = random_hf(variant, **overrides).to(DTYPES[precision])
    spec = ModelSpec(f"random-{variant}", content_hash=variant, precision=precision)
    architecture = find(hf.config.model_type)
    assert architecture is not None  # of every variant
    return LanguageModel(hf, tokenizer, architecture, spec)


def figures(architecture: Architecture) -> dict[str, list[Identities]]:
    """The identities of every variant of a family, per precision."""
    variants = [name for name, (model_type, _) in VARIANTS.items() if model_type in architecture.model_types]
    return {precision: [verify(random_model(name, precision)) for name in variants] for precision in FLOORS}


# Below these a figure is rounding, and how much of it depends on the machine; above, it is shown as the next power of
# ten.
FLOORS = {"fp32": {"miss": 1e-6, "slope": 1e-6, "logits": 1e-5}, "bf16": {"miss": 1e-2, "slope": 1e-2, "logits": 1e-2}}
COLUMNS = (
    "Family",
    "`model_type`",
    "Attention's addition",
    "The MLP's addition",
    "Norms",
    "MLP",
    *(f"{f}, {p}" for p in FLOORS for f in FLOORS[p]),
)


def rows(families: tuple[Architecture, ...]) -> list[tuple[str, ...]]:
    """The table's cells, a row per family; raises `IdentityFailed` where a family's own small model does not pass."""
    found = []
    for family in families:
        cells = [family.family, ", ".join(family.model_types), *_places(family), family.norms, _order(family)]
        for precision, measured in figures(family).items():
            for one in measured:
                one.require(family)
            slopes = [abs(s - 1) for one in measured for s in (*one.slope_attn, *one.slope_mlp) if s is not None]
            logits = [x for one in measured for x in (one.closure, one.detour, *one.replay.values())]
            worst = {"miss": max(max(one.miss) for one in measured), "slope": max(slopes), "logits": max(logits)}
            cells += [_power_of_ten(worst[name], floor) for name, floor in FLOORS[precision].items()]
        found.append(tuple(cells))
    return found


def _places(family: Architecture) -> tuple[str, str]:
    times = " × multiplier" if family.residual_multiplier else ""
    attn, mlp = (" or ".join(family.paths(role)) + times for role in ("attn", "mlp"))
    third = "; a third at " + " or ".join(family.paths("third")) if family.third else ""
    return attn, mlp + third + (f"; the stream × {family.stream_scale}" if family.stream_scale else "")


def _order(family: Architecture) -> str:
    if isinstance(family.parallel, bool):
        return "beside" if family.parallel else "behind"
    return "beside where " + " or ".join(family.paths("parallel"))


def _power_of_ten(value: float, floor: float) -> str:
    exponent = max(math.ceil(math.log10(max(value, 1e-300))), round(math.log10(floor)))
    return f"≤ 1e{exponent}"


def markdown(families: tuple[Architecture, ...], refused: dict[str, str]) -> str:
    """docs/models.md."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    table = [line(COLUMNS), line(["---"] * len(COLUMNS))]
    for name, types, attn, mlp, *rest in rows(families):
        table.append(line([name, f"`{types}`", f"`{attn}`", f"`{mlp}`", *rest]))
    variants = [
        f"- {family.family} with another `{field}` than {' or '.join(map(str, fine))}: {why}."
        for family in families
        for field, fine, why in family.refused
    ]
    by_reason: dict[str, list[str]] = {}
    for model_type, why in refused.items():
        by_reason.setdefault(why, []).append(f"`{model_type}`")
    return "\n".join(
        [
            INTRODUCTION,
            *table,
            REFUSALS,
            *variants,
            *(f"- {', '.join(types)}: {why}." for why, types in by_reason.items()),
            "",
        ]
    )


INTRODUCTION = """# Model families

Generated by `python -m ed_core models --families --markdown`; a test holds it against what that prints.

Where a family's additions to the residual stream are read, and what the identities say of small random models of it (norms jittered, windows
shorter than the prompt, several experts, multipliers and soft-caps off their defaults; the worst of a family's variants). *miss*: what
`h + a + m` misses of the next residual, against the largest operand. *slope*: how far the two slopes are from 1. *logits*: what unembedding,
blocks called by hand and a detour of the stream miss of the model's own logits. A model that is opened is checked anew, with its own weights.

A family that is not in the table is tried under the layouts that are; if its sums hold it is accepted with a note, otherwise refused:
[adding a model family](adding-a-model-family.md).
"""
REFUSALS = """
## What goes in

Sums say nothing about the text, so that is checked too: when a model opens, and for every prompt. What does not hold is a note next to the
prompt, or a refusal.

| identity | holds when | otherwise |
|---|---|---|
| tokens | the library gives the ids of `tokenizer.json` for hard samples | the file's ids, and a note |
| BOS | it is there exactly where the tokenizer's configuration asks for it, once | added or left out, and a note |
| end | the tokenizer adds nothing behind the text | a note |
| chat | the rendered chat contains the user's text | a note where spaces or capitals changed, else a refusal |
| round trip | the ids decode to the text | a note: what became what |
| seam | the question's ids begin the ids of question and answer | a note that names the token |
| space | question and answer do not run together as one word | a note, and the answer with its space in one click |
| causality | another last token changes no earlier logit | a refusal |
| head | there is one over the vocabulary, tied where the configuration says so | a refusal; a note |
| labels | no two ids have the same label | – |
| positions | writing with a cache equals reading the whole again | the whole is read again, also past a change of rotary scaling |
| weights | every weight of the files has its place in the model | a note; where one is missing, a refusal |

Their figures are part of every result's certificate, and `python -m ed_core verify MODEL` prints them.

A vision-language checkpoint is measured as its text decoder, and a family is judged by the layers that this model's configuration lists.

## Refused by name
"""
