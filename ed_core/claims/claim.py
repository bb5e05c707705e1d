"""A claim: a published statement about depth that a measurement can contradict; the evidence that it is read off, and
the record of how it came out. Numpy only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import statistics
from ..errors import ClaimRefused
from ..statistics import interval
from ..studies.part import Part, in_pairs
from .judging import DOES_NOT_APPLY, Estimate, Quantity, flips, together, verdict
from .record import Found, Judged, Value

SHALLOWEST = 4  # layers, below which there is no middle
LOOPED = "The model runs its layers several times, so every stretch as long as a pass leaves out the same ones."


class Sized(NamedTuple):
    """A model of a family: its name, parameters and layers, and its logit lens."""

    name: str
    parameters: int | None
    n_layers: int
    lens: Part


@dataclass(frozen=True)
class Evidence:
    """What was measured of one model on one prompt set. `parts`: by their names (`running.PARTS`). `family`: the model
    and others of its family. `twins`: the contributions of five untrained copies. `answers`: every prompt has a known
    answer, or enough have. `worked`: the set has a worked-out counterpart. `passes`: how often the layers run.
    `trouble`: why the model could not be measured."""

    n_layers: int
    parts: Mapping[str, Part]
    answers: bool = True
    level_names: tuple[str, ...] = ()
    family: tuple[Sized, ...] = ()
    models: int = 1
    twins: tuple[Part, ...] = ()
    worked: bool = False
    passes: int = 1
    trouble: str = ""


@dataclass(frozen=True)
class Measured:
    """The estimates of a claim's quantities, in their order; `prompts`: how many they rest on; `over`: in words what is
    independent among these; `note`: a remark."""

    estimates: tuple[Estimate, ...]
    prompts: int
    over: str
    note: str = ""

    @classmethod
    def of(cls, part: Part, *estimates: Estimate, note: str = "") -> Measured:
        """Return the estimates with the number of prompts of a part, and in words what is independent among them."""
        return cls(estimates, len(part), part.units.words, note)


def fisher(correlation: np.ndarray) -> np.ndarray:
    """Return correlations on Fisher's scale, on which their spread does not depend on them."""
    bound = 1 - statistics.SMALLEST
    return np.asarray(np.arctanh(np.clip(correlation, -bound, bound)))


def line(values: Sequence[np.ndarray], parts: Sequence[Part], scale: float = 1.0) -> tuple[Estimate, str]:
    """Return the slope of the straight line through the prompts' own `values` `[prompt]` of each level, in units of
    `scale` a level, and in words what is independent: pairs (a mark that each level has once) where enough, else each
    level's prompts. A NaN is left out. Undefined, with no words, where a level is left with too few prompts."""
    finite = [np.isfinite(v) for v in values]
    values, parts = [v[f] for v, f in zip(values, finite)], [p.keep(f) for p, f in zip(parts, finite)]
    steps = np.arange(len(parts)) - (len(parts) - 1) / 2
    weights = steps / (steps @ steps)
    own, first, marks = in_pairs(values, parts)
    order = np.array(sorted(range(len(marks)), key=marks.__getitem__), int)
    if first.units.enough:
        slope, over = first.keep(order).mean(own[order] @ weights), first.units.groups
    elif (few := next((len(p) for p in parts if not p.units.enough), None)) is not None:
        return Estimate.undefined(f"a level has only {few} prompts with a value"), ""
    else:
        means = [statistics.mean(v, None, p.units, p.seed + i) for i, (v, p) in enumerate(zip(values, parts))]
        forms = [form for p in parts for form in p.forms] if all(p.forms for p in parts) else ()
        slope, over = statistics.contrast(weights, means), statistics.units(sum(map(len, parts)), forms).words
    return Estimate(float(slope.value) / scale, (slope.draws / scale,)), over


