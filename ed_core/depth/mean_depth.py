"""The average depth: the depth without a threshold. Numpy only.

It is the mean, over all thresholds between 0 and 1, of the depth from which a lens curve *stays* beyond the threshold:
continuous, between 0 and L, and defined unless the lens equals the output everywhere.

Shapes: curves `[n, L + 1]`, the output's row included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from .. import statistics
from ..statistics import Interval, Resampled, Units


def mean_depth_kl(kl: ArrayLike) -> np.ndarray:
    """Return the average depth of curves of divergence from the output, `[n, L + 1]` → `[n]` in [1, L].

    It is `1 + Σ_{l ≥ 1} e[l]`, `e[l] = max_{j ≥ l} kl[j] / max_{j ≥ 1} kl[j]`. Depth 0 is left out, as tied embeddings
    predict the token just read there. NaN where no divergence from depth 1 on is above 0, or one is not finite."""
    later = np.asarray(kl, np.float64)[:, 1:]
    highest = later.max(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        depth = 1 + _highest_from(later).sum(1) / highest
    return np.where(highest > 0, depth, np.nan)


def mean_depth_overlap(overlap: ArrayLike) -> np.ndarray:
    """Return the average depth of curves of the share of best tokens common to lens and output, `[n, L + 1]` → `[n]`.

    It is `Σ_{l ≥ 0} e[l]`, `e[l] = max_{j ≥ l} (1 - overlap[j])`, in [0, L]. NaN where all are common at every depth,
    or a value is not finite."""
    missing = 1 - np.asarray(overlap, np.float64)
    return np.where(missing.max(1) > 0, _highest_from(missing).sum(1), np.nan)


MEAN_DEPTH: dict[str, Callable[[ArrayLike], np.ndarray]] = {"kl": mean_depth_kl, "overlap": mean_depth_overlap}
"""By the lens's measure."""
LOWEST = {"kl": 1.0, "overlap": 0.0}  # the smallest possible depth


def middle_half(kl: ArrayLike) -> tuple[int, int] | None:
    """Return the depths that the thresholds 3/4 and 1/4 give on one curve `[L + 1]` of divergence: half of all
    thresholds give one between them. None where `mean_depth_kl` is not defined."""
    later = np.asarray(kl, np.float64)[None, 1:]
    if not later.max() > 0 or not np.isfinite(later).all():
        return None
    shares = _highest_from(later)[0] / later.max()
    return 1 + int((shares > 0.75).sum()), 1 + int((shares > 0.25).sum())


@dataclass(frozen=True)
class MeanDepth:
    """The average depth of one curve ("kl" or "overlap"), in [0, L], None where not defined. `interval`: over prompts,
    None for one prompt or too few."""

    name: str
    depth: float | None
    n_layers: int
    interval: Interval | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """5 and 95 % over prompts; None where unknown."""
        return self.interval.ends if self.interval is not None else None

    @property
    def ratio(self) -> float | None:
        """The average depth as a share of the layers."""
        return None if self.depth is None else self.depth / self.n_layers


def of_curve(name: str, curve: ArrayLike) -> MeanDepth:
    """Return the average depth of one curve `[L + 1]`, by "kl" or "overlap" (`name`)."""
    curve = np.asarray(curve, np.float64)
    return MeanDepth(name, _defined(MEAN_DEPTH[name](curve[None])[0]), len(curve) - 1)


def resampled(name: str, sums: ArrayLike, tokens: ArrayLike, over: Units, seed: int = 0, **more: int) -> Resampled:
    """Return the average depth of the mean curve `Σ sums / Σ tokens`, with its resamples over `over`."""
    depth = statistics.read_off(lambda c: MEAN_DEPTH[name](c[name]), {name: sums}, tokens, over, seed, **more)
    return depth.bounded(LOWEST[name], np.asarray(sums).shape[1] - 1.0)


def of_prompts(name: str, sums: ArrayLike, tokens: ArrayLike, over: Units, seed: int = 0) -> MeanDepth:
    """Return the average depth of the mean curve over prompts, with its interval over `over`."""
    sums, n_layers = np.asarray(sums, np.float64), np.asarray(sums).shape[1] - 1
    if not np.sum(tokens):
        return MeanDepth(name, None, n_layers)
    if not over.enough:
        return replace(of_curve(name, sums.sum(0) / np.sum(tokens)), n_layers=n_layers)
    estimate = resampled(name, sums, tokens, over, seed)
    return MeanDepth(name, _defined(estimate.value), n_layers, estimate.interval)


def _highest_from(curves: np.ndarray) -> np.ndarray:
    """Return for every depth the highest value from there on, `[n, depth]`."""
    return np.maximum.accumulate(curves[:, ::-1], 1)[:, ::-1]


def _defined(value: float | np.ndarray) -> float | None:
    """Return the number, None where it is not finite."""
    return float(value) if np.isfinite(value) else None
