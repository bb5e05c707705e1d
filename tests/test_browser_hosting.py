"""What a page that fails shows: a sentence, and nothing of the machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request

import pytest
from hosted_app import ROOT, free_port, until
from test_browser import browser  # noqa: F401  (a fixture)

pytestmark = pytest.mark.browser


def test_a_page_that_raises_shows_no_traceback(tmp_path, browser):  # noqa: F811
    """A page of our own making, under the app's own configuration."""
    shutil.copytree(ROOT / ".streamlit", tmp_path / ".streamlit")
    (tmp_path / "app.py").write_text(
        "import streamlit as st\nst.markdown('before')\npassword = 'hunter2'\nraise RuntimeError(f'{password} in "
        "{__file__}')\n"
    )
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def alive() -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2).status == 200
        except OSError:
            return False

    try:
        until(alive)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}")
        page.get_by_text("before").wait_for(timeout=60_000)
        page.locator("[data-testid=stException]").wait_for(timeout=60_000)
        shown = page.content()
        for told in ("hunter2", "RuntimeError", "Traceback", str(tmp_path)):
            assert told not in shown, told
        page.close()
    finally:
        process.terminate()
        process.wait(10)
