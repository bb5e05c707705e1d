"""The main job in a real browser: panels fill while the worker computes, and what is plotted is what the command line
writes."""

from __future__ import annotations

import json
import re
import time
from urllib.parse import parse_qs, urlsplit

import numpy as np
import psutil
import pytest
from playwright.sync_api import Error
from shell import wrote

from ed_core.types import Prompt
from tools.bench.browser import serving

pytestmark = pytest.mark.browser

PANELS = {
    "norms": "contributions.layer_ratio",
    "cosine": "contributions.layer_cos",
    "lens": "logit_lens.top_probs",
    "skip": "layer_skip.effect",
}
ROWS = f"""const KEYS = {json.dumps(list(PANELS))}, panelRows = key => {{
  const plot = document.querySelector(`.st-key-box-${{key}} .js-plotly-plot`);
  return plot && plot._fullData && plot.data[0] && plot.data[0].name === 'z' ? plot._fullData[0].z : null;
}};"""
WATCH = f"""{ROWS}
window.partly = new Set();  // the panels that were seen partly filled
window.elements = {{}};  // per panel, the elements that it was drawn into
setInterval(() => {{ for (const key of KEYS) {{
  const rows = panelRows(key);
  if (!rows) continue;
  const values = Array.from(rows, row => Array.from(row)).flat(), filled = values.filter(Number.isFinite).length;
  if (filled > 0 && filled < values.length) window.partly.add(key);
  (window.elements[key] ??= new Set()).add(document.querySelector(`.st-key-box-${{key}} .js-plotly-plot`));
}} }}, 40);"""
STATE = f"""() => {{ {ROWS} return Object.fromEntries(KEYS.map(key => {{
  const rows = panelRows(key);
  return [key, rows ? Array.from(rows, row => Array.from(row, v => Number.isFinite(v) ? v : null)) : null];
}})); }}"""
QUIET = """() => new Promise(done => {
  let calm = 0, changed = true;
  const watch = new MutationObserver(() => { changed = true; }), end = performance.now() + 60000;
  watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  const look = () => {
    const app = document.querySelector('[data-testid=stApp]');
    const runs = app && app.dataset.testScriptState !== 'notRunning';
    calm = changed || runs || document.querySelector('.ed-chart[aria-busy]') ? 0 : calm + 1;
    changed = false;
    if (calm < 6 && performance.now() < end) return setTimeout(look, 50);
    watch.disconnect();
    done(calm >= 6);
  };
  look();
})"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """An app in which every block takes 0.2 s longer, so that the filling can be watched."""
    with serving(tmp_path_factory.mktemp("cache"), ED_TEST_STEP_DELAY="0.2") as address:
        yield address


def state(page) -> dict[str, np.ndarray | None]:
    """What each panel plots now; NaN where it has nothing yet."""
    return {key: rows and np.array(rows, float) for key, rows in page.evaluate(STATE).items()}


def screen(page) -> str:
    """What a page shows, on one line: the boxes' values first, as text does not hold them."""
    held = page.locator("textarea, input").evaluate_all("all => all.map(b => [b.ariaLabel, b.value, b.ariaChecked])")
    state = page.locator("[data-testid=stApp]").get_attribute("data-test-script-state")
    texts = page.locator("[data-testid=stSidebar], [data-testid=stMain]").all_inner_texts()
    return f"{page.url}, {state}: {held} {' '.join(' '.join(texts).split())}"[:6000]


