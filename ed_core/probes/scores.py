"""Numbers that curves come down to. Numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def layer_effect(effect: ArrayLike) -> np.ndarray:
    """`e[s] = sum_{l>s} effect[s, l] / max(L-1-s, 1)`, `[…, layer]`: what skipping block s does to a later block, on
    average [C25 §5].

    The last block has none after it: 0. NaN where a skip is not computed (or has no boundary).
    """
    values = np.asarray(effect, np.float64)
    mean: np.ndarray = np.triu(values, 1).sum(-1) / np.maximum(np.arange(values.shape[-1])[::-1], 1)
    return mean


def depth_score(e: ArrayLike) -> float | np.ndarray:
    """`d = sum_s s e[s] / sum_s e[s]`: the block (counted from 0) where a non-negative curve over blocks is centred, in
    [0, L-1]; of many curves `[…, layer]` one each.

    Source: Csordás et al. 2025 §5, whose formula counts from 1. NaN where a value is missing or nothing has an effect.
    """
    values = np.asarray(e, np.float64)
    total = values.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.where(total > 0, values @ np.arange(values.shape[-1]) / total, np.nan)
    return score if values.ndim > 1 else float(score)


def rank_correlation(proxy: ArrayLike, truth: ArrayLike) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank, in [-1, 1]; None below three values or where one side
    is constant."""
    x, y = (_ranks(np.asarray(v, np.float64)) for v in (proxy, truth))
    if len(x) < 3 or x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
