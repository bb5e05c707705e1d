"""What a page that fails shows: a sentence, and nothing of the machine."""

from __future__ import annotations

import pytest

from ed_core.bench.browser import serving

pytestmark = pytest.mark.browser

PAGE = """
import streamlit as st
st.markdown('before')
password = 'hunter2'
raise RuntimeError(f'{password} in {__file__}')
"""


def test_a_page_that_raises_shows_no_traceback(tmp_path, visitor):
    """A page of our own making, under the app's own configuration."""
    (tmp_path / "app.py").write_text(PAGE)
    page = visitor()
    with serving(tmp_path / "cache", script=tmp_path / "app.py") as app:
        page.goto(app.address)
        page.get_by_text("before").wait_for()
        page.locator("[data-testid=stException]").wait_for()
        shown = page.content()
    for told in ("hunter2", "RuntimeError", "Traceback", str(tmp_path)):
        assert told not in shown, told
