"""What depths of several models say together: the ratio against size, and one model against another, each with its
interval. Numpy only.

Measured and published points never share a line. Measured points have an interval over prompts (or their templates),
which all models share, that holds for these models alone. Published ones have no prompts: their line has no interval,
their differences have Student's t over sets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from .. import statistics
from ..depth import say
from ..depth.rules import OF_LENS, RULES
from ..depth.verdict import OFTEN
from ..errors import StudyError
from ..statistics import Interval, interval
from . import words
from .points import MEASURED, Point, combined

CALLED = {f"mean_{name}": f"average depth ({rule.label})" for name, rule in OF_LENS.items()}
CALLED |= {name: f"Hu et al.'s {rule.label} rule" for name, rule in RULES.items()}
LEVEL = 0.9  # what an interval from 5 to 95 % holds
APART = 1.2  # how many times larger another size is
NOTHING = 1e-9  # what rounding makes of 0
UNKNOWN = Interval(np.nan, np.nan, 0.0)


# ---------------------------------------------------------------- the ratio against size


@dataclass(frozen=True)
class Slope:
    """A straight line of the ratio (`mean depth / L`, or `(ED + 1) / L`) on `log10(parameters)` by least squares, with
    an intercept for each set. `slope`: the ratio's change per tenfold parameters; `low` and `high`: its 5 and 95 %
    over `over`, NaN without; `undefined`: the share of resamples without a line. `start`, `end`: smallest and largest
    model as (parameters, ratio on the line), sets averaged. `finest`: one layer of the shallowest model, as a ratio;
    `sizes`: the number of sizes. `without`: the line without the model that moves the slope most; None below four
    models."""

    criterion: str
    source: str
    models: tuple[str, ...]
    slope: float
    low: float
    high: float
    undefined: float
    start: tuple[int, float]
    end: tuple[int, float]
    finest: float
    sizes: int
    over: str
    without: Slope | None = None

    @property
    def trend(self) -> int:
        """1 where the interval is above 0, -1 where below; 0 where it contains 0 or is unknown, too many resamples have
        no line, or only two sizes are given."""
        if self.undefined > OFTEN or self.sizes < 3:
            return 0
        return int(self.low > NOTHING) - int(self.high < -NOTHING)

    @property
    def small(self) -> bool:
        """Whether the slope has a trend and its whole interval is less than one layer."""
        return bool(self.trend) and max(abs(self.low), abs(self.high)) < self.finest

    @property
    def sentence(self) -> str:
        """The trend as a sentence, with its numbers."""
        return words.sentence("slope", one=self, depth=CALLED[self.criterion])


def slope(points: Iterable[Point], seed: int = 0) -> Slope:
    """Return the line through points of one criterion and one source, of one set where measured; `StudyError` below two
    sizes."""
    used = [p for p in points if p.parameters and np.isfinite(p.ratio)]
    if _sizes(used).max(initial=-1) < 1:
        raise StudyError("A line against size needs models of two sizes or more, a fifth apart, that have this depth.")
    line, models = _line(used, seed), list(dict.fromkeys(p.model for p in used))
    rest = [[p for p in used if p.model != name] for name in models]
    lines = [_line(some, seed) for some in rest if _sizes(some).max(initial=-1) > 0]
    most = max(lines, key=lambda one: abs(one.slope - line.slope), default=None)
    return replace(line, without=most if len(models) > 3 else None)


def _line(used: list[Point], seed: int) -> Slope:
    """Return the line through points that have a size and a depth, with `without` left at None."""
    sets, of_size = list(dict.fromkeys(p.set for p in used)), _sizes(used)
    x, y = np.log10([float(p.parameters or 1) for p in used]), np.array([p.ratio for p in used])
    of_set = np.array([sets.index(p.set) for p in used])
    slope = float(_slopes(x, y[None], of_set)[0])
    ends, over = UNKNOWN, used[0].over
    dx = x - x.mean()
    if (resampled := combined(used, dx / (dx @ dx), seed)) is not None:
        ends = resampled.interval
    elif all(len(p.drawn) for p in used):
        ends = interval(_slopes(x, np.stack([p.drawn for p in used], 1), of_set))
    height = np.mean([y[of_set == s].mean() - slope * x[of_set == s].mean() for s in range(len(sets))])
    start, end = ((round(10**power), float(height + slope * power)) for power in (x.min(), x.max()))
    head = used[0].criterion, used[0].source, tuple(dict.fromkeys(p.model for p in used))
    finest = 1 / min(p.n_layers for p in used)
    return Slope(*head, slope, *ends, start, end, finest, int(of_size.max()) + 1, over)


def _sizes(points: Sequence[Point]) -> np.ndarray:
    """Return the number of each point's size, from 0 for the smallest; sizes less than a fifth apart are one."""
    log = np.log([float(p.parameters or 1) for p in points])
    order = np.argsort(log)
    size = np.zeros(len(log), int)
    size[order] = np.cumsum(np.append(0, np.diff(log[order]) > np.log(APART)))[: len(log)]
    return size


