"""The main job in a real browser: panels fill while the worker computes, and what is plotted is what the command line
writes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PANELS = {
    "norms": "contributions.layer_ratio",
    "cosine": "contributions.layer_cos",
    "lens": "logit_lens.top_probs",
    "skip": "layer_skip.effect",
}
HARMLESS = (
    "404",
    "does not seem to exist",
)  # Streamlit looks for its own files below a deep link; a first deep link is loaded twice
SCRIPT = """
window.panelRows = key => {
  const plot = document.querySelector(`.st-key-box-${key} .js-plotly-plot`);
  return plot && plot._fullData && plot.data[0] && plot.data[0].name === 'z' ? plot._fullData[0].z : null;
};
window.partlyFilled = {};  // per panel, how many cells were filled whenever somebody looked
setInterval(() => { for (const key of KEYS) {
  const rows = window.panelRows(key);
  if (!rows) continue;
  let cells = 0, filled = 0;
  for (const row of rows) for (const v of row) { cells++; if (Number.isFinite(v)) filled++; }
  if (filled > 0 && filled < cells) (window.partlyFilled[key] ??= {})[filled] = true;
} }, 40);
"""
STATE = """Object.fromEntries(KEYS.map(key => {
  const rows = window.panelRows(key);
  return [key, rows ? Array.from(rows, row => Array.from(row, v => Number.isFinite(v) ? v : null)) : null];
}))"""


@contextmanager
def serve(cache: Path, **more: str):
    """The app on a free port with its own store; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"ED_CACHE": str(cache)} | more
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    for _ in range(120):
        try:
            assert urllib.request.urlopen(f"{address}/_stcore/health", timeout=1).status == 200
            break
        except OSError:
            time.sleep(0.5)
    yield address
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """With an empty store, and every block slowed by 0.2 s so that the filling can be watched."""
    with serve(tmp_path_factory.mktemp("cache"), ED_TEST_STEP_DELAY="0.2") as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A fresh session; a console error or an exception box fails the test that saw it."""
    context = browser.new_context(viewport={"width": 1440, "height": 1500})
    context.add_init_script(f"window.KEYS = {json.dumps(list(PANELS))};{SCRIPT}")
    tab = context.new_page()
    errors = []
    tab.on(
        "console",
        lambda m: (
            errors.append(m.text) if m.type == "error" and not any(known in m.text for known in HARMLESS) else None
        ),
    )
    tab.on("pageerror", lambda e: errors.append(str(e)))
    yield tab
    boxes = [e.inner_text() for e in tab.query_selector_all("[data-testid=stException]")]
    boxes += tab.get_by_text("for a reason nobody foresaw").all_inner_texts()
    context.close()
    assert not errors and not boxes


def state(page) -> dict[str, np.ndarray | None]:
    """What each panel plots now; NaN where it has nothing yet."""
    found = page.evaluate(STATE)
    return {
        key: None if rows is None else np.array([[np.nan if v is None else v for v in row] for row in rows], float)
        for key, rows in found.items()
    }


def wait(page, condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        page.wait_for_timeout(100)
    return value


def start(page, address, query="", text=None, answer=None):
    """Open Home, perhaps type a prompt, and press Run."""
    page.goto(address + query)
    run = page.get_by_role("button", name="Run")
    run.wait_for(timeout=60_000)
    for label, value in (("Prompt", text), ("Answer", answer)):
        if value is not None:
            box = page.get_by_label(label, exact=True)
            box.fill(value)
            box.blur()
            page.wait_for_timeout(800)
    wait(page, run.is_enabled)
    run.click()


def finished(page) -> bool:
    return (
        page.locator(".st-key-headline", has_text="settle").count() > 0
        and page.get_by_role("button", name="Cancel").is_disabled()
    )


TEXT, ANSWER = "Sums mod 10:\n3 + 4 = 7\n8 + 5 = 3\n6 + 6 = ", "2"


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """The command line's arrays for the same prompt."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "p.jsonl").write_text(json.dumps({"text": TEXT, "answer": ANSWER}))
    command = [
        sys.executable,
        "-m",
        "ed_core",
        "run",
        "contributions",
        "logit_lens",
        "layer_skip",
        "--model",
        "ed-demo-16",
    ]
    subprocess.run(
        [*command, "--prompts", folder / "p.jsonl", "--out", folder / "r.npz", "--no-cache"], cwd=ROOT, check=True
    )
    with np.load(folder / "r.npz", allow_pickle=False) as data:
        return {name: data[name] for name in data.files}


def test_the_first_visitors_deep_link_opens(server, page):
    """Must stay the first test: only a fresh server's first visitor saw Streamlit's "page not found" over the right
    page."""
    page.goto(server + "/skip")
    page.get_by_text("boundaries").first.wait_for(timeout=60_000)
    page.wait_for_timeout(2000)
    assert page.get_by_text("does not seem to exist").count() == 0


