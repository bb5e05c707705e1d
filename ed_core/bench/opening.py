"""How soon a case study can be read: its address opened in a fresh session, in a real browser, while the worker computes for somebody else.

Beside it stands a page of Streamlit's own with one word (and one with one small figure): what no page can be faster than on this machine.
"""
from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from ..errors import JobError
from ..kept import SHIPPED
from . import Row
from .browser import App, chromium, serving

ROUNDS = int(os.environ.get("ED_BENCH_ROUNDS", "5"))
BARE = {"word": 'import streamlit as st\nst.html("<h3>word</h3>")\n', "figure": "import streamlit as st\nst.plotly_chart({'data': [{'type': 'heatmap', 'z': [[1, 2]]}]})\n"}
WORDS, FIGURE = "h3", ".js-plotly-plot .main-svg"
LIMIT = 1.0  # seconds
LONG = " ".join(f"{i} + {i % 7} = {i + i % 7}," for i in range(40)) + " 3 + 4 = "


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        bare = {}
        for name, selector in (("word", WORDS), ("figure", FIGURE)):
            script = Path(folder, f"{name}.py")
            script.write_text(BARE[name])
            app = App(Path(folder), script=script)
            bare[name] = seconds(browser, app.address, selector)
            app.stop()
        with serving(Path(folder, "cache")) as app:
            id = min(SHIPPED.glob("*.edcase")).stem
            busy = occupy(browser, app.address)
            address = f"{app.address}/case?id={id}"
            words, figure = seconds(browser, address, ".st-key-case [data-testid=stHeading]"), seconds(browser, address, FIGURE)
            if not busy():
                raise JobError("The worker had finished before the last case study was opened; give it more to do.")
    return rows(bare, words, figure)


def seconds(browser, address: str, selector: str) -> tuple[float, float]:
    """From the address to the sight of it: a browser's first visit, and the median of its later ones, which have the program's own files."""
    context = browser.new_context(viewport={"width": 1440, "height": 1500})
    taken = []
    for _ in range(ROUNDS + 1):
        page, begin = context.new_page(), time.monotonic()
        page.goto(address, wait_until="commit")
        page.locator(selector).first.wait_for(timeout=60_000)
        taken.append(time.monotonic() - begin)
        page.close()
    context.close()
    return taken[0], statistics.median(taken[1:])


def occupy(browser, address: str):
    """Give the worker minutes of work; returns what tells whether it is still at it."""
    page = browser.new_context().new_page()
    page.goto(f"{address}/erase?model=ed-demo-16")
    for label, text in (("Prompt", LONG), ("Answer", "7")):
        page.get_by_label(label, exact=True).fill(text, timeout=60_000)
        page.get_by_label(label, exact=True).blur()
        page.wait_for_timeout(1000)
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Cancel", exact=True).and_(page.locator(":enabled")).wait_for(timeout=20_000)
    page.wait_for_timeout(2000)
    return page.get_by_role("button", name="Cancel", exact=True).is_enabled


def rows(bare: dict[str, tuple[float, float]], words: tuple[float, float], figure: tuple[float, float]) -> list[Row]:
    """Figures need plotly in the browser, which alone takes longer than the limit on a slow machine; what is promised is that one can read."""
    told = lambda pair: f"{pair[1]:.2f} s (first visit {pair[0]:.2f} s)"  # noqa: E731
    own = words[1] - bare["word"][1]
    return [
        Row("a case study can be read, worker busy; of it the app's own part", f"{told(words)}; {own:.2f} s", f"<= {LIMIT:.0f} s", words[1] <= LIMIT),
        Row("  a page of one word in the same browser", told(bare["word"]), "", True),
        Row("  its first figure; a page of one figure", f"{told(figure)}; {told(bare['figure'])}", "", True),
    ]
