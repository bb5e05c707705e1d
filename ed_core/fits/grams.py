"""Least squares from sums: `X'X`, `X'Y` and means of tokens that come in any pieces, float64. Sums of pieces add up, so
that a fit resumes where it stopped and shards give what one run gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

RIDGE = 1e-6  # lambda = RIDGE * tr(G) / d, with G the centred Gram matrix of the sources
BLOCKS = 4  # a Gram matrix is symmetric: in BLOCKS x BLOCKS blocks, those above the diagonal are computed


class Sums:
    """Sums over tokens of sources `x [n, d_x]` and targets `y [n, d_y]`: `xx = sum x x'` (its upper blocks until
    `finished`), `xy = sum x y'`, `x`, `y`, and `yy = sum |y|^2`.

    Products and sums are float64 whatever comes in: with massive activations beside small ones float32 would lose what
    the small ones say."""

    def __init__(self, d_x: int, d_y: int, device: torch.device | str = "cpu"):
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self.n = 0
        self.xx, self.xy = zeros(d_x, d_x), zeros(d_x, d_y)
        self.x, self.y, self.yy = zeros(d_x), zeros(d_y), zeros(())

    def add(self, x: Float[Tensor, "n d_x"], *targets: Float[Tensor, "n d_y"]) -> None:
        """One piece of tokens; targets side by side are one target."""
        x, y = x.to(self.xx), torch.cat([target.to(self.xx) for target in targets], 1)
        ends = [len(self.x) * i // BLOCKS for i in range(BLOCKS + 1)]
        for begin, end in itertools.pairwise(ends):
            self.xx[begin:end, begin:].addmm_(x[:, begin:end].T, x[:, begin:])
        self.xy.addmm_(x.T, y)
        self.n += len(x)
        self.x += x.sum(0)
        self.y += y.sum(0)
        self.yy += (y * y).sum()

    def solve(self, targets: slice = slice(None), ridge: float = RIDGE) -> tuple[Tensor, Tensor]:
        """`(A [d_y, d_x], b [d_y])`, float64, such that `A x + b` is nearest to y in the sum of squares, with `ridge *
        tr(G) / d` on A and none on b."""
        return self.solver(ridge)(targets)

    def solver(self, ridge: float = RIDGE) -> Callable[[slice], tuple[Tensor, Tensor]]:
        """`solve` for any targets, slice by slice, with the Gram matrix decomposed once."""
        mean_x = self.x / self.n
        inverse_times = _inverse(self.gram(ridge))

        def solve(targets: slice) -> tuple[Tensor, Tensor]:
            mean_y = self.y[targets] / self.n
            a = inverse_times(self.xy[:, targets] - self.n * torch.outer(mean_x, mean_y)).T
            return a, mean_y - a @ mean_x

        return solve

    def gram(self, ridge: float = RIDGE) -> Tensor:
        """The sources' centred Gram matrix `[d_x, d_x]`, with the ridge on its diagonal."""
        mean, upper = self.x / self.n, torch.triu(self.xx)
        gram = upper + torch.triu(upper, 1).T - self.n * torch.outer(mean, mean)
        gram.diagonal().add_(max(ridge * float(gram.trace()) / len(gram), torch.finfo(torch.float64).tiny))
        return gram

    def of_rank(self, rank: int, targets: slice = slice(None)) -> tuple[float, Tensor, Tensor, Tensor]:
        """`(scale, U [d, rank], V [rank, d], b [d])`, float64: of all `A = scale I + U V` that keep the least-squares
        map's scale, the one that is nearest to it on these tokens. Sources and targets have the same width."""
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

    def arrays(self) -> dict[str, np.ndarray]:
        """For a checkpoint, and for a shard's file: those of several pieces, added, are the sums over all of them."""
        named = {name: getattr(self, name).cpu().numpy() for name in ("xx", "xy", "x", "y", "yy")}
        return named | {"n": np.asarray(self.n)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the sums of `arrays` in the place of its own."""
        self.n = int(arrays["n"])
        for name in ("xx", "xy", "x", "y", "yy"):
            getattr(self, name).copy_(torch.from_numpy(arrays[name]))


def _inverse(gram: Tensor) -> Callable[[Tensor], Tensor]:
    """`gram^-1 cross`: by Cholesky, and by least squares where rounding has left it not quite positive."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not failed:
        return lambda cross: torch.cholesky_solve(cross, factor)
    return lambda cross: torch.linalg.lstsq(gram.cpu(), cross.cpu(), driver="gelsd").solution.to(cross)
