"""The residual identities: the reason to believe any curve. Checked for every model that is opened, on a short prompt.

With `h[l]` the stream entering block l, `a[l]`, `m[l]` what attention and the MLP add, and `y` the model's own logits:

1. miss     `|h[l] + a[l] + m[l] - h[l+1]|` against the largest operand, per block and token; the maximum over tokens
counts, because one
            massive-activation token would hide any error in a global norm. A third branch, where a family has one, is
            part of the sum.
2. slope    `h[l+1] - h[l]` regressed on `a[l]` and `m[l]`: both slopes are 1. In bf16 a small update drowns in the
stream's rounding and
            the miss says nothing; rounding does not correlate with the update, a forgotten multiplier or norm does.
3. closure  `max|unembed(h[L]) - y| / max|y|`.
4. replay   blocks called by hand give the full forward's logits of as many rows, 1 and 3; tracing and editing leave
nothing behind.
   batch    every block gives the stream what it gives it alone where two others stand beside it, its tokens moved along
by one and by two: the median over tokens counts, as a processor may sum another number of rows in another order, by
which a mixture of experts sends a few tokens elsewhere. Block by block, since logits carry such differences on: of
right float32 models on a GPU three rows were 1.5e-5 from one.
5. detour   the same where the stream enters block 0 with its tokens moved along by one, walked beside the untouched
one: a model whose blocks
            hand each other something past the stream (shared keys and values) passes 4 and fails here.
6. between  of a model whose blocks run several times: what stands between two passes, done by hand to the stream that
leaves one, gives the
            stream that enters the next. 1 and 2 hold for every pass of every block.
7. order    without attention's addition the MLP's changes where the MLP stands behind attention, and not where it
stands beside it: sums
            cannot tell the two, and the MLP's ratio and cosine depend on it.
8. causality another last token changes no earlier logit: else the model reads its text in both directions, and lens,
answers and early exits mean nothing.

Besides, and never a reason to refuse: suffix, blocks called by hand from the middle of the prompt on, with the keys and
values of what stands before. Where it holds, erasure need not compute the tokens before the erased one. And cache, a
token read with the library's cache of what stands before: where it does not hold, writing reads the whole again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import IdentityFailed

if TYPE_CHECKING:
    from .architecture import Architecture

MISS_LIMIT = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
SLOPE_LIMIT = {torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.03}


def suffix_limit(dtype: torch.dtype, n_layers: int) -> float:
    """By how much logits may differ, over the largest, where only the second half of a prompt is replayed, for the
    first half's keys and values to be used again: where each of a block's two additions is rounded one step the other
    way, at random, `eps * sqrt(2 L)`, and 1e-4 at least, since float32 products of another summation order were seen to
    move logits by 6e-5 on a GPU. At 30 layers 0.06 in bf16 and 0.0076 in fp16."""
    return float(max(1e-4, torch.finfo(dtype).eps * (2 * n_layers) ** 0.5))


@dataclass(frozen=True)
class Identities:
    """Figures of one check. `slope_attn[l]` or `slope_mlp[l]` is None where that branch is below the dtype's rounding;
    `mlp_moves[l]`, the relative change of the MLP's addition without attention's, None where attention's is too small
    or the MLP's is constant. `replay[rows]`: by hand against the model's own so many rows; `batch`: of the worst block,
    beside two other rows against alone. `between[r]`: the miss between pass r and the next, for the passes that
    anything stands between; `causality`: the change of all earlier logits with another last token; `cache`: of a
    token's, read with a cache of those before it."""

    dtype: str
    n_tokens: int
    miss: tuple[float, ...]
    slope_attn: tuple[float | None, ...]
    slope_mlp: tuple[float | None, ...]
    closure: float
    replay: dict[int, float]
    detour: float
    left_behind: float
    parallel: bool
    mlp_moves: tuple[float | None, ...]
    miss_limit: float
    slope_limit: float
    batch: float
    suffix_limit: float
    suffix: float | None = None
    between: tuple[float, ...] = ()
    causality: float | None = None
    cache: float | None = None

    @property
    def suffix_holds(self) -> bool:
        """Whether positions before an intervention may be left out of a replay."""
        return self.suffix is not None and self.suffix <= self.suffix_limit

    @property
    def cache_holds(self) -> bool:
        """Whether what was read may be kept while the model writes."""
        return self.cache is None or self.cache <= self.suffix_limit

    def failures(self) -> list[str]:
        """What does not hold, with layer, figure and limit; empty for an accepted model."""
        found = []
        for layer, miss in enumerate(self.miss):
            if not miss <= self.miss_limit:
                found.append(
                    f"layer {layer}: h + a + m misses the next residual by {miss:.2g} (limit {self.miss_limit:.0e})"
                )
        for name, slopes in (("attention", self.slope_attn), ("MLP", self.slope_mlp)):
            for layer, slope in enumerate(slopes):
                if slope is not None and not abs(slope - 1) <= self.slope_limit:
                    found.append(
                        f"layer {layer}: the stream moves by {slope:.4g} times what is read from {name} (expected 1 ± "
                        f"{self.slope_limit:g})"
                    )
        if not self.closure <= self.miss_limit:
            found.append(
                f"unembedding the last residual misses the logits by {self.closure:.2g} (limit {self.miss_limit:.0e})"
            )
        for number, miss in enumerate(self.between):
            if not miss <= self.miss_limit:
                found.append(
                    f"what is read between passes {number} and {number + 1} misses the stream that enters the later "
                    f"one by {miss:.2g} (limit {self.miss_limit:.0e})"
                )
        for batch, miss in self.replay.items():
            if not miss <= self.miss_limit:
                found.append(
                    f"layers replayed by hand with batch {batch} miss the logits by {miss:.2g} (limit "
                    f"{self.miss_limit:.0e})"
                )
        if not self.batch <= self.miss_limit:
            found.append(
                f"a layer gives a row another result beside two other rows than alone (off by {self.batch:.2g}, limit "
                f"{self.miss_limit:.0e}): rows see each other"
            )
        if not self.detour <= self.miss_limit:
            found.append(
                f"with another stream at layer 0, layers replayed by hand miss the logits by {self.detour:.2g} (limit "
                f"{self.miss_limit:.0e}): "
                "they hand each other something past the stream"
            )
        found.extend(self._order_failures())
        if self.causality is not None and not self.causality <= self.miss_limit:
            found.append(
                f"another last token changes earlier logits by {self.causality:.2g} (limit {self.miss_limit:.0e}): the "
                "model is not causal, it reads its text in both directions, as embedding models do"
            )
        if self.left_behind != 0:
            found.append(
                f"tracing and editing left something behind: logits differ by {self.left_behind:.2g} afterwards "
                "(expected 0)"
            )
        return found

    def _order_failures(self) -> list[str]:
        told = [(layer, moves) for layer, moves in enumerate(self.mlp_moves) if moves is not None]
        moved = [
            f"layer {layer}: without attention's addition the MLP's changes by {moves:.2g}"
            for layer, moves in told
            if moves > self.miss_limit
        ]
        if self.parallel:
            return [
                f"{sentence} (expected 0, because the family is said to run them side by side)" for sentence in moved
            ]
        still = told and not any(moves for _, moves in told)
        return (
            [
                "without attention's addition the MLP's stays as it is (the family is said to run the MLP behind "
                "attention)"
            ]
            if still
            else []
        )

    def require(self, architecture: Architecture) -> None:
        """Raise `IdentityFailed` unless everything holds."""
        failures = self.failures()
        if failures:
            more = f" ({len(failures) - 1} more failures)" if len(failures) > 1 else ""
            raise IdentityFailed(
                f"Refused: the sums of this {architecture.family} model do not hold in {self.dtype}. "
                f"{failures[0]}{more}. "
                f"Modules read: {architecture.modules_read()}. Its curves would be smooth and wrong. Fix the family's "
                "entry in "
                "ed_core/models/families.py (examples/a_new_family.ipynb), then run 'python -m ed_core verify "
                "MODEL'."
            )

    def to_json(self) -> dict[str, Any]:
        """For the birth certificate: the worst of each figure."""
        slopes = [abs(s - 1) for s in (*self.slope_attn, *self.slope_mlp) if s is not None]
        return {
            "dtype": self.dtype,
            "miss": max(self.miss),
            "slope_error": max(slopes, default=None),
            "slopes_checked": len(slopes),
            "closure": self.closure,
            "replay": max(self.replay.values()),
            "batch": self.batch,
            "suffix": self.suffix,
            "causality": self.causality,
            "cache": self.cache,
            **({"between": max(self.between)} if self.between else {}),
        }


