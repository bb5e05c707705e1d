"""Do deeper models score better? The dense pretrained decoders of the Open LLM Leaderboard (v2), with layers, width,
parameters and scores; and a score against layers, with size and width beside them or not [Csordás et al. 2025].

`sources/leaderboard.csv` has a row a model. `layers_source` says where its layer count was read, `check` how strong
that is: `direct` (the publisher's or a library's own config of it), `copy` (a copy of its config), `kept` (read
earlier, and checked), `sibling` (a model of its family of the same size), `derived` (worked out from a recipe),
`unverified` (nowhere). `family` is a publisher's series, whose models are not independent; `lineage` joins families
with a common ancestor. Scores are percentages above chance, as the leaderboard gives them, read off two copies of it
(every_eval_ever, modelrank_ai).

Ordinary least squares; models of a family are not independent, so standard errors are clustered by family, and once
more by lineage. Observed, not tried: a slope is no effect of making a model deeper."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np

from .. import bounds, outside, statistics
from ..depth.wording import past, printed
from ..errors import StudyError
from .trends import signed

FILE = Path(__file__).parents[1] / "sources" / "leaderboard.csv"
SCORES = {
    "average": "average",
    "ifeval": "IFEval",
    "bbh": "BBH",
    "math_lvl5": "MATH, level 5",
    "gpqa": "GPQA",
    "musr": "MuSR",
    "mmlu_pro": "MMLU-Pro",
}
NEEDED = ("model", "layers", "params_b")  # and the score that is asked for
FITTED, UNVERIFIED = "bfloat16", "unverified"
OWN = "given with --also"
MOST = 10_000  # rows of somebody's file
CITATION = "Csordás et al. 2025, arXiv 2505.13898"
CAVEATS = (
    f"Not the sample of {CITATION}: they fit 132 models and publish neither which nor their coefficients.",
    "Observed, not tried: whoever makes a model larger makes it deeper, wider, newer and better fed at once.",
)


@dataclass(frozen=True)
class Entry:
    """One model. `params`: parameters, billions; `d_model`: NaN where it is not known; `scores` by name, per cent."""

    model: str
    layers: int
    params: float
    d_model: float
    precision: str
    family: str
    lineage: str
    check: str
    layers_source: str
    scores: Mapping[str, float] = field(hash=False)

    @property
    def key(self) -> tuple[str, str]:
        """What is the same model, whatever else is said of it."""
        return self.model.lower(), self.precision

    @property
    def why_left_out(self) -> str:
        """Why it enters no fit, or ""."""
        if self.check == UNVERIFIED:
            return "its layer count stands nowhere"
        if self.precision != FITTED:
            return f"its scores are listed in {self.precision}; fits take those in {FITTED}"
        return ""


@cache
def entries() -> tuple[Entry, ...]:
    """The models that ship with the product."""
    return tuple(read(FILE.read_text(encoding="utf-8"), FILE.name))


def also(file: str | Path, score: str = "average") -> tuple[Entry, ...]:
    """Somebody's own models: a CSV file with `model`, `layers`, `params_b` (billions) and the score, and where known
    `d_model`, `family`, `lineage` and other scores; without a family a model is one of its own. `StudyError` says what
    is wrong."""
    found = tuple(read(outside.text(file, bounds.TOML, StudyError), str(file), score, OWN))
    known = {entry.model.lower() for entry in entries()}
    if twice := next((entry.model for entry in found if entry.model.lower() in known), None):
        raise StudyError(f"{file} has {twice[:80]!r}, which is in the leaderboard already; leave it out.")
    return found


def own(files: Iterable[str | Path], score: str = "average") -> tuple[Entry, ...]:
    """The models of several such files; `StudyError` where two files hold the same one."""
    found: dict[tuple[str, str], Entry] = {}
    for file in files:
        for entry in also(file, score):
            if entry.key in found:
                raise StudyError(
                    f"{file} has {entry.model[:80]!r} in {entry.precision[:20]}, which was given with --also already; "
                    "give each model once."
                )
            found[entry.key] = entry
    return tuple(found.values())


def read(text: str, name: str, score: str = "average", source: str = "") -> Iterable[Entry]:
    """The rows of such a table."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    seen: set[tuple[str, str]] = set()
    try:
        columns = list(reader.fieldnames or ())
        if missing := [column for column in (*NEEDED, score) if column not in columns]:
            raise StudyError(
                f"{name} has no column {missing[0]}; expected {', '.join(NEEDED)} and {score}, and where known "
                "d_model, family and lineage."
            )
        for row in reader:
            if len(seen) == MOST:
                raise StudyError(f"{name} has more than {MOST:,} rows; give fewer.")
            place = f"{name}, row {reader.line_num}"
            entry = _entry(row, place, score, source)
            if entry.key in seen:
                raise StudyError(
                    f"{place}: {entry.model[:80]!r} stands there twice in {entry.precision[:20]}; leave one out."
                )
            seen.add(entry.key)
            yield entry
    except csv.Error as error:
        raise StudyError(f"{name} cannot be read as CSV ({error}); save it as comma-separated values.") from None
    if not seen:
        raise StudyError(f"{name} holds no model; expected a row a model below its first line.")


