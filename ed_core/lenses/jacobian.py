"""The Jacobian lens: `J_l`, how `h[L]` changes on average when `h[l]` is changed.

`J_l` = mean over prompts of the mean over valid source positions p of `sum_{p' >= p, valid} d h[L][p'] / d h[l][p]`;
valid: neither the first 16 positions nor the last. One forward pass and `ceil(d / batch)` backward passes a prompt: a
one-hot cotangent at output dimension i, at all valid positions at once, gives row i of every J_l.

Source: Gurnee et al. 2026 (transformer-circuits.pub/2026/workspace)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import FitRefused, NotFinite
from ..models.devices import total_bytes
from ..models.identities import to_float64
from ..models.language_model import LanguageModel
from ..models.sizes import require_gradients
from ..models.trace import Trace
from ..sweeps.budget import Budget
from . import judged
from .driver import Tick
from .judged import LensFitting
from .least_squares import Kept
from .measured import JACOBIAN, JACOBIAN_TOKENS

FIRST = 16  # positions that are not valid, as models read them differently


class Halves(Kept):
    """Sums of Jacobians over two alternating halves of the prompts, the difference of which gives the drift. `first`,
    `second`: `[L, d, d]` float64 sums of `n` prompts each; `total`: the sum of `h[L]` over `tokens` valid tokens. On
    the host."""

    def __init__(self, n_layers: int, d: int):
        self.n, self.tokens = torch.zeros(2, dtype=torch.int64), torch.zeros((), dtype=torch.int64)
        zeros = partial(torch.zeros, dtype=torch.float64)
        self.first, self.second, self.total = zeros(n_layers, d, d), zeros(n_layers, d, d), zeros(d)

    def add(self, jacobians: Tensor, last: Tensor) -> None:
        """Add one prompt's Jacobians `[L, d, d]` and last residuals `[valid, d]`."""
        side = int(self.n.sum()) % 2
        (self.second if side else self.first).add_(jacobians)
        self.n[side] += 1
        self.tokens += len(last)
        self.total += last.cpu().double().sum(0)


Maps = dict[str, Tensor]
"""`J` `[L, d, d]`, `drift` `[L]` and `mean` `[d]`."""


