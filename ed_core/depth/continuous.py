"""A depth without a threshold, and the turn of the cosine as a two-level fit. Numpy only.

The papers' rules (`criteria.py`) return whole layers and hang on a threshold. `mean_depth` is the mean, over all
thresholds between 0 and 1, of the depth from which a curve *stays* beyond the threshold: continuous, between 0 and L,
always defined unless the lens is the output everywhere. `fit` says whether the cosine has two levels at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from .. import statistics
from ..statistics import Interval, Resampled, Units

TENTH = 0.1  # of the layers: what counts as another place
ORDERS = 2000  # random orders of the layers that a turn is held against
BLOCK, DEEP = 4, 24  # layers that are moved together, from so many layers on: neighbours are alike
LEVEL = 0.05  # share of random orders that may be explained as well
FEWEST = 8  # layers of which a turn can be told from chance: of seven, 6 % of the orders part them alike


def mean_depth_kl(kl: ArrayLike) -> np.ndarray:
    """`1 + Σ_{l ≥ 1} e[l]`, `e[l] = max_{j ≥ l} kl[j] / max_{j ≥ 1} kl[j]`: curves `[n, L + 1]` of the lens' divergence
    from the output (row L is the output) → `[n]`, depths in [1, L]. Depth 0 is left out, since tied embeddings predict
    the token just read there. NaN where no divergence from depth 1 on is above 0, or one is not finite."""
    later = _rows(kl)[:, 1:]
    highest = later.max(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 1 + _highest_from(later).sum(1) / highest
    return np.where(highest > 0, found, np.nan)


def mean_depth_overlap(overlap: ArrayLike) -> np.ndarray:
    """`Σ_{l ≥ 0} e[l]`, `e[l] = max_{j ≥ l} (1 - overlap[j])`: curves `[n, L + 1]` of the share of best tokens that the
    lens has in common with the output → `[n]`, depths in [0, L]. NaN where the lens has all of them at every depth, or
    a value is not finite."""
    missing = 1 - _rows(overlap)
    return np.where(missing.max(1) > 0, _highest_from(missing).sum(1), np.nan)


MEAN_DEPTH: dict[str, Callable[[ArrayLike], np.ndarray]] = {"kl": mean_depth_kl, "overlap": mean_depth_overlap}
"""By the lens' measure; curves have all rows, the output's too."""
LOWEST = {"kl": 1.0, "overlap": 0.0}  # the smallest depth that each can give


@dataclass(frozen=True)
class MeanDepth:
    """A `mean_depth`: of one prompt's curve, or of the mean curve over prompts with its interval over them (None where
    there are too few). `depth`: in [0, L], None where not defined."""

    name: str
    depth: float | None
    n_layers: int
    interval: Interval | None = None

    @property
    def ratio(self) -> float | None:
        """`depth / L`."""
        return None if self.depth is None else self.depth / self.n_layers


def of_curve(name: str, curve: ArrayLike) -> MeanDepth:
    """Of one curve `[L + 1]`, the output's row included."""
    curve = np.asarray(curve, np.float64)
    return MeanDepth(name, _defined(MEAN_DEPTH[name](curve[None])[0]), len(curve) - 1)


def resampled(name: str, sums: ArrayLike, tokens: ArrayLike, over: Units, seed: int = 0, **more: int) -> Resampled:
    """The `mean_depth` of the mean curve over prompts, with its resamples. `sums` `[prompt, L + 1]` over `tokens`
    `[prompt]`."""
    found = statistics.read_off(lambda c: MEAN_DEPTH[name](c[name]), {name: sums}, tokens, over, seed, **more)
    return found.bounded(LOWEST[name], np.asarray(sums).shape[1] - 1.0)


def over_prompts(name: str, sums: ArrayLike, tokens: ArrayLike, over: Units, seed: int = 0) -> MeanDepth:
    """The same as one figure with its interval."""
    sums, n_layers = np.asarray(sums, np.float64), np.asarray(sums).shape[1] - 1
    if not np.sum(tokens):
        return MeanDepth(name, None, n_layers)
    if not over.enough:
        return replace(of_curve(name, sums.sum(0) / np.sum(tokens)), n_layers=n_layers)
    found = resampled(name, sums, tokens, over, seed)
    return MeanDepth(name, _defined(found.value), n_layers, found.interval)


@dataclass(frozen=True)
class Turn:
    """The cosine's turn as a two-level fit. `split`: the last layer of the first level, whatever the verdict; `before`,
    `after`: the mean cosine of both levels, `before_ends`, `after_ends` their intervals over prompts (None of one
    prompt, or too few). `p`: share of random orders of the layers that are explained as well by their best split.
    `failed`: why there is no turn, "" where there is one: "sign" (the levels do not lie below and above 0), "order"
    (random orders are explained as well), "twins" (half of the untrained twins or more turn there too)."""

    n_layers: int
    split: int
    before: float
    after: float
    p: float
    failed: str
    before_ends: tuple[float, float] | None = None
    after_ends: tuple[float, float] | None = None

    @property
    def layer(self) -> int | None:
        """The last layer before the turn; None where there is none."""
        return None if self.failed else self.split

    @property
    def ratio(self) -> float | None:
        """The share of the layers up to the turn, `(layer + 1) / L`."""
        return None if self.failed else (self.split + 1) / self.n_layers


