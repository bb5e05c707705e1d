"""What became of a claim on one model and set: its verdict, the sentence that can be quoted, its reasons, as a record
and as Markdown. Numpy only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from ..depth.wording import decimals, percent, printed
from ..statistics import ONE_BY_ONE
from ..studies.report import table_row
from .claim import (
    ALONE,
    CANNOT_BE_TOLD,
    DOES_NOT,
    HOLDS,
    LEVEL,
    MOVES,
    NOT_APPLICABLE,
    VERDICTS,
    Claim,
    Estimate,
    Judgement,
    Measured,
    Quantity,
    Range,
    judged,
    together,
)
from .record import Found, Judged, Limits, Moved, Report, Valued

FORMAT = 2  # of the JSON
ROUNDING = 1e-12
OPENS = {
    HOLDS: "Holds here:",
    DOES_NOT: "Does not hold here:",
    CANNOT_BE_TOLD: "It cannot be told here whether",
    NOT_APPLICABLE: "Not applicable here:",
}
OF_CONTROL = {  # what the control's verdict means
    HOLDS: "by itself it holds there",
    DOES_NOT: "by itself it does not hold there",
    CANNOT_BE_TOLD: "by itself it cannot be told there",
}
SEVERAL = {
    HOLDS: "hold here",
    DOES_NOT: "do not hold here",
    CANNOT_BE_TOLD: "cannot be told",
    NOT_APPLICABLE: "are not applicable",
}
PRINTED = {  # units behind a number; shares, ratios and correlations have none
    "of the depth, a level": "of the layers a level",
    "layers a level": "layers a level",
    "per tenfold parameters": "per tenfold increase in parameters",
    "share of the depth": "of the depth",
    "degrees": "degrees",
    "nats": "nats",
    "layers": "layers",
}


@dataclass(frozen=True)
class Finding:
    """A claim, and what was measured of the model and of its control; `reason` and `control_reason`: why nothing
    was."""

    claim: Claim
    model: str
    set: str
    measured: Measured | None
    reason: str = ""
    control: Measured | None = None
    control_reason: str = ""

    @property
    def alone(self) -> Judgement:
        """The verdict of this claim by itself, before others that were checked with it are taken into account."""
        return Judgement(NOT_APPLICABLE, math.nan) if self.measured is None else judged(self.claim, self.measured)

    def told(self) -> Found:
        """The claim by itself, as it is kept. `adjusted` judges several at once."""
        claim, alone, measured = self.claim, self.alone, self.measured
        found = Found(
            id=claim.id,
            title=claim.title,
            statement=claim.statement,
            source=claim.source,
            formula=claim.formula,
            protocol=claim.protocol,
            contradicted=claim.contradicted,
            of=f"{self.model} on {self.set}",
            verdict=alone.verdict,
            alone=alone.verdict,
            p=alone.p,
            adjusted=alone.p,
            together=1,
            reason=self.reason,
            prompts=measured.prompts if measured else 0,
            over=measured.over if measured else "",
            beside=measured.beside if measured else "",
            quantities=tuple(map(self._quantity, claim.quantities)),
            control=judged(claim, self.control).verdict if self.control else "",
            control_reason=self.control_reason,
            curves={
                name: of.curve for name, of in (("model", measured), ("untrained twin", self.control)) if of is not None
            },
        )
        return _said(found)

    def _quantity(self, q: Quantity) -> Judged:
        value, control = (
            _valued(of.estimates[q.name], q) if of is not None and q.name in of.estimates else None
            for of in (self.measured, self.control)
        )
        limits = self._limits(q) if q.chosen and not q.beside and value else None
        return Judged(**asdict(q), value=value, control=control, limits=limits)

    def _limits(self, q: Quantity) -> Limits:
        """How far the value lies from the limits that were chosen here, and the verdict with others."""
        assert self.measured is not None
        value = self.measured.estimates[q.name].value
        apart = min(((abs(value - end), end) for end in q.holds if math.isfinite(end)), default=(math.nan, math.nan))
        moved = [(q.moved(share), judged(self.claim, self.measured, {q.name: q.moved(share)})) for share in MOVES]
        turned = [(holds, found.verdict) for holds, found in moved if found.verdict != self.alone.verdict]
        said = f"The limit of the {q.name}, {q.limit}, was chosen here"
        if math.isfinite(value):
            said += f"; the value lies {number(apart[0], q.digits)} from {number(apart[1], q.digits)}"
        if turned:
            changed = " and ".join(f"with {_between(h, q.digits)} it {verdict}" for h, verdict in turned)
            said = f"{said}. By itself it {self.alone.verdict}; {changed}."
        else:
            others = " or ".join(_between(holds, q.digits) for holds, _ in moved)
            said = f"{said}. With {others} the verdict by itself is the same."
        return Limits(
            distance=apart[0],
            moved=tuple(Moved(holds=holds, verdict=found.verdict) for holds, found in moved),
            turns=bool(turned),
            told=said,
        )


def _valued(found: Estimate, q: Quantity) -> Valued:
    holds, fails = found.errors(q.holds)
    return Valued(
        value=found.value,
        low=found.low,
        high=found.high,
        undefined=found.undefined,
        layers=found.layers,
        why=found.why,
        verdict=HOLDS if holds <= ALONE else DOES_NOT if fails <= ALONE else CANNOT_BE_TOLD,
        told=valued(found, q),
        short=valued(found, q, ""),
    )


def _said(found: Found) -> Found:
    """With the sentence and the reasons of its verdict."""
    return found.but(sentence=sentence(found), reasons=tuple(reasons(found)))


def adjusted(findings: Sequence[Found]) -> tuple[Found, ...]:
    """Findings judged together: verdicts after Holm's adjustment over all that were tested, sentences and reasons with
    them."""
    p = [math.nan if f.p is None else f.p for f in findings]
    tested = sum(math.isfinite(one) for one in p)
    after = zip(findings, together([f.alone for f in findings], p), strict=True)
    return tuple(_said(f.but(verdict=verdict, adjusted=one, together=tested)) for f, (verdict, one) in after)


def sentence(found: Found) -> str:
    """The one that can be quoted: never more than this model and these prompts."""
    if found.verdict == NOT_APPLICABLE:
        return f"{OPENS[found.verdict]} {found.statement} ({found.of}). {found.reason}"
    values = "; ".join(f"{q.name}: {both_ways(q)}" for q in found.judging if q.value)
    why = f" {_of_several(found)}" if found.verdict == CANNOT_BE_TOLD else ""
    return f"{OPENS[found.verdict]} {found.statement} ({found.of}). {values[:1].upper()}{values[1:]}.{why}"


def judgement(found: Found) -> str:
    """The verdict, in a cell; with what it is by itself, where the adjustment for several claims took it."""
    return f"{found.verdict} (by itself it {found.alone})" if found.alone != found.verdict else found.verdict


def here(found: Found, q: Judged) -> str:
    """What was measured of a quantity, in a cell: its intervals, and where there is no value, why."""
    if q.value is None:
        return "–"
    why = found.beside.removesuffix(".")
    return f"{both_ways(q)}. {why}" if q.value.value is None and why else both_ways(q)


def of_twin(found: Found) -> str:
    """What the untrained twin's values come to, "" without one."""
    too = " too" * (found.control == found.verdict == HOLDS)
    return f"{OF_CONTROL[found.control]}{too}" if found.control else ""


