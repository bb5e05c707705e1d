"""The turn of the cosine: whether the layers switch from erasing to strengthening, as a two-level fit. Numpy only.

Shapes: a mean cosine curve is `[layer]`, sums over prompts `[prompt, layer]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from .. import statistics
from ..statistics import Units
from .rules import near

ORDERS = 2000  # random orders of the layers that a turn is compared with
BLOCK, DEEP = 4, 24  # layers that are moved together, from so many layers on: neighbours are alike
LEVEL = 0.05  # share of random orders that may be explained as well
FEWEST = 8  # layers that a turn needs: of seven, 6 % of the orders part them as well


@dataclass(frozen=True)
class Turn:
    """The layer at which the mean cosine turns from negative (erasing) to positive (strengthening), fitted as two
    levels.

    `split`: the last layer of the first level, from 0, even if the turn failed; `before`, `after`: both levels' mean.
    `p`: share of random orders of the layers that two levels explain as well. `failed`: why there is no turn, else "":
    "sign" (the levels are not below and above 0), "order" (`p` is too large), "twins" (half of the untrained copies or
    more turn there too)."""

    n_layers: int
    split: int
    before: float
    after: float
    p: float
    failed: str

    @property
    def layer(self) -> int | None:
        """The last layer before the turn, from 0; None where the fit failed."""
        return None if self.failed else self.split

    @property
    def ratio(self) -> float | None:
        """The share of the layers up to the turn, `(layer + 1) / L`; None where the fit failed."""
        return None if self.failed else (self.split + 1) / self.n_layers


def fit(curve: ArrayLike, seed: int = 0) -> Turn | None:
    """Return the turn of one mean-cosine curve `[L]`, judged by signs and random orders, without intervals. None for
    fewer than three layers or values that are not finite."""
    curve = np.asarray(curve, np.float64)
    if len(curve) < 3 or not np.isfinite(curve).all():
        return None
    split = int(best_split(curve[None])[0])
    before, after = float(curve[: split + 1].mean()), float(curve[split + 1 :].mean())
    p = statistics.permutation_p(lambda c: _between(c).max(1), curve[orders(len(curve), seed)])
    failed = "sign" if not before < 0 < after else "order" if p > LEVEL else ""
    return Turn(len(curve), split, before, after, p, failed)


def fit_over_prompts(sums: Mapping[str, ArrayLike], tokens: ArrayLike, over: Units, seed: int = 0) -> Turn | None:
    """Return the turn of the mean cosine over all tokens of all prompts; None without tokens or with too few layers.

    `sums`: of `attn_cos`, `mlp_cos` and `layer_cos`, `[prompt, layer]`, over `tokens` `[prompt]`. The interval of each
    level's mean must be on its side of 0."""
    if not np.sum(tokens):
        return None
    cosine = np.mean([np.asarray(values, np.float64) for values in sums.values()], axis=0)
    whole_turn = fit(cosine.sum(0) / np.sum(tokens), seed)
    if whole_turn is None or not over.enough:
        return whole_turn
    levels = [slice(None, whole_turn.split + 1), slice(whole_turn.split + 1, None)]
    low, high = (statistics.mean(cosine[:, level].mean(1), tokens, over, seed).interval for level in levels)
    failed = "sign" if not (low.high < 0 < high.low) else whole_turn.failed
    return replace(whole_turn, failed=failed)


def against_twins(turn: Turn, twins: Sequence[Turn | None]) -> Turn:
    """Return the turn, failed as "twins" where half or more of the untrained copies turn near it."""
    near_it = sum(t is not None and t.layer is not None and near(t.split, turn.split, turn.n_layers) for t in twins)
    return replace(turn, failed="twins") if twins and not turn.failed and 2 * near_it >= len(twins) else turn


def best_split(curves: ArrayLike) -> np.ndarray:
    """Return the last layer of the first of the two levels that explain each curve best, `[n, layer]` → `[n]`."""
    return np.asarray(_between(curves).argmax(1))


@lru_cache(maxsize=16)
def orders(n_layers: int, seed: int = 0) -> np.ndarray:
    """Return orders of the layers, `[order, layer]`: their own first, then random ones.

    From `DEEP` layers on, blocks of `BLOCK` neighbours are moved together; each order cuts the layers into blocks at
    another place, as a ring, since a step between two blocks that never change would look like chance."""
    draw, own = np.random.default_rng(seed), np.arange(n_layers)

    def order() -> np.ndarray:
        if n_layers < DEEP:
            return draw.permutation(n_layers)
        ring = np.roll(own, draw.integers(n_layers))
        blocks = [ring[start : start + BLOCK] for start in range(0, n_layers, BLOCK)]
        return np.concatenate([blocks[i] for i in draw.permutation(len(blocks))])

    several = np.stack([own, *(order() for _ in range(ORDERS - 1))])
    several.flags.writeable = False  # shared by all who ask
    return several


def _between(curves: ArrayLike) -> np.ndarray:
    """Return for each split the sum of squares between its two levels, `[n, layer - 1]`."""
    c = np.asarray(curves, np.float64)
    c, n = c - c.mean(1, keepdims=True), c.shape[1]
    first = np.cumsum(c, 1)[:, :-1]
    size = np.arange(1, n)
    return np.asarray(first**2 * n / (size * (n - size)))
