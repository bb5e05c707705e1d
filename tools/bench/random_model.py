"""A random Llama, prompts of an exact length for it, and the time that two ways of computing take on it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ed_core.models.families import find
from ed_core.models.language_model import LanguageModel
from ed_core.models.verify import verify
from ed_core.types import ModelSpec, Prompt

ROUNDS = 5


def random_llama(
    n_layers: int, d_model: int, d_vocab: int, dtype: torch.dtype = torch.float32, device: str = "cpu", **sizes: int
) -> LanguageModel:
    """A Llama with random weights made on `device`, its identities checked: heads of at most 64 features, an MLP three
    times as wide as the stream, unless `sizes` of its config say otherwise."""
    torch.manual_seed(0)
    sizes = {"intermediate_size": 3 * d_model, "num_attention_heads": max(d_model // 64, 2)} | sizes
    config = AutoConfig.for_model(
        "llama",
        vocab_size=d_vocab,
        hidden_size=d_model,
        num_hidden_layers=n_layers,
        max_position_embeddings=512,
        **sizes,
    )
    with torch.device(device):
        hf = AutoModelForCausalLM.from_config(config, dtype=dtype)
    precision = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    content = f"{n_layers}x{d_model}x{d_vocab}"
    spec = ModelSpec("random", content_hash=content, precision=precision, device=device)
    model = LanguageModel(hf, word_tokenizer(d_vocab), find("llama"), spec)
    verify(model).require(model.architecture)
    return model


def word_tokenizer(d_vocab: int) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per number: "0 1 2"."""
    tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(d_vocab)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def prompt(n_tokens: int, d_vocab: int) -> Prompt:
    """A prompt of exactly `n_tokens` tokens, spread over the vocabulary."""
    return Prompt(" ".join(str((7919 * i + 11) % d_vocab) for i in range(n_tokens)))


def compared(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float, float]:
    """How many times as long the first takes as the second, and the seconds of both: medians over rounds in which they
    take turns on one thread, in CPU seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = []
    for _ in range(ROUNDS):
        times = [time.process_time()]
        for run in (first, second):
            run()
            times.append(time.process_time())
        seconds.append([end - begin for begin, end in pairwise(times)])
    torch.set_num_threads(threads)
    ratio = statistics.median(one / other for one, other in seconds)
    return ratio, *(statistics.median(one) for one in zip(*seconds))
