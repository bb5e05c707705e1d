"""What a page that fails shows: a sentence, and nothing of the machine. And that the first address a server is asked
for opens at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest
from hosted_app import ROOT, free_port, hosted, until

pytestmark = pytest.mark.browser

PAGE = """
import streamlit as st
st.markdown('before')
password = 'hunter2'
raise RuntimeError(f'{password} in {__file__}')
"""


@contextmanager
def served(folder, code: str):
    """A page of our own making, under the app's own configuration; gives its address."""
    shutil.copytree(ROOT / ".streamlit", folder / ".streamlit")
    (folder / "app.py").write_text(code)
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", address.rpartition(":")[2]]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def alive() -> bool:
        try:
            return urllib.request.urlopen(f"{address}/_stcore/health", timeout=2).status == 200
        except OSError:
            return False

    try:
        until(alive)
        yield address
    finally:
        process.terminate()
        process.wait(10)


def test_a_page_that_raises_shows_no_traceback(tmp_path, browser):
    code = """import streamlit as st
st.markdown('before')
password = 'hunter2'
raise RuntimeError(f'{password} in {__file__}')
"""
    with served(tmp_path, code) as address:
        tab = browser.new_page()
        tab.goto(address)
        tab.get_by_text("before").wait_for(timeout=60_000)
        tab.locator("[data-testid=stException]").wait_for(timeout=60_000)
        shown = tab.content()
        for told in ("hunter2", "RuntimeError", "Traceback", str(tmp_path)):
            assert told not in shown, told
        tab.close()


def test_a_part_that_fails_while_it_runs_by_itself_says_so_and_leaves_the_page(tmp_path, browser):
    code = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
import streamlit as st
from ed_ui import live

runs = st.session_state.setdefault("runs", [])

def part():
    runs.append(0)
    st.markdown(f"run {{len(runs)}}")
    if len(runs) > 2:
        raise RuntimeError("hunter2")

st.text_input("Words")
live.fragment(part, 0.3)()
st.markdown("after")
"""
    with served(tmp_path, code) as address:
        tab = browser.new_page()
        tab.goto(address)
        tab.get_by_text("for a reason nobody foresaw").wait_for(timeout=60_000)
        tab.get_by_text("run 6").wait_for(timeout=60_000)  # it goes on, and fails again and again
        assert tab.get_by_label("Words").count() == tab.get_by_text("after").count() == 1
        assert tab.get_by_text("for a reason nobody foresaw").count() == 1
        assert tab.locator("[data-testid=stException]").count() == 0 and "hunter2" not in tab.content()
        id = tab.locator("[data-testid=stAlert] strong").inner_text()
        tab.close()
    log = (tmp_path / "log").read_text()
    assert log.count("RuntimeError: hunter2") == 1 and log.count(f"{id}\nTraceback") == 1


def test_the_first_address_a_server_is_asked_for_is_loaded_once(tmp_path, browser):
    with hosted(tmp_path) as app:
        tab, loads = browser.new_page(), []
        tab.on("load", lambda _: loads.append(tab.url))
        tab.goto(f"{app.address}/skip")
        tab.get_by_role("heading", name="What breaks without it?").wait_for(timeout=60_000)
        tab.get_by_role("button", name="Run").wait_for(timeout=60_000)
        tab.wait_for_timeout(1500)
        assert len(loads) == 1 and tab.get_by_text("does not seem to exist").count() == 0
        tab.close()
