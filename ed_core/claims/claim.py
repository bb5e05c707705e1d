"""What a claim is, and from an interval to a verdict. Numpy only.

A claim is a published statement about depth that a measurement can contradict. It is data (source, quantity, formula,
protocol, what the paper found, for which values it holds, what would contradict it, what it needs) and one function
from evidence to values with their intervals. A verdict never says more than: on this model, on these prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..depth.criteria import ENDS, FEWEST, interval
from ..errors import ClaimRefused
from .evidence import Evidence, Part

HOLDS, DOES_NOT, CANNOT_BE_TOLD, NOT_APPLICABLE = (
    "holds here",
    "does not hold here",
    "cannot be told",
    "not applicable",
)
VERDICTS = (HOLDS, DOES_NOT, CANNOT_BE_TOLD, NOT_APPLICABLE)
MOST_UNDEFINED = ENDS[0]  # share of resamples without a value that an interval may leave out
SHALLOWEST = 4  # layers below which there is no middle


@dataclass(frozen=True)
class Quantity:
    """One number that a claim is about. `holds`: between which values, neither counted, the statement is true; `limit`:
    the same in words, and who chose it; `found`: what the paper found, with its numbers where it gives some."""

    name: str
    unit: str
    holds: tuple[float, float]
    limit: str
    found: str
    digits: int = 2


@dataclass(frozen=True)
class Estimate:
    """A quantity's value over all prompts, 5 and 95 % quantiles over resamples of the prompts, and the share of
    resamples in which it is not defined. NaN: not defined."""

    value: float
    low: float
    high: float
    undefined: float = 0.0

    @classmethod
    def of(cls, value: float, again: np.ndarray) -> Estimate:
        """From the value and those of the resamples `[resample]`, NaN where not defined."""
        found = interval(np.asarray(again, float))
        return cls(float(value), found.low, found.high, found.undefined)

    def verdict(self, holds: tuple[float, float]) -> str:
        """`HOLDS` where the whole interval lies within `holds`, `DOES_NOT` where none of it does, else
        `CANNOT_BE_TOLD`. A resample without a value does not fulfil the statement."""
        if not math.isfinite(self.low) or self.high <= holds[0] or self.low >= holds[1]:
            return DOES_NOT
        if holds[0] < self.low and self.high < holds[1] and self.undefined <= MOST_UNDEFINED:
            return HOLDS
        return DOES_NOT if self.undefined >= 1 - MOST_UNDEFINED else CANNOT_BE_TOLD


@dataclass(frozen=True)
class Curve:
    """What is drawn of a claim: values with their intervals at places along x; `ticks` where places have names."""

    x_title: str
    unit: str
    x: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    ticks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, x_title: str, unit: str, values: np.ndarray, again: np.ndarray, x: Sequence[float] = (), ticks=()
    ) -> Curve:
        """From values `[place]` and those of the resamples `[resample, place]`; places are counted from 0 unless
        given."""
        with np.errstate(all="ignore"):
            ends = [np.quantile(again, end, axis=0) for end in ENDS]
        numbers = [tuple(float(v) for v in one) for one in (x or range(len(values)), values, *ends)]
        return cls(x_title, unit, *numbers, tuple(ticks))


@dataclass(frozen=True)
class Measured:
    """What a claim's function found: an estimate for each quantity that could be measured, by its name, over `prompts`
    prompts. `beside`: a sentence on what stands beside it."""

    estimates: Mapping[str, Estimate]
    prompts: int
    curve: Curve
    beside: str = ""


@dataclass(frozen=True)
class Claim:
    """A published statement. `statement`: what it says, fit to follow "that"; `protocol`: how it is checked here, and
    where that differs from the paper; `parts`: what has to be measured (`evidence.PARTS`). `answers`, `levels`: prompts
    need known answers, levels of difficulty; `models`: how many models it takes. `control`: whether it is measured on
    the untrained twin too."""

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
    models: int = 1
    control: bool = True

    def check(self, evidence: Evidence) -> None:
        """`ClaimRefused` where this evidence cannot say: why."""
        if evidence.n_layers < SHALLOWEST:
            raise ClaimRefused(f"The model has {evidence.n_layers} layers; this claim needs {SHALLOWEST} at least.")
        if self.models > len(evidence.models):
            raise ClaimRefused(
                f"It compares models of one family, {self.models} at least, and has {len(evidence.models)}; name more "
                "with --also."
            )
        if self.answers and not evidence.answers:
            raise ClaimRefused("It needs prompts with known answers, and these have none; choose a set with answers.")
        if self.levels and len(evidence.level_names) < 2:
            raise ClaimRefused(
                f"It compares levels of difficulty, 2 at least, and the set has {len(evidence.level_names)}; choose a "
                "set with levels."
            )
        for name in self.parts:
            if name in evidence.troubles:
                raise ClaimRefused(evidence.troubles[name])

    def of(self, evidence: Evidence) -> Measured:
        """What the evidence says; `ClaimRefused` where it cannot."""
        self.check(evidence)
        return self.measure(evidence)


def enough(part: Part | int, what: str = "prompts", fewest: int = FEWEST) -> None:
    """Refuse with both numbers what is too small for an interval."""
    n = part if isinstance(part, int) else len(part)
    if n < fewest:
        raise ClaimRefused(f"An interval needs {fewest} {what} at least, and there are {n}; choose a larger set.")


def judged(claim: Claim, measured: Measured) -> str:
    """The verdict over all quantities that were measured: the statement holds where each does, and does not where one
    does not."""
    found = {measured.estimates[q.name].verdict(q.holds) for q in claim.quantities if q.name in measured.estimates}
    return next(v for v in (DOES_NOT, CANNOT_BE_TOLD, HOLDS) if v in found)
