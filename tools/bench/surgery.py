"""All stretches dropped, all exchanges and all stretches run twice, against one full forward pass for each.

One thread, CPU seconds. The naive side runs every `EVERY`-th variant and is scaled to all of them: they differ in
length only, and the sample holds all lengths. It measures the same three figures, the whole model's predictions being
there. The model has SmolLM2's size and random weights; ED_BENCH_MODEL names a real one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ed_core.models.language_model import LanguageModel
from ed_core.probes import Surgery
from ed_core.probes.surgery import FIGURES
from ed_core.sweeps import metrics
from ed_core.types import ProbeResult
from ed_core.work import compute

from . import Row
from .lens import opened
from .random_model import prompt
from .skip import timed

N_TOKENS, EVERY = 64, 16
TARGETS = {
    "drop": ("all stretches dropped", 2.0),
    "repeat": ("all stretches run twice", 2.0),
    "swap": ("all swaps", 1.5),
}
AGREEMENT = 1e-5


def measure() -> list[Row]:
    model, asked = opened(name := os.environ.get("ED_BENCH_MODEL", ""))
    asked = asked if name else prompt(N_TOKENS, model.d_vocab)
    ids = model.tensor(model.encode(asked))
    size = f"{model.n_layers} x {model.d_model}, V = {model.d_vocab}, {ids.shape[1]} tokens"
    rows, off = [], 0.0
    for kind, (what, target) in TARGETS.items():
        seconds, result = timed(lambda: compute.run(model, Surgery(kind).request(model.spec, asked)))
        variants = orders(model.n_layers, kind)
        sample = variants[:: min(EVERY, len(variants))]
        naive, found = timed(lambda: one_by_one(model, ids, [order for _, order in sample]))
        naive *= len(variants) / len(sample)
        off = max(off, difference(result, kind, [at for at, _ in sample], found))
        ratio = naive / seconds
        measured = f"{ratio:.2f} x ({seconds:.1f} s for {naive:.1f} s)"
        rows.append(Row(f"{what} against naive ({size})", measured, f">= {target} x", ratio >= target))
    return [
        *rows,
        Row("  largest difference over largest value", f"{off:.1e}", f"<= {AGREEMENT:.0e}", off <= AGREEMENT),
    ]


def orders(n_layers: int, kind: str) -> list[tuple[tuple[int, int], list[int]]]:
    """Every variant of a kind: its place in the map, and its order of blocks."""
    every, found = list(range(n_layers)), []
    for i in range(n_layers):
        for j in range(i + 1, n_layers + (kind != "swap")):
            order = every[:i] + every[j:] if kind == "drop" else every[:j] + every[i:]
            if kind == "swap":
                order = [*every]
                order[i], order[j] = j, i
            if order:
                found.append(((i, j), order))
    return found


@torch.no_grad()
def one_by_one(model: LanguageModel, ids: Tensor, wanted: Sequence[Sequence[int]]) -> Tensor:
    """Loss, KL and share of best tokens kept, `[variant, 3]`, with one full forward pass for each."""
    hf, base, blocks = model.hf, model.hf.model, model.hf.model.layers
    forward: Callable[[], Tensor] = lambda: hf(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)  # noqa: E731
    whole, targets, found = forward(), ids[0, 1:, None], []
    try:
        for order in wanted:
            base.layers, base.config.num_hidden_layers = nn.ModuleList([blocks[b] for b in order]), len(order)
            changed = forward()
            loss, kept = -changed[:-1].gather(-1, targets).mean(), whole.argmax(-1) == changed.argmax(-1)
            found.append(torch.stack([loss, metrics.kl(whole, changed).mean(), kept.float().mean()]))
    finally:
        base.layers, base.config.num_hidden_layers = blocks, len(blocks)
    return torch.stack(found)


def difference(result: ProbeResult, kind: str, places: list[tuple[int, int]], expected: Tensor) -> float:
    """The largest difference over the largest value, of loss and divergence."""
    off = 0.0
    for name, values in zip(FIGURES, expected.T):
        if name != "top1_kept":  # a tie between two tokens may fall either way
            found = torch.tensor([result[f"{kind}_{name}"][place] for place in places])
            off = max(off, float((found - values).abs().max() / values.abs().max()))
    return off
