"""What a claim is, what it is read off, and how a measurement becomes a verdict. Numpy only.

A claim is a published statement about depth that a measurement can contradict. It is data (source, quantity, formula,
protocol, what the paper found, for which values it holds, what would contradict it, what it needs) and one function
from evidence to values: evidence has parts, each one probe on a set's prompts, as a study's folder holds them, and
values are means over tokens, lines through levels, how sure an order of layers is. Each value has two probabilities of
error: of saying that it lies within what the statement allows, and of saying that it lies outside. A verdict needs one
of them to be at most 3 % (nominal: intervals over few units cover 87 to 90 % where 90 are meant, so that 5 % are kept);
else it cannot be told, and so it is where a quantity is not defined. A verdict never says more than: on this model, on
these prompts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .. import statistics
from ..depth.rules import COSINES
from ..depth.surgery import worse_than_uniform
from ..errors import ClaimRefused, StudyError
from ..results.aggregate import counted
from ..statistics import FEWEST, FEWEST_FORMS, Resampled, beyond, holm, interval
from ..studies.difficulty import slope_of
from ..studies.items import Folder
from ..studies.points import Point
from .record import Curve


@dataclass(frozen=True)
class Part:
    """One probe's sums over a set's prompts: `columns` `[prompt, …]` under the names of its summary; of every prompt
    its level, its mark (prompts of different levels with one mark belong together), its place in the set, and the
    form (template) it was written in."""

    columns: Mapping[str, np.ndarray]
    levels: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    index: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    forms: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @cached_property
    def units(self) -> statistics.Units:
        """What is drawn anew for an interval: templates where enough are known, else prompts."""
        return statistics.units(len(self), self.forms)

    def keep(self, chosen: np.ndarray) -> Part:
        """Some of the prompts, by a mask or by their numbers."""
        at = np.arange(len(self))[chosen]
        levels, pairs, forms = (tuple(m[i] for i in at) if m else () for m in (self.levels, self.pairs, self.forms))
        columns = {name: values[at] for name, values in self.columns.items()}
        return Part(columns, levels, pairs, self.index[at] if len(self.index) else self.index, forms)


@dataclass(frozen=True)
class Evidence:
    """What was measured of one model on one prompt set. `troubles`: why a part is not there; `models`: the model and
    those of its family beside it; `points`: their depths, with resamples over prompts that all share. `twins`: the
    contributions of untrained twins. `answers`: every prompt has a known answer; `answered`: enough of them have one.
    `worked`: whether the set has a worked-out counterpart. `passes`: how often the layers run. `d_vocab`: tokens
    that the model knows, None where nobody says."""

    n_layers: int
    parts: Mapping[str, Part]
    answers: bool = True
    level_names: tuple[str, ...] = ()
    models: tuple[str, ...] = ("",)
    points: tuple[Point, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    twins: tuple[Part, ...] = ()
    worked: bool = False
    answered: bool = False
    passes: int = 1
    d_vocab: int | None = None

    def of_loss(self, whole: float) -> str:
        """What is to be said of claims that rest on a loss, where the whole model's is above a uniform guess's."""
        return worse_than_uniform(whole, self.d_vocab)


def part_of(folder: Folder, label: str, name: str, probe: str) -> Part:
    """A part as a study's folder holds it. `StudyError` where it holds nothing of that model."""
    some, one = folder.sums(label, name), folder.sets[name]
    columns = some.probe(probe)
    if not columns:
        raise StudyError(f"The study in {folder.out} has no {probe} of {label} yet; run it to its end.")
    ran = some.index[np.isfinite(some.columns[f"{probe}.n_tokens"])]

    def of(marks: Sequence[object] | np.ndarray) -> tuple[str, ...]:
        return tuple(str(marks[i]) for i in ran) if len(marks) else ()

    return Part(columns, of(one["levels"]), of(one["pairs"]), ran, of(folder.forms(name)))


