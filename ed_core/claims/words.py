"""A claim's record and its words: verdict, values, reasons, and the report of a run. Numpy only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..depth import say
from ..statistics import interval
from ..studies.words import table_row
from .claim import Claim
from .evidence import Measured
from .judging import (
    ALONE,
    DOES_NOT_APPLY,
    FAILS,
    HOLDS,
    LEVEL,
    UNDECIDED,
    Estimate,
    Quantity,
    flips,
    together,
    verdict,
)
from .record import Found, Judged, Report, Value

SEVERAL = {HOLDS: "hold", FAILS: "fail", UNDECIDED: "are undecided", DOES_NOT_APPLY: "do not apply"}
ONE = {UNDECIDED: "is undecided", DOES_NOT_APPLY: "does not apply"}
TINY = 1e-4  # below it a value prints as 0


# ---------------------------------------------------------------- the record


def found(claim: Claim, measured: Measured | None, reason: str, control: Measured | None) -> Found:
    """The record of a claim by itself; `adjusted` judges several together. `reason`: why it does not apply."""
    about: dict[str, Any] = {"id": claim.id, "title": claim.title, "source": claim.source}
    if measured is None:
        return Found(**about, verdict=DOES_NOT_APPLY, alone=DOES_NOT_APPLY, reason=reason)
    alone = verdict(claim.quantities, measured.estimates)
    drawn = (("model", measured), ("untrained twin", control))
    return Found(
        **about,
        verdict=alone.verdict,
        alone=alone.verdict,
        p=alone.p,
        adjusted=alone.p,
        prompts=measured.prompts,
        over=measured.over,
        note=measured.note,
        quantities=tuple(_quantity(claim, q, measured, control, alone.why.get(q.name, "")) for q in claim.quantities),
        twin=verdict(claim.quantities, control.estimates).verdict if control else "",
        curves={name: of.curve for name, of in drawn if of is not None},
    )


def _quantity(claim: Claim, q: Quantity, measured: Measured, control: Measured | None, why: str) -> Judged:
    mine, twin = (of.estimates.get(q.name) if of else None for of in (measured, control))
    return Judged(
        name=q.name,
        unit=q.unit,
        limits=q.limits,
        found=q.found,
        digits=q.digits,
        chosen=q.chosen,
        shown=q.shown,
        value=_value(mine),
        twin=_value(twin),
        why=why,
        nothing=mine.nothing if mine else "",
        flips=flips(claim.quantities, measured.estimates, q) if q.chosen and not q.shown else None,
    )


def _value(estimate: Estimate | None) -> Value | None:
    if estimate is None:
        return None
    low, high, undefined = interval(estimate.draws[0] if estimate.draws else np.full(1, np.nan))
    layers = None if estimate.layers is None else interval(estimate.layers)[:2]
    if not math.isfinite(estimate.value):
        return Value(value=None)
    return Value(value=estimate.value, low=low, high=high, layers=layers, undefined=undefined)


def adjusted(findings: Sequence[Found]) -> tuple[Found, ...]:
    """Findings judged together, by Holm's adjustment over all that were tested."""
    p = [math.nan if one.p is None else one.p for one in findings]
    tested = sum(map(math.isfinite, p))
    after = together([one.alone for one in findings], p)
    return tuple(
        one.but(verdict=verdict, adjusted=p, together=tested) for one, (verdict, p) in zip(findings, after, strict=True)
    )


# ---------------------------------------------------------------- words


def number(value: float | None, digits: int) -> str:
    """A quantity's value; small ones keep two figures."""
    if value is None or not math.isfinite(value):
        return "–"
    value = 0.0 if abs(value) < TINY else value
    return say.number(value, f".{digits}f" if abs(value) >= 10.0**-digits or not value else ".2g")


def ends(low: float | None, high: float | None, digits: int) -> str:
    """The ends of an interval; one that has no width says so."""
    if low is None or high is None:
        return "no interval"
    low, high = (0.0 if abs(end) < 1e-12 else end for end in (low, high))
    return say.interval(low, high, digits) if low != high else f"{number(low, digits)} in 90 % of resamples"


def value(q: Judged, of: Value | None) -> str:
    """A value with its unit and its intervals, in a cell."""
    if of is None or of.value is None:
        return q.nothing or "–"
    over_layers = f"; over layers {ends(*of.layers, q.digits)}" if of.layers else ""
    unit = f" {q.unit}" if q.unit else ""
    return f"{number(of.value, q.digits)}{unit} ({ends(of.low, of.high, q.digits)}{over_layers})"


def limits(q: Judged | Quantity) -> str:
    """Between which values the statement is true: "below 0.5", "within ±0.1", "above 0.35 and below 0.75"."""
    low, high = (None if end is None or not math.isfinite(end) else end for end in q.limits)
    if low is not None and high is not None and low == -high:
        return f"within ±{high:g}"
    return " and ".join(f"{side} {end:g}" for side, end in (("above", low), ("below", high)) if end is not None)


def short(found: Found) -> str:
    """The verdict in a cell; with the one by itself, where the adjustment for several claims changed it."""
    return found.verdict if found.alone == found.verdict else f"{found.verdict} (by itself: {found.alone})"


