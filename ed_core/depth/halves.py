"""Depth at half-layer resolution, from a logit lens that is read within the layers too (`points=halves`): row l of the
`half_…` measures is after attention and before the MLP of layer l, at depth l + ½."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..types import ProbeResult
from .mean_depth import LOWEST, MEAN_DEPTH

EMBEDDING, ATTENTION, MLP = "embedding", "attention", "MLP"


def has_halves(result: ProbeResult) -> bool:
    """Return whether a logit lens was also read within the layers, between attention and MLP."""
    return "half_kl" in result.measures


def interleaved(layers: ArrayLike, half: ArrayLike) -> np.ndarray:
    """Return rows `[L + 1, …]` of depths 0, 1, … merged with rows `[L, …]` of depths ½, 1½, …: `[2 L + 1, …]`."""
    layers, half = np.asarray(layers), np.asarray(half)
    both = np.empty((len(layers) + len(half), *layers.shape[1:]), np.result_type(layers, half))
    both[::2], both[1::2] = layers, half
    return both


def mean_depth(name: str, whole: ArrayLike, half: ArrayLike) -> float | None:
    """Return the average depth of one curve read every half layer: in [1, L] by "kl" (from depth 1 on, as by layers),
    in [0, L] by "overlap"; None where not defined. Of a curve that falls, up to half a layer below that by layers."""
    first = int(LOWEST[name])
    rows = interleaved(whole, half)[2 * first :].astype(np.float64)
    if name == "kl":  # its formula passes over a row 0
        depth = float(MEAN_DEPTH[name](np.concatenate([rows[:1], rows])[None])[0] - 1) / 2 + first
    else:
        depth = float(MEAN_DEPTH[name](rows[None])[0]) / 2
    return None if np.isnan(depth) else depth


def branch_at(depth: float) -> tuple[str, int]:
    """Return the branch right before a depth (a multiple of ½) and its layer, from 0; ("embedding", 0) at depth 0."""
    steps = round(2 * depth)
    if steps == 0:
        return EMBEDDING, 0
    return (ATTENTION, steps // 2) if steps % 2 else (MLP, steps // 2 - 1)


@dataclass(frozen=True)
class Brought:
    """Which branches bring a prompt's prediction, over tokens.

    `counts`: by branch, the tokens that get the final first choice for good from it. `attention`, `mlp` `[L]`: how much
    each layer's branch takes off the divergence from the output, nats, means (negative: adds); together the divergence
    at depth 0."""

    counts: Mapping[str, int]
    attention: np.ndarray
    mlp: np.ndarray


def brought(result: ProbeResult, left_out: Collection[int] = ()) -> Brought:
    """Return which branches bring the prediction, from a complete logit lens read at half layers. `left_out`: positions
    that do not count, unless none would be left."""
    kept = [t for t in range(result.n_tokens) if t not in left_out] or list(range(result.n_tokens))
    layers, half = (result[name][:, kept].astype(np.float64).mean(1) for name in ("kl", "half_kl"))
    counts = Counter(branch_at(depth)[0] for depth in result["half_settle_depth"][kept].tolist())
    return Brought({name: counts[name] for name in (EMBEDDING, ATTENTION, MLP)}, layers[:-1] - half, half - layers[1:])


def mean_depth_of(result: ProbeResult, name: str) -> float | None:
    """Return the average depth of a prompt's mean curve "kl" or "overlap", read every half layer."""
    layers, half = (result[key].astype(np.float64).mean(1) for key in (name, f"half_{name}"))
    return mean_depth(name, layers, half)