def fit(curve: ArrayLike, seed: int = 0) -> Turn | None:
    """The turn of one mean-cosine curve `[L]`; without prompts there are no intervals, so the signs alone count. None
    for fewer than three layers or values that are not finite."""
    curve = np.asarray(curve, np.float64)
    if len(curve) < 3 or not np.isfinite(curve).all():
        return None
    split = int(best_split(curve[None])[0])
    before, after = float(curve[: split + 1].mean()), float(curve[split + 1 :].mean())
    p = statistics.permutation_p(explained, curve[orders(len(curve), seed)])
    failed = "sign" if not before < 0 < after else "order" if p > LEVEL else ""
    return Turn(len(curve), split, before, after, p, failed)


def fit_over_prompts(sums: Mapping[str, ArrayLike], tokens: ArrayLike, over: Units, seed: int = 0) -> Turn | None:
    """The turn of the mean over all tokens of all prompts. `sums`: of `attn_cos`, `mlp_cos` and `layer_cos`
    `[prompt, layer]` over `tokens` `[prompt]`. Each level's interval over prompts must lie on its side of 0."""
    if not np.sum(tokens):
        return None
    cosine = np.mean([np.asarray(values, np.float64) for values in sums.values()], axis=0)
    found = fit(cosine.sum(0) / np.sum(tokens), seed)
    if found is None or not over.enough:
        return found
    levels = [slice(None, found.split + 1), slice(found.split + 1, None)]
    low, high = (statistics.mean(cosine[:, at].mean(1), tokens, over, seed).interval for at in levels)
    failed = "sign" if not (low.high < 0 < high.low) else found.failed
    return replace(found, failed=failed, before_ends=low.ends, after_ends=high.ends)


def against_twins(turn: Turn, twins: Sequence[Turn | None]) -> Turn:
    """The same with the third condition: fewer than half of the untrained twins turn within a tenth of the depth."""
    if turn.failed or not twins:
        return turn
    there = [t for t in twins if t is not None and t.layer is not None]
    near = sum(abs(t.split - turn.split) <= TENTH * turn.n_layers for t in there)
    return replace(turn, failed="twins") if 2 * near >= len(twins) else turn


def explained(curves: ArrayLike) -> np.ndarray:
    """The variance that the best two levels explain, `[n, layer]` → `[n]`."""
    return np.asarray(_between(curves).max(1))


def best_split(curves: ArrayLike) -> np.ndarray:
    """The last layer of the first of the best two levels, `[n, layer]` → `[n]`; of equals the first."""
    return np.asarray(_between(curves).argmax(1))


@lru_cache(maxsize=16)
def orders(n_layers: int, seed: int = 0) -> np.ndarray:
    """`[order, layer]`: the layers' own order, then random ones. From `DEEP` layers on blocks of `BLOCK` neighbours are
    moved together; each order cuts the layers into blocks at another place, as a ring, since a step between two blocks
    that never change would come again in many orders and could not be told from chance."""
    drawn, own = np.random.default_rng(seed), np.arange(n_layers)

    def order() -> np.ndarray:
        if n_layers < DEEP:
            return drawn.permutation(n_layers)
        ring = np.roll(own, drawn.integers(n_layers))
        blocks = [ring[at : at + BLOCK] for at in range(0, n_layers, BLOCK)]
        return np.concatenate([blocks[i] for i in drawn.permutation(len(blocks))])

    found = np.stack([own, *(order() for _ in range(ORDERS - 1))])
    found.flags.writeable = False  # shared by all who ask
    return found


def _between(curves: ArrayLike) -> np.ndarray:
    """For each split, `[n, layer - 1]`: the sum of squares between its two levels."""
    c = np.asarray(curves, np.float64)
    c, n = c - c.mean(1, keepdims=True), c.shape[1]
    first = np.cumsum(c, 1)[:, :-1]
    size = np.arange(1, n)
    return np.asarray(first**2 * n / (size * (n - size)))


def _rows(curves: ArrayLike) -> np.ndarray:
    curves = np.asarray(curves, np.float64)
    if curves.ndim != 2 or curves.shape[1] < 2:
        raise ValueError(f"curves of shape (n, L + 1) are expected, found {curves.shape}")
    return curves


def _highest_from(curves: np.ndarray) -> np.ndarray:
    """`max_{j ≥ l}` along the last axis."""
    return np.maximum.accumulate(curves[:, ::-1], 1)[:, ::-1]


def _defined(value: float | np.ndarray) -> float | None:
    return float(value) if np.isfinite(value) else None
