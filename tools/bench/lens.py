"""The logit lens at a real vocabulary, as a multiple of the matrix products it cannot avoid.

The random model's last norm is scaled until the logits spread like those of a trained model: near-uniform outputs would
take the slow, careful way in every row. ED_BENCH_MODEL names a real model instead."""

from __future__ import annotations

import os

import torch

from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.probes import LogitLens
from ed_core.types import Prompt
from ed_core.work import compute

from . import Row
from .random_model import compared, prompt, random_llama

N_LAYERS, D_MODEL, D_VOCAB, N_TOKENS = 30, 576, 49152, 67
SPREAD = 8  # factor on the width of the random logits
TARGET = 2.3


def measure() -> list[Row]:
    """The row of the table."""
    model, asked = model_and_prompt(os.environ.get("ED_BENCH_MODEL", ""))
    request, n_tokens = LogitLens().request(model.spec, asked), len(model.encode(asked))
    ratio, lens, plain = compared(lambda: compute.run(model, request), lambda: products(model, n_tokens))
    size = f"{model.n_layers} x {model.d_model}, V = {model.d_vocab}, {n_tokens} tokens"
    measured = f"{ratio:.2f} x ({lens:.2f} s for {plain:.2f} s)"
    return [Row(f"logit lens over its products ({size})", measured, f"<= {TARGET} x", ratio <= TARGET)]


def model_and_prompt(name: str) -> tuple[LanguageModel, Prompt]:
    """The named model, or the random one, and a prompt for it."""
    if name:
        asked = Prompt("The depth at which an output settles is what is asked for. " * 5)
        return open_model(ModelRef.parse(name)), asked
    model = random_llama(N_LAYERS, D_MODEL, D_VOCAB)
    with torch.no_grad():
        model.final_norm.weight.mul_(SPREAD)
    return model, prompt(N_TOKENS, D_VOCAB)


@torch.no_grad()
def products(model: LanguageModel, n_tokens: int) -> None:
    """The stream at every depth times the head's weights, and nothing else."""
    stream = torch.randn(n_tokens, model.d_model)
    for _ in range(model.n_layers + 1):
        torch.mm(stream, model.head.weight.T)