def test_panels_fill_live_and_end_as_the_command_line_says(server, page, computed):
    start(page, server, "/?model=ed-demo-16", TEXT, ANSWER)
    wait(page, lambda: finished(page))
    seen = page.evaluate(
        "Object.fromEntries(Object.entries(window.partlyFilled).map(([key, counts]) => [key, "
        "Object.keys(counts).length]))"
    )
    assert set(seen) == set(PANELS) and min(seen.values()) >= 5, f"distinct partly filled states: {seen}"
    page.wait_for_timeout(1500)
    for key, z in state(page).items():
        expected = computed[PANELS[key] + ".0"]
        expected = expected[..., 0] if key == "lens" else expected
        assert z.shape == expected.shape and np.abs(z - expected).max() <= 1e-6, key
    assert "run=" in page.url and "Sums" not in page.url, "the run is in the URL, the prompt's text is not"
    link, shown = page.url, state(page)
    other = page.context.browser.new_context(viewport={"width": 1440, "height": 1500})
    other.add_init_script(f"window.KEYS = {json.dumps(list(PANELS))};{SCRIPT}")
    fresh = other.new_page()
    fresh.goto(link)
    wait(fresh, lambda: all(z is not None for z in state(fresh).values()), 30)
    for key, z in state(fresh).items():
        assert np.array_equal(z, shown[key]), f"{key} differs in a fresh session"
    assert fresh.get_by_label("Prompt", exact=True).input_value() == TEXT
    other.close()


def test_changing_one_token_changes_the_plots(server, page, computed):
    start(page, server, "/?model=ed-demo-16", TEXT.replace("3 + 4 = 7", "2 + 4 = 6"), ANSWER)
    wait(page, lambda: finished(page))
    page.wait_for_timeout(1500)
    for key, z in state(page).items():
        expected = computed[PANELS[key] + ".0"]
        expected = expected[..., 0] if key == "lens" else expected
        assert z.shape == expected.shape and np.abs(z - expected).max() > 1e-4, key


def test_cancel_stops_and_the_page_stays_usable(server, page):
    start(page, server, "/?model=ed-demo-8", "Copy:\nSay a b c: a b c\nSay d e f:", " d e f")
    cancel = page.get_by_role("button", name="Cancel")
    wait(page, lambda: any(z is not None for z in state(page).values()))
    begun = time.monotonic()
    cancel.click()
    wait(page, lambda: cancel.is_disabled() and page.get_by_role("button", name="Run").is_enabled(), 20)
    assert time.monotonic() - begun < 10
    page.get_by_role("button", name="Run").click()
    wait(page, lambda: finished(page))


def test_a_click_on_a_cell_selects_its_token_in_every_panel(server, page):
    page.goto(server + "/?model=ed-demo-16")
    run = page.get_by_role("button", name="Run")
    run.wait_for(timeout=60_000)
    if not any(z is not None for z in state(page).values()):
        start(page, server, "/?model=ed-demo-16", TEXT, ANSWER)
    wait(page, lambda: finished(page))
    page.wait_for_timeout(1500)
    box = wait(page, lambda: page.locator(".st-key-box-norms .nsewdrag").first.bounding_box(), 20)
    x, y = box["x"] + box["width"] * 24.5 / 48, box["y"] + box["height"] * 8.5 / 16  # the middle of a cell

    def clicked() -> bool:
        """Click once more where the browser was still making the figure at the first click."""
        page.mouse.move(x, y)
        page.wait_for_timeout(300)
        page.mouse.click(x, y)
        page.wait_for_timeout(3000)
        return page.get_by_label("Selected token").input_value() != ""

    wait(page, clicked, 20)


def test_the_prompt_survives_page_changes_and_the_browsers_back(server, page):
    page.goto(server + "/?example=lookup-2-a&model=ed-demo-8")
    box = page.get_by_label("Prompt", exact=True)
    box.wait_for(timeout=60_000)
    wait(page, lambda: box.input_value())
    picked = box.input_value()
    for name in ("Contributions", "Layer skip"):
        page.get_by_role("link", name=name).click()
        page.get_by_role("heading", name=name).wait_for()
        wait(page, lambda: box.input_value() == picked, 20)
        wait(page, lambda: "model=ed-demo-8" in page.url and "example=lookup-2-a" in page.url, 20)
    heading = page.get_by_role("heading", name="Contributions")
    for _ in range(
        3
    ):  # the page puts the example back into the URL, which is a step of its own in the browser's history
        page.go_back()
        page.wait_for_timeout(2000)
        if heading.count():
            break
    heading.wait_for()
    wait(page, lambda: box.input_value() == picked, 20)


@pytest.mark.parametrize("path", ["", "contributions", "logit_lens", "skip", "erase", "gradients"])
def test_a_deep_link_keeps_the_frame(server, page, path):
    page.goto(f"{server}/{path}")
    page.get_by_role("button", name="Run").wait_for(timeout=60_000)
    page.locator("[data-testid=stSidebar]").get_by_text("Precision", exact=True).first.wait_for()
    width = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0


def test_what_is_being_typed_outlives_the_end_of_a_run(server, page):
    """The impatient write their next prompt while this one runs; its end draws the page anew."""
    start(page, server, text="4 + 4 + 1 = ", answer="9")
    wait(page, page.get_by_role("button", name="Cancel").is_enabled)
    box = page.get_by_label("Prompt", exact=True)
    box.focus()
    page.keyboard.press("Control+End")
    page.keyboard.type("and then")
    wait(page, page.get_by_role("button", name="Cancel").is_disabled)
    page.wait_for_timeout(1500)
    assert box.input_value() == "4 + 4 + 1 = and then"