def _slopes(x: np.ndarray, y: np.ndarray, of_set: np.ndarray) -> np.ndarray:
    """Return least-squares slopes `[resample]` of `y` `[resample, point]` on `x`, an intercept for each set."""
    dx = x - np.array([x[of_set == s].mean() for s in of_set])
    return np.asarray(y @ dx / (dx @ dx))


# ---------------------------------------------------------------- one model against another


@dataclass(frozen=True)
class Difference:
    """`other` less `base`, in shares of the depth, by one criterion. `low` and `high`: 5 and 95 % over `over`, NaN
    without; `undefined`: the share of resamples in which one of the two has no depth. `where`: the sets; `n_layers`: of
    the two where they are equal, else None."""

    base: str
    other: str
    criterion: str
    source: str
    where: tuple[str, ...]
    difference: float
    low: float
    high: float
    undefined: float
    over: str
    n_layers: int | None

    @property
    def apart(self) -> bool:
        """Whether the interval excludes 0."""
        return self.undefined <= OFTEN and (self.low > 0 or self.high < 0)

    @property
    def sentence(self) -> str:
        """The difference as a sentence, with its numbers."""
        return words.sentence("difference", one=self, depth=CALLED[self.criterion])


def difference(points: Iterable[Point], base: str, other: str) -> Difference:
    """Return the difference between two models by points of one criterion and source: published ones on all sets that
    they share, measured ones on one, paired over the same prompts. `StudyError` where no set is common."""
    points = [p for p in points if p.model in (base, other)]
    of_base, of_other = ({p.set: p for p in points if p.model == n and np.isfinite(p.ratio)} for n in (base, other))
    pairs = [(p, of_other[name]) for name, p in of_base.items() if name in of_other]
    if not pairs:
        by = "".join(f" by {CALLED[p.criterion]}" for p in points[:1])
        raise StudyError(f"{base} and {other} have no set on which both have a depth{by}.")
    layers = {p.n_layers for pair in pairs for p in pair}
    one, two = pairs[0]
    each = np.array([b.ratio - a.ratio for a, b in pairs])
    head = (base, other, one.criterion, one.source, tuple(a.set for a, _ in pairs), float(each.mean()))
    n_layers = layers.pop() if len(layers) == 1 else None
    if one.source != MEASURED:
        return Difference(*head, *around(each), 0.0, say.count(len(each), "set"), n_layers)
    ends = UNKNOWN
    if (resampled := combined([two, one], [1.0, -1.0])) is not None:
        ends = resampled.interval
    elif len(one.drawn) and one.units and two.units and len(one.units.of) == len(two.units.of):
        ends = interval(two.drawn - one.drawn)
    return Difference(*head, *ends, one.over, n_layers)


def around(values: ArrayLike) -> tuple[float, float]:
    """Return the 5 and 95 % of a mean by Student's t, `mean ± t · s / √n` with n - 1 degrees of freedom; NaN below two
    values, and where all are one number."""
    each = np.asarray(values, float)
    if len(each) < 2 or np.ptp(each) < 1e-9:
        return np.nan, np.nan
    half = statistics.student(len(each) - 1, LEVEL) * each.std(ddof=1) / math.sqrt(len(each))
    return float(each.mean() - half), float(each.mean() + half)