def miss(
    h: Float[Tensor, "*batch d"],
    a: Float[Tensor, "*batch d"],
    m: Float[Tensor, "*batch d"],
    after: Float[Tensor, "*batch d"],
    other: Float[Tensor, "*batch d"] | None = None,
) -> Float[Tensor, "*batch"]:
    """`|h + a + m - h_next|` over the largest operand's norm, per token: a block may cancel a massive activation.
    `other`: a third branch. In float32, or in float64 where it is handed that."""
    h, a, m, after = (x if x.dtype == torch.float64 else x.float() for x in (h, a, m, after))
    off: Tensor = (h + a + m + (0 if other is None else other) - after).norm(dim=-1)
    return off / _largest(h, a, m, after, other)


def rounding(
    h: Float[Tensor, "*batch d"],
    a: Float[Tensor, "*batch d"],
    m: Float[Tensor, "*batch d"],
    after: Float[Tensor, "*batch d"],
    other: Float[Tensor, "*batch d"] | None = None,
    *,
    dtype: torch.dtype,
) -> Float[Tensor, "*batch"]:
    """The largest miss that rounding the sum's two additions to `dtype` can cause, per token, on the miss's scale: an
    element is off by at most half a step (`eps / 2` of its size) of the partial sum, the largest of `h + a`, `h + m`,
    `a + m`, and half a step of the result. A third branch is one more addition and one more factor: sizes are then
    added up instead."""
    partial = torch.stack([(h + a).abs(), (h + m).abs(), (a + m).abs()]).amax(0)
    if other is not None:
        partial = partial + 2 * (h.abs() + a.abs() + m.abs() + other.abs())
    step: Tensor = torch.finfo(dtype).eps / 2 * (partial + after.abs()).norm(dim=-1)
    return step / _largest(h, a, m, after, other)


