"""Every family measured: small random models, their identities in float32 and bfloat16, and the table made of them (docs/models.md)."""
from __future__ import annotations

import math

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ..architectures import Architecture, find
from ..architectures.small import COMMON, NO_HEAD_DIM, VARIANTS
from ..identities import Identities
from ..model import LanguageModel
from ..types import ModelSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def random_hf(variant: str, seed: int = 0, **overrides):
    """An untrained transformers model of a variant, float32. Norm weights are jittered, because at initialisation they are all ones and hide
    a forgotten norm; matrices are larger than at initialisation, so that updates are comparable to the stream."""
    torch.manual_seed(seed)
    model_type, fields = VARIANTS[variant]
    common = {name: value for name, value in COMMON.items() if not (name == "head_dim" and model_type in NO_HEAD_DIM)}
    hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**common, **fields, **overrides})).eval()
    jitter(hf)
    return hf


@torch.no_grad()
def jitter(hf) -> None:
    for name, weight in hf.named_parameters():
        if "norm" in name or ".ln_" in name:
            weight.add_(0.3 * torch.randn_like(weight))
        elif weight.dim() >= 2:
            weight.mul_(3)
    for name, buffer in hf.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.fill_(0.8)


def random_model(variant: str, precision: str = "fp32", tokenizer=None, **overrides) -> LanguageModel:
    """The same behind its family's description; identities not yet checked."""
    hf = random_hf(variant, **overrides).to(DTYPES[precision])
    spec = ModelSpec(f"random-{variant}", content_hash=variant, precision=precision)
    return LanguageModel(hf, tokenizer, find(hf.config.model_type), spec)
