"""A random Llama and prompts of an exact length for it."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ed_core.architectures import find
from ed_core.models.language_model import LanguageModel
from ed_core.models.verify import verify
from ed_core.types import ModelSpec, Prompt


def random_llama(n_layers: int, d_model: int, d_vocab: int, seed: int = 0) -> LanguageModel:
    """Random weights, float32: heads of 64 features at most, an MLP three times as wide as the stream; identities
    checked."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=d_vocab,
        hidden_size=d_model,
        intermediate_size=3 * d_model,
        num_hidden_layers=n_layers,
        num_attention_heads=max(d_model // 64, 2),
        max_position_embeddings=512,
    )
    hf = AutoModelForCausalLM.from_config(config)
    model = LanguageModel(
        hf,
        word_tokenizer(d_vocab),
        find("llama"),
        ModelSpec("random", content_hash=f"{n_layers}x{d_model}x{d_vocab}.{seed}"),
    )
    verify(model).require(model.architecture)
    return model


def word_tokenizer(d_vocab: int) -> PreTrainedTokenizerFast:
    """One token per number: "0 1 2"."""
    tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(d_vocab)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def prompt(n_tokens: int, d_vocab: int, n_answer: int = 0) -> Prompt:
    """A prompt of exactly `n_tokens` tokens, spread over the vocabulary; the last `n_answer` of them are its answer."""
    words = [str((7919 * i + 11) % d_vocab) for i in range(n_tokens)]
    n_text = n_tokens - n_answer
    return Prompt(" ".join(words[:n_text]), "".join(f" {word}" for word in words[n_text:]))