def wide(x: Tensor) -> Tensor:
    """In float64: where it is, or on the CPU where its device (MPS) has no float64."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def _largest(*operands: Tensor | None) -> Float[Tensor, "*batch"]:
    """Norm of the largest operand, per token."""
    return torch.stack([x.norm(dim=-1) for x in operands if x is not None]).amax(0).clamp_min(1e-30)


def slopes(
    h: Float[Tensor, "*batch d"],
    a: Float[Tensor, "*batch d"],
    m: Float[Tensor, "*batch d"],
    after: Float[Tensor, "*batch d"],
    limit: float,
    other: Float[Tensor, "*batch d"] | None = None,
) -> tuple[float | None, float | None]:
    """Least-squares slopes of `h_next - h` (less a third branch's `other`) on `a` and on `m`, tokens pooled, each token
    scaled by 1/|h_next - h|.

    Only elements where the branch is at least two rounding steps of its surroundings enter its slope: smaller ones are
    rounded away whole, which is not noise but a bias towards 0. A slope is None where too few are left to tell it from
    1: its standard error *from rounding alone* (known from dtype and operands; the fit's own residuals would be
    inflated by the very mistake sought) exceeds a quarter of the limit."""
    eps = torch.finfo(h.dtype).eps
    h, a, m, after, third = (
        wide(x).flatten(0, -2) for x in (h, a, m, after, torch.zeros_like(h) if other is None else other)
    )
    change = after - h - third
    scale = 1 / change.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    sums = []
    for branch, beside in ((a, m), (m, a)):
        step = eps * torch.stack([h.abs(), after.abs(), beside.abs(), third.abs()]).amax(0)
        kept = (branch.abs() > 2 * step) & (change.norm(dim=-1, keepdim=True) > 0)
        weight = (scale * kept).flatten()
        x = torch.stack([branch.flatten() * weight, beside.flatten() * weight], dim=-1)
        size = x.norm(dim=0).clamp_min(1e-30)
        x = x / size  # else a small branch collinear with a large one passes for independent
        noise = x * (step.flatten() * weight / 2).unsqueeze(-1)
        along = x.T @ (change.flatten() * weight)
        sums.append(torch.cat([size[:1], along, (x.T @ x).flatten(), (noise.T @ noise).flatten()]))
    found = []
    for sized, along, gram, noise in (one.split((1, 2, 4, 4)) for one in torch.stack(sums).cpu()):  # all the host asks
        inverse = torch.linalg.pinv(gram.view(2, 2), hermitian=True, rtol=1e-12)
        error = (inverse @ noise.view(2, 2) @ inverse)[0, 0].clamp_min(0).sqrt() / sized
        identified = (inverse @ gram.view(2, 2))[0, 0] > 1 - 1e-6
        found.append(float((inverse @ along)[0] / sized) if identified and error < limit / 4 else None)
    return found[0], found[1]
