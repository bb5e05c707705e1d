"""What depths of several models say together: the ratio against size, and one model against another, each with its
interval and one sentence of what the data support. Numpy only.

Measured and published points never share a line. Where points were measured, the interval is over prompts (or their
forms), which all models share, and holds for these models alone: bootstrap-t of mean depths, percentiles of the papers'
rules. Where they were published without their prompts, models are drawn anew (size, bootstrap-t), or Student's t is
taken over sets or over pairs of models (differences)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from .. import statistics
from ..depth.rules import OF_LENS, RULES
from ..depth.wording import OFTEN, decimals, listed, printed
from ..errors import StudyError
from ..statistics import FEWEST, FEWEST_FORMS, Interval, interval
from .points import MEANS, MEASURED, Point, combined

CALLED = {f"mean_{name}": f"mean depth ({rule.label})" for name, rule in OF_LENS.items()}
CALLED |= {name: f"the papers' {rule.label} rule" for name, rule in RULES.items()}
FEW = f"fewer than {FEWEST} prompts, or {FEWEST_FORMS} forms,"  # give no interval
LEVEL = 0.9  # what an interval from 5 to 95 % holds
APART = 1.2  # how many times larger another size is
NOTHING = 1e-9  # what rounding makes of 0
UNDEFINED = f"Where more than {100 * OFTEN:.0f} % of the resamples lack a depth there is no conclusion."
POWER = 1.645 + 0.842  # standard errors: the normal's 95 % and 80 % quantiles


# ---------------------------------------------------------------- the ratio against size


@dataclass(frozen=True)
class Slope:
    """A straight line of the ratio (`mean depth / L`, or `(ED + 1) / L`) on `log10(parameters)` by least squares, each
    set with a height of its own. `slope`: the ratio's change per tenfold parameters; `low` and `high`: its 5 and 95 %
    over `over` ("prompts" or "sizes", `words` says it in full), NaN without; `undefined`: the share of resamples
    without a line.
    `start` and `end`: smallest and largest model as (parameters, ratio on the line), sets averaged. `finest`: one
    layer of the shallowest model, as a ratio; `sizes`: how many sizes there are; `left_out`: models whose size is not
    known or that have no depth by this rule. `without`: the line without the model that moves the slope most; None
    below four models."""

    criterion: str
    source: str
    models: tuple[str, ...]
    sets: tuple[str, ...]
    slope: float
    low: float
    high: float
    undefined: float
    over: str
    start: tuple[int, float]
    end: tuple[int, float]
    finest: float
    sizes: int
    left_out: tuple[str, ...]
    words: str
    without: Slope | None = None

    @property
    def sentence(self) -> str:
        """What the data support, with its figures."""
        ends = f"{size(self.start[0])} to {size(self.end[0])} parameters"
        of = f"By {CALLED[self.criterion]}, over {self.source} figures of {len(self.models)} models of {ends} on "
        of += f"{listed(self.sets)}, the depth as a share of the layers"
        told = f"{of} changes by {signed(self.slope, _places(self.low, self.high))} per tenfold increase in parameters"
        if self.sizes == 2:
            told = f"{of} goes from {_share(self.start[1])} to {_share(self.end[1])}"
        if not np.isfinite(self.low):
            few = FEW if self.over == "prompts" else f"fewer than {FEWEST} sizes"
            return f"{told}. With {few} there is no interval, and no conclusion.{self._aside}"
        between = math.log10(self.end[0] / self.start[0]) if self.sizes == 2 else 1.0
        told += " (change, " if self.sizes == 2 else " ("
        told += _range(self.low * between, self.high * between, self.words, self.undefined)
        told += f"; no line in {100 * self.undefined:.3g} % of the resamples)" if self.undefined else ")"
        if self.undefined > OFTEN:
            return f"{told}. {UNDEFINED}{self._aside}"
        if self.sizes == 2:
            return f"{told}. Two sizes cannot show a trend.{self._aside}"
        alone = f"with size over these {len(self.models)} models"
        verdict = f"it {'rises' if self.trend > 0 else 'falls'} {alone}"
        if not self.trend:
            verdict = f"it is open whether it rises or falls {alone}"
        if self.criterion not in MEANS:  # one threshold of many
            verdict = f"at the papers' threshold {verdict}"
        verdict = f"{verdict[0].upper()}{verdict[1:]}"
        if max(abs(self.low), abs(self.high)) < self.finest:
            verdict += f", and all of the interval is less than one layer of the shallowest model ({self.finest:.3f})"
        return f"{told}. {verdict}.{self._aside}"

    @property
    def trend(self) -> int:
        """1 where the interval lies above 0, -1 where below, 0 where it holds 0, there is none, or too many resamples
        have no line."""
        if self.undefined > OFTEN:
            return 0
        return int(self.low > NOTHING) - int(self.high < -NOTHING)

    @property
    def _aside(self) -> str:
        told = ""
        if (rest := self.without) is not None:
            (name,) = set(self.models) - set(rest.models)
            what, times = "slope", 1.0
            if self.sizes == 2:
                what, times = "change", math.log10(rest.end[0] / rest.start[0])
            low, high = times * rest.low, times * rest.high
            n = _places(low, high) if np.isfinite(self.low) else 3
            told = f" Without {name}, which moves the {what} most, the {what} is {signed(times * rest.slope, n)}"
            if np.isfinite(rest.low) and np.isfinite(self.low):
                told += f" ({signed(low, n)} to {signed(high, n)})"
                told += "" if rest.trend == self.trend else ", which changes the conclusion"
            told += "."
        if self.left_out:
            told += f" Left out, without a size or without a depth: {', '.join(self.left_out)}."
        return told


def slope(points: Iterable[Point], seed: int = 0) -> Slope:
    """The line through points of one criterion and one source. `StudyError` below two sizes."""
    points = list(points)
    if len({(p.criterion, p.source) for p in points}) != 1:
        raise StudyError("A line against size needs points of one criterion, all measured or all published.")
    used = [p for p in points if p.parameters and np.isfinite(p.ratio)]
    if _sizes(used).max(initial=-1) < 1:
        raise StudyError("A line against size needs models of two sizes or more, a fifth apart, that have this depth.")
    models = tuple(dict.fromkeys(p.model for p in used))
    left_out = tuple(dict.fromkeys(p.model for p in points if p.model not in models))
    whole = _line(used, left_out, seed)
    rest = [[p for p in used if p.model != name] for name in models]
    lines = [_line(some, left_out, seed) for some in rest if _sizes(some).max(initial=-1) > 0]
    most = max(lines, key=lambda one: abs(one.slope - whole.slope), default=None)
    return replace(whole, without=most if len(models) > 3 else None)


def _line(used: list[Point], left_out: tuple[str, ...], seed: int) -> Slope:
    models, sets = (tuple(dict.fromkeys(getattr(p, of) for p in used)) for of in ("model", "set"))
    x, y = np.log10([float(p.parameters or 1) for p in used]), np.array([p.ratio for p in used])
    of_set = np.array([sets.index(p.set) for p in used])
    measured = used[0].source == MEASURED
    whole = float(_slopes(x, y[None], of_set)[0])
    found, words = Interval(np.nan, np.nan, 0.0), used[0].over or "prompts"
    if measured and used[0].criterion in MEANS:
        dx = x - np.array([x[of_set == s].mean() for s in of_set])
        if (drawn := combined(used, dx / (dx @ dx), seed)) is not None:
            found = drawn.interval
    elif measured and all(len(p.drawn) for p in used):
        found = interval(_slopes(x, np.stack([p.drawn for p in used], 1), of_set))
    elif not measured:
        of_size = _sizes(used)
        over, words = statistics.units(int(of_size.max()) + 1), "sizes"
        if over.enough:  # models of one size are often one made of another
            moments = {"": _moments(x, y, of_set, of_size)}
            found = statistics.read_off(_line_of, moments, np.ones(over.n), over, seed).interval
    height = np.mean([y[of_set == s].mean() - whole * x[of_set == s].mean() for s in range(len(sets))])
    start, end = ((round(10**at), float(height + whole * at)) for at in (x.min(), x.max()))
    return Slope(
        criterion=used[0].criterion,
        source=used[0].source,
        models=models,
        sets=sets,
        slope=whole,
        low=found.low,
        high=found.high,
        undefined=found.undefined,
        over="prompts" if measured else "sizes",
        start=start,
        end=end,
        finest=1 / min(p.n_layers for p in used),
        sizes=int(_sizes(used).max()) + 1,
        left_out=left_out,
        words=words,
    )


def _sizes(points: Sequence[Point]) -> np.ndarray:
    """Which size each point's model has, `[point]`, smallest first: sizes less than a fifth apart are one."""
    log = np.log([float(p.parameters or 1) for p in points])
    order = np.argsort(log)
    found = np.zeros(len(log), int)
    found[order] = np.cumsum(np.append(0, np.diff(log[order]) > np.log(APART)))[: len(log)]
    return found


