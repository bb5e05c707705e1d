"""Least squares from sums over tokens: `X'X`, `X'Y` and means of tokens that arrive in any pieces, float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import FitRefused

RIDGE = 1e-6  # lambda = RIDGE * tr(G) / d, with G the centred Gram matrix of the sources
ALIKE = 1e-13  # of the sum of squares: below it the tokens' differences are rounding
BLOCKS = 4  # a Gram matrix is symmetric: of BLOCKS x BLOCKS blocks those above the diagonal are computed


class Kept:
    """Tensors that a checkpoint saves and restores: all attributes."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the tensors as named numpy arrays for a checkpoint."""
        return {name: tensor.cpu().numpy() for name, tensor in vars(self).items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite the tensors with those of a checkpoint."""
        for name, tensor in vars(self).items():
            tensor.copy_(torch.from_numpy(arrays[name]))


class Sums(Kept):
    """Sums over tokens of sources `x [n, d_x]` and targets `y [n, d_y]`: `xx = sum x x'` (its upper blocks), `xy = sum
    x y'`, `x`, and `y`.

    Products and sums are float64 for any input: next to massive activations float32 would lose the small ones."""

    def __init__(self, d_x: int, d_y: int, device: torch.device | str = "cpu"):
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self.n = torch.zeros((), dtype=torch.int64, device=device)
        self.xx, self.xy = zeros(d_x, d_x), zeros(d_x, d_y)
        self.x, self.y = zeros(d_x), zeros(d_y)

    def add(self, x: Float[Tensor, "n d_x"], *targets: Float[Tensor, "n d_y"]) -> None:
        """Add tokens: their sources `x` and one or more targets, which are concatenated along the width."""
        x, y = x.to(self.xx), torch.cat([target.to(self.xx) for target in targets], 1)
        ends = [len(self.x) * i // BLOCKS for i in range(BLOCKS + 1)]
        for begin, end in itertools.pairwise(ends):
            self.xx[begin:end, begin:].addmm_(x[:, begin:end].T, x[:, begin:])
        self.xy.addmm_(x.T, y)
        self.n += len(x)
        self.x += x.sum(0)
        self.y += y.sum(0)

    def solve(self, targets: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return `(A [d_y, d_x], b [d_y])`, float64, that minimise `sum |A x + b - y|^2 + lambda |A|^2`. `targets`: a
        slice of the target dimensions."""
        return self.solver()(targets)

    def solver(self) -> Callable[[slice], tuple[Tensor, Tensor]]:
        """Return `solve` as a function of the slice of targets, with the Gram matrix decomposed only once."""
        mean_x = self.x / self.n
        inverse_times = _inverse(self.gram())

        def solve(targets: slice) -> tuple[Tensor, Tensor]:
            mean_y = self.y[targets] / self.n
            a = inverse_times(self.xy[:, targets] - self.n * torch.outer(mean_x, mean_y)).T
            return a, mean_y - a @ mean_x

        return solve

    def gram(self) -> Tensor:
        """Return the sources' centred Gram matrix `[d_x, d_x]` with the ridge on its diagonal; raise `FitRefused` if
        the tokens differ by rounding only."""
        mean, upper = self.x / self.n, torch.triu(self.xx)
        gram = upper + torch.triu(upper, 1).T - self.n * torch.outer(mean, mean)
        if gram.trace() <= ALIKE * upper.trace():
            raise FitRefused("The tokens to fit on are all alike at some depth; give prompts of other text.")
        gram.diagonal().add_(max(RIDGE * float(gram.trace()) / len(gram), torch.finfo(torch.float64).tiny))
        return gram

    def of_rank(self, rank: int, targets: slice = slice(None)) -> tuple[float, Tensor, Tensor, Tensor]:
        """Return `(scale, U [d, rank], V [rank, d], b [d])`, float64: the `A = scale I + U V` nearest to the
        least-squares map on these tokens among those with its scale. Sources and targets have the same width."""
        a, _ = self.solve(targets)
        gram = self.gram()
        scale = float((a * gram).sum() / gram.trace())
        factor = torch.linalg.cholesky(gram)
        u, s, v = torch.linalg.svd((a - scale * torch.eye(len(a)).to(a)) @ factor, full_matrices=False)
        right = torch.linalg.solve_triangular(factor, v[:rank], upper=False, left=False)
        length = right.norm(dim=1, keepdim=True)
        u, v = u[:, :rank] * (s[:rank] * length[:, 0]), right / length
        mean_x, mean_y = self.x / self.n, self.y[targets] / self.n
        return scale, u, v, mean_y - scale * mean_x - u @ (v @ mean_x)

    def plus(self, others: Iterable[Sums]) -> Sums:
        """Return new sums over these tokens and those of `others`."""
        total = Sums(len(self.x), len(self.y), self.x.device)
        for one in (self, *others):
            for name, tensor in vars(total).items():
                tensor.add_(getattr(one, name))
        return total


def _inverse(gram: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function `cross -> gram^-1 cross`, by Cholesky, or by least squares if rounding left the matrix not
    quite positive."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not failed:
        return lambda cross: torch.cholesky_solve(cross, factor)
    return lambda cross: torch.linalg.lstsq(gram.cpu(), cross.cpu(), driver="gelsd").solution.to(cross)