@dataclass(frozen=True)
class Claim:
    """A published statement. `title`: the statement, a sentence without its full stop; `protocol`: how it is checked
    here; `parts`: what has to be measured (`running.PARTS`). `answers`, `levels`: prompts need known answers, levels of
    difficulty; `worked`: the set needs a counterpart with worked-out answers; `models`: how many models it takes.
    `twin`: whether an untrained copy is measured too. `stretches`: it compares stretches of layers."""

    id: str
    title: str
    measure: Callable[[Evidence], Measured]
    source: str
    formula: str
    protocol: str
    quantities: tuple[Quantity, ...]
    parts: tuple[str, ...]
    answers: bool = False
    levels: bool = False
    worked: bool = False
    models: int = 1
    twin: bool = True
    stretches: bool = False

    @property
    def judging(self) -> tuple[Quantity, ...]:
        """The quantities that its verdict rests on."""
        return tuple(q for q in self.quantities if not q.shown)

    def refusal(self, of: Evidence) -> str:
        """Return why this evidence cannot answer the claim, "" where it can."""
        levels = len(of.level_names)
        if of.n_layers < SHALLOWEST:
            return f"It needs {SHALLOWEST} layers at least; the model has fewer."
        if self.stretches and of.passes > 1:
            return LOOPED
        if self.models > of.models:
            return f"It needs {self.models} models of one family, and there {_are(of.models)}; name more with --also."
        if self.answers and not of.answers:
            return "It needs prompts with known answers, and these have none."
        if self.worked and not of.worked:
            return "It needs a set with a worked-out counterpart, like sum_mod10."
        if self.levels and levels < 2:
            return f"It needs 2 levels of difficulty, and there {_are(levels)}; choose a set with levels."
        return of.trouble

    def of(self, evidence: Evidence) -> Measured:
        """Return the estimates of the claim's quantities; `ClaimRefused` where the evidence cannot answer."""
        if why := self.refusal(evidence):
            raise ClaimRefused(why)
        if lacking := next((name for name in self.parts if name not in evidence.parts), ""):
            raise ClaimRefused(f"Nothing was measured of {lacking}.")
        return self.measure(evidence)

    def finding(self, measured: Measured | str, control: Measured | None = None) -> Found:
        """Return the record of the claim, judged without other claims (`adjusted` judges several together). `measured`:
        the model's estimates, or why the claim does not apply; `control`: the untrained copy's estimates, None
        without."""
        about: dict[str, Any] = {"id": self.id, "title": self.title, "source": self.source}
        if isinstance(measured, str):
            return Found(**about, verdict=DOES_NOT_APPLY, unadjusted=DOES_NOT_APPLY, reason=measured)
        decided, p = verdict(self.quantities, measured.estimates)
        twins = map(_value, control.estimates) if control else (None,) * len(self.quantities)
        quantities = tuple(
            Judged(
                **asdict(q),
                value=_value(estimate),
                twin=twin,
                why=estimate.refusal,
                nothing=estimate.nothing,
                flips=flips(self.quantities, measured.estimates, q) if q.chosen and not q.shown else None,
            )
            for q, estimate, twin in zip(self.quantities, measured.estimates, twins, strict=True)
        )
        return Found(
            **about,
            verdict=decided,
            unadjusted=decided,
            p=p,
            adjusted=p,
            prompts=measured.prompts,
            over=measured.over,
            note=measured.note,
            quantities=quantities,
            twin=verdict(self.quantities, control.estimates)[0] if control else "",
        )


def adjusted(findings: Sequence[Found]) -> tuple[Found, ...]:
    """Return the findings judged together, by Holm's adjustment over all that were tested."""
    p = [math.nan if one.p is None else one.p for one in findings]
    tested = sum(map(math.isfinite, p))
    after = together([one.unadjusted for one in findings], p)
    return tuple(
        one.but(verdict=verdict, adjusted=p, together=tested) for one, (verdict, p) in zip(findings, after, strict=True)
    )


def _value(estimate: Estimate) -> Value:
    """Return an estimate with its 5 to 95 % over prompts and over layers, as a record stores it."""
    if not math.isfinite(estimate.value):
        return Value(value=None)
    low, high, undefined = interval(estimate.draws[0] if estimate.draws else np.full(1, np.nan))
    layers = None if estimate.layers is None else interval(estimate.layers)[:2]
    return Value(value=estimate.value, low=low, high=high, layers=layers, undefined=undefined)


def _are(n: int) -> str:
    """Return "is 1", "are 2", …."""
    return f"{'is' if n == 1 else 'are'} {n}"
