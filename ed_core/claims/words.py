"""Claims in words: cells of a table, a sentence to quote, reasons, and the report of a run. Numpy only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from ..depth import say
from ..studies.words import document
from .judging import ALONE, DOES_NOT_APPLY, FAILS, HOLDS, LEVEL, UNDECIDED, Quantity
from .record import Found, Judged, Number, Report, Value

VERBS = {  # of one claim, and of several
    HOLDS: ("holds", "hold"),
    FAILS: ("fails", "fail"),
    UNDECIDED: ("is undecided", "are undecided"),
    DOES_NOT_APPLY: ("does not apply", "do not apply"),
}
HEAD = ("claim", "verdict", "here (5 to 95 %)", "the paper", "one untrained copy")


def value(q: Judged, of: Value | None) -> str:
    """Return the value `of` a quantity with its intervals, for a cell; where undefined the words for that, or "–"."""
    if of is None or of.value is None:
        return q.nothing or "–"
    over_layers = f"; over layers {_interval(*of.layers, q.digits)}" if of.layers else ""
    return f"{say.number(of.value, f'.{q.digits}f')} ({_interval(of.low, of.high, q.digits)}{over_layers})"


def _interval(low: Number, high: Number, digits: int) -> str:
    """Return an interval in words, "no interval" where an end is unknown."""
    return "no interval" if low is None or high is None else say.interval(low, high, digits)


def limits(q: Judged | Quantity) -> str:
    """Return in words where the statement is true: "below 0.5", "within ±0.1", "above 0.35 and below 0.75"."""
    low, high = (None if end is None or not math.isfinite(end) else end for end in q.limits)
    if low is not None and high is not None and low == -high:
        return f"within ±{high:g}"
    return " and ".join(f"{side} {end:g}" for side, end in (("above", low), ("below", high)) if end is not None)


def short(found: Found) -> str:
    """Return the verdict for a cell, with the one before the adjustment where that changed it."""
    return found.verdict if found.unadjusted == found.verdict else f"{found.verdict} (alone: {found.unadjusted})"


def sentence(found: Found, model: str, name: str) -> str:
    """Return the verdict as a sentence to quote: never more than this model and these prompts (the set `name`)."""
    values = found.reason or "; ".join(f"{q.name}: {value(q, q.value)}" for q in found.judging) + "."
    return f"{found.title}: {found.verdict} for {model} on {name}. {values[:1].upper()}{values[1:]}"


def reasons(found: Found) -> list[str]:
    """Return why the verdict is what it is, in entries of a sentence or two; [] where the claim does not apply."""
    if found.verdict == DOES_NOT_APPLY:
        return []
    out = [f"Intervals are 5 to 95 % over {found.over}.", found.note]
    out += [f"{q.name[:1].upper()}{q.name[1:]} is not judged: {q.why}." for q in found.judging if q.why]
    if found.p is not None and found.adjusted is not None:
        p, adjusted = (say.number(one, ".2g") for one in (found.p, found.adjusted))
        several = f" Among {found.together} claims (Holm): p = {adjusted}; {LEVEL:g} is needed."
        out.append(f"Alone: {found.unadjusted}, p = {p}; {ALONE:g} is needed.{several * (found.together > 1)}")
    for q in found.judging:
        if q.chosen and q.flips:
            less, more = q.flips
            at = None if q.value is None else q.value.value
            apart = [abs(at - end) for end in q.limits if end is not None and at is not None]
            distance = f", {say.number(min(apart), f'.{q.digits}f')} from the value" if apart else ""
            same = {less, more} == {found.unadjusted}
            moved = "20 % more or less changes nothing" if same else f"20 % less: {less}; 20 % more: {more}"
            out.append(f"The limit of {q.name}, {limits(q)}, is chosen here{distance}. {moved}.")
    out += [f"Shown only, {q.name}: {value(q, q.value)}." for q in found.quantities if q.shown]
    return [*filter(None, out), *([f"One untrained copy: {found.twin}."] if found.twin else [])]


def counted(findings: Sequence[Found]) -> str:
    """Return how many claims have which verdict, and how many are decided before and after the adjustment."""
    counts = Counter(one.verdict for one in findings)
    text = ", ".join(f"{counts[name]} {verbs[counts[name] > 1]}" for name, verbs in VERBS.items() if counts[name])
    if (tested := max((one.together for one in findings), default=0)) < 2:
        return text
    before = sum(one.unadjusted in (HOLDS, FAILS) for one in findings)
    after = sum(one.verdict in (HOLDS, FAILS) for one in findings)
    return f"{text}; {before} decided alone, {after} after Holm's adjustment for {tested} claims tested together"


def rows(findings: Sequence[Found]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a table's rows, one per quantity that judges; their head is `HEAD`."""
    for one in findings:
        if not one.judging:
            yield one.title, short(one), one.reason, "–", "–"
        for i, q in enumerate(one.judging):
            first = ("", "") if i else (one.title, short(one))
            yield *first, f"{q.name}: {value(q, q.value)}", q.paper, value(q, q.twin) if q.twin else "–"


def markdown(report: Report) -> str:
    """Return the report of a run as Markdown: a table, then each claim with its reasons."""
    from . import find

    table = [HEAD, *((f"**{title}**" if title else "", *more) for title, *more in rows(report.findings))]
    claims = [(find(one.id), one) for one in report.findings]
    words = {"counted": counted, "sentence": sentence, "reasons": reasons, "limits": limits}
    return document("claims.md", report=report, claims=claims, rows=table, **words)
