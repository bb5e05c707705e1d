"""The figures of a page under test, as they go to the browser (`ed_ui.show`)."""

from __future__ import annotations

import json

from streamlit.testing.v1 import AppTest


def charts(test: AppTest) -> list[dict]:
    """What plotly draws, `data` and `layout` of each figure, from top to bottom."""
    return [sent(one)["figure"] for one in test.get("bidi_component") if one.proto.bytes]  # the link has words alone


def sent(element) -> dict:
    """A figure with what it says to those who cannot see it (`alt`) and whether its cells can be clicked."""
    return json.loads(element.proto.bytes)
