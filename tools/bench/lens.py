"""The logit lens at a real vocabulary, against the matrix products that it cannot do without.

One thread, both in turn, several rounds; the ratio is the median of the rounds' own ratios, in CPU seconds. The model
is random, its last norm scaled until the logits spread as those of a trained model do (near-uniform outputs would take
the slow, careful way in every row); ED_BENCH_MODEL names a real one instead."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

import torch

from ed_core.models.language_model import LanguageModel
from ed_core.probes import LogitLens
from ed_core.types import Prompt
from ed_core.work import compute

from . import Row
from .random_model import prompt, random_llama
from .skip import timed

N_LAYERS, D_MODEL, D_VOCAB, N_TOKENS = 30, 576, 49152, 67
SPREAD = 8  # x the width of the random logits
ROUNDS, TARGET = 5, 2.3


def measure() -> list[Row]:
    model, asked = opened(os.environ.get("ED_BENCH_MODEL", ""))
    request = LogitLens().request(model.spec, asked)
    n_tokens = len(model.encode(asked))
    plain = products(model, n_tokens)
    rounds = [(timed(lambda: compute.run(model, request))[0], timed(plain)[0]) for _ in range(ROUNDS)]
    ratio = statistics.median(lens / mm for lens, mm in rounds)
    lens, mm = (statistics.median(seconds) for seconds in zip(*rounds))
    size = f"{model.n_layers} x {model.d_model}, V = {model.d_vocab}, {n_tokens} tokens"
    return [
        Row(
            f"logit lens for its products ({size})",
            f"{ratio:.2f} x ({lens:.2f} s for {mm:.2f} s)",
            f"<= {TARGET} x",
            ratio <= TARGET,
        )
    ]


def opened(name: str) -> tuple[LanguageModel, Prompt]:
    """The model of that name, or the random one, and a prompt of some length for it."""
    if name:
        from ed_core.models.opening import open_model
        from ed_core.work.resolve import resolve

        return open_model(resolve(name)), Prompt("The depth at which an output settles is what is asked for. " * 5)
    model = random_llama(N_LAYERS, D_MODEL, D_VOCAB)
    with torch.no_grad():
        model.final_norm.weight.mul_(SPREAD)
    return model, prompt(N_TOKENS, D_VOCAB)


def products(model: LanguageModel, n_tokens: int) -> Callable[[], None]:
    """The stream of every depth times the head's weights, and nothing else."""
    stream, weights = torch.randn(n_tokens, model.d_model), model.head.weight

    @torch.no_grad()
    def run() -> None:
        for _ in range(model.n_layers + 1):
            torch.mm(stream, weights.T)

    return run
