"""What became of a claim on one model and set: its verdict, the sentence that can be quoted, and the same as JSON and
Markdown. Numpy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .claim import (
    CANNOT_BE_TOLD,
    DOES_NOT,
    HOLDS,
    NOT_APPLICABLE,
    VERDICTS,
    Claim,
    Estimate,
    Measured,
    Quantity,
    judged,
)

FORMAT = 1  # of the JSON
OPENS = {
    HOLDS: "it holds that",
    DOES_NOT: "it does not hold that",
    CANNOT_BE_TOLD: "these prompts do not tell whether",
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
NOT_LEARNED = "there the statement holds too, so it tells nothing of what was learned"


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
    def verdict(self) -> str:
        return NOT_APPLICABLE if self.measured is None else judged(self.claim, self.measured)

    @property
    def sentence(self) -> str:
        """The one that can be quoted: never more than this model and these prompts."""
        of, claim = f"{self.model} on {self.set}", self.claim
        if self.measured is None:
            return f"For {of} the claim that {claim.statement} ({claim.source}) is not applicable. {self.reason}"
        told = "; ".join(
            f"{q.name} {valued(self.measured.estimates[q.name], q)}, where the paper found {q.found}"
            for q in claim.quantities
            if q.name in self.measured.estimates
        )
        over = f"({self.measured.prompts} prompts)"
        said = f"For {of} {over} {OPENS[self.verdict]} {claim.statement} ({claim.source}): {told}."
        if self.control is None:
            return f"{said} Without a control: {self.control_reason}" if self.control_reason else said
        theirs = ", ".join(valued(self.control.estimates[q.name], q) for q in self._of_both())
        there = judged(claim, self.control)
        means = NOT_LEARNED if there == self.verdict == HOLDS else OF_CONTROL[there]
        return f"{said} The untrained twin: {theirs}; {means}."

    def _of_both(self) -> list[Quantity]:
        return [q for q in self.claim.quantities if self.control is not None and q.name in self.control.estimates]

    def told(self) -> dict[str, Any]:
        """As JSON: what is not a finite number is null."""
        claim = self.claim
        about = {
            name: getattr(claim, name)
            for name in ("id", "title", "statement", "source", "formula", "protocol", "contradicted")
        }
        quantities = []
        for q in claim.quantities:
            one: dict[str, Any] = asdict(q) | {"value": None, "control": None}
            for key, measured in (("value", self.measured), ("control", self.control)):
                if measured is not None and q.name in measured.estimates:
                    found = measured.estimates[q.name]
                    one[key] = asdict(found) | {
                        "verdict": found.verdict(q.holds),
                        "told": valued(found, q),
                        "short": valued(found, q, ""),
                    }
            quantities.append(one)
        return _plain(
            about
            | {
                "verdict": self.verdict,
                "reason": self.reason,
                "sentence": self.sentence,
                "prompts": self.measured.prompts if self.measured else 0,
                "beside": self.measured.beside if self.measured else "",
                "quantities": quantities,
                "control": judged(claim, self.control) if self.control else "",
                "control_reason": self.control_reason,
                "curves": {
                    name: asdict(measured.curve)
                    for name, measured in (("model", self.measured), ("untrained twin", self.control))
                    if measured is not None
                },
            }
        )


def valued(found: Estimate, quantity: Quantity, over: str = "5–95 % over prompts: ") -> str:
    """A value with its interval, in words; `over` says what the interval is."""
    if not math.isfinite(found.value) and not math.isfinite(found.low):
        return "not defined"
    low, high = (number(end, quantity.digits) for end in (found.low, found.high))
    value = number(found.value, quantity.digits) if math.isfinite(found.value) else "not defined over all prompts"
    share = "less than 1%" if found.undefined < 0.01 else f"{found.undefined:.0%}"
    undefined = f", not defined in {share} of the resamples" if found.undefined else ""
    return f"{value} ({over}{low} to {high}{undefined})"


def number(value: float, digits: int) -> str:
    """A number as it is printed; small ones keep two figures."""
    text = f"{value:.{digits}f}" if abs(value) >= 10.0**-digits or not value else f"{value:.2g}"
    return text.replace("-", "−")


def counted(findings: Sequence[Mapping[str, Any]]) -> str:
    """How many claims came out how: "1 holds here, 2 do not hold here"."""
    counts = {verdict: sum(f["verdict"] == verdict for f in findings) for verdict in VERDICTS}
    return ", ".join(f"{n} {verdict if n == 1 else SEVERAL[verdict]}" for verdict, n in counts.items() if n)


def markdown(told: Mapping[str, Any]) -> str:
    """The report of a run, as `running.run` writes it in JSON: a table, then each sentence."""
    findings = told["findings"]
    lines = [f"# Claims: {told['model']} on {told['set']}", "", f"{counted(findings)}.", ""]
    lines += ["| claim | verdict | value (5–95 % over prompts) | the paper | untrained twin |", "|---|---|---|---|---|"]
    for finding in findings:
        told_of = finding["quantities"] if finding["verdict"] != NOT_APPLICABLE else finding["quantities"][:1]
        for i, q in enumerate(told_of):
            head = (f"`{finding['id']}`", f"**{finding['verdict']}**") if not i else ("", "")
            value = f"{q['name']}: {q['value']['short']}" if q["value"] else (finding["reason"] if not i else "–")
            twin = q["control"]["short"] if q["control"] else "–"
            lines.append("| " + " | ".join(_cell(c) for c in (*head, value, q["found"], twin)) + " |")
    lines += ["", "A verdict is of this model and these prompts. It follows from the whole interval: all of it within "]
    lines[-1] += "the values that the statement allows, none of it, or both."
    for finding in findings:
        lines += ["", f"## {finding['title']}", "", " ".join(filter(None, (finding["sentence"], finding["beside"])))]
        lines += ["", f"- formula: {finding['formula']}", f"- protocol: {finding['protocol']}"]
        lines += [f"- contradicted by: {finding['contradicted']}"]
        lines += [f"- holds where {q['name']} is {q['limit']}" for q in finding["quantities"]]
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
