"""What became of a claim on one model and set: its verdict, the sentence that can be quoted, its reasons, and the
same as JSON and Markdown. Numpy only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import StudyError
from ..files import Bounds, Head, Kind
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

FORMAT = 2  # of the JSON
OPENS = {
    HOLDS: "Holds here:",
    DOES_NOT: "Does not hold here:",
    CANNOT_BE_TOLD: "Cannot be told here whether",
    NOT_APPLICABLE: "Not applicable here:",
}
OF_CONTROL = {  # what the control's verdict means
    HOLDS: "there the statement holds",
    DOES_NOT: "there it does not hold",
    CANNOT_BE_TOLD: "whether it holds there cannot be told",
}
SEVERAL = {
    HOLDS: "hold here",
    DOES_NOT: "do not hold here",
    CANNOT_BE_TOLD: "cannot be told",
    NOT_APPLICABLE: "are not applicable",
}
NOT_LEARNED = "there the statement holds too, so it needs no training to appear"


class Header(Head, extra="allow"):
    """The document that a run of claims writes. What later runs brought in may be missing."""

    about: str
    model: str
    set: str
    command: str
    findings: list[dict[str, Any]]


KIND = Kind(
    "claims",
    "a file of claims",
    2,
    Header,
    "delete it and run the claims again: what was measured stays",
    bounds=Bounds(head=64 << 20),
    refuses=StudyError,
)


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

    def told(self) -> dict[str, Any]:
        """As JSON, the claim by itself: what is not a finite number is null. `adjusted` judges several at once."""
        claim, alone = self.claim, self.alone
        about = {
            name: getattr(claim, name)
            for name in ("id", "title", "statement", "source", "formula", "protocol", "contradicted")
        }
        found = about | {
            "of": f"{self.model} on {self.set}",
            "verdict": alone.verdict,
            "alone": alone.verdict,
            "p": alone.p,
            "adjusted": alone.p,
            "together": 1,
            "reason": self.reason,
            "prompts": self.measured.prompts if self.measured else 0,
            "over": self.measured.over if self.measured else "",
            "beside": self.measured.beside if self.measured else "",
            "quantities": [self._quantity(q) for q in claim.quantities],
            "control": judged(claim, self.control).verdict if self.control else "",
            "control_reason": self.control_reason,
            "curves": {
                name: asdict(measured.curve)
                for name, measured in (("model", self.measured), ("untrained twin", self.control))
                if measured is not None
            },
        }
        told: dict[str, Any] = _plain(found | {"sentence": sentence(found), "reasons": reasons(found)})
        return told

    def _quantity(self, q: Quantity) -> dict[str, Any]:
        one: dict[str, Any] = asdict(q) | {"value": None, "control": None, "limits": None}
        for key, measured in (("value", self.measured), ("control", self.control)):
            if measured is not None and q.name in measured.estimates:
                one[key] = _estimate(measured.estimates[q.name], q)
        if q.chosen and not q.beside and one["value"]:
            one["limits"] = self._limits(q)
        return one

    def _limits(self, q: Quantity) -> dict[str, Any]:
        """How far the value lies from the limits that were chosen here, and the verdict with others."""
        assert self.measured is not None
        value = self.measured.estimates[q.name].value
        apart = min(((abs(value - end), end) for end in q.holds if math.isfinite(end)), default=(math.nan, math.nan))
        moved = [(q.moved(share), judged(self.claim, self.measured, {q.name: q.moved(share)})) for share in MOVES]
        turned = [(holds, found.verdict) for holds, found in moved if found.verdict != self.alone.verdict]
        said = f"The limit, {q.limit}, was chosen here"
        if math.isfinite(value):
            said += f"; the value lies {number(apart[0], q.digits)} from {number(apart[1], q.digits)}"
        if turned:
            changed = " and ".join(f"with {_between(h, q.digits)} the verdict by itself is “{v}”" for h, v in turned)
            said = f"{said}. It turns the verdict: {changed}."
        else:
            others = " or ".join(_between(holds, q.digits) for holds, _ in moved)
            said = f"{said}. With {others} the verdict is the same."
        return {
            "distance": apart[0],
            "moved": [{"holds": list(holds), "verdict": found.verdict} for holds, found in moved],
            "turns": bool(turned),
            "told": said,
        }


def _estimate(found: Estimate, q: Quantity) -> dict[str, Any]:
    holds, fails = found.errors(q.holds)
    verdict = HOLDS if holds <= ALONE else DOES_NOT if fails <= ALONE else CANNOT_BE_TOLD
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "undefined": found.undefined,
        "layers": found.layers,
        "why": found.why,
        "verdict": verdict,
        "told": valued(found, q),
        "short": valued(found, q, ""),
    }


def adjusted(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Findings judged together: verdicts after Holm's adjustment over all that were tested, sentences and reasons with
    them. Findings of an older format stay as they are."""
    new = [f for f in findings if "alone" in f]
    p = [math.nan if f["p"] is None else f["p"] for f in new]
    after = iter(together([f["alone"] for f in new], p))
    tested, out = sum(math.isfinite(one) for one in p), []
    for finding in findings:
        if "alone" not in finding:
            out.append(dict(finding))
            continue
        verdict, one = next(after)
        found = dict(finding) | {"verdict": verdict, "adjusted": one, "together": tested}
        out.append(_plain(found | {"sentence": sentence(found), "reasons": reasons(found)}))
    return out


