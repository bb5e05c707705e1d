"""Small random models of every family.

A model of every variant of every family is data, in `families.toml`. Whatever could hide a mistake at its default is
moved off it: sliding windows shorter than the prompt, several experts, soft-caps, multipliers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Words
from tokenizers.models import WordLevel
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ed_core.models import loops  # noqa: F401  makes its families known
from ed_core.models.families import find
from ed_core.models.language_model import LanguageModel
from ed_core.models.loading import DTYPES
from ed_core.models.modules import Pretrained, Tokenizer
from ed_core.types import ModelSpec

COMMON = dict(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
NO_HEAD_DIM = ("falcon",)  # computes it and refuses to be told
DATA = tomllib.loads((Path(__file__).parent / "families.toml").read_text(encoding="utf-8"))


def _fields(sets: list[str], more: dict[str, Any]) -> dict[str, Any]:
    """The fields of these sets, and more over them."""
    return {name: value for each in (*(DATA["sets"][one] for one in sets), more) for name, value in each.items()}


def _variant(row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The model_type and the config fields of a row of the file."""
    known = ("type", "with", "text_with", "text_config")
    fields = _fields(row.get("with", []), {name: value for name, value in row.items() if name not in known})
    if "text_with" in row:
        text = _fields(row["text_with"], row.get("text_config", {}))
        fields |= {"text_config": text, "vision_config": DATA["sets"]["vision"]}
    return row["type"], fields


VARIANTS = {name: _variant(row) for name, row in DATA["variants"].items()}  # model_type and config fields by name


def config_fields(variant: str, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """All config fields of a variant; those of the text model stand where the family keeps them."""
    model_type, fields = VARIANTS[variant]
    common = {name: value for name, value in COMMON.items() if not (name == "head_dim" and model_type in NO_HEAD_DIM)}
    if "text_config" in fields:
        return fields | {"text_config": common | fields["text_config"] | (overrides or {})}
    return common | fields | (overrides or {})


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