def wait(page, condition, seconds=90.0):
    """Wait for a condition and give its value; the time is a bound for a busy machine, no promise."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s; {screen(page)}"
        page.wait_for_timeout(100)
    return value


def settled(page) -> None:
    """Wait until the app has run for all that the browser told it, and the browser has drawn all that came."""
    for _ in range(3):
        try:
            assert page.evaluate(QUIET), "the page does not come to rest"
            return
        except Error:  # it was loaded anew meanwhile
            page.wait_for_load_state()
    raise AssertionError("the page is loaded again and again")


def fill(page, label: str, text: str) -> None:
    """Type into a box and leave it."""
    box = page.get_by_role("textbox", name=label, exact=True)
    box.fill(text)
    box.blur()
    settled(page)


def start(page, address, query="", text=None, answer=None):
    """Open Home, perhaps type a prompt, and press Run."""
    page.goto(address + query)
    run = page.get_by_role("button", name="Run")
    run.wait_for()
    for label, value in (("Prompt", text), ("expected", answer)):
        if value is not None:
            fill(page, label, value)
    wait(page, run.is_enabled)
    run.click()


def finished(page) -> bool:
    said, cancel = page.locator(".st-key-headline", has_text="on average"), page.get_by_role("button", name="Cancel")
    return said.count() > 0 and cancel.count() == 0


TEXT, ANSWER = "Sums mod 10:\n3 + 4 = 7\n8 + 5 = 3\n6 + 6 = ", "2"


def test_panels_fill_live_and_end_as_the_command_line_says(slow, page, visitor, tmp_path):
    page.add_init_script(WATCH)
    start(page, slow, "/?model=ed-demo-16", TEXT, ANSWER)
    page.evaluate("window.elements = {}")  # those of the stored example went when the prompt was typed
    wait(page, lambda: finished(page))
    assert set(page.evaluate("[...window.partly]")) == set(PANELS)
    settled(page)
    elements = page.evaluate("Object.fromEntries(Object.entries(elements).map(([key, found]) => [key, found.size]))")
    assert elements == dict.fromkeys(PANELS, 1), "a new version is drawn into the figure that stands there"
    words = ("contributions", "logit_lens", "layer_skip", "--no-cache")
    computed = wrote(tmp_path, [Prompt(TEXT, ANSWER)], *words, model="ed-demo-16")
    for key, z in state(page).items():
        expected = computed[PANELS[key] + ".0"]
        expected = expected[..., 0] if key == "lens" else expected
        assert z.shape == expected.shape and np.abs(z - expected).max() <= 1e-6, key
    assert "run=" in page.url and "Sums" not in page.url, "the run is in the URL, the prompt's text is not"
    link, shown = page.url, state(page)
    fresh = visitor()
    fresh.goto(link)
    wait(fresh, lambda: all(z is not None for z in state(fresh).values()))
    assert all(np.array_equal(z, shown[key]) for key, z in state(fresh).items())
    assert fresh.get_by_label("Prompt", exact=True).input_value() == TEXT


def test_a_killed_worker_is_said_and_the_next_run_computes(slow, page):
    start(page, slow, "/?model=ed-demo-8", "3 + 9 = ")
    page.get_by_text(re.compile(r"computing · \d+ %")).first.wait_for()
    server = next(one for one in psutil.Process().children() if slow.rpartition(":")[2] in one.cmdline())
    next(one for one in server.children(recursive=True) if one.cmdline()[-1] == "interactive").kill()
    page.get_by_text("The worker process ended while computing").first.wait_for()
    page.get_by_role("button", name="Run").click()
    wait(page, lambda: finished(page))


def test_a_click_on_a_cell_opens_its_tab_at_that_token(server, page):
    page.goto(server + "/?model=ed-demo-16")
    page.get_by_role("button", name="Run").wait_for()
    settled(page)
    box = wait(page, lambda: page.locator(".st-key-box-norms .nsewdrag").first.bounding_box())
    n_tokens = state(page)["norms"].shape[1]
    x, y = box["x"] + box["width"] * 2.5 / n_tokens, box["y"] + box["height"] * 8.5 / 16  # the middle of a cell

    def clicked() -> bool:
        """Click once more where the browser was still making the figure at the first click."""
        page.mouse.move(x - 1, y)
        page.mouse.move(x, y)
        settled(page)
        page.mouse.click(x, y)
        settled(page)
        return "/contributions?" in page.url

    wait(page, clicked)
    wait(page, lambda: parse_qs(urlsplit(page.url).query).get("token") == ["2"])
