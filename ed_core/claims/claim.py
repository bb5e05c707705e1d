"""A claim: a published statement about depth that a measurement can contradict, and the record of how it came out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import ClaimRefused
from ..statistics import interval
from .evidence import Evidence, Measured
from .judging import DOES_NOT_APPLY, Estimate, Quantity, flips, together, verdict
from .record import Found, Judged, Value

SHALLOWEST = 4  # layers, below which there is no middle


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
        needs = (
            (of.n_layers >= SHALLOWEST, f"It needs {SHALLOWEST} layers at least; the model has fewer."),
            (
                not self.stretches or of.passes == 1,
                "The model runs its layers several times, so every stretch as long as a pass leaves out the same ones.",
            ),
            (
                self.models <= of.models,
                f"It needs {self.models} models of one family, and there {_are(of.models)}; name more with --also.",
            ),
            (not self.answers or of.answers, "It needs prompts with known answers, and these have none."),
            (not self.worked or of.worked, "It needs a set with a worked-out counterpart, like sum_mod10."),
            (
                not self.levels or levels > 1,
                f"It needs 2 levels of difficulty, and there {_are(levels)}; choose a set with levels.",
            ),
        )
        return next((why for met, why in needs if not met), of.trouble)

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
