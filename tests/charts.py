"""The pages under test: opened as by a link, and their words and figures as they go to the browser (`ed_ui.show`)."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from workers import Threads

import ed_ui.running
from ed_core.models import catalogue
from ed_core.results import lookup
from ed_core.work.queue import Queue
from ed_ui.case_studies import kept


def forget() -> None:
    """What a process knows of another test's laboratory."""
    for known in (lookup.store.cache_clear, ed_ui.running.jobs.clear, catalogue.entries.cache_clear, kept.clear):
        known()


def idle(patch: pytest.MonkeyPatch, cache: Path) -> None:
    """The laboratory is this folder, and what its pages start runs in threads of this process."""
    patch.setenv("ED_CACHE", str(cache))
    patch.setattr(ed_ui.running, "Queue", lambda **_: Queue(Threads, warm=False, watch=False))
    forget()


def fresh(page: str = "", **query) -> AppTest:
    """A fresh session in which a link to a page is about to be opened."""
    test = AppTest.from_file(str(Path(__file__).parent.parent / "app.py"), default_timeout=60)
    if page:
        test.switch_page(page)
    for name, value in query.items():
        test.query_params[name] = value
    return test


def words(test: AppTest) -> str:
    """Everything that the page says beside its figures, as it reads."""
    kinds = (test.subheader, test.markdown, test.caption, test.error, test.warning, test.success, test.info)
    return "\n".join(e.value for kind in kinds for e in kind).replace("\\", "").replace("\u00a0", " ")


def charts(test: AppTest) -> list[dict]:
    """What plotly draws, `data` and `layout` of each figure, from top to bottom."""
    found = (sent(one) for one in test.get("bidi_component") if one.proto.bytes)  # the link has words alone
    return [one["figure"] for one in found if "figure" in one]


def sent(element) -> dict:
    """A figure with what it says to those who cannot see it (`alt`) and whether its cells can be clicked."""
    return json.loads(element.proto.bytes)


def traces(*figures: dict) -> dict[str, dict]:
    """The traces of figures by name."""
    return {trace["name"]: trace for figure in figures for trace in figure["data"]}


def numbers(values) -> np.ndarray:
    """An array of a figure, decoded from plotly's JSON."""
    if isinstance(values, dict):
        found = np.frombuffer(b64decode(values["bdata"]), values["dtype"])
        values = found.reshape([int(n) for n in values["shape"].split(",")]) if "shape" in values else found
    return np.asarray(values, float)
