"""The Jacobian lens: `J_l`, how `h[L]` changes on average when `h[l]` is changed.

`J_l` = mean over prompts of the mean over valid source positions p of `sum_{p' >= p, valid} d h[L][p'] / d h[l][p]`;
valid: neither the first 16 positions nor the last. One forward pass and `ceil(d / batch)` backward passes a prompt: a
one-hot cotangent at output dimension i, at all valid positions at once, gives row i of every J_l.

Source: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import FitRefused, NotFinite, TooLarge
from ..machine import ROOM, free_memory, gigabytes
from ..models.devices import total_bytes
from ..models.identities import to_float64
from ..models.language_model import LanguageModel
from ..models.sizes import require_gradients
from ..models.trace import Trace
from ..sweeps.budget import Budget
from ..types import Prompt
from .file import Checkpoint, checkpoint_file, told_of, write
from .judged import FOR_R2, judge
from .maps import require_tokens
from .streams import Streams, Tick, about, silent, split

FIRST = 16  # positions that are not valid: they are read like no other
MAX_TOKENS = 128  # of a prompt, as the authors do
FITTED, JUDGED = 0.95, 0.05  # about the share of the time


def fit(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    out: Path,
    test: Sequence[Prompt] | None = None,
    tick: Tick = silent,
    max_tokens: int = MAX_TOKENS,
    memory: int | None = None,
) -> dict[str, Any]:
    """Fit, judge on held-out prompts, and write `out`; the certificate comes back.

    The first `max_tokens` tokens of a prompt are read. Prompts without a valid position are left out and counted;
    `FitRefused` where fewer than two are left, as the drift between two halves tells whether there are enough."""
    require_gradients(model.spec.precision, "the Jacobian lens")
    used, held_out = split(prompts, test)
    streams, judged_on = Streams(model, used, max_tokens), Streams(model, held_out, max_tokens)
    require_tokens(judged_on, False, FOR_R2)
    what = _about(streams)
    kept = Checkpoint(checkpoint_file(out), what)
    halves, n, tokens, total = _summed(streams, kept, lambda share: tick(FITTED * share), memory)
    mean = (total / max(tokens, 1)).float().to(model.device)
    if min(n) == 0:
        raise FitRefused(
            f"{sum(n)} of {len(used)} prompts have a valid position, being longer than {FIRST + 1} tokens; the "
            "Jacobian lens needs two at least: give longer prompts."
        )
    pairs = ((x / n[0], y / n[1]) for x, y in zip(*halves))  # a depth at a time: the sums are large
    drift = [float(2 * (x - y).norm() / (x + y).norm()) for x, y in pairs]
    maps = halves[0].add_(halves[1]).div_(sum(n)).float()
    judged = judge(
        model,
        judged_on,
        lambda depth, h: h.float() @ maps[depth].to(h.device).T,
        {},
        mean,
        lambda share: tick(FITTED + JUDGED * share),
    )
    what["prompts"] |= {"fitted": sum(n), "too_short": len(used) - sum(n), "tokens": tokens}
    longest = max(len(streams.ids(prompt)) for prompt in used)
    what["batch"] = min(model.d_model, _rows(model, longest, _budget(model, memory)))  # of the longest prompt
    what |= {
        "drift": [round(one, 9) for one in drift],
        "held_out": told_of(held_out) | judged,
        "notes": ["The lens is made to be read by ranks: its distribution is not calibrated."],
    }
    tensors = {f"J.{depth}": x.cpu().numpy() for depth, x in enumerate(maps)}
    write(out, tensors | {"mean": mean.cpu().numpy()}, what)
    kept.done()
    return what


def _about(streams: Streams) -> dict[str, Any]:
    what = about("jacobian", streams)
    what["prompts"]["max_tokens"] = streams.first
    return what


def _arrays(following: int, halves: list[Tensor], n: list[int], tokens: int, total: Tensor) -> dict[str, np.ndarray]:
    """What is summed up to the prompt before `following`."""
    return {
        "next": np.asarray(following),
        "tokens": np.asarray(tokens),
        "n": np.asarray(n),
        "total": total.cpu().numpy(),
        "halves": np.stack([half.cpu().numpy() for half in halves]),
    }


def _summed(
    streams: Streams, kept: Checkpoint, tick: Tick, memory: int | None
) -> tuple[list[Tensor], list[int], int, Tensor]:
    """The sums of every other prompt's Jacobians, `[2][L, d, d]` float64, how many prompts each holds, all their valid
    tokens, and the sum of `h[L]` over those. They lie in the host's memory: at 32 layers of 4096 they take 8.6 GB, and
    the device has a model to hold."""
    model = streams.model
    _require_room(model)
    zeros = partial(torch.zeros, dtype=torch.float64)
    halves = [zeros(model.n_layers, model.d_model, model.d_model) for _ in range(2)]
    n, tokens, begin, total = [0, 0], 0, 0, zeros(model.d_model)
    if (found := kept.read()) is not None:
        begin, tokens, n = int(found["next"]), int(found["tokens"]), found["n"].tolist()
        total.copy_(torch.from_numpy(found["total"]))
        for half, values in zip(halves, found["halves"]):
            half.copy_(torch.from_numpy(values))

    def done(read: float | int) -> None:
        tick(read / len(streams.prompts))

    for i, prompt in enumerate(streams.prompts[begin:], begin):
        ids = streams.ids(prompt)
        if len(ids) > FIRST + 1:

            def within(share: float, i: int = i) -> None:
                done(i + share)

            jacobians, last = of_prompt(model, ids, memory, within)
            if not torch.isfinite(jacobians).all():
                raise NotFinite(
                    f"The Jacobians of {model.spec.name} hold NaN or infinite values in {model.spec.precision} on "
                    f"{prompt.text[:40]!r}; open it in bf16 or fp32, or leave that prompt out."
                )
            side = sum(n) % 2
            halves[side] += jacobians
            n[side] += 1
            tokens += len(last)
            total += last.cpu().double().sum(0)
        done(i + 1)
        if kept.due():
            kept.write(_arrays(i + 1, halves, n, tokens, total))
    return halves, n, tokens, total


def _require_room(model: LanguageModel) -> None:
    """Refuse, before any pass, a fit whose three sums do not fit the free memory of the host."""
    needed, free = 3 * 8 * model.n_layers * model.d_model**2, free_memory()
    if needed > ROOM * free:
        raise TooLarge(
            f"The Jacobian lens of {model.spec.name} sums {model.n_layers} matrices of {model.d_model} × "
            f"{model.d_model} in float64, which takes {gigabytes(needed)} of memory, and {gigabytes(free)} are free; "
            "fit a smaller model, or on a machine with more memory."
        )


def of_prompt(
    model: LanguageModel, ids: Sequence[int], memory: int | None = None, tick: Tick = silent
) -> tuple[Float[Tensor, "depth d d"], Float[Tensor, "valid d"]]:
    """One prompt's `J_l` for every depth l < L, float64 in the host's memory, and `h[L]` at its valid positions."""
    n_layers, d, n_tokens = model.n_layers, model.d_model, len(ids)
    valid = slice(FIRST, n_tokens - 1)
    trace = model.trace(model.tensor(tuple(ids)), keep=1)
    found = torch.zeros(n_layers, d, d, dtype=torch.float64)
    budget = _budget(model, memory)
    graph: list[Tensor] = []

    def work(dims: slice) -> None:
        nonlocal graph
        n_rows = dims.stop - dims.start
        try:
            if not graph or len(graph[0]) < n_rows:
                graph = []
                graph = _streams_with_graph(model, trace, n_rows)
            found[:, dims] = slopes_of(dims, len(graph[0]))
        except Exception:
            graph = []  # where memory ran out a smaller one is made: this one would run out again
            raise
        tick(dims.stop / d)

    def slopes_of(dims: slice, rows: int) -> Float[Tensor, "depth dim d"]:
        n_rows = dims.stop - dims.start
        cotangent = torch.zeros_like(graph[-1])
        for row, dim in enumerate(range(dims.start, dims.stop)):
            cotangent[row, valid, dim] = 1.0
        slopes = torch.autograd.grad(graph[-1], graph[:-1], cotangent, retain_graph=True)
        means = [to_float64(slope[: min(rows, n_rows), valid]).mean(1) for slope in slopes]
        return torch.stack(means).cpu()

    budget.run(d, lambda: _rows(model, n_tokens, budget), work)
    return found, trace.resid[-1][0, valid]


def _budget(model: LanguageModel, memory: int | None) -> Budget:
    return Budget(memory, model.device.type, f"The Jacobian lens on {model.spec.name}", total_bytes(model.device))


def _rows(model: LanguageModel, n_tokens: int, budget: Budget) -> int:
    """Output dimensions that one backward pass takes at most."""
    return budget.rows(n_tokens, model.n_layers * model.call_bytes(n_tokens, gradients=True))


def _streams_with_graph(model: LanguageModel, trace: Trace, rows: int) -> list[Tensor]:
    """`h[0..L]` of so many equal rows, each able to say how the last depends on it."""
    resid = trace.resid[0].expand(rows, -1, -1).clone().requires_grad_()
    found = [resid]
    with torch.enable_grad():
        for layer in range(model.n_layers):
            *_, resid = model.run_block(trace, layer, resid, crosses=False)
            found.append(resid)
            if model.crosses(layer, layer + 1):
                resid = model.between(trace, resid)
    return found