def _entry(row: Mapping[str | None, str | None], place: str, score: str, source: str) -> Entry:
    told = {column: (value or "").strip() for column, value in row.items() if column and isinstance(value, str)}

    def number(column: str, low: int | float, high: int | float, needed: bool = True) -> float:
        text = told.get(column, "")
        if not text and not needed:
            return math.nan
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise StudyError(f"{place}: {column} is {text[:40]!r}; expected a number from {low:g} to {high:g}.")
        return value

    if not told.get("model") or not told["model"].isprintable():
        raise StudyError(f"{place}: no model is named; give it a name of one line in the column model.")
    layers = number("layers", 1, bounds.LAYERS)
    if layers != int(layers):
        raise StudyError(f"{place}: layers is {told['layers'][:40]!r}; expected a whole number.")
    family = told.get("family") or told["model"]
    return Entry(
        model=told["model"][:200],
        layers=int(layers),
        params=number("params_b", 1e-6, 1e6),
        d_model=number("d_model", 1, bounds.WHOLE, needed=False),
        precision=told.get("precision") or FITTED,
        family=family[:200],
        lineage=(told.get("lineage") or family)[:200],
        check=told.get("check") or source,
        layers_source=told.get("layers_source") or source,
        scores={name: number(name, -100, 100, name == score) for name in SCORES},
    )


# ---------------------------------------------------------------- a score against layers


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
        larger = "" if SIZE in self.beside else " Of one width, deeper models are larger too: hold size fixed as well."
        near = [f"{printed(of, '.2f')} with {BESIDE[name]}" for name, of in self.together.items()]
        told = f"layers correlate {' and '.join(near)}"
        by: dict[bool, list[str]] = {True: [], False: []}
        by[family.excludes_zero].append(f"family (bootstrap p {_p(family.p)})")
        by[lineage.excludes_zero].append(f"lineage ({lineage.clusters} lineages; bootstrap p {_p(lineage.p)})")
        if not by[False]:
            both = " and by ".join(by[True])
            return f"{said} The slope differs from 0 with errors clustered by {both}, although {told}.{larger}"
        if not by[True]:
            neither = " or by ".join(by[False])
            return f"{said} Interval and bootstrap do not both exclude 0, clustered by {neither}; {told}.{larger}"
        only = f"A slope of 0 is excluded with errors clustered by {by[True][0]}, not by {by[False][0]}"
        return f"{said} {only}; {told}.{larger}"


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
    reach = statistics.student(clusters - 1, LEVEL) * error
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
    return Counter(filter(None, (entry.why_left_out for entry in entries)))


def _p(p: float) -> str:
    told, limit = f"{p:.2g}", 1 - LEVEL
    return "< 0.001" if p < 0.001 else f"= {past(p, limit, 2) if told == f'{limit:.2g}' else told}"
