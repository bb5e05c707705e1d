"""What a claim is, and how a measurement becomes a verdict. Numpy only.

A claim is a published statement about depth that a measurement can contradict. It is data (source, quantity, formula,
protocol, what the paper found, for which values it holds, what would contradict it, what it needs) and one function
from evidence to values. Each value has two probabilities of error: of saying that it lies within what the statement
allows, and of saying that it lies outside. A verdict needs one of them to be at most 3 % (nominal: intervals over few
units cover 87 to 90 % where 90 are meant, so that 5 % are kept); else it cannot be told, and so it is where a quantity
is not defined. A verdict never says more than: on this model, on these prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import ClaimRefused
from ..statistics import FEWEST, FEWEST_FORMS, beyond, holm, interval
from .evidence import Evidence, Part
from .record import Curve

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


def enough(part: Part | int, what: str = "prompts", fewest: int = FEWEST, take: str = "a larger set") -> None:
    """Refuse with both numbers what is too small for an interval."""
    n = part if isinstance(part, int) else len(part)
    if n < fewest and not (isinstance(part, Part) and part.units.enough):
        of_forms = "" if isinstance(part, int) else f" (or {FEWEST_FORMS} of different forms)"
        raise ClaimRefused(f"An interval needs at least {fewest} {what}{of_forms}, and there {_are(n)}; use {take}.")


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