def sentence(found: Found, model: str, name: str) -> str:
    """The one that can be quoted: never more than this model and these prompts."""
    if found.verdict == DOES_NOT_APPLY:
        return f"{found.title}: does not apply to {model} on {name}. {found.reason}"
    values = "; ".join(f"{q.name}: {value(q, q.value)}" for q in found.judging)
    return f"{found.title}: {found.verdict} for {model} on {name}. {values[:1].upper()}{values[1:]}."


def reasons(found: Found) -> list[str]:
    """Why the verdict is what it is, a sentence or two each."""
    return [] if found.verdict == DOES_NOT_APPLY else list(filter(None, _reasons(found)))


def _reasons(found: Found) -> Iterator[str]:
    yield f"Intervals are 5 to 95 % over {found.over}."
    yield found.note
    yield from (f"Not judged, {q.name}: {q.why}." for q in found.judging if q.why)
    yield _probabilities(found)
    yield f"The paper found: {'; '.join(dict.fromkeys(q.found for q in found.judging))}."
    yield from (_limit(found, q) for q in found.judging if q.chosen)
    yield from (f"Not judged but shown, {q.name}: {value(q, q.value)}." for q in found.quantities if q.shown)
    if found.twin:
        values = "; ".join(f"{q.name}: {value(q, q.twin)}" for q in found.judging if q.twin)
        yield f"One untrained twin: {found.twin}. {values[:1].upper()}{values[1:]}."


def _probabilities(found: Found) -> str:
    if found.p is None or found.adjusted is None:
        return "A quantity is not judged, so nothing was tested."
    if found.alone == UNDECIDED:
        return f"Neither verdict is sure: the smaller p is {_p(found.p)}, and {ALONE:g} is needed."
    several = f" (Holm, {found.together} claims; {LEVEL:g} is needed)" if found.together > 1 else ""
    return f"By itself it {found.alone} (p = {_p(found.p)}); adjusted, p = {_p(found.adjusted)}{several}."


def _limit(found: Found, q: Judged) -> str:
    """How far a value is from a limit that is chosen here, and whether the verdict depends on it."""
    said = f"The limit of {q.name}, {limits(q)}, is chosen here"
    if q.value and q.value.value is not None:
        here = q.value.value
        apart = min(abs(here - end) for end in q.limits if end is not None and math.isfinite(end))
        said += f"; the value is {number(apart, q.digits)} from it"
    narrow, wide = q.flips or ("", "")
    if {narrow, wide} <= {found.alone}:
        return f"{said}. 20 % more or less gives the same verdict."
    return f"{said}. By itself the claim is: {narrow} (20 % less), {wide} (20 % more)."


def _p(value: float) -> str:
    return "below 0.001" if value < 0.001 else f"{value:.2g}"


def counted(findings: Sequence[Found]) -> str:
    """How many claims have which verdict: "1 holds, 2 fail, 3 are undecided"."""
    counts = {verdict: sum(one.verdict == verdict for one in findings) for verdict in SEVERAL}
    return ", ".join(f"{n} {ONE.get(v, v) if n == 1 else SEVERAL[v]}" for v, n in counts.items() if n)


def standing(findings: Sequence[Found]) -> str:
    """How many claims are decided before and after the adjustment for several; "" where none was made."""
    before, after = (sum(getattr(one, of) in (HOLDS, FAILS) for one in findings) for of in ("alone", "verdict"))
    tested = max((one.together for one in findings), default=0)
    if tested < 2:
        return ""
    return f"{before} decided by themselves, {after} after Holm's adjustment for {tested} claims tested together"


def rows(findings: Sequence[Found]) -> Iterator[tuple[str, str, str, str, str]]:
    """A table's rows: claim, verdict, value, what the paper found, twin; one per quantity that judges."""
    for one in findings:
        judging = one.judging or (None,)
        for i, q in enumerate(judging):
            head = (one.title, short(one)) if not i else ("", "")
            here = one.reason if q is None else f"{q.name}: {value(q, q.value)}"
            twin = value(q, q.twin) if q and q.twin else "–"
            yield *head, here, q.found if q else "–", twin


def markdown(report: Report) -> str:
    """The report of a run: a table, then each claim with its reasons."""
    from . import find

    title = f"# Claims: {report.model} on {report.set}".replace("<", "&lt;")
    lines = [title, "", f"{counted(report.findings)}.", ""]
    lines += [f"{stand}.", ""] if (stand := standing(report.findings)) else []
    lines += ["| claim | verdict | value (5 to 95 %) | the paper | one untrained twin |", "|---|---|---|---|---|"]
    lines += [table_row(f"**{head}**" if head else "", *more) for head, *more in rows(report.findings)]
    for one in report.findings:
        claim = find(one.id)
        lines += ["", f"## {one.title}", "", f"`{one.id}`. {sentence(one, report.model, report.set)}", ""]
        lines += [f"- {said}" for said in reasons(one)]
        lines += [f"- formula: {claim.formula}", f"- protocol: {claim.protocol}"]
        lines += [f"- holds where {q.name} is {limits(q)}" for q in claim.judging]
    return "\n".join([*lines, "", "Measured by:", "", f"    {report.command}", ""])
