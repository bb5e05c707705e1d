"""What a fit costs over what it cannot do without: the affine lens over its forward passes, the Jacobian lens over one
forward and the backward passes of its batches; and what training the maps between two models comes to in the time that
solving for them takes."""

from __future__ import annotations

import statistics
import time
from math import ceil

import psutil
import torch

from ed_core.fits import jacobian, maps
from ed_core.fits.affine import _summed
from ed_core.fits.file import Checkpoint
from ed_core.fits.streams import Streams, split
from ed_core.models.opening import open_model
from ed_core.prompts import read_jsonl
from ed_core.sources.bundled import SETS, WORDS
from ed_core.sweeps.budget import Budget
from ed_core.work.resolve import resolve

from . import Row
from .random_model import prompt, random_llama

LAYERS, WIDTH, VOCABULARY, TOKENS, PROMPTS, ROUNDS = 30, 576, 8192, 128, 24, 3
SMALL_LAYERS, SMALL_WIDTH = 8, 256
AFFINE, JACOBIAN, GIGABYTE = 1.3, 1.2, 1 << 30
RATE, BATCH = 1e-3, 512  # of AdamW: the best of 3e-4, 1e-3, 3e-3, and tokens a step


def measure() -> list[Row]:
    return [*_affine(), _jacobian(), _trained()]


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


def _trained() -> Row:
    """Between the bundled models, one linear layer per source tap by AdamW on the squared error, as arXiv 2505.13898
    does, for as many CPU seconds as solving for all maps takes, reading the streams included on either side."""
    a, b = (open_model(resolve(name)) for name in WORDS)
    prompts = [one for file in sorted(SETS.glob("*.jsonl")) for one in read_jsonl(file)][::6]
    begin = time.process_time()
    solved = maps.fit(a, b, prompts)
    end = 2 * time.process_time() - begin
    train, test = (_read(a, b, some) for some in split(prompts, None))
    size, n_b = test[1].view(len(test[1]), -1, b.d_model).norm(dim=-1), b.n_layers + 1
    layers = [torch.nn.Linear(a.d_model, n_b * b.d_model) for _ in range(a.n_layers + 1)]
    steps = [torch.optim.AdamW(layer.parameters(), RATE) for layer in layers]
    n, draw = 0, torch.Generator().manual_seed(0)
    while time.process_time() < end:
        at, n = torch.randint(len(train[1]), (BATCH,), generator=draw), n + 1
        for tap, (layer, step) in enumerate(zip(layers, steps)):
            step.zero_grad()
            (layer(train[0][at, tap]) - train[1][at]).square().mean().backward()
            step.step()
    with torch.no_grad():
        apart = [(layer(test[0][:, tap]) - test[1]).view(*size.shape, -1) for tap, layer in enumerate(layers)]
        relative = torch.stack([(one.norm(dim=-1) / size).mean(0) for one in apart]).numpy()
        missed = torch.stack([one.square().sum((0, 2)) for one in apart])
        spread = (test[1] - test[1].mean(0)).square().view(*size.shape, -1).sum((0, 2))
        squared = (missed / spread).numpy()
    below = int((squared < 1 - solved.r2).sum())
    by_norm, more = int((relative < solved.error).sum()), float((squared / (1 - solved.r2)).mean())
    what = f"maps trained with AdamW for the time of solving ({n} steps of {BATCH} tokens): held-out error lower"
    return Row(
        what,
        f"at {below} of {squared.size} pairs of taps by the squared error that both minimise ({more:.2f} x on "
        f"average), at {by_norm} by the relative error",
        "nowhere",
        below == 0,
    )


def _read(a, b, prompts) -> tuple[torch.Tensor, torch.Tensor]:
    """A's stream `[token, tap, d_A]` and B's taps side by side `[token, taps * d_B]`."""
    both = [(torch.stack(x, 1), y) for _, x, y in maps.Pair(a, b, prompts).each()]
    return torch.cat([x for x, _ in both]), torch.cat([y for _, y in both])