def both_ways(q: Judged) -> str:
    """A value with its interval over prompts and, where it is one of layers, over layers: either can decide."""
    assert q.value
    low, high = q.value.layers or (None, None)
    if low is None or high is None or not q.value.short.endswith(")"):
        return q.value.short
    return f"{q.value.short[:-1]}; over layers {number(low, q.digits)} to {number(high, q.digits)})"


def reasons(found: Found) -> list[str]:
    """Why the verdict is what it is, a sentence or two each."""
    return [] if found.verdict == NOT_APPLICABLE else list(filter(None, _reasons(found)))


def _reasons(found: Found) -> Iterable[str]:
    layered = [(q, q.value.layers) for q in found.judging if q.value and q.value.layers]
    also = ", over prompts and over layers" if layered else ""
    needs = f"a verdict needs a one-sided p of at most {ALONE:g}{also}, and at most {LEVEL:g} after Holm's adjustment"
    yield f"Intervals are 5–95 % over {found.over}; {needs} for the claims tested together."
    yield ONE_BY_ONE if found.over.endswith(" prompts") else ""
    for q, ends in layered:
        low, high = (number(math.nan if end is None else end, q.digits) for end in ends)
        yield f"5–95 % over layers, {q.name}: {low} to {high}{f' {unit}' if (unit := PRINTED.get(q.unit, '')) else ''}."
    for q in found.judging:
        if not q.value or q.value.why:
            yield f"Not judged, {q.name}: {q.value.why if q.value else 'it was not measured'}."
    yield found.beside
    yield _of_several(found)
    yield f"The paper found: {'; '.join(dict.fromkeys(q.found for q in found.judging))}."
    for q in found.judging:
        yield q.limits.told if q.limits else ""
    for q in found.quantities:
        if q.beside and q.value:
            yield f"Beside it, {q.name}: {q.value.short}."
    if found.control:
        theirs = "; ".join(f"{q.name}: {q.control.short}" for q in found.judging if q.control)
        yield f"One untrained twin: {theirs}; {of_twin(found)}."
    elif found.control_reason:
        yield f"No control: {found.control_reason}"


