"""Does the deeper model do the same over more layers? Read off the maps between two models (arXiv 2505.13898, §6), and
what replacing a layer by a linear map costs (arXiv 2603.15389). Numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..fits.measured import Maps, Replacement
from ..probes.base import rank_correlation
from .continuous import TENTH
from .wording import past, printed

MARGIN = 0.9  # a map beats a control where its error is less than so much of the control's
SLOPE = (0.8, 1.25)  # of matching on relative depth: what counts as the same stretch
TRACKS = 0.8  # rank correlation from which on matches are said to follow the source's depth
LATE = 0.25  # share of B's depth; matches that leave so much of its end out are said to stop short
RAISED = 0.1  # a block is useful where its replacement raises the loss by more than this share
LOOSE = 0.3  # rank correlation below which they are said not to follow it
MOSTLY = 0.75  # share of the matches at one depth above which no order is read
FEW = 3  # sources that match, below which no slope is read


@dataclass(frozen=True)
class Matching:
    """Where in B each of A's taps is found again. Taps 0 are left out, as the paper's plot does: entry `k` is tap `k +
    1`.

    `best` `[L_A]`: B's tap `j >= 1` of the smallest error. `error`, `shuffled`, `mean` `[L_A]`: the map's error there
    and the controls' at the same tap of B. `matches` `[L_A]`: whether the error is below `MARGIN` times the smaller of
    the controls'. `slope`, `rank`: of `best / L_B` against `i / L_A` over sources that match, by least squares and as
    Spearman's correlation; NaN with fewer than `FEW` of them, the rank also where all match one tap. `reach`: the
    deepest matched tap of B, as a share of L_B; NaN where none matches."""

    best: np.ndarray
    error: np.ndarray
    shuffled: np.ndarray
    mean: np.ndarray
    matches: np.ndarray
    slope: float
    rank: float
    reach: float
    n_layers: tuple[int, int]

    @property
    def relative(self) -> tuple[np.ndarray, np.ndarray]:
        """`(i / L_A, best / L_B)` of all sources from tap 1 on."""
        return np.arange(1, self.n_layers[0] + 1) / self.n_layers[0], self.best / self.n_layers[1]


def match(maps: Maps, by: str = "error") -> Matching:
    """The best matches of maps that are there; `by` "r2" takes B's tap of the largest R² instead."""
    n_a, n_b = maps.n_layers
    rows = np.arange(1, n_a + 1)
    off = maps.error[1:, 1:] if by == "error" else -maps.r2[1:, 1:]
    best = np.where(np.isfinite(off), off, np.inf).argmin(1) + 1
    found, shuffled, mean = maps.error[rows, best], maps.error_shuffled[rows, best], maps.error_mean[best]
    matches = found < MARGIN * np.fmin(shuffled, mean)
    slope = reach = float("nan")
    rank: float | None = None
    if matches.any():
        reach = float(best[matches].max() / n_b)
    if matches.sum() >= FEW:
        x, y = rows[matches] / n_a, best[matches] / n_b
        slope, rank = float(np.polyfit(x, y, 1)[0]), rank_correlation(x, y)
    return Matching(
        best, found, shuffled, mean, matches, slope, float("nan") if rank is None else rank, reach, maps.n_layers
    )


def reading(found: Matching) -> str:
    """Which of the readings holds: "unclear" (fewer than half of the sources, or than `FEW`, beat the controls),
    "unordered" (matches do not follow the source's depth), "same" (they lie on the diagonal of relative depth), "part"
    (so do they, but A's last layers match none), "late" (A's last layers match, but B's last are no match),
    "neither"."""
    n_a, n_b = found.n_layers
    if found.matches.sum() < max(FEW, n_a / 2):
        return "unclear"
    if not found.rank >= TRACKS:  # NaN too
        return "unordered"
    a, b = (at[found.matches] for at in found.relative)
    near = float(np.median(np.abs(b - a))) <= TENTH
    diagonal, early = near and SLOPE[0] <= found.slope <= SLOPE[1], found.reach <= 1 - LATE
    to_the_end = found.relative[0][found.matches].max() > 1 - LATE
    if diagonal and not (early and to_the_end):
        return "part" if early else "same"
    return "late" if early and to_the_end and n_b > n_a else "neither"