def sentence(told: Mapping[str, Any]) -> str:
    """The one that can be quoted: never more than this model and these prompts."""
    verdict, of = told["verdict"], told["of"]
    if verdict == NOT_APPLICABLE:
        return f"{OPENS[verdict]} {told['statement']} ({of}). {told['reason']}"
    values = "; ".join(f"{q['name']}: {q['value']['short']}" for q in _judging(told) if q["value"])
    return f"{OPENS[verdict]} {told['statement']} ({of}). {values[:1].upper()}{values[1:]}."


def reasons(told: Mapping[str, Any]) -> list[str]:
    """Why the verdict is what it is, a sentence or two each."""
    if told["verdict"] == NOT_APPLICABLE:
        return []
    return list(filter(None, _reasons(told)))


def _reasons(told: Mapping[str, Any]) -> Iterable[str]:
    judging = _judging(told)
    over = f"Intervals are 5–95 % over {told['over']}"
    layered = [q for q in judging if q["value"] and q["value"]["layers"]]
    agree = "; a verdict needs the interval over layers to agree" if layered else ""
    yield f"{over}{agree}."
    for q in layered:
        low, high = (number(end, q["digits"]) for end in q["value"]["layers"])
        yield f"Over layers, {q['name']}: {low} to {high}."
    for q in judging:
        if not q["value"] or q["value"]["why"]:
            why = q["value"]["why"] if q["value"] else "it was not measured"
            yield f"Not to be judged, {q['name']}: {why}."
    yield told["beside"]
    yield _of_several(told)
    for q in judging:
        yield f"The paper found, {q['name']}: {q['found']}."
        yield q["limits"]["told"] if q["limits"] else ""
    for q in told["quantities"]:
        if q["beside"] and q["value"]:
            yield f"Beside it, {q['name']}: {q['value']['short']}."
    if told["control"]:
        theirs = "; ".join(f"{q['name']}: {q['control']['short']}" for q in judging if q["control"])
        means = NOT_LEARNED if told["control"] == told["verdict"] == HOLDS else OF_CONTROL[told["control"]]
        yield f"The untrained twin: {theirs}; {means}."
    elif told["control_reason"]:
        yield f"Without a control: {told['control_reason']}"


def _of_several(told: Mapping[str, Any]) -> str:
    """What the adjustment for several claims made of the verdict."""
    p, one = told["p"], told["adjusted"]
    if p is None or not math.isfinite(p):
        return "A quantity is not defined, so nothing was tested."
    if told["alone"] == CANNOT_BE_TOLD:
        return f"The error of the likelier verdict would be {_p(p)}, and {ALONE} is allowed."
    if told["together"] < 2:
        return f"Error of the verdict: {_p(p)}."
    among = f"among {told['together']} claims that were tested together"
    if told["verdict"] == told["alone"]:
        return f"Error of the verdict: {_p(p)}, {among} {_p(one)} (Holm)."
    return (
        f"By itself it {told['alone']} (error {_p(p)}); {among} the error is {_p(one)} (Holm), and {LEVEL} is allowed."
    )


