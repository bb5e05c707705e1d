"""The residual identities: the reason to believe any curve. Checked on a short prompt for every model that is opened.

`h[l]`: the stream entering block l; `a[l]`, `m[l]`: what attention and the MLP add; `y`: the model's own logits.

1. miss       `|h[l] + a[l] + m[l] - h[l+1]|` over the largest operand, per block and token. The worst token counts: one
              massive activation would hide any error in a global norm. A third branch is part of the sum.
2. slope      `h[l+1] - h[l]` regressed on `a[l]` and `m[l]`: both slopes are 1. In bf16 a small update drowns in the
              stream's rounding and the miss says nothing; rounding does not correlate with the update, a forgotten
              multiplier or norm does.
3. closure    `max|unembed(h[L]) - y| / max|y|`.
4. replay     blocks called by hand give the full forward's logits of as many rows, 1 and 3; tracing and editing leave
              nothing behind.
   batch      every block gives a row the same alone and with two other rows (its tokens moved by one and by two). The
              median over tokens counts, and block by block: a processor may sum more rows in another order, which sends
              a few tokens of a mixture of experts elsewhere and adds up over depth (1.5e-5 on a GPU, float32).
5. detour     replay of a stream whose tokens are moved by one at block 0: a model whose blocks share something outside
              the stream (keys and values of a lower block) passes 4 and fails here.
6. between    in a looped model, what happens between two passes, done by hand, gives the stream that enters the next.
7. order      without attention's addition the MLP's changes where the MLP follows attention, and not where both read
              the same stream: sums cannot tell the two, and the MLP's ratio and cosine depend on it.
8. causality  another last token changes no earlier logit; else lens, answers and early exits mean nothing.

Two more figures never refuse a model. suffix: blocks called by hand from the middle of the prompt on, with the keys and
values of the tokens before; where it holds, erasure does not compute those again. cache: a token read with the
library's cache; where that does not hold, writing reads the whole text again for each token."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Return the largest change of logits, over the largest logit, that rounding explains where only a part of the
    positions is replayed.

    `eps * sqrt(2 L)`: each of a block's two additions rounded one step the other way, at random; 1e-4 at least, since
    float32 products summed in another order moved logits by 6e-5 on a GPU. For 30 layers 0.06 in bf16, 0.0076 in
    fp16."""
    return float(max(1e-4, torch.finfo(dtype).eps * (2 * n_layers) ** 0.5))