HOLDS, DOES_NOT, CANNOT_BE_TOLD, NOT_APPLICABLE = (
    "holds here",
    "does not hold here",
    "cannot be told",
    "not applicable",
)
VERDICTS = (HOLDS, DOES_NOT, CANNOT_BE_TOLD, NOT_APPLICABLE)
LEVEL = 0.05  # probability of error that verdicts may have, all of a run together
ALONE = 0.03  # that of one claim by itself: intervals over few prompts cover somewhat less than they say
SHALLOWEST = 4  # layers below which there is no middle
MOVES = (-0.2, 0.2)  # by which share a limit chosen here is moved, to see whether the verdict turns

Range = tuple[float, float]
Errors = tuple[float, float]
"""The probabilities of error of *holds* and of *does not hold*; NaN where neither can be said."""
Judge = Callable[[Range], Errors]
UNKNOWN: Errors = (math.nan, math.nan)


@dataclass(frozen=True)
class Quantity:
    """One number that a claim is about. `holds`: between which values, neither counted, the statement is true; `limit`:
    the same in words; `found`: what the paper found, with its numbers where it gives some. `chosen`: whether the limit
    is ours and not the paper's. `beside`: it is shown and judges nothing."""

    name: str
    unit: str
    holds: Range
    limit: str
    found: str
    digits: int = 2
    chosen: bool = False
    beside: bool = False

    def moved(self, share: float) -> Range:
        """`holds` with its limits moved: a range that has two grows about its middle, else the limit itself does."""
        low, high = self.holds
        if math.isfinite(low) and math.isfinite(high):
            middle, half = (low + high) / 2, (high - low) / 2 * (1 + share)
            return middle - half, middle + half
        return low * (1 + share), high * (1 + share)


@dataclass(frozen=True)
class Estimate:
    """A quantity's value over all prompts, 5 and 95 % over the prompts, and the share of resamples in which it is not
    defined. NaN: not defined. `layers`: 5 and 95 % over the layers, None where the statement is not about layers.
    `why`: why it cannot be judged, whatever its interval. `nothing`: what is said in the place of a value that is not
    defined. `judge`: its errors for given limits; none without."""

    value: float
    low: float
    high: float
    undefined: float = 0.0
    layers: Range | None = None
    why: str = ""
    nothing: str = "not defined"
    judge: Judge | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        value: float | np.ndarray,
        draws: np.ndarray,
        layers: np.ndarray | None = None,
        why: str = "",
        judge: Judge | None = None,
    ) -> Estimate:
        """`draws` `[resample]`: over prompts, their quantiles are the interval; `layers`: draws over layers, which have
        to agree. `judge`: another one than "all draws on one side"."""
        value, found = float(value), interval(draws)
        own = judge or (by_draws(draws) if layers is None else by_draws(draws, layers))
        over = interval(layers).ends if layers is not None else None
        if math.isfinite(value) and layers is not None and over is None:
            why = why or "it has no interval over layers"
        judge = own if math.isfinite(value) else None
        return cls(value, found.low, found.high, found.undefined, over, why, judge=judge)

    @classmethod
    def undefined_because(cls, why: str) -> Estimate:
        """A quantity that could not be measured."""
        return cls(math.nan, math.nan, math.nan, 1.0, None, why)

    def errors(self, holds: Range) -> Errors:
        """The probabilities of error of saying that it holds, and that it does not."""
        return UNKNOWN if self.why or self.judge is None else self.judge(holds)


def by_draws(*draws: np.ndarray) -> Judge:
    """Errors by the share of draws on the wrong side of a limit; of several kinds of draws the larger error counts, so
    that all have to agree."""

    def judge(holds: Range) -> Errors:
        def error(bound: float, above: bool) -> float:
            return max(beyond(one, bound, above) for one in draws)

        low, high = holds
        sides = [(bound, above) for bound, above in ((low, True), (high, False)) if math.isfinite(bound)]
        return max(error(b, above) for b, above in sides), min(error(b, not above) for b, above in sides)

    return judge


