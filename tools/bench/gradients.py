"""Integrated gradients against the papers' way: 256 left-Riemann steps, 16 a batch, each a whole forward and backward
pass, block by block.

Both maps are held against a midpoint integral of 1 024 steps, taken at every fifth block (it costs four times what the
naive way does). The naive way here is a lenient one: weights ask for no gradients, so its backward passes end at the
activation."""

from __future__ import annotations

import torch
from torch import Tensor

from ed_core.models.language_model import LanguageModel
from ed_core.models.modules import hooked
from ed_core.models.opening import open_model
from ed_core.probes import IntegratedGradients
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve

from . import Row
from .causal import D_MODEL, D_VOCAB, N_LAYERS, N_TOKENS
from .random_model import prompt, random_llama
from .skip import timed

STEPS, BATCH, REFERENCE_STEPS, EVERY = 256, 16, 1024, 5
MODEL = "ed-demo-16"
BUNDLED = Prompt("5 + 7 + 5 + 3 = ", "0")


def measure() -> list[Row]:
    random = random_llama(N_LAYERS, D_MODEL, D_VOCAB)
    size = f"{N_LAYERS} x {D_MODEL}, {N_TOKENS} tokens, random weights"
    bundled = open_model(resolve(MODEL))
    return [
        *against(random, prompt(N_TOKENS, D_VOCAB, n_answer=2), f"integrated gradients against naive ({size})", 12.0),
        *against(bundled, BUNDLED, f"integrated gradients against naive ({MODEL})", 5.0),
    ]


def against(model: LanguageModel, asked: Prompt, what: str, target: float) -> list[Row]:
    request, encoding = IntegratedGradients().request(model.spec, asked), model.encode(asked)
    ids = model.tensor(encoding)
    seconds, result = timed(lambda: compute.run(model, request))
    naive_seconds, naive = timed(
        lambda: torch.stack(
            [riemann(model, ids, encoding.answer_start, layer, STEPS, 0.0) for layer in range(model.n_layers)]
        )
    )
    some = list(range(0, model.n_layers, EVERY))
    exact = torch.stack([riemann(model, ids, encoding.answer_start, layer, REFERENCE_STEPS, 0.5) for layer in some])
    scale = exact.abs().max()
    off, naive_off = (
        float((found[some] - exact).abs().max() / scale) for found in (torch.tensor(result["attribution"]), naive)
    )
    ratio = naive_seconds / seconds
    nodes = f"{result['nodes_used'].min()} to {result['nodes_used'].max()} nodes"
    return [
        Row(what, f"{ratio:.1f} x ({seconds:.2f} s for {naive_seconds:.1f} s)", f">= {target:g} x", ratio >= target),
        Row(
            f"  error against {REFERENCE_STEPS} midpoint steps ({nodes})",
            f"{off:.1e}",
            f"<= naive's {naive_off:.1e}",
            off <= naive_off,
        ),
    ]


def riemann(model: LanguageModel, ids: Tensor, answer_start: int, layer: int, steps: int, offset: float) -> Tensor:
    """`sum_d (x - x0) · mean over steps of dF/dx` at block `layer`'s output, nodes at `(i + offset) / steps`; whole
    passes, nothing reused."""
    hf, block, seen = model.hf, model.blocks[layer], []
    read, answer = slice(answer_start - 1, ids.shape[1] - 1), ids[0, answer_start:]
    with (
        hooked(block.register_forward_hook(lambda module, args, output: seen.append(output.detach()))),
        torch.no_grad(),
    ):
        hf(input_ids=ids, use_cache=False)
    x = seen[0][0]
    base = x.mean(0, keepdim=True).expand_as(x)
    total = torch.zeros_like(x)
    for begin in range(0, steps, BATCH):
        alpha = (torch.arange(begin, begin + BATCH).view(-1, 1, 1) + offset) / steps
        point = (base + alpha * (x - base)).requires_grad_()
        with hooked(block.register_forward_hook(lambda module, args, output: point)):
            logits = hf(input_ids=ids.expand(BATCH, -1), use_cache=False).logits[:, read]
        chosen = logits.softmax(-1).gather(-1, answer.expand(BATCH, -1).unsqueeze(-1)).sum()
        total += torch.autograd.grad(chosen, point)[0].sum(0)
    return ((x - base) * total / steps).sum(-1)