@dataclass(frozen=True)
class Identities:
    """Figures of one check of a model's residual identities, named as in the module's docstring.

    `slope_attn[l]`, `slope_mlp[l]`: None where that branch is below the dtype's rounding. `mlp_moves[l]`: the relative
    change of the MLP's addition without attention's; None where attention's is too small or the MLP's is constant.
    `replay[rows]`: by hand against the model's own logits of as many rows. `between[r]`: between pass r and the next.
    `suffix`, `causality`, `cache`: None where this model's blocks cannot be called so, or nothing is compared."""

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
        """Whether a replay may start at an intervention's position, with keys and values of earlier ones reused."""
        return self.suffix is not None and self.suffix <= self.suffix_limit

    @property
    def cache_holds(self) -> bool:
        """Whether keys and values may be kept while the model writes."""
        return self.cache is None or self.cache <= self.suffix_limit

    def failures(self) -> list[str]:
        """Return a sentence for each identity that does not hold, with layer, figure and limit; empty if all do."""
        missed = [f"{what} by {size:.2g} (limit {self.miss_limit:.0e})" for what, size in self._misses()]
        left = f"logits differ by {self.left_behind:.2g} after tracing and editing (expected 0)"
        return [*missed, *self._slope_failures(), *self._order_failures(), *([left] if self.left_behind != 0 else [])]

    def _misses(self) -> Iterator[tuple[str, float]]:
        """Yield the figures above `miss_limit`, or NaN, each after the beginning of a sentence that it completes."""
        figures = [(f"layer {l}: h + a + m misses the next residual", miss) for l, miss in enumerate(self.miss, 1)]
        figures.append(("unembedding the last residual misses the logits", self.closure))
        for number, miss in enumerate(self.between):
            passes = f"passes {number} and {number + 1}"
            figures.append((f"what is read between {passes} misses the stream that enters the later one", miss))
        for rows, miss in self.replay.items():
            figures.append((f"layers replayed by hand with batch {rows} miss the logits", miss))
        figures.append(("rows see each other: with two other rows a layer moves a row's result", self.batch))
        shared = "layers share something outside the stream: replayed by hand from another stream they miss the logits"
        figures.append((shared, self.detour))
        causal = "the model is not causal, like an embedding model: another last token changes earlier logits"
        figures.append((causal, self.causality or 0.0))
        return ((what, size) for what, size in figures if not size <= self.miss_limit)

    def _slope_failures(self) -> Iterator[str]:
        """Yield a sentence for each layer and branch with a slope further than `slope_limit` from 1."""
        for name, slopes in (("attention", self.slope_attn), ("MLP", self.slope_mlp)):
            for layer, slope in enumerate(slopes, 1):
                if slope is not None and not abs(slope - 1) <= self.slope_limit:
                    yield (
                        f"layer {layer}: the stream moves by {slope:.4g} times what is read from {name} (expected 1 ± "
                        f"{self.slope_limit:g})"
                    )

    def _order_failures(self) -> Iterator[str]:
        """Yield sentences on layers where the MLP does not read the stream that the family's description says: before
        attention's addition, or after it."""
        moves = [(layer, change) for layer, change in enumerate(self.mlp_moves, 1) if change is not None]
        if self.parallel:
            for layer, change in moves:
                if change > self.miss_limit:
                    yield (
                        f"layer {layer}: without attention's addition the MLP's changes by {change:.2g} (expected 0, "
                        "since the family is described with both reading the same stream)"
                    )
        elif moves and not any(change for _, change in moves):
            yield (
                "without attention's addition the MLP's does not change (the family is described with the MLP after "
                "attention)"
            )

    def require(self, architecture: Architecture) -> None:
        """Raise `IdentityFailed` unless every identity holds; the message names the modules of `architecture`."""
        if failures := self.failures():
            more = f" ({len(failures) - 1} more failures)" if len(failures) > 1 else ""
            raise IdentityFailed(
                f"Refused: the sums of this {architecture.family} model do not hold in {self.dtype}. {failures[0]}"
                f"{more}. Modules read: {architecture.modules_read()}. Its curves would be smooth and wrong. Fix the "
                "family's entry in ed_core/models/families.py (examples/a_new_family.ipynb), then run 'python -m "
                "ed_core verify MODEL'."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the worst of each figure by name, for the birth certificate (what a result records of its origin)."""
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


# ---------------------------------------------------------------- the sums of one block

# h, a, m, after: [*batch, d], the stream before a block, both additions, the stream after it; other: a third branch.


def miss(
    h: Float[Tensor, "*batch d"],
    a: Float[Tensor, "*batch d"],
    m: Float[Tensor, "*batch d"],
    after: Float[Tensor, "*batch d"],
    other: Float[Tensor, "*batch d"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Return, per token, how far `h + a + m` (and `other`) misses `after`: the norm of the difference over the largest
    operand's norm, since a block may cancel a massive activation. In float32, or in float64 where the operands are."""
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
    """Return the largest `miss` per token that rounding to `dtype` alone can cause, on the scale of `miss`.

    `h`, `after`: the stream before and after the block; `a`, `m`, `other`: what attention, the MLP and a third
    branch add. An element is off by at most half a step (`eps / 2` of its size) of the partial sum, the largest of
    `h + a`, `h + m` and `a + m`, and half a step of the result. A third branch is one more addition and one more
    factor: sizes are then added up instead."""
    partial = torch.stack([(h + a).abs(), (h + m).abs(), (a + m).abs()]).amax(0)
    if other is not None:
        partial = partial + 2 * (h.abs() + a.abs() + m.abs() + other.abs())
    step: Tensor = torch.finfo(dtype).eps / 2 * (partial + after.abs()).norm(dim=-1)
    return step / _largest(h, a, m, after, other)


def to_float64(x: Tensor) -> Tensor:
    """The tensor in float64: on its device, or on the CPU where the device (MPS) has no float64."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def _largest(*operands: Tensor | None) -> Float[Tensor, "*batch"]:
    """Return, per token, the norm of the largest operand, None aside; at least 1e-30."""
    return torch.stack([x.norm(dim=-1) for x in operands if x is not None]).amax(0).clamp_min(1e-30)


def slopes(
    h: Float[Tensor, "*batch d"],
    a: Float[Tensor, "*batch d"],
    m: Float[Tensor, "*batch d"],
    after: Float[Tensor, "*batch d"],
    limit: float,
    other: Float[Tensor, "*batch d"] | None = None,
) -> tuple[float | None, float | None]:
    """Return the least-squares slopes of a block's update `after - h` (less `other`) on `a` (attention) and on `m`
    (MLP), tokens pooled, scaled by 1/|after - h| each.

    Only elements where the branch is at least two rounding steps of its surroundings enter its slope: smaller ones are
    rounded away whole, which is not noise but a bias towards 0. A slope is None where too few are left: where its
    standard error *from rounding alone* (known from dtype and operands; the fit's own residuals would be inflated by
    the very mistake sought) exceeds a quarter of the limit."""
    eps = torch.finfo(h.dtype).eps
    h, a, m, after, third = (
        to_float64(x).flatten(0, -2) for x in (h, a, m, after, torch.zeros_like(h) if other is None else other)
    )
    change = after - h - third
    scale = 1 / change.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    sums = []
    for branch, rest in ((a, m), (m, a)):
        step = eps * torch.stack([h.abs(), after.abs(), rest.abs(), third.abs()]).amax(0)
        kept = (branch.abs() > 2 * step) & (change.norm(dim=-1, keepdim=True) > 0)
        weight = (scale * kept).flatten()
        x = torch.stack([branch.flatten() * weight, rest.flatten() * weight], dim=-1)
        size = x.norm(dim=0).clamp_min(1e-30)
        x = x / size  # else a small branch collinear with a large one passes for independent
        noise = x * (step.flatten() * weight / 2).unsqueeze(-1)
        along = x.T @ (change.flatten() * weight)
        sums.append(torch.cat([size[:1], along, (x.T @ x).flatten(), (noise.T @ noise).flatten()]))
    attn, mlp = torch.stack(sums).cpu()  # one copy to the host
    return _slope(attn, limit), _slope(mlp, limit)


def _slope(sums: Tensor, limit: float) -> float | None:
    """Return the slope on the first of two regressors, from their pooled products; None where rounding hides it."""
    size, along, gram, noise = sums.split((1, 2, 4, 4))
    inverse = torch.linalg.pinv(gram.view(2, 2), hermitian=True, rtol=1e-12)
    error = (inverse @ noise.view(2, 2) @ inverse)[0, 0].clamp_min(0).sqrt() / size
    identified = (inverse @ gram.view(2, 2))[0, 0] > 1 - 1e-6
    return float((inverse @ along)[0] / size) if identified and error < limit / 4 else None