@dataclass(frozen=True)
class Measured:
    """What a claim's function found: an estimate for each quantity, by its name. `prompts`: over how many; `over`: the
    same in words. `beside`: sentences on what stands beside it."""

    estimates: Mapping[str, Estimate]
    prompts: int
    curve: Curve
    beside: str = ""
    over: str = ""


@dataclass(frozen=True)
class Claim:
    """A published statement. `statement`: what it says, as a sentence without its full stop; `protocol`: how it is
    checked here, and where that differs from the paper; `parts`: what has to be measured (`running.PARTS`).
    `answers`, `levels`: prompts need known answers, levels of difficulty; `worked`: the set needs a counterpart whose
    answers are worked out; `models`: how many models it takes. `control`: whether it is measured on the untrained twin
    too. `stretches`: it compares stretches of layers that are left out."""

    id: str
    title: str
    statement: str
    source: str
    formula: str
    protocol: str
    contradicted: str
    quantities: tuple[Quantity, ...]
    parts: tuple[str, ...]
    measure: Callable[[Evidence], Measured]
    answers: bool = False
    levels: bool = False
    worked: bool = False
    models: int = 1
    control: bool = True
    stretches: bool = False

    def check(self, evidence: Evidence) -> None:
        """`ClaimRefused` where this evidence cannot say: why."""
        if evidence.n_layers < SHALLOWEST:
            raise ClaimRefused(f"The model has {evidence.n_layers} layers; this claim needs at least {SHALLOWEST}.")
        if self.stretches and evidence.passes > 1:
            raise ClaimRefused(
                f"The model runs the same {evidence.n_layers // evidence.passes} layers {evidence.passes} times, so a "
                "stretch as long as a pass leaves the same layers wherever it lies; see how it does with fewer passes "
                "(loops)."
            )
        if self.models > len(evidence.models):
            raise ClaimRefused(
                f"It needs at least {self.models} models of one family, and there {_are(len(evidence.models))}; name "
                "more with --also."
            )
        if self.answers and not (evidence.answers or evidence.answered):
            raise ClaimRefused("It needs prompts with known answers, and these have none; choose a set with answers.")
        if self.worked and not evidence.worked:
            raise ClaimRefused(
                "It compares answers in one step with the same tasks worked out step by step, and this set has no "
                "worked-out counterpart; choose one that has, for instance sum_mod10."
            )
        if self.levels and len(evidence.level_names) < 2:
            raise ClaimRefused(
                f"It needs at least 2 levels of difficulty, and there {_are(len(evidence.level_names))}; choose a set "
                "with levels."
            )
        for name in self.parts:
            if name in evidence.troubles:
                raise ClaimRefused(evidence.troubles[name])

    def of(self, evidence: Evidence) -> Measured:
        """What the evidence says; `ClaimRefused` where it cannot."""
        self.check(evidence)
        return self.measure(evidence)

    @property
    def judging(self) -> tuple[Quantity, ...]:
        """The quantities that its verdict hangs on."""
        return tuple(q for q in self.quantities if not q.beside)


def enough(part: Part | int, what: str = "prompts", take: str = "a larger set") -> None:
    """Refuse with both numbers what is too small for an interval."""
    n = part if isinstance(part, int) else len(part)
    if n < FEWEST and not (isinstance(part, Part) and part.units.enough):
        of_forms = "" if isinstance(part, int) else f" (or {FEWEST_FORMS} of different forms)"
        raise ClaimRefused(f"An interval needs at least {FEWEST} {what}{of_forms}, and there {_are(n)}; use {take}.")


def _are(n: int) -> str:
    return f"{'is' if n == 1 else 'are'} {n}"


@dataclass(frozen=True)
class Judgement:
    """A verdict of one claim by itself, with the one-sided p that it was reached at: of *cannot be told* the
    smaller one of both; NaN where a quantity is not defined, so that nothing was tested."""

    verdict: str
    p: float