def _of_several(found: Found) -> str:
    """What the adjustment for several claims made of the verdict."""
    if found.p is None or found.adjusted is None:
        return "A quantity was not judged, so nothing was tested."
    if found.alone == CANNOT_BE_TOLD:
        return f"Neither verdict is sure: the smaller p is {_p(found.p, ALONE)} (limit {ALONE:g})."
    if found.together < 2:
        return f"p of the verdict: {_p(found.p)}."
    holm = f"after Holm's adjustment for {found.together} claims tested together"
    if found.verdict == found.alone:
        return f"p of the verdict: {_p(found.p)}; {holm} {_p(found.adjusted)}."
    return f"By itself it {found.alone} (p: {_p(found.p)}); {holm} p is {_p(found.adjusted, LEVEL)} (limit {LEVEL:g})."


def valued(found: Estimate, quantity: Quantity, over: str = "5–95 % over prompts or their forms: ") -> str:
    """A value with its interval, in words; `over` says what the interval is."""
    if not math.isfinite(found.value) and not math.isfinite(found.low):
        return found.nothing
    within, digits = math.isfinite(found.low), _digits(found.value, quantity)
    value = "not defined over all prompts"
    if math.isfinite(found.value):
        told = as_exact(found.value, found.low, found.high, digits) if within else number(found.value, digits)
        value = " ".join(filter(None, [told, PRINTED.get(quantity.unit, "")]))
    if not within:
        return value
    undefined = f", not defined in {percent(found.undefined)} of the resamples" if found.undefined else ""
    ends = between(found.low, found.high, digits)
    some = " that give one" * (bool(undefined) and " to " not in ends)
    return f"{value} ({over}{ends}{some}{undefined})"


def _digits(value: float, quantity: Quantity) -> int:
    """Decimals of a quantity's value, or up to two more where it would print as a limit that it is not."""
    places = range(quantity.digits, quantity.digits + 3)
    ends = [end for end in quantity.holds if math.isfinite(end) and end != value]
    apart = (n for n in places if all(f"{value:.{n}f}" != f"{end:.{n}f}" for end in ends))
    return next(apart, quantity.digits)


def between(low: float, high: float, digits: int, sign: str = "") -> str:
    """The ends of an interval, told apart and from 0. Of ends that are alike it is said how often they are, so that an
    interval without width does not pass for certainty."""
    low, high = _exact(low), _exact(high)
    if (n := decimals(low, high, digits, from_0=True)) is None:
        return f"{number(low, digits, sign)} in at least 90 % of resamples"
    return " to ".join(printed(end, f"{sign}.{n}f") for end in (low, high))


