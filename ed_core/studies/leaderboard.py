"""Do deeper models score better? A benchmark's score against layers, over the models of a leaderboard, with size and
width beside them or not [Csordás et al. 2025].

Ordinary least squares; models of a family are not independent, so standard errors are clustered by family, and once
more by lineage. Observed, not tried: a slope is no effect of making a model deeper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..depth.wording import printed
from ..errors import StudyError
from ..sources.leaderboard import SCORES, Entry
from .trends import signed, student

LAYERS, SIZE, WIDTH = "layers", "size", "width"
BESIDE = {SIZE: "log parameters", WIDTH: "log width"}  # what may stand beside layers
LEVEL = 0.95
FEWEST_FAMILIES, FEWEST_EACH = 8, 5  # clusters; models for each coefficient
DRAWS, SEED = 9999, 0


@dataclass(frozen=True)
class Clustered:
    """A coefficient's standard error over `clusters` (`over`: what these are), its 95 % interval by Student's t with
    one degree of freedom fewer than there are clusters, and `p`, that of a wild cluster bootstrap for "it is 0"."""

    over: str
    clusters: int
    error: float
    low: float
    high: float
    p: float

    @property
    def excludes_zero(self) -> bool:
        """By the interval and by the bootstrap."""
        return (self.low > 0 or self.high < 0) and self.p < 1 - LEVEL


@dataclass(frozen=True)
class Fit:
    """Score = constant + `slope` · layers + the coefficients of what stands beside. `slope`: points (per cent) a layer.
    `coefficients`: of log parameters (in e-folds) and log width, by name; `r2`: share of the variance explained;
    `together`: correlation of layers with what stands beside them, by name; `line`: constant and slope with the others
    at their means, for drawing; `constant`: of the fit itself."""

    score: str
    beside: tuple[str, ...]
    n: int
    slope: float
    by_family: Clustered
    by_lineage: Clustered
    coefficients: dict[str, float]
    r2: float
    together: dict[str, float]
    line: tuple[float, float]
    constant: float

    @property
    def apart(self) -> bool:
        """Whether the slope is told apart from 0, whichever the clusters."""
        return self.by_family.excludes_zero and self.by_lineage.excludes_zero

    @cached_property
    def sentence(self) -> str:
        """The slope with its interval, and how layers correlate with what is held fixed."""
        family, lineage = self.by_family, self.by_lineage
        held = " and ".join({SIZE: "size", WIDTH: "width"}[name] for name in self.beside)
        of = SCORES[self.score] if self.score != "average" else "the average score"
        first = f"With {held} held fixed, one" if held else "One"
        said = (
            f"{first} more layer goes with {signed(self.slope, 2)} points of {of} "
            f"(standard error {family.error:.2f}, clustered by family; 95 %: {signed(family.low, 2)} to "
            f"{signed(family.high, 2)}; {self.n} models in {family.clusters} families)."
        )
        if not self.beside:
            return f"{said} Deeper models are larger too, so this alone says nothing about depth: hold size fixed."
        near = [f"{printed(of, '.2f')} with {BESIDE[name]}" for name, of in self.together.items()]
        told = f"layers correlate {' and '.join(near)}"
        by: dict[bool, list[str]] = {True: [], False: []}
        by[family.excludes_zero].append(f"family (bootstrap p {_p(family.p)})")
        by[lineage.excludes_zero].append(f"lineage ({lineage.clusters} lineages; bootstrap p {_p(lineage.p)})")
        if not by[False]:
            both = " and by ".join(by[True])
            return f"{said} The slope differs from 0 with errors clustered by {both}, although {told}."
        if not by[True]:
            neither = " or by ".join(by[False])
            return f"{said} Interval and bootstrap do not both exclude 0, clustered by {neither}; {told}."
        return f"{said} A slope of 0 is excluded with errors clustered by {by[True][0]}, not by {by[False][0]}; {told}."


def usable(entries: Iterable[Entry], score: str, beside: Sequence[str] = ()) -> list[Entry]:
    """The models that enter a fit."""
    return [
        entry
        for entry in entries
        if not entry.why_left_out
        and np.isfinite(entry.scores[score])
        and (WIDTH not in beside or np.isfinite(entry.d_model))
    ]


@lru_cache(maxsize=64)
def fit(entries: tuple[Entry, ...], score: str = "average", beside: tuple[str, ...] = ()) -> Fit:
    """Of all that are usable. `beside`: `size`, `width`, both or none. `StudyError` where there are too few models."""
    if score not in SCORES:
        raise StudyError(f"There is no score {score!r}; expected one of {', '.join(SCORES)}.")
    used = usable(entries, score, beside)
    columns = {LAYERS: np.array([entry.layers for entry in used], float)}
    if SIZE in beside:
        columns[SIZE] = np.log([entry.params for entry in used])
    if WIDTH in beside:
        columns[WIDTH] = np.log([entry.d_model for entry in used])
    x = np.column_stack([np.ones(len(used)), *columns.values()])
    families = {entry.family for entry in used}
    if len(used) < FEWEST_EACH * x.shape[1] or len(families) < FEWEST_FAMILIES:
        raise StudyError(
            f"{len(used)} models in {len(families)} families are too few for {x.shape[1]} coefficients; give "
            f"{FEWEST_EACH * x.shape[1]} models in {FEWEST_FAMILIES} families at least."
        )
    if np.linalg.matrix_rank(x / np.abs(x).max(0)) < x.shape[1]:
        raise StudyError(f"These models do not differ in {' and '.join(columns)} enough to fit them; take others.")
    y = np.array([entry.scores[score] for entry in used])
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    off = y - x @ found
    spread = y - y.mean()
    others = {name: float(of) for name, of in zip(columns, found[1:], strict=True) if name != LAYERS}
    means = sum(of * columns[name].mean() for name, of in others.items())
    return Fit(
        score,
        tuple(name for name in columns if name != LAYERS),
        len(used),
        float(found[1]),
        _clustered("families", x, y, [entry.family for entry in used]),
        _clustered("lineages", x, y, [entry.lineage for entry in used]),
        others,
        1 - float(off @ off / (spread @ spread)),
        {name: float(np.corrcoef(columns[LAYERS], columns[name])[0, 1]) for name in others},
        (float(found[0] + means), float(found[1])),
        float(found[0]),
    )


def _clustered(over: str, x: np.ndarray, y: np.ndarray, labels: Sequence[str]) -> Clustered:
    """Of the second coefficient: the sandwich with the usual correction for few clusters (CR1), G/(G-1)·(n-1)/(n-k);
    and the bootstrap."""
    _, of = np.unique(labels, return_inverse=True)
    clusters = int(of.max()) + 1
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    inverse = np.linalg.inv(x.T @ x)
    error = float(_errors(x, inverse, of, (y - x @ found)[:, None])[0])
    reach = student(clusters - 1, LEVEL) * error
    return Clustered(
        over,
        clusters,
        error,
        float(found[1] - reach),
        float(found[1] + reach),
        _wild(x, y, inverse, of, found[1] / error),
    )


def _errors(x: np.ndarray, inverse: np.ndarray, of: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Standard errors of the second coefficient, for every column of residuals `off` `[n, draws]`."""
    (n, k), clusters = x.shape, int(of.max()) + 1
    lever = x @ inverse[1]  # what a residual adds to the coefficient
    sums = np.zeros((clusters, off.shape[1]))
    np.add.at(sums, of, lever[:, None] * off)
    factor = clusters / (clusters - 1) * (n - 1) / (n - k)
    return np.asarray(np.sqrt(factor * (sums**2).sum(0)))


