"""Tokens are text from strangers: made visible, cut, and escaped before a figure shows them."""

from __future__ import annotations

import html
import unicodedata

import numpy as np

from ..depth.wording import printed

MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}
ALSO_ESCAPED = {ord(char): f"&#{ord(char)};" for char in "\"'$"}  # plotly knows numbered entities, but not &quot;


def shown(token: str, limit: int = 24) -> str:
    """A token as plain text on one line: white space marked, invisible characters spelled out, at most `limit`
    characters."""
    text = "".join(_mark(char) for char in token[: limit + 1])
    if len(token) > limit or len(text) > limit:
        text = text[: limit - 1] + "…"
    if any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in text):
        text = f"\u2068{text}\u2069"  # isolated, so that right-to-left text does not reorder its neighbours
    return text or "∅"


def visible(token: str, limit: int = 24) -> str:
    """A token for plotly and for HTML: as `shown`, and escaped; quotes and the dollar too, as plotly hands $…$ to
    MathJax where there is one."""
    return html.escape(shown(token, limit), quote=False).translate(ALSO_ESCAPED)


def escaped(text: str) -> str:
    """A name or a sentence for plotly: every word as `visible`, the spaces as they are."""
    return " ".join(visible(word, 40) for word in text.split(" "))


def width(token: str, limit: int = 24) -> int:
    """How many columns the shown token takes: wide East Asian characters and emoji take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in shown(token, limit))


def letters(token: str, limit: int = 24) -> float:
    """How many letters wide the shown token is drawn: as `width`, but the mark of a space is half as wide."""
    return width(token, limit) - 0.5 * shown(token, limit).count(MARKS[" "])


def number(value: float | int | np.floating) -> str:
    """Three significant digits, with a real minus sign; the square root of 2, the largest distance of two probability
    vectors, as what it is."""
    if abs(value) == 2**0.5:
        return "√2" if value > 0 else "\u2212√2"
    return printed(value) if value == value else "not computed"


def _mark(char: str) -> str:
    if char in MARKS:
        return MARKS[char]
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or char.isspace():
        return f"‹{ord(char):X}›"
    return char