def as_exact(value: float, low: float, high: float, digits: int, sign: str = "") -> str:
    """A value, as exact as its interval is printed."""
    if (n := decimals(_exact(low), _exact(high), digits, from_0=True)) is None:
        return number(value, digits, sign)
    return printed(value if round(value, n) else 0.0, f"{sign}.{n}f")


def _exact(end: float) -> float:
    """An end of an interval; 0 where it is nothing but rounding."""
    return 0.0 if abs(end) < ROUNDING else end


def number(value: float, digits: int, sign: str = "") -> str:
    """A number as it is printed; small ones keep two figures, those below 0.0001 are 0. `sign`: "+" of a change."""
    value = 0.0 if abs(value) < min(1e-4, 10.0**-digits) else value
    return printed(value, f"{sign}.{digits}f" if abs(value) >= 10.0**-digits or not value else f"{sign}.2g")


def _between(holds: Range, digits: int) -> str:
    """Limits as a short range: "0.4", "0.39 to 0.71"."""
    return " to ".join(number(end, digits) for end in holds if math.isfinite(end))


def _p(value: float, limit: float = 0.0) -> str:
    """A p, told apart from the limit that it exceeds."""
    if value < 0.001:
        return "below 0.001"
    return next((p for n in (2, 3, 4) if (p := f"{value:.{n}g}") != f"{limit:.{n}g}"), f"{value:.2g}")


def counted(findings: Sequence[Found]) -> str:
    """How many claims came out how: "1 holds here, 2 do not hold here"."""
    counts = {verdict: sum(f.verdict == verdict for f in findings) for verdict in VERDICTS}
    one = {NOT_APPLICABLE: f"is {NOT_APPLICABLE}"}
    return ", ".join(
        f"{n} {one.get(verdict, verdict) if n == 1 else SEVERAL[verdict]}" for verdict, n in counts.items() if n
    )


def standing(findings: Sequence[Found]) -> str:
    """How many verdicts stand before and after the adjustment for several; "" where that was not made."""
    before, after = (sum(getattr(f, name) in (HOLDS, DOES_NOT) for f in findings) for name in ("alone", "verdict"))
    tested = max((f.together for f in findings), default=0)
    if tested < 2:
        return ""
    verdicts = "1 verdict" if before == 1 else f"{before} verdicts"
    stand = "1 stands" if after == 1 else f"{after} stand"
    return (
        f"{verdicts} when each claim is judged alone; {stand} after Holm's adjustment for {tested} claims tested "
        "together"
    )


def markdown(told: Report) -> str:
    """The report of a run: a table, then each sentence with its reasons."""
    title = f"# Claims: {told.model} on {told.set}".replace("<", "&lt;")
    lines = [title, "", f"{counted(told.findings)}.", ""]
    lines += [f"{stand}.", ""] if (stand := standing(told.findings)) else []
    values = "value (5–95 % over prompts or their forms)"
    lines += [f"| claim | verdict | {values} | the paper | untrained twin |", "|---|---|---|---|---|"]
    for found in told.findings:
        quantities = found.quantities if found.verdict != NOT_APPLICABLE else found.quantities[:1]
        for i, q in enumerate(quantities):
            head = (f"`{found.id}`", f"**{found.verdict}**") if not i else ("", "")
            value = f"{q.name}: {q.value.short}" if q.value else (found.reason if not i else "–")
            lines.append(table_row(*head, value, q.found, q.control.short if q.control else "–"))
    lines += ["", "A verdict is of this model and these prompts; those of a run are tested together at 5 % (Holm)."]
    for found in told.findings:
        lines += ["", f"## {found.title}", "", found.sentence, ""]
        lines += [f"- {said}" for said in found.reasons or [found.beside] if said]
        lines += [f"- formula: {found.formula}", f"- protocol: {found.protocol}"]
        lines += [f"- contradicted by: {found.contradicted}"]
        lines += [f"- holds where {q.name} is {q.limit}" for q in found.judging]
    return "\n".join([*lines, "", "Measured by:", "", f"    {told.command}", ""])
