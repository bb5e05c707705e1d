"""What rooms share: what was found, how sure it is, large figures, a table, and Run of a section."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import streamlit as st

from ed_ui import running, show
from ed_ui.session import Batch


def finding(said: str, sure: str = "", reasons: Sequence[str] = ()) -> None:
    """The answer in plain words, and below it in grey how sure it is; why, behind a click."""
    with st.container(key="headline"):
        show.verdict(said, sure, reasons)


def numbers(figures: Iterable[tuple[str, str]], place: Any = st) -> None:
    """Large figures, each with what it is below it."""
    rows = (f"<div><b>{escape(large)}</b><span>{escape(small)}</span></div>" for large, small in figures)
    place.html(f'<div class="ed-numbers">{"".join(rows)}</div>')


def run(batch: Batch, name: str, n_tokens: int | None, ready: bool, about: str) -> None:
    """Run or Cancel of a section below the page's own, with how long it takes and what it is about."""
    row = st.container(horizontal=True, vertical_alignment="center", key=f"run-row-{name}")
    expected = running.outlook_of(batch, n_tokens)
    if batch.running:
        row.button("Cancel", key=f"cancel.{name}", icon=":material/stop:", on_click=running.cancel, args=(batch,))
    else:
        look = {"icon": ":material/play_arrow:", "disabled": bool(expected.obstacle) or not ready}
        row.button("Run", key=f"run.{name}", on_click=running.submit, args=(batch,), **look)
    time = f"{running.about(expected.seconds)} · " if batch.missing and expected.seconds is not None else ""
    row.caption(f"{time}{about}{f' · {show.plain(expected.obstacle)}' if expected.obstacle else ''}")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], place: Any = st) -> None:
    """A table of a few rows, on a phone a card a row; cells may hold a stranger's words."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = (
        "".join(f'<td data-head="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(head, row, strict=True))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    place.html(f'<table class="ed-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>')
