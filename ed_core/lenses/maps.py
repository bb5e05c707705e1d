"""Maps between two models that read the same tokens: for every pair of taps the best affine map `h_A[i] -> h_B[j]`, in
closed form, and its error on held-out prompts.

arXiv 2505.13898 §6 trains one linear layer per source tap with AdamW; the objective has a closed form in the sums over
tokens (METHODS §8): float64, intercept not penalised, ridge 1e-6 tr(G) / d with G the centred Gram matrix of the
source. The first token of each prompt is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial as with_arguments
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..models.language_model import LanguageModel
from ..sweeps.metrics import NORM_FLOOR
from .driver import Fitting, Tick
from .least_squares import RIDGE, Sums
from .measured import FLOAT, Maps
from .streams import Streams, model_entry, other_tokens, require_tokens

PIECE = 256 << 20  # bytes of the targets of tokens that are read together


Solved = tuple[list[Tensor], list[Tensor], Tensor]
"""Of every source tap the weights `[d_A, 2 * targets]` and the constant `[2 * targets]`, float64, with the shuffled
control's in the second half; and the mean target `[targets]`, the constant prediction."""


class Between(Fitting):
    """Fits maps between two models: from each tap (depth) of A to all taps of B, and a shuffled control to those of
    other tokens."""

    kind, summing = Maps.kind, 0.6

    def __init__(self, a: LanguageModel, b: LanguageModel, **how: Any):
        super().__init__(a, b, **how)
        require_tokens(self.on[0], fitted=True)
        self.n_b, self.d_b = b.n_layers + 1, b.d_model
        self.about |= {"a": model_entry(a), "b": model_entry(b), "ridge": RIDGE}
        self.rows = dict.fromkeys(Maps.dims, ((self.n_b,), float))

    def accumulate(self, sources: Sequence[int], sums: Sequence[Sums], begin: int) -> Iterator[int]:
        """Add prompts from number `begin` on to the sums; yield how many the sums contain."""
        last = self.on[1].before(begin)
        before = None if last is None else torch.cat(last, 1).to(self.model.device)
        for i, resid, y in self._both(self.on, begin):
            other = other_tokens(y, before, i)
            for piece in self._pieces(len(y)):
                both = torch.cat([y[piece], other[piece]], 1).double()
                for tap, one in zip(sources, sums):
                    one.add(resid[tap][piece], both)
            before = y
            yield i + 1

    def _both(
        self, streams: Sequence[Streams], begin: int = 0
    ) -> Iterator[tuple[int, list[Float[Tensor, "pos d_a"]], Float[Tensor, "pos targets"]]]:
        """Yield each prompt's number, A's stream at every tap, and B's taps concatenated."""
        for (i, x), (_, y) in zip(*(one.each(begin) for one in streams), strict=True):
            yield i, x, torch.cat(y, 1).to(x[0].device)

    def _pieces(self, n: int) -> list[slice]:
        """Return slices of `n` tokens, each with targets, true and shuffled, that fit into `PIECE` bytes."""
        rows = max(1, PIECE // (FLOAT * self.plan.d_y))
        return [slice(i, min(i + rows, n)) for i in range(0, n, rows)]

    def solve(self, sources: Sequence[int], sums: Sequence[Sums]) -> Solved:
        """Return the maps of these taps, which take the memory of their sums."""
        constants = [torch.empty_like(one.y) for one in sums]
        for one, constant in zip(sums, constants):
            solve = one.solver()
            for begin in range(0, len(one.y), self.d_b):
                block = slice(begin, begin + self.d_b)
                matrix, constant[block] = solve(block)
                one.xy[:, block] = matrix.T
        return [one.xy for one in sums], constants, sums[0].y[: len(constants[0]) // 2] / sums[0].n

    def evaluate(self, sources: Sequence[int], maps: Solved, tick: Tick) -> dict[str, np.ndarray]:
        """Return error and r2 of maps and controls on held-out prompts, `[source, tap of B]`."""
        device, n_b, d_b = self.model.device, self.n_b, self.d_b
        zeros = with_arguments(torch.zeros, dtype=torch.float64, device=device)
        relative, miss = (zeros(len(sources), 2, n_b) for _ in range(2))  # true maps, shuffled ones
        of_mean, miss_mean = zeros(n_b), zeros(n_b)
        y_sum, y_square = zeros(n_b, d_b), zeros(n_b)
        weights, constants, mean = maps
        mean, n = mean.view(n_b, d_b), 0
        for i, resid, targets in self._both(self.test):
            for piece in self._pieces(len(targets)):
                y = targets[piece].to(device, torch.float64).view(-1, n_b, d_b)
                size = y.norm(dim=-1).clamp_min(NORM_FLOOR)
                n += len(y)
                y_sum += y.sum(0)
                y_square += (y * y).sum((0, 2))
                distance = (y - mean).norm(dim=-1)
                of_mean += (distance / size).sum(0)
                miss_mean += (distance * distance).sum(0)
                for k, tap in enumerate(sources):
                    guess = torch.addmm(constants[k], resid[tap][piece].to(device, torch.float64), weights[k])
                    distance = (guess.view(-1, 2, n_b, d_b) - y[:, None]).norm(dim=-1)
                    relative[k] += (distance / size[:, None]).sum(0)
                    miss[k] += (distance * distance).sum(0)
            tick((i + 1) / len(self.test[0].prompts))
        spread = y_square - (y_sum * y_sum).sum(-1) / n
        error, r2 = relative / n, 1 - miss / spread
        rows = {
            "error": error[:, 0],
            "r2": r2[:, 0],
            "error_shuffled": error[:, 1],
            "r2_shuffled": r2[:, 1],
            "error_mean": (of_mean / n).expand(len(sources), -1),
            "r2_mean": (1 - miss_mean / spread).expand(len(sources), -1),
        }
        return {name: values.cpu().numpy() for name, values in rows.items()}
