"""Does the deeper model do the same over more layers? Read off the maps between two models (arXiv 2605.14075, §6), and
what replacing a layer by a linear map costs (arXiv 2603.15389). Numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..fits.measured import Maps, Replacement
from ..probes.scores import rank_correlation

MARGIN = 0.9  # a map beats a control where its error is less than so much of the control's
SLOPE = (0.8, 1.25)  # of matching on relative depth: what counts as the same stretch
TRACKS = 0.8  # rank correlation from which on matches are said to follow the source's depth
LATE = 0.25  # share of B's depth; matches that leave so much of its end out are said to stop short
RAISED = 0.1  # a block is useful where its replacement raises the loss by more than this share
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
    slope = rank = reach = float("nan")
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
    "unordered" (matches do not follow the source's depth), "same" (they lie on the diagonal of relative depth), "late"
    (they end early in a deeper B: what it does after is its own), "neither"."""
    n_a, n_b = found.n_layers
    if found.matches.sum() < max(FEW, n_a / 2):
        return "unclear"
    if not found.rank >= TRACKS:  # NaN too
        return "unordered"
    if SLOPE[0] <= found.slope <= SLOPE[1] and found.reach > 1 - LATE:
        return "same"
    return "late" if found.reach <= 1 - LATE and n_b > n_a else "neither"


def sentence(maps: Maps) -> str:
    """The reading, with its figures; that it cannot be told where the maps do not beat their controls, and that it
    depends on the measure where R² reads otherwise than the error."""
    found, other = match(maps), match(maps, "r2")
    (a, b), (n_a, n_b) = maps.names, maps.n_layers
    figures = (
        f"{int(found.matches.sum())} of {a}'s {n_a} layers match better than the controls (median error at the best "
        f"match {_median(found.error)}, shuffled {_median(found.shuffled)}, mean only {_median(found.mean)})"
    )
    which = reading(found)
    if which == "unclear":
        return (
            f"Whether {b} does over its {n_b} layers what {a} does over {n_a} cannot be told: {figures}, and half of "
            f"them would have to, {FEW} at least."
        )
    end = f"the best matches of {a}'s layers end at {_share(found.reach)} of {b}'s depth"
    said = {
        "unordered": f"The best matches of {a}'s layers in {b} do not run in the order of depth: neither reading holds",
        "same": f"{_deeper(a, b, n_a, n_b)}: the best matches lie along the diagonal of relative depth",
        "late": f"{b} does something of its own late: {end} (layer {round(found.reach * n_b)} of {n_b})",
        "neither": (
            f"The best matches of {a}'s layers in {b} run in the order of depth, but not along the diagonal, and "
            f"{end}: neither the same over more layers nor something new at {b}'s end alone"
        ),
    }[which]
    said = f"{said} (slope {found.slope:.2f}, rank correlation {_figure(found.rank)}). {figures}."
    if reading(other) == which:
        return said
    return (
        f"{said} By R² instead of the error the matches lie otherwise (slope {_figure(other.slope)}, rank correlation "
        f"{_figure(other.rank)}): the reading depends on the measure."
    )


def _deeper(a: str, b: str, n_a: int, n_b: int) -> str:
    if n_a == n_b:
        return f"{a} and {b} do the same at the same depth"
    few, many = ((a, n_a), (b, n_b)) if n_a < n_b else ((b, n_b), (a, n_a))
    return f"{many[0]} does over {many[1]} layers what {few[0]} does over {few[1]}"


def _median(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    return _figure(float(np.median(finite)) if len(finite) else float("nan"))


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _figure(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "not defined"


# ---------------------------------------------------------------- one model


def raised(loss: np.ndarray, whole: float | np.ndarray) -> np.ndarray:
    """`loss / whole - 1`: by what share a replacement raises the loss."""
    return loss / whole - 1


def usefulness(loss: np.ndarray, whole: float) -> float:
    """The share of blocks whose linear replacement raises the loss by more than 10 %."""
    return float(np.mean(raised(loss, whole) > RAISED))


def said_of_replacement(found: Replacement) -> str:
    """Usefulness on held-out prompts, and on those fitted on, with their difference."""
    held, fitted = usefulness(found.loss, found.whole), usefulness(found.loss_fitted, found.whole_fitted)
    n = found.n_layers
    said = (
        f"{round(held * n)} of {n} layers of {found.name} raise the loss by more than {_share(RAISED)} on held-out "
        f"prompts when a linear map takes their place: usefulness {held:.2f}"
    )
    same = "the same" if held == fitted else f"{fitted:.2f}, {abs(held - fitted):.2f} {_way(fitted - held)}"
    return (
        f"{said}; on the prompts the maps were fitted on it is {same} (whole model {found.whole:.3f} and "
        f"{found.whole_fitted:.3f} nats per token)."
    )


def _way(difference: float) -> str:
    return "more" if difference > 0 else "less"
