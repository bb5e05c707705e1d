"""Means over tokens and over levels with resamples of the prompts: what claims are computed from. Numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..depth.criteria import FEWEST, RESAMPLES, resampled
from ..probes.scores import rank_correlation
from .claim import enough
from .evidence import Part

Sampled = tuple[np.ndarray, np.ndarray]  # a curve [place], and that of every resample [resample, place]


def per_token(part: Part, name: str, seed: int) -> Sampled:
    """A measure's mean over all tokens of all prompts. The resamples of one part and seed are the same prompts."""
    sums = part[f"{name}.sum"].reshape(len(part), -1)
    return over_prompts(sums, part.columns.get(f"{name}.count", part["n_tokens"]), seed)


def over_prompts(values: np.ndarray, counts: np.ndarray | None, seed: int) -> Sampled:
    """Sums `[prompt, place]` over counts; plain means over prompts without counts."""
    counts = np.ones(len(values)) if counts is None else counts
    return values.sum(0) / counts.sum(), resampled({"": values}, counts, seed=seed)[""]


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation, row by row `[resample, place]` → `[resample]`; NaN where one side is constant."""
    found = [rank_correlation(x, y) for x, y in zip(a, b, strict=True)]
    return np.array([np.nan if one is None else one for one in found])


def by_level(part: Part, levels: Sequence[str]) -> list[Part]:
    """The part of each level; refused where one is too small for an interval."""
    found = [part.keep(np.asarray(part.levels) == level) for level in levels]
    for level, of_level in zip(levels, found):
        enough(of_level, f"prompts of level {level}")
    return found


def over_levels(values: Sequence[np.ndarray], marks: Sequence[Sequence[str]], seed: int) -> tuple[Sampled, int]:
    """The mean of every level `[level]`, of its prompts' own values, and how many pairs it is over: pairs that have a
    value on every level are drawn as pairs where there are enough of them; else (0) each level by itself."""
    rng = np.random.default_rng(seed)
    by_mark: list[dict[str, float]] = [dict(zip(m, v)) if any(m) else {} for m, v in zip(marks, values)]
    shared = sorted(set.intersection(*(set(one) for one in by_mark)) - {""})
    if len(shared) >= FEWEST:
        own = np.array([[one[mark] for one in by_mark] for mark in shared])
        return (own.mean(0), own[rng.integers(len(own), size=(RESAMPLES, len(own)))].mean(1)), len(own)
    again = [v[rng.integers(len(v), size=(RESAMPLES, len(v)))].mean(1) for v in values]
    return (np.array([v.mean() for v in values]), np.stack(again, -1)), 0


def of_both(sampled: Sampled, read: Callable[[np.ndarray], np.ndarray]) -> tuple[float, np.ndarray]:
    """A number read off the curve and off that of every resample; `read` takes `[n, place]` to `[n]`."""
    return float(read(sampled[0][None])[0]), read(sampled[1])
