"""Small random models of every family (`ed_core.models.families` builds them), with a tokenizer of one token per
byte."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from ed_core.models.families import find
from ed_core.models.language_model import LanguageModel
from ed_core.results.aggregate import summarize
from ed_core.types import ModelSpec, ProbeResult, Request
from ed_core.work import compute
from tools import families
from tools.families import VARIANTS

# Looked at closest, five blocks deep: one of every kind of norm placement, multiplier and position.
LLAMA_LIKE = ("llama", "qwen2", "qwen3", "mistral")
FAMILIES = (*LLAMA_LIKE, "olmo2", "gemma2", "gpt2", "gpt_neox", "gpt_neox_sequential", "granite")
# One variant of each mechanism a family may be built by; every variant is measured in `process` tests.
MECHANISMS = (
    "llama",  # norms before each branch
    "olmo2",  # norms behind each branch
    "gemma2",  # norms around, windows, caps
    "gemma4",  # a third branch, the stream scaled
    "falcon_40b",  # attention and MLP in parallel, added in place
    "bloom",  # branches that add the stream themselves, arguments per row
    "granitemoe",  # multipliers, several experts
    "cohere2",  # in parallel, a multiplied head
    "qwen3_next",  # linear attention
    "looped_input",  # passes, with a norm and the embedding in between
)


def by_mechanism(variants=None, marks=pytest.mark.process):
    """The variants as parameters: those that are no mechanism of their own are marked."""
    return [pytest.param(v, marks=() if v in MECHANISMS else marks) for v in variants or VARIANTS]


logging.disable_progress_bar()  # what a model says while it is written is no part of what a test reads
BACKGROUND = str(Path(__file__).parent / "data" / "background.jsonl")  # two short texts: the bundled ones are many
FIVE_BLOCKS = {"num_hidden_layers": 5, "n_layer": 5}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def random_hf(family: str, dtype=torch.float32, seed: int = 0, **overrides):
    """An untrained transformers model of a family, with jittered norms."""
    depth = FIVE_BLOCKS if family in FAMILIES else {}
    return families.random_hf(family, seed, **{**depth, **overrides}).to(dtype)


def random_model(family: str, dtype=torch.float32, architecture=None, **overrides) -> LanguageModel:
    """The same, opened; identities not yet checked."""
    hf = random_hf(family, dtype, **overrides)
    architecture = architecture or find(hf.config.model_type)
    precision = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    return LanguageModel(
        hf, byte_tokenizer(), architecture, ModelSpec(f"random-{family}", content_hash=family, precision=precision)
    )


@cache
def opened_models() -> compute.Models:
    return compute.Models()


@cache
def computed(request: Request) -> ProbeResult:
    """The complete result of a request, computed once in this process; its model stays open."""
    return compute.run(opened_models().get(request.models[0]), request)


def save_random(folder, family: str = "qwen3", **overrides):
    """A random model with its tokenizer, as `save_pretrained` writes them."""
    random_hf(family, **overrides).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def unsettled(result):
    """Integrated gradients whose sums are half as large again as they should be."""
    values = {name: m.values for name, m in result.measures.items()}
    attribution = values["attribution"] * np.float32(1.5)
    error = np.abs(attribution.sum(-1) - (values["f_x"] - values["f_baseline"]))
    changed = {"attribution": attribution, "completeness_error": error}
    measures = {name: replace(m, values=changed.get(name, m.values)) for name, m in result.measures.items()}
    return summarize(replace(result, measures=measures))


def asked(kind):
    """A probe as tests ask for it: one that needs a further prompt has one."""
    return kind(**dict.fromkeys(kind.further_prompts(), "Nine b = "))
