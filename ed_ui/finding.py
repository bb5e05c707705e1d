"""What a room found, where the eye falls first: a sentence, how sure it is, and up to three figures."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import streamlit as st

from ed_ui import show


def finding(said: str, sure: str = "", place: Any = st) -> None:
    """The answer in plain words, and below it in grey how sure it is. Both may hold a stranger's words."""
    box = place.container(key="finding", gap="xxsmall")
    box.markdown(show.plain(said))
    if sure:
        box.caption(show.plain(sure))


def numbers(figures: Iterable[tuple[str, str]], place: Any = st) -> None:
    """Large figures, each with what it is below it."""
    rows = (f"<div><b>{escape(large)}</b><span>{escape(small)}</span></div>" for large, small in figures)
    place.html(f'<div class="ed-numbers">{"".join(rows)}</div>')
