"""What the page costs on top of the computation: the four probes of Home, on a real model, through the queue alone and
on Home in a browser on the same cores, in turn; and through the queue beside a foreign busy process.

The model is SmolLM2-135M-Instruct where it is fetched (`fetch smollm2`), or what ED_BENCH_MODEL names."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ed_core.errors import EffectiveDepthError
from ed_core.sources import hub, specs
from ed_core.types import Prompt
from ed_core.work import measure as requests
from ed_core.work.queue import Queue
from ed_core.work.resolve import resolve

from . import Row, live, opening
from .browser import chromium, serving

SMALL = "smollm2"
ROUNDS = int(os.environ.get("ED_BENCH_ROUNDS", "3"))
RATIO, SLOWDOWN, FIRST_SECONDS = 1.2, 2.5, 0.5
COLD_BYTES, COLD_TEXT, COLD_FIGURE, OVER_BARE = 2.5e6, 0.8, 2.0, 1.2  # or so many times what a bare page takes
COLD = "cold Home, its model's results stored"
STORY = (  # 64 tokens with its number, for SmolLM2
    "The quick brown fox jumps over the lazy dog near the river bank, while seven old wizards quietly brew a potion. "
    "A baker sells bread rolls in the morning and cakes in the afternoon; on Monday she sells twice as many rolls as "
    "cakes, and on Tuesday she sells three more of each. Story "
)
BUSY = (sys.executable, "-c", "while True: pass")
# From the click on Run: when the first panel has something, and when the verdict stands and nothing runs.
CLOCK = """() => {
  window.clock = {};
  addEventListener('click', () => { clock.begun = performance.now() }, {capture: true, once: true});
  const look = setInterval(() => {
    const now = performance.now(), filled = plot => plot.data && plot.data[0] && plot.data[0].name === 'z';
    if (!clock.begun) return;
    if (!clock.first && [...document.querySelectorAll('.js-plotly-plot')].some(filled)) clock.first = now;
    const cancel = document.querySelector('[class*=st-key-cancel] button');
    const said = document.querySelector('.st-key-headline').textContent;
    if (said.includes("best guess") && cancel.disabled) { clock.all = now; clearInterval(look); }
  }, 50);
}"""


def measure() -> list[Row]:
    return [*live.measure(), *in_browser(), *cold()]


def cold() -> list[Row]:
    """A browser's first visit to what Home opens on, which is stored of the real model: bytes, words, first figure.
    Beside it pages of one word and of one figure, and Home visited again."""
    try:
        with tempfile.TemporaryDirectory() as folder, chromium() as browser, serving(Path(folder)) as app:
            taken, n_bytes = opening.visits(browser, f"{app.address}/?model={SMALL}", opening.WORDS, opening.FIGURE)
            (word, word_again), (figure, figure_again) = taken
            bare = {name: opening.bare(browser, Path(folder), name)[0] for name in opening.BARE}
    except EffectiveDepthError as error:
        return [Row(COLD, f"skipped: {error}", "", True)]
    rows = [Row(f"{COLD}: bytes", f"{n_bytes / 1e6:.2f} MB", f"<= {COLD_BYTES / 1e6:g} MB", n_bytes <= COLD_BYTES)]
    for what, seconds, again, limit, alone in (
        ("  words", word, word_again, COLD_TEXT, bare["word"]),
        ("  first figure", figure, figure_again, COLD_FIGURE, bare["figure"]),
    ):
        told = f"{seconds:.2f} s (again {again:.2f}; bare page {alone:.2f})"
        target = f"<= {limit:g} s or {OVER_BARE:g} x bare"
        rows.append(Row(what, told, target, seconds <= max(limit, OVER_BARE * alone)))
    return rows


def in_browser() -> list[Row]:
    name = os.environ.get("ED_BENCH_MODEL", SMALL)
    try:
        spec = specs.named(name)
        if not hub.is_here(spec):
            return [skipped(f"{name} is not fetched; ED_BENCH_MODEL names another model or its folder")]
        with (
            tempfile.TemporaryDirectory() as folder,
            chromium() as browser,
            live.warm_worker(name) as jobs,
            serving(live.with_models(Path(folder))) as app,
        ):
            page = opened(browser, app.address, name)
            alone, beside, in_page = [], [], []
            for i in range(ROUNDS):
                text = f"{STORY}{i} "
                alone.append(through(jobs, name, text))
                in_page.append(on_home(page, text))
                with busy():
                    beside.append(through(jobs, name, text))
    except EffectiveDepthError as error:
        return [skipped(str(error))]
    return rows(alone, beside, in_page)


def skipped(why: str) -> Row:
    return Row("the same on Home in a browser, SmolLM2", f"skipped: {why}", f"<= {RATIO:g} x", True)


def rows(alone: list[float], beside: list[float], in_page: list[tuple[float, float]]) -> list[Row]:
    """Medians of the rounds' own ratios."""
    ratio = statistics.median(page[1] / one for page, one in zip(in_page, alone))
    slower = statistics.median(two / one for two, one in zip(beside, alone))
    first, every = (statistics.median(times) for times in zip(*in_page))
    told = f"{every:.1f} s for {statistics.median(alone):.1f} s"
    return [
        Row(
            "the same on Home in a browser, a model of 30 blocks",
            f"{ratio:.2f} x ({told})",
            f"<= {RATIO:g} x",
            ratio <= RATIO,
        ),
        Row("  Run to first panel drawn", f"{first:.2f} s", f"<= {FIRST_SECONDS:g} s", first <= FIRST_SECONDS),
        Row("  without a browser, beside a busy process", f"{slower:.2f} x", f"<= {SLOWDOWN:g} x", slower <= SLOWDOWN),
    ]


def through(jobs: Queue, name: str, text: str) -> float:
    """Seconds for the four probes through the queue."""
    begin = time.monotonic()
    submitted = [requests.submit(jobs, probe.request(resolve(name), Prompt(text)), "bench") for probe in live.HOME]
    live.wait(lambda: all(job.over for job in submitted), submitted)
    return time.monotonic() - begin


def opened(browser, address: str, name: str):
    """Home with this model, which its worker has opened."""
    page = browser.new_page(viewport={"width": 1440, "height": 1500})
    page.goto(f"{address}/?model={quote(name, safe='')}")
    on_home(page, "1 + 1 = ")
    return page


def on_home(page, text: str) -> tuple[float, float]:
    """Seconds from the click on Run to the first panel and to the end; the browser looks at its own clock."""
    box = page.get_by_role("textbox", name="Prompt", exact=True)
    box.fill(text, timeout=60_000)
    box.blur()
    page.wait_for_timeout(3000)
    run = page.get_by_role("button", name="Run", exact=True)
    run.and_(page.locator(":enabled")).wait_for(timeout=60_000)
    page.evaluate(CLOCK)
    run.click()
    page.wait_for_function("window.clock.all", timeout=300_000, polling=500)
    clock = page.evaluate("window.clock")
    page.wait_for_timeout(1000)
    return tuple((clock[one] - clock["begun"]) / 1000 for one in ("first", "all"))


@contextmanager
def busy() -> Iterator[None]:
    """One foreign process that never rests."""
    process = subprocess.Popen(BUSY)
    try:
        yield
    finally:
        process.kill()
        process.wait()
