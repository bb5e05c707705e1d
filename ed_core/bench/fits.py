"""What a fit costs over what it cannot do without: the affine lens over its forward passes, the Jacobian lens over one
forward and the backward passes of its batches."""

from __future__ import annotations

import statistics
import time
from math import ceil

import psutil
import torch

from ..fits import jacobian
from ..fits.affine import _summed
from ..fits.checkpoint import Checkpoint
from ..fits.streams import Streams
from ..sweeps.budget import Budget
from . import Row
from .random_model import prompt, random_llama

LAYERS, WIDTH, VOCABULARY, TOKENS, PROMPTS, ROUNDS = 30, 576, 8192, 128, 24, 3
SMALL_LAYERS, SMALL_WIDTH = 8, 256
AFFINE, JACOBIAN, GIGABYTE = 1.3, 1.2, 1 << 30


def measure() -> list[Row]:
    return [*_affine(), _jacobian()]


def _affine() -> list[Row]:
    """The sums of all depths, controls included, over the forward passes alone; what solves them does not grow with the
    tokens and is not counted."""
    model = random_llama(LAYERS, WIDTH, VOCABULARY)
    some = [prompt(TOKENS, VOCABULARY)] * PROMPTS
    ids = [model.tensor(model.encode(one)) for one in some]
    depths, ratios, used = tuple(range(LAYERS)), [], 0
    for _ in range(ROUNDS):
        begin = time.process_time()
        for one in ids:
            model.logits(one, keep=1)
        between, before = time.process_time(), psutil.Process().memory_info().rss
        sums = _summed(Streams(model, some), depths, Checkpoint(None), lambda share: None)
        used = max(used, psutil.Process().memory_info().rss - before)
        ratios.append((time.process_time() - between) / (between - begin))
        del sums
    found = statistics.median(ratios)
    what = f"affine lens over its forward passes, {LAYERS} x {WIDTH}, {PROMPTS} x {TOKENS} tokens, CPU"
    return [
        Row(what, f"{found:.2f} x", f"<= {AFFINE:g} x", found <= AFFINE),
        Row("  memory above the model", f"{used / GIGABYTE:.2f} GiB", "<= 1 GiB", used <= GIGABYTE),
    ]


def _jacobian() -> Row:
    """One prompt, against the library's own forward pass and as many backward passes of the same batch."""
    model = random_llama(SMALL_LAYERS, SMALL_WIDTH, VOCABULARY)
    ids = model.encode(prompt(TOKENS, VOCABULARY)).ids
    rows = Budget(None, "cpu").rows(TOKENS, SMALL_LAYERS * model.call_bytes(TOKENS, gradients=True))
    ratios = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        jacobian.of_prompt(model, ids)
        between = time.process_time()
        _plain(model, ids, rows)
        ratios.append((between - begin) / (time.process_time() - between))
    found = statistics.median(ratios)
    what = f"Jacobian lens over forward and backward passes, {SMALL_LAYERS} x {SMALL_WIDTH}, {rows} a batch, CPU"
    return Row(what, f"{found:.2f} x", f"<= {JACOBIAN:g} x", found <= JACOBIAN)


def _plain(model, ids: tuple[int, ...], rows: int) -> None:
    """The passes alone, through activations only."""
    base = model.hf.model
    given = model.hf.get_input_embeddings()(model.tensor(ids)).expand(rows, -1, -1).clone().requires_grad_()
    last = base(inputs_embeds=given, use_cache=False).last_hidden_state
    cotangent = torch.ones_like(last)
    for _ in range(ceil(model.d_model / rows)):
        torch.autograd.grad(last, given, cotangent, retain_graph=True)