def judged(claim: Claim, measured: Measured, limits: Mapping[str, Range] | None = None) -> Judgement:
    """The verdict over all quantities: the statement holds where each does; it does not where one does not, the error
    then being that of the surest one times their number (Bonferroni: each had its chance to contradict). A quantity
    that is not defined makes it *cannot be told*. `limits`: others than the claim's own, by the quantity's name."""
    found = []
    for q in claim.judging:
        estimate = measured.estimates.get(q.name)
        found.append(UNKNOWN if estimate is None else estimate.errors((limits or {}).get(q.name, q.holds)))
    if not np.isfinite(found).all():
        return Judgement(CANNOT_BE_TOLD, math.nan)
    holds, fails = max(one[0] for one in found), min(1.0, len(found) * min(one[1] for one in found))
    verdict = HOLDS if holds <= ALONE else DOES_NOT if fails <= ALONE else CANNOT_BE_TOLD
    return Judgement(verdict, min(holds, fails))


def together(verdicts: Sequence[str], p: Sequence[float]) -> list[tuple[str, float]]:
    """Verdicts that were reached at once, after Holm's adjustment: what does not keep 5 % becomes *cannot be told*;
    with the adjusted probability of each. Every claim that was tested counts, whatever came of it."""
    adjusted = holm(p)
    return [
        (CANNOT_BE_TOLD if verdict in (HOLDS, DOES_NOT) and not one <= LEVEL else verdict, float(one))
        for verdict, one in zip(verdicts, adjusted, strict=True)
    ]


RELIABLE = 0.8  # share of the differences between layers that is no noise, below which their order is not read