def _judging(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [q for q in told["quantities"] if not q.get("beside")]


def valued(found: Estimate, quantity: Quantity, over: str = "5–95 % over prompts: ") -> str:
    """A value with its interval, in words; `over` says what the interval is."""
    if not math.isfinite(found.value) and not math.isfinite(found.low):
        return found.nothing
    value = number(found.value, quantity.digits) if math.isfinite(found.value) else "not defined over all prompts"
    if not math.isfinite(found.low):
        return value
    share = "less than 1%" if found.undefined < 0.01 else f"{found.undefined:.0%}"
    undefined = f", not defined in {share} of the resamples" if found.undefined else ""
    return f"{value} ({over}{between(found.low, found.high, quantity.digits)}{undefined})"


def between(low: float, high: float, digits: int) -> str:
    """The ends of an interval, with as many digits more, up to three, as tell them apart. Of ends that are alike it is
    said how often they are, so that an interval without width does not pass for certainty."""
    for n in range(digits, digits + 4):
        ends = [number(end, n) for end in (low, high)]
        if ends[0] != ends[1]:
            return " to ".join(ends)
    return "the same in at least 90 % of resamples"


def number(value: float, digits: int) -> str:
    """A number as it is printed; small ones keep two figures."""
    text = f"{value:.{digits}f}" if abs(value) >= 10.0**-digits or not value else f"{value:.2g}"
    return text.replace("-", "−")


def _between(holds: Range, digits: int) -> str:
    """Limits as a short range: "0.4", "0.39 to 0.71"."""
    return " to ".join(number(end, digits) for end in holds if math.isfinite(end))


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "below 0.001"


def counted(findings: Sequence[Mapping[str, Any]]) -> str:
    """How many claims came out how: "1 holds here, 2 do not hold here"."""
    counts = {verdict: sum(f["verdict"] == verdict for f in findings) for verdict in VERDICTS}
    return ", ".join(f"{n} {verdict if n == 1 else SEVERAL[verdict]}" for verdict, n in counts.items() if n)


def standing(findings: Sequence[Mapping[str, Any]]) -> str:
    """How many verdicts stand before and after the adjustment for several; "" where that was not made."""
    new = [f for f in findings if "alone" in f]
    before, after = (sum(f[key] in (HOLDS, DOES_NOT) for f in new) for key in ("alone", "verdict"))
    tested = max((f["together"] for f in new), default=0)
    if tested < 2:
        return ""
    verdicts = "1 verdict" if before == 1 else f"{before} verdicts"
    stand = "1 stands" if after == 1 else f"{after} stand"
    return f"{verdicts} by themselves; {stand} after Holm's adjustment for {tested} claims tested together"


def markdown(told: Mapping[str, Any]) -> str:
    """The report of a run, as `running.run` writes it in JSON: a table, then each sentence with its reasons."""
    findings = told["findings"]
    lines = [f"# Claims: {told['model']} on {told['set']}", "", f"{counted(findings)}.", ""]
    lines += [f"{stand}.", ""] if (stand := standing(findings)) else []
    lines += ["| claim | verdict | value (5–95 % over prompts) | the paper | untrained twin |", "|---|---|---|---|---|"]
    for finding in findings:
        told_of = finding["quantities"] if finding["verdict"] != NOT_APPLICABLE else finding["quantities"][:1]
        for i, q in enumerate(told_of):
            head = (f"`{finding['id']}`", f"**{finding['verdict']}**") if not i else ("", "")
            value = f"{q['name']}: {q['value']['short']}" if q["value"] else (finding["reason"] if not i else "–")
            twin = q["control"]["short"] if q["control"] else "–"
            lines.append("| " + " | ".join(_cell(c) for c in (*head, value, q["found"], twin)) + " |")
    lines += ["", "A verdict is of this model and these prompts, and allows an error of 5 %, all verdicts together."]
    for finding in findings:
        lines += ["", f"## {finding['title']}", "", finding["sentence"], ""]
        lines += [f"- {said}" for said in finding.get("reasons", [finding["beside"]]) if said]
        lines += [f"- formula: {finding['formula']}", f"- protocol: {finding['protocol']}"]
        lines += [f"- contradicted by: {finding['contradicted']}"]
        lines += [f"- holds where {q['name']} is {q['limit']}" for q in _judging(finding)]
    return "\n".join([*lines, "", "Measured by:", "", f"    {told['command']}", ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