def _slopes(x: np.ndarray, y: np.ndarray, of_set: np.ndarray) -> np.ndarray:
    """Slopes `[resample]` of `y` `[resample, point]` on `x` `[point]`, a height of its own for each set; NaN where a
    value is missing."""
    dx = x - np.array([x[of_set == s].mean() for s in of_set])
    return np.asarray(y @ dx / (dx @ dx))


def _moments(x: np.ndarray, y: np.ndarray, of_set: np.ndarray, of_size: np.ndarray) -> np.ndarray:
    """Of each size, for each set: 1, x, y, x², x y, summed over its points, `[size, 5 · set]`."""
    found = np.zeros((of_size.max() + 1, of_set.max() + 1, 5))
    x = x - x.mean()  # so that nothing is lost in the difference of large numbers
    np.add.at(found, (of_size, of_set), np.stack([np.ones(len(x)), x, y, x * x, x * y], -1))
    return found.reshape(len(found), -1)


def _line_of(curves: dict[str, np.ndarray]) -> np.ndarray:
    """The slope with a height for each set, of mean moments `[n, 5 · set]` → `[n]`; NaN where all of a draw have
    one size."""
    one, x, y, xx, xy = np.moveaxis(curves[""].reshape(len(curves[""]), -1, 5), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        above = np.where(one > 0, xy - x * y / one, 0.0).sum(1)
        below = np.where(one > 0, xx - x * x / one, 0.0).sum(1)
        return np.where(below > 1e-12, above / below, np.nan)


# ---------------------------------------------------------------- one model against another


@dataclass(frozen=True)
class Difference:
    """`other` less `base`, in shares of the depth, by one criterion. `low` and `high`: 5 and 95 %, over `n` of `over`
    ("prompts", "sets", "pairs of models"), NaN without; `undefined`: the share of resamples in which one of the two has
    no depth; `n_layers`: of the two where they are equal, else None. `same`: all values were one number, so that no
    spread could be seen. `where`: the sets. `spread`: the standard error of the difference over prompts, NaN without.
    `words`: what the interval is over, in full; `forms`: how many forms of prompts were drawn anew, 0 where prompts
    were."""

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
    n: int
    n_layers: int | None
    same: bool = False
    spread: float = np.nan
    words: str = ""
    forms: int = 0

    @property
    def needed(self) -> int | None:
        """How many prompts, or forms of prompts where these were drawn anew, a study like this one needs to tell the
        two apart four times of five, if the difference is what it was here: `n ((1.645 + 0.842) s / d)²`, s the spread
        over its n of them (an interval from 5 to 95 %, a power of 80 %). None where there is no spread or no
        difference."""
        if not self.spread > 0 or abs(self.difference) < 5e-4:
            return None
        return math.ceil((self.forms or self.n) * (POWER * self.spread / self.difference) ** 2)

    @property
    def sentence(self) -> str:
        """What the data support, with its figures."""
        n, places = self.n_layers, _places(self.low, self.high)
        layers = f", {signed(self.difference * n, places - 2)} of {n} layers" if n else ""
        by = CALLED[self.criterion]
        depth = f"{by[0].upper()}{by[1:]} / L" if self.criterion in MEANS else f"(layer + 1) / L by {by}"
        told = (
            f"{depth}, {self.source} on {listed(self.where)}: {self.other} minus {self.base} is "
            f"{signed(self.difference, places)}{layers}"
        )
        if self.same:
            return f"{told}: the same on all {self.n} {self.over}, in whole layers, so no interval can be given."
        if not np.isfinite(self.low):
            one = f"one {self.over.replace('sets', 'set').replace('pairs', 'pair')}"
            few = FEW if self.over == "prompts" else one
            return f"{told}. With {few} there is no interval, and no conclusion."
        told += f" ({_range(self.low, self.high, self.words or f'{self.n} {self.over}', self.undefined)}"
        told += f"; not defined in {100 * self.undefined:.3g} % of the resamples)" if self.undefined else ")"
        if self.undefined > OFTEN:
            return f"{told}. {UNDEFINED}"
        if self.low <= 0 <= self.high:
            more = ""
            if (needed := self.needed) is not None and needed > (self.forms or self.n):
                of = "forms of prompts" if self.forms else "prompts"
                about = f"about {_rounded(needed)} {of} would tell four times of five"
                more = f" If the difference is what it is here, {about}."
            return f"{told}. These {self.over} do not show which is larger.{more}"
        deeper = self.other if self.low > 0 else self.base
        like = "Over prompts like these" if self.over == "prompts" else f"On these {self.n} {self.over}"
        if self.criterion not in MEANS:  # one threshold of many
            like = f"At the papers' threshold, {like[0].lower()}{like[1:]}"
        average = " on average" if self.over != "prompts" else ""
        return f"{told}. {like} {deeper} has the larger ratio{average}."


def difference(points: Iterable[Point], base: str, other: str) -> Difference:
    """Two models on the sets that both were measured (or published) on; measured ones on one set, paired over the same
    prompts. `StudyError` where there is nothing to compare."""
    points = [p for p in points if p.model in (base, other)]
    if len({(p.criterion, p.source) for p in points}) != 1:
        raise StudyError("A difference needs points of one criterion, all measured or all published.")
    by_model = {name: {p.set: p for p in points if p.model == name and np.isfinite(p.ratio)} for name in (base, other)}
    shared = [name for name in by_model[base] if name in by_model[other]]
    if not shared:
        raise StudyError(f"{base} and {other} have no set on which both have a depth by {CALLED[points[0].criterion]}.")
    pairs = [(by_model[base][name], by_model[other][name]) for name in shared]
    layers = {p.n_layers for pair in pairs for p in pair}
    one, two = pairs[0]
    told = (base, other, one.criterion, one.source, tuple(shared))
    n_layers = layers.pop() if len(layers) == 1 else None
    each = np.array([b.ratio - a.ratio for a, b in pairs])
    if one.source == MEASURED:
        if len(pairs) > 1:
            raise StudyError("Measured models are compared on one set at a time.")
        low, high, undefined, spread = np.nan, np.nan, 0.0, np.nan
        if one.criterion in MEANS:
            if (drawn := combined([two, one], [1.0, -1.0])) is not None:
                low, high, undefined = drawn.interval
                spread = float(drawn.error)
        elif len(one.drawn) and len(one.drawn) == len(two.drawn) and one.prompts == two.prompts:
            low, high, undefined = interval(two.drawn - one.drawn)
            again = (two.drawn - one.drawn)[np.isfinite(two.drawn - one.drawn)]
            spread = float(again.std()) if len(again) else np.nan
        over = ("prompts", one.prompts, n_layers)
        ends = (float(each[0]), low, high, undefined)
        return Difference(*told, *ends, *over, spread=spread, words=one.over, forms=one.forms)
    return Difference(*told, float(each.mean()), *around(each), 0.0, "sets", len(each), n_layers, _same(each))


def over_pairs(points: Iterable[Point], pairs: Iterable[tuple[str, str]], base: str, other: str) -> Difference:
    """The mean difference over several published pairs of models, each the mean over its sets. `base`, `other`: what
    the sentence calls the two sides."""
    points, found = list(points), []
    for pair in pairs:
        try:
            found.append(difference(points, *pair))
        except StudyError:
            continue  # not among these points
    if not found:
        raise StudyError("None of these pairs of models is among the points.")
    each = np.array([one.difference for one in found])
    where = tuple(dict.fromkeys(name for one in found for name in one.where))
    told = (base, other, found[0].criterion, found[0].source, where, float(each.mean()), *around(each))
    return Difference(*told, 0.0, "pairs of models", len(each), None, _same(each))


def around(values: ArrayLike) -> tuple[float, float]:
    """The 5 to 95 % interval of a mean by Student's t, `mean ± t · s / √n` with n - 1 degrees of freedom; NaN below two
    values, and where all are one number."""
    each = np.asarray(values, float)
    if len(each) < 2 or _same(each):
        return np.nan, np.nan
    half = statistics.student(len(each) - 1, LEVEL) * each.std(ddof=1) / math.sqrt(len(each))
    return float(each.mean() - half), float(each.mean() + half)


def _same(each: np.ndarray) -> bool:
    return len(each) > 1 and bool(np.ptp(each) < 1e-9)


# ---------------------------------------------------------------- words


def signed(value: int | float, digits: int = 3) -> str:
    """A number with its sign, a minus as one is printed; a rounded zero has none."""
    value = round(float(value), 9)  # what rounding left beside an exact figure
    text = f"{value:+.{digits}f}"
    return printed(value, f"+.{digits}f") if float(text) else text.lstrip("+-")


def _share(value: float) -> str:
    """A share of the depth; what rounding left beside an exact one is rounded away first."""
    return f"{round(value, 9):.2f}"


def _range(low: float, high: float, over: str, undefined: float = 0.0) -> str:
    """An interval over the resamples that have a value; `undefined`: the share of those that have none."""
    if decimals(low, high, 3) is None:
        return f"{signed(low)} in at least 90 % of resamples of {over}{' that give one' if undefined else ''}"
    ends = (signed(end, _places(low, high)) for end in (low, high))
    return f"5–95 % over {over}: {' to '.join(ends)}"


def _places(low: float, high: float) -> int:
    """Decimals that tell the ends of an interval apart, and from 0: three at least."""
    return decimals(low, high, 3, from_0=True) or 3


def size(parameters: int | float) -> str:
    """A number of parameters as it is written: 1.5 billion, 135 million."""
    for unit, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if parameters >= 0.9995 * unit:  # what three figures round up to it
            return f"{parameters / unit:.3g} {name}"
    return f"{parameters:.0f}"


def _rounded(n: int) -> int:
    """To two digits, upwards: an estimate of an estimate."""
    step = int(10 ** max(len(str(n)) - 2, 0))
    return -(-n // step) * step