def sentence(maps: Maps) -> str:
    """Where the best matches lie; that it cannot be told where the maps do not beat their controls, and that it depends
    on the measure where R² reads otherwise than the error."""
    found, (a, b), (n_a, n_b) = match(maps), maps.names, maps.n_layers
    which = reading(found)
    k, end = int(found.matches.sum()), f"{_share(found.reach)} of {b}'s depth"
    have = "has" if k == 1 else "have"
    there = f"Of {a}'s depths 1 to {n_a}, {k} {have} a match in {b} whose error is at least 10 % below both controls'"
    if which == "unclear":
        return f"{there}: too few to say where matches lie ({max(FEW, -(-n_a // 2))} are needed)."
    most = int(np.bincount(found.best[found.matches]).max())
    said = {
        "unordered": "all lie at one depth"
        if most == k
        else f"follow no order that could be told: {most} of {k} lie at one depth"
        if most > MOSTLY * k
        else "follow the order of depth only loosely (rank correlation "
        f"{past(found.rank, TRACKS, 2)}; {TRACKS:g} needed)"
        if found.rank > LOOSE
        else f"do not follow the order of depth (rank correlation {_figure(found.rank)})",
        "same": "lie at about the same depth"
        if n_a == n_b
        else "lie at about the same share of the depth, as the same steps over "
        f"{'more' if n_b > n_a else 'fewer'} layers would",
        "late": f"end at {end}: none is among {b}'s last depths",
        "part": f"lie at about the same share of the depth, up to {_share(found.reach)}; none of {a}'s last depths has "
        "a match",
        "neither": f"roughly follow the order of depth, not all at the same share of it, and end at {end}",
    }[which]
    said = f"{there}. These matches {said}"
    same = reading(match(maps, "r2")) == which
    return f"{said}." if same else f"{said}; by R² instead of the error this does not hold."


def reasons(maps: Maps) -> str:
    """The figures that `sentence` rests on."""
    found, other = match(maps), match(maps, "r2")
    return (
        f"The error is at least 10 % below both controls' at {int(found.matches.sum())} of {maps.n_layers[0]} best "
        f"matches. Median error of all {maps.n_layers[0]}: {_median(found.error)}, shuffled "
        f"{_median(found.shuffled)}, mean only {_median(found.mean)}. Relative depth of the match against that of its "
        f"source: slope {_figure(found.slope)}, rank correlation {_figure(found.rank)} (by R²: {_figure(other.slope)}, "
        f"{_figure(other.rank)})."
    )


def _median(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    return _figure(float(np.median(finite)) if len(finite) else float("nan"))


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _figure(value: float) -> str:
    return printed(value, ".2f") if np.isfinite(value) else "not defined"


# ---------------------------------------------------------------- one model


def raised(loss: np.ndarray, whole: float | np.ndarray) -> np.ndarray:
    """`loss / whole - 1`: by what share a replacement raises the loss."""
    return loss / whole - 1


def usefulness(loss: np.ndarray, whole: float) -> float:
    """The share of blocks whose linear replacement raises the loss by more than 10 %, or leaves it not finite."""
    return float(np.mean(~(raised(loss, whole) <= RAISED)))


def said_of_replacement(found: Replacement) -> str:
    """Usefulness on held-out prompts, and on those fitted on."""
    held, fitted = usefulness(found.loss, found.whole), usefulness(found.loss_fitted, found.whole_fitted)
    n = found.n_layers
    lost = int((~np.isfinite(found.loss)).sum())
    gone = f" Of these, {lost} give{'s' * (lost == 1)} no finite loss." if lost else ""
    return (
        f"A linear map in place of one layer raises {found.name}'s loss by more than {_share(RAISED)} for "
        f"{round(held * n)} of {n} layers (usefulness {held:.2f}; {fitted:.2f} on the prompts it was fitted on).{gone}"
    )
