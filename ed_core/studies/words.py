"""The one way from tables to text: Jinja templates for documents, and macros for the sentences next to a figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..depth import say

TEMPLATES = Path(__file__).parent / "templates"
PAGE, CLAIMS = "page.html", "claims.html"
Row = Sequence[str]


@cache
def templates() -> Environment:
    """Return the Jinja environment of this folder's templates."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name in (PAGE, CLAIMS),  # all others are Markdown, or hold HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"table": table, "flat": flat, "number": say.number, "count": say.count, "listed": say.listed}
    made.globals |= {"interval": say.interval}
    return made


def render(template: str, **values: Any) -> str:
    """Return the text of a template, filled with these values."""
    return str(templates().get_template(template).render(values))


def document(template: str, **values: Any) -> str:
    """Return a Markdown document without HTML: names and notes are anybody's, and Markdown passes HTML on."""
    return render(template, **values).replace("<", "&lt;")


def sentence(name: str, **values: Any) -> str:
    """Return the macro `name` of `sentences.md`, filled with these values, on one line."""
    return flat(getattr(templates().get_template("sentences.md").module, name)(**values))


def measured(value: float, low: float | None, high: float | None, digits: int, sign: str = "") -> str:
    """Return a value and its interval as text, like "18.3 (18.0 to 18.6)"; `low` None or NaN: no interval."""
    ends = f" ({say.interval(low, high, digits)})" if low is not None and high is not None and low == low else ""
    return say.number(value, f"{sign}.{digits}f") + ends


def table(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table, the head first, whatever the cells hold."""
    head, *rest = ("| " + " | ".join(flat(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def flat(text: str) -> str:
    """Return the text on one line, with single spaces."""
    return " ".join(text.split())