def _wild(x: np.ndarray, y: np.ndarray, inverse: np.ndarray, of: np.ndarray, t: float) -> float:
    """How often a coefficient of 0 gives a t as far from 0: residuals of the fit without it, all of a cluster with one
    random sign (Cameron, Gelbach and Miller 2008)."""
    without = np.delete(x, 1, axis=1)
    fitted = without @ np.linalg.lstsq(without, y, rcond=None)[0]
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], (int(of.max()) + 1, DRAWS))
    again = fitted[:, None] + (y - fitted)[:, None] * signs[of]
    found = inverse @ (x.T @ again)
    drawn = found[1] / _errors(x, inverse, of, again - x @ found)
    return float((1 + (np.abs(drawn) >= abs(t)).sum()) / (1 + DRAWS))


def table(entries: tuple[Entry, ...], score: str = "average") -> list[Fit]:
    """Layers alone, with size, with width, and with both."""
    return [fit(entries, score, beside) for beside in ((), (SIZE,), (WIDTH,), (SIZE, WIDTH))]


def beside_line(found: Fit, entry: Entry) -> str:
    """How far a model stands from the line through layers and size, in words."""
    constant, slope = found.constant, found.slope * entry.layers
    expected = constant + slope + found.coefficients.get(SIZE, 0.0) * float(np.log(entry.params))
    off = entry.scores[found.score] - expected
    return f"{abs(off):.1f} points {'above' if off > 0 else 'below'} the fit for its {entry.layers} layers and its size"


def left_out(entries: Iterable[Entry]) -> dict[str, int]:
    """How many models enter no fit, by the reason."""
    found: dict[str, int] = {}
    for entry in entries:
        if entry.why_left_out:
            found[entry.why_left_out] = found.get(entry.why_left_out, 0) + 1
    return found


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"