class Jacobian(LensFitting):
    """Fits the Jacobian lens: one matrix for each depth, all at once. `memory`: bytes of the backward passes. Prompts
    without a valid position are left out and counted."""

    kind, summing, by_depth = JACOBIAN, 0.95, ("J",)

    def __init__(
        self, model: LanguageModel, *, memory: int | None = None, max_tokens: int = JACOBIAN_TOKENS, **how: Any
    ):
        require_gradients(model.spec.precision, "the Jacobian lens")
        super().__init__(model, max_tokens=max_tokens, **how)
        self.about["prompts"] |= {"max_tokens": max_tokens}
        d, self.memory = model.d_model, memory
        maps: Any = {"J": ((d, d), np.float32), "drift": ((), float), "mean": ((d,), np.float32)}
        self.rows = maps | judged.shapes(len(self.test[0].prompts))

    def sums(self, sources: Sequence[int]) -> list[Halves]:
        """Return the empty sums of all depths together."""
        return [Halves(self.model.n_layers, self.model.d_model)]

    def accumulate(self, sources: Sequence[int], sums: Sequence[Halves], begin: int) -> Iterator[int]:
        """Add each prompt's Jacobians, from number `begin` on; raise `NotFinite` for NaN or infinity."""
        for i, prompt in enumerate(self.on[0].prompts[begin:], begin):
            ids = self.on[0].ids(prompt)
            if len(ids) > FIRST + 1:
                jacobians, last = of_prompt(self.model, ids, self.memory)
                if not torch.isfinite(jacobians).all():
                    raise NotFinite(
                        f"The Jacobians of {self.model.spec.name} contain NaN or infinite values in "
                        f"{self.model.spec.precision} on {prompt.text[:40]!r}; open it in bf16 or fp32, or leave that "
                        "prompt out."
                    )
                sums[0].add(jacobians, last)
            yield i + 1

    def solve(self, sources: Sequence[int], sums: Sequence[Halves]) -> Maps:
        """Return mean Jacobians, drift between halves and mean `h[L]`; needs two valid prompts."""
        a, b, n = sums[0].first, sums[0].second, sums[0].n.tolist()
        if min(n) == 0:
            raise FitRefused(
                f"{sum(n)} of {self.n_prompts} prompts have a valid position, being longer than {FIRST + 1} tokens; "
                "the Jacobian lens needs two at least: give longer prompts."
            )
        pairs = ((x / n[0], y / n[1]) for x, y in zip(a, b))  # a depth at a time: the sums are large
        drift = torch.tensor([float(2 * (x - y).norm() / (x + y).norm()) for x, y in pairs], dtype=torch.float64)
        mean = (sums[0].total / sums[0].tokens).float()
        return {"J": a.add_(b).div_(sum(n)).float(), "drift": drift, "mean": mean.expand(len(sources), -1)}

    def evaluate(self, sources: Sequence[int], maps: Maps, tick: Tick) -> dict[str, np.ndarray]:
        """Return the maps and their figures on held-out prompts, by name."""
        device = self.model.device
        lens = judged.lens_of(lambda name, depth: maps[name][depth].to(device), self.kind)
        rows = judged.evaluate(self.test[0], sources, lens, {}, maps["mean"][0].to(device), tick)
        return rows | {name: x.numpy() for name, x in maps.items()}

    def described(self, rows: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return counts of prompts and tokens, and the certificate's further fields."""
        valid = [n - FIRST for n in self.on[0].lengths() if n > FIRST]
        longest = max(len(self.on[0].ids(prompt)) for prompt in self.on[0].prompts)
        return {"fitted": len(valid), "too_short": self.n_prompts - len(valid), "tokens": sum(valid)}, {
            "batch": min(self.model.d_model, _rows(self.model, longest, _budget(self.model, self.memory))),
            "drift": [round(float(one), 9) for one in rows["drift"]],
            "notes": ["The lens is made to be read by ranks: its distribution is not calibrated."],
        }


def of_prompt(
    model: LanguageModel, ids: Sequence[int], memory: int | None = None
) -> tuple[Float[Tensor, "depth d d"], Float[Tensor, "valid d"]]:
    """Return one prompt's Jacobians of the last residual by the residual at each depth l < L, float64 on the CPU, and
    the last residual at the valid positions: all but the first `FIRST` and the last.

    Entry (i, j): how output dimension i, summed over the valid positions, changes with input dimension j, on average
    over these. `memory`: bytes that the backward passes may take."""
    n_layers, d, n_tokens = model.n_layers, model.d_model, len(ids)
    valid = slice(FIRST, n_tokens - 1)
    trace = model.trace(model.tensor(tuple(ids)), keep=1)
    jacobians = torch.zeros(n_layers, d, d, dtype=torch.float64)
    budget = _budget(model, memory)
    graph: list[Tensor] = []

    def work(dims: slice) -> None:
        """Fill in the rows of these output dimensions: their derivatives by each depth's residual, mean over tokens."""
        nonlocal graph
        n_rows = dims.stop - dims.start
        try:
            if not graph or len(graph[0]) < n_rows:
                graph = []
                graph = _streams_with_graph(model, trace, n_rows)
            cotangent = torch.zeros_like(graph[-1])
            for row, dim in enumerate(range(dims.start, dims.stop)):
                cotangent[row, valid, dim] = 1.0
            slopes = torch.autograd.grad(graph[-1], graph[:-1], cotangent, retain_graph=True)
            jacobians[:, dims] = torch.stack([to_float64(one[:n_rows, valid]).mean(1) for one in slopes]).cpu()
        except Exception:
            graph = []  # where memory ran out a smaller one is made: this one would run out again
            raise

    budget.run(d, lambda: _rows(model, n_tokens, budget), work)
    return jacobians, trace.resid[-1][0, valid]


def _budget(model: LanguageModel, memory: int | None) -> Budget:
    """Return the memory budget of the backward passes."""
    return Budget(memory, model.device.type, f"The Jacobian lens on {model.spec.name}", total_bytes(model.device))


def _rows(model: LanguageModel, n_tokens: int, budget: Budget) -> int:
    """Return how many output dimensions one backward pass may take within the budget."""
    return budget.rows(n_tokens, model.n_layers * model.call_bytes(n_tokens, gradients=True))


def _streams_with_graph(model: LanguageModel, trace: Trace, rows: int) -> list[Tensor]:
    """Return the streams `h[0..L]` of `rows` equal rows, connected for gradients of the last by each."""
    resid = trace.resid[0].expand(rows, -1, -1).clone().requires_grad_()
    streams = [resid]
    with torch.enable_grad():
        for layer in range(model.n_layers):
            *_, resid = model.run_block(trace, layer, resid, crosses=False)
            streams.append(resid)
            if model.crosses(layer, layer + 1):
                resid = model.between(trace, resid)
    return streams
