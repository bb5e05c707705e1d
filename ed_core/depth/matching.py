"""Does the deeper model do the same over more layers? Read off the maps between two models (arXiv 2505.13898, §6), and
what replacing a layer by a linear map costs (arXiv 2603.15389). Numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..lenses.measured import Maps
from ..probes.base import rank_correlation
from .rules import TENTH

MARGIN = 0.9  # a map beats a control where its error is less than so much of the control's
SLOPE = (0.8, 1.25)  # of matching on relative depth: what counts as the same stretch
TRACKS = 0.8  # rank correlation from which on matches are said to follow the source's depth
LATE = 0.25  # share of B's depth; matches that leave so much of its end out are said to stop short
RAISED = 0.1  # a block is useful where its replacement raises the loss by more than this share
FEW = 3  # sources that match, below which no slope is read


@dataclass(frozen=True)
class Matching:
    """The best match in model B of each of model A's taps (streams after a layer). Taps 0 are left out, as the paper's
    plot does: entry `k` is tap `k + 1`.

    `best` `[L_A]`: B's tap `j >= 1` of the smallest error. `error`, `shuffled`, `mean` `[L_A]`: the map's error there
    and the controls' at the same tap of B. `matches` `[L_A]`: whether the error is below `MARGIN` times the smaller of
    the controls'."""

    best: np.ndarray
    error: np.ndarray
    shuffled: np.ndarray
    mean: np.ndarray
    matches: np.ndarray
    n_layers: tuple[int, int]

    @property
    def relative(self) -> tuple[np.ndarray, np.ndarray]:
        """Each tap of A from 1 on and its best match in B, as shares of the depth: `(i / L_A, best / L_B)`."""
        return np.arange(1, self.n_layers[0] + 1) / self.n_layers[0], self.best / self.n_layers[1]


def match(maps: Maps, by: str = "error") -> Matching:
    """Return the best match in B of each of A's taps. `by`: the smallest "error" or the largest "r2"."""
    rows = np.arange(1, maps.n_layers[0] + 1)
    off = maps.error[1:, 1:] if by == "error" else -maps.r2[1:, 1:]
    best = np.where(np.isfinite(off), off, np.inf).argmin(1) + 1
    error, shuffled, mean = maps.error[rows, best], maps.error_shuffled[rows, best], maps.error_mean[best]
    matches = error < MARGIN * np.fmin(shuffled, mean)
    return Matching(best, error, shuffled, mean, matches, maps.n_layers)


def reading(found: Matching) -> str:
    """Return a word for how A's layers match B's: "unclear" (fewer than half of them, or than `FEW`, beat the
    controls), "unordered" (matches do not follow A's depth), "same" (at the same share of the depth), "part" (so are
    they, but A's last layers match none), "late" (A's last layers match, but B's last are no match), "neither"."""
    n_a, n_b = found.n_layers
    if found.matches.sum() < max(FEW, n_a / 2):
        return "unclear"
    a, b = (shares[found.matches] for shares in found.relative)
    if (rank_correlation(a, b) or 0.0) < TRACKS:
        return "unordered"
    near, slope = float(np.median(np.abs(b - a))) <= TENTH, float(np.polyfit(a, b, 1)[0])
    early, to_the_end = b.max() <= 1 - LATE, a.max() > 1 - LATE
    if near and SLOPE[0] <= slope <= SLOPE[1] and not (early and to_the_end):
        return "part" if early else "same"
    return "late" if early and to_the_end and n_b > n_a else "neither"


# ---------------------------------------------------------------- one model


def usefulness(loss: np.ndarray, whole: float) -> float:
    """Return the share of blocks whose linear replacement raises the loss by more than 10 %, or breaks it."""
    return float(np.mean(~(loss / whole - 1 <= RAISED)))
