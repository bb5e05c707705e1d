"""Numbers in words: the only module that formats the numbers of a verdict and writes sentences about them.

The terms are those of the glossary: first choice, average depth, untrained copy, attention sink, not robust. "After
layer n" counts layers from 1; a rule's layer is its block index, as Hu et al. count."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


# ---------------------------------------------------------------- formatters


def number(value: float | np.floating[Any], form: str = ".3g") -> str:
    """A number in this form (`+.2g`, `.2f`), with a minus sign for its hyphen; powers for 10⁹ and more or below 10⁻⁴;
    "–" where it is not finite."""
    if not np.isfinite(value):
        return "–"
    text = f"{value:{form}}"
    step, _, power = text.partition("e")
    if power and 0 < int(power) < 9:
        text = f"{float(text):{'+' * form.startswith('+')}.0f}"
    elif power:
        text = re.sub(r"(?<![\d.])1·", "", f"{step}·10{str(int(power)).translate(RAISED)}", count=1)
    return text.replace("-", "" if not power and float(text) == 0 else "−")


def share(value: float, signs: bool = False) -> str:
    """A share in whole per cent; "less than 1 %" and "more than 99 %" (in `signs` "<1 %", ">99 %") where rounding would
    print none or all."""
    text = f"{100 * value:.0f} %"
    if text == "0 %" and value > 0:
        return "<1 %" if signs else "less than 1 %"
    if text == "100 %" and value < 1:
        return ">99 %" if signs else "more than 99 %"
    return text


def interval(low: float, high: float, digits: int = 1, over: str = "") -> str:
    """The ends of an interval, "20.7 to 22.2 (50 prompts)", with up to three decimals more than `digits` where they
    would print alike; one number where they are equal."""
    n = next((n for n in range(digits, digits + 4) if f"{low:.{n}f}" != f"{high:.{n}f}"), digits)
    ends = dict.fromkeys(number(end, f".{n}f") for end in (low, high))
    return " to ".join(ends) + (f" ({over})" if over else "")


def count(n: int, noun: str) -> str:
    """ "1 study", "2 studies"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{n} {noun if n == 1 else plural}"


def layers(layer: float, total: int) -> str:
    """ "layer 21 of 30"; a fraction is rounded."""
    return f"layer {layer:.0f} of {total}"


def listed(words: Iterable[str], last: str = "and") -> str:
    """ "a, b and c"; empty words are left out."""
    found = [word for word in words if word]
    return f" {last} ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))