def sums_of(part: Part, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A measure's sums over tokens `[prompt, place]` and how many tokens each is over `[prompt]`."""
    return part[f"{name}.sum"].reshape(len(part), -1), counted(part.columns, name)


def per_token(part: Part, name: str, seed: int) -> Resampled:
    """A measure's mean over all tokens of all prompts. The resamples of one part and seed are the same prompts."""
    return statistics.mean(*sums_of(part, name), part.units, seed)


def cosine(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The same of what the cosine rule reads, the mean over attention, the MLP and both."""
    found = [sums_of(part, name) for name in COSINES]
    return np.mean([sums for sums, _ in found], 0), found[0][1]


def added(part: Part, seed: int) -> Resampled:
    """The loss that leaving something out adds, nats per token."""
    loss, tokens = sums_of(part, "nll")
    return statistics.mean(loss - sums_of(part, "nll_whole")[0], tokens, part.units, seed)


def read_off(
    part: Part, read: Callable[[dict[str, np.ndarray]], np.ndarray], names: Sequence[str], seed: int
) -> Resampled:
    """A smooth number read off mean curves over tokens, by their names."""
    found = {name: sums_of(part, name) for name in names}
    sums, tokens = ({name: one[i] for name, one in found.items()} for i in (0, 1))
    return statistics.read_off(read, sums, tokens, part.units, seed)


def reliability(part: Part, name: str) -> float:
    """How much of the variance of a mean curve between its places is no noise, in [0, 1]: 1 less the mean squared
    standard error over the variance, both of the curve less its mean in each prompt. NaN for a flat curve."""
    sums, tokens = sums_of(part, name)
    curve = statistics.mean(sums - sums.mean(1, keepdims=True), tokens, part.units)
    between, n = curve.value.var(ddof=1), len(curve.value)
    if not between > statistics.SMALLEST * np.abs(sums / tokens[:, None]).mean() ** 2:
        return np.nan
    return float(np.clip(1 - (curve.error**2).mean() * n / (n - 1) / between, 0, 1))


def left_out(read: Callable[[np.ndarray], float], *curves: np.ndarray) -> np.ndarray:
    """A number without each of the places, `[place]`: `read` is told the places that are there, and the curves."""
    n = len(curves[0])
    keep = [np.delete(np.arange(n), i) for i in range(n)]
    return np.array([read(at, *(c[at] for c in curves)) for at in keep], float)


def over_layers(read: Callable[..., float], *curves: np.ndarray) -> np.ndarray:
    """Draws of such a number over the layers, by the jackknife."""
    every = np.arange(len(curves[0]))
    return statistics.jackknifed(left_out(read, *curves), read(every, *curves))


@dataclass(frozen=True)
class Line:
    """A straight line through levels. `slope`: per step from one level to the next; `levels`: the mean of each;
    `pairs`: over how many pairs that have a value on every level, 0 where each level stands by itself; `over`: what the
    interval is over, in words."""

    slope: Resampled
    levels: Resampled
    pairs: int
    over: str


def line(values: Sequence[np.ndarray], parts: Sequence[Part], seed: int) -> Line | str:
    """The line through the prompts' own values `[prompt]` of each level: over pairs (a mark that each level has once)
    where there are enough of them, else over each level's prompts. A prompt without a value (NaN) is left out. In words
    why not, where a level is left with too few."""
    there = [np.isfinite(v) for v in values]
    values, parts = [v[t] for v, t in zip(values, there)], [p.keep(t) for p, t in zip(parts, there)]
    counts = [Counter(p.pairs) for p in parts]
    by_mark = [{m: i for i, m in enumerate(p.pairs) if m and n[m] == 1} for p, n in zip(parts, counts)]
    shared = sorted(set.intersection(*(set(one) for one in by_mark)))
    first = parts[0].keep(np.array([by_mark[0][m] for m in shared], int)) if shared else None
    if first is not None and first.units.enough:
        own = np.stack([v[[one[m] for m in shared]] for v, one in zip(values, by_mark)], 1)
        slope, levels = (statistics.mean(v, None, first.units, seed) for v in (slope_of(own), own))
        return Line(slope, levels, len(shared), first.units.groups)
    few = next((len(p) for p in parts if not p.units.enough), None)
    if few is not None:
        return f"prompts with a value on one level: only {few}"
    means = [statistics.mean(v, None, p.units, seed + i) for i, (v, p) in enumerate(zip(values, parts))]
    return Line(statistics.contrast(level_weights(len(means)), means), as_curve(means), 0, _all_of(parts))


def as_curve(numbers: Sequence[Resampled]) -> Resampled:
    """Single numbers with their resamples, as one curve."""
    value, error, again, errors = (
        np.stack([getattr(one, of) for one in numbers], -1) for of in ("value", "error", "again", "errors")
    )
    return Resampled(value, error, again, errors)


def level_weights(n: int) -> np.ndarray:
    """Of `n` levels in the slope of the line through them."""
    return slope_of(np.eye(n))


def _all_of(parts: Sequence[Part]) -> str:
    forms = [form for p in parts for form in p.forms] if all(p.forms for p in parts) else ()
    return statistics.units(sum(map(len, parts)), forms).words


def fisher(correlation: np.ndarray) -> np.ndarray:
    """Correlations on Fisher's scale, on which their spread does not depend on them; ±1 is cut to a finite number."""
    found: np.ndarray = np.arctanh(np.clip(correlation, -1 + statistics.SMALLEST, 1 - statistics.SMALLEST))
    return found


def by_level(part: Part, levels: Sequence[str]) -> list[Part]:
    """The part of each level; refused where one is too small for an interval."""
    found = [part.keep(np.asarray(part.levels) == level) for level in levels]
    for level, of_level in zip(levels, found):
        enough(of_level, f"prompts of level {level}")
    return found


def slope_estimate(found: Line | str, scale: float = 1.0) -> Estimate:
    """The slope as a quantity, in units of `scale`."""
    if isinstance(found, str):
        return Estimate.undefined_because(found)
    return Estimate.of(found.slope.value / scale, found.slope.draws / scale)
