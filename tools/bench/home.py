"""The first page, on a real model: its four probes through the queue alone, the same on the page in a browser on the
same cores, and a browser's first visit.

The model is SmolLM2 (`python -m ed_core fetch smollm2`), or the one that ED_BENCH_MODEL names; ED_BENCH_ROUNDS sets the
rounds. Times are wall time. Needs Chromium."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ed_core import settings
from ed_core.errors import JobError
from ed_core.models.ref import ModelRef
from ed_core.probes import Continuation, Contributions, LayerSkip, LogitLens
from ed_core.types import Prompt
from ed_core.work import measure as requests
from ed_core.work.queue import Queue

from . import Row
from .browser import chromium, serving

MODEL = os.environ.get("ED_BENCH_MODEL", "smollm2")
ROUNDS = int(os.environ.get("ED_BENCH_ROUNDS", "3"))
PROBES = (Contributions(), LogitLens(), LayerSkip(), Continuation())
PROMPT = (  # 64 tokens with its number, for SmolLM2
    "The quick brown fox jumps over the lazy dog near the river bank, while seven old wizards quietly brew a potion. "
    "A baker sells bread rolls in the morning and cakes in the afternoon; on Monday she sells twice as many rolls as "
    "cakes, and on Tuesday she sells three more of each. Story "
)
GIVE_UP_SECONDS = 120.0
# From the click on Run: when the first map has values, and when the headline is there and nothing runs.
CLOCK = """() => {
  window.clock = {};
  addEventListener('click', () => { clock.start = performance.now() }, {capture: true, once: true});
  const timer = setInterval(() => {
    const now = performance.now(), filled = plot => plot.data && plot.data[0] && plot.data[0].name === 'z';
    if (!clock.start) return;
    if (!clock.first && [...document.querySelectorAll('.js-plotly-plot')].some(filled)) clock.first = now;
    const cancel = document.querySelector('[class*=st-key-cancel] button');
    const headline = document.querySelector('.st-key-headline').textContent;
    if (headline.includes("best guess") && cancel.disabled) { clock.all = now; clearInterval(timer); }
  }, 50);
}"""
# Seconds from the address to the moment after each selector's element was first painted.
PAINTED = """window.painted = {};
new MutationObserver(() => {
  for (const selector of ['h3', '.js-plotly-plot .main-svg']) {
    if (selector in painted || !document.querySelector(selector)) continue;
    painted[selector] = 0;
    requestAnimationFrame(() => setTimeout(() => { painted[selector] = performance.now() / 1000 }));
  }
}).observe(document, {childList: true, subtree: true});"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser, serving(with_models(Path(folder))) as app:
        address = f"{app.address}/?model={quote(MODEL, safe='')}"
        rows = first_visit(browser, address)
        with warm_queue() as jobs:
            page = browser.new_page(viewport={"width": 1440, "height": 1500})
            page.goto(address)
            on_page(page, "1 + 1 = ")  # opens the model
            rounds = [(through_queue(jobs, f"{PROMPT}{i} "), on_page(page, f"{PROMPT}{i} ")) for i in range(ROUNDS)]
    alone, in_page = zip(*rounds)
    first, every = (statistics.median(seconds) for seconds in zip(*in_page))
    ratio = statistics.median(page[1] / queue for queue, page in rounds)
    measured = f"{ratio:.2f} x ({every:.1f} s for {statistics.median(alone):.1f} s)"
    return [
        *rows,
        Row(f"four probes on the page over the queue alone ({MODEL})", measured, "<= 1.5 x", ratio <= 1.5),
        Row("  Run to the first map", f"{first:.2f} s", "<= 0.5 s", first <= 0.5),
    ]


def first_visit(browser: Any, address: str) -> list[Row]:
    """Bytes, words and the first figure of a first visit, medians; one visit before them warms the server."""
    visits = [visit(browser, address) for _ in range(ROUNDS + 1)][1:]
    words, figure, n_bytes = (statistics.median(values) for values in zip(*visits))
    return [
        Row("a first visit: bytes", f"{n_bytes / 1e6:.2f} MB", "<= 4 MB", n_bytes <= 4e6),
        Row("  words", f"{words:.2f} s", "<= 1 s", words <= 1),
        Row("  first figure", f"{figure:.2f} s", "<= 2.5 s", figure <= 2.5),
    ]


def visit(browser: Any, address: str) -> tuple[float, float, int]:
    context = browser.new_context(viewport={"width": 1440, "height": 1500})
    context.add_init_script(PAINTED)
    page = context.new_page()
    session, sizes = context.new_cdp_session(page), []
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(address, wait_until="commit")
    page.wait_for_function("Object.values(painted).filter(Boolean).length == 2", timeout=60_000, polling=250)
    words, figure = page.evaluate("[painted['h3'], painted['.js-plotly-plot .main-svg']]")
    page.wait_for_timeout(1000)
    context.close()
    return words, figure, sum(sizes)


def on_page(page: Any, text: str) -> tuple[float, float]:
    """Seconds from the click on Run to the first map and to the end, by the browser's own clock."""
    box = page.get_by_role("textbox", name="Prompt", exact=True)
    box.fill(text, timeout=60_000)
    box.blur()
    page.wait_for_timeout(3000)
    run = page.get_by_role("button", name="Run", exact=True)
    run.and_(page.locator(":enabled")).wait_for(timeout=60_000)
    page.evaluate(CLOCK)
    run.click()
    page.wait_for_function("window.clock.all", timeout=300_000, polling=500)
    start, first, end = page.evaluate("[clock.start, clock.first, clock.all]")
    page.wait_for_timeout(1000)
    return (first - start) / 1000, (end - start) / 1000


@contextmanager
def warm_queue() -> Iterator[Queue]:
    """A queue with an empty store whose worker has opened the model."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ED_CACHE"] = str(with_models(Path(folder)))
        jobs = Queue()
        try:
            through_queue(jobs, "1 + 1 = ")
            yield jobs
        finally:
            jobs.close()


def with_models(cache: Path) -> Path:
    """An empty cache folder that holds the models fetched here."""
    for name in ("converted", "gguf"):
        if (models := settings.current().cache / name).is_dir():
            (cache / name).symlink_to(models.resolve(), target_is_directory=True)
    return cache


def through_queue(jobs: Queue, text: str) -> float:
    """Seconds for the four probes."""
    start = time.monotonic()
    submitted = [requests.submit(jobs, probe.request(ModelRef.parse(MODEL), Prompt(text)), "bench") for probe in PROBES]
    while waiting := [job for job in submitted if not jobs.poll(job).over]:
        if time.monotonic() > start + GIVE_UP_SECONDS:
            raise JobError(f"{len(waiting)} of four probes were not done after {GIVE_UP_SECONDS:.0f} s.")
        time.sleep(0.01)
    if failed := [job.error for job in submitted if job.error is not None]:
        raise failed[0]
    return time.monotonic() - start
