"""A thousand hostile prompts, titles, notes and tags in a real browser: none runs, none leaves the machine, none breaks
a page.

Four words make one case study, each in its place; a word that is refused with one sentence is replaced by an innocent
one. Every case study is opened, all are listed in the gallery, every tenth is read as a report from a file, and every
prompt is typed into Home and run."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import psutil

from ..cases import case_study
from ..cases.kept import Kept
from ..cases.report import report
from ..errors import CaseError, PromptError
from ..prompts import check_text
from ..results.lookup import EXAMPLES
from ..results.wire import unpack
from ..types import ProbeResult, Prompt
from . import Row
from .browser import App, chromium
from .hostile_words import KINDS, words

WORDS = int(os.environ.get("ED_BENCH_WORDS", "1000"))
INNOCENT = {"title": "A title", "notes": "Notes.", "prompt": "5 + 7 = ", "tag": "tag"}
PROBES = ("contributions", "logit_lens", "layer_skip", "continuation")
MEMORY = 400  # MiB that the app's processes may grow by
SAID = ".st-key-headline [data-testid=stAlert]"  # the sentence with which Home refuses
EVERY = 10  # a report is opened for one case study of so many


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        return rows(*run(Path(folder), WORDS, browser))


def run(folder: Path, n: int, browser) -> tuple[Counter, float, float]:
    """What happened, as counts; MiB that the app's processes grew by; seconds."""
    begin, counts, kept = time.monotonic(), Counter(words=n), Kept(folder / "cache", shipped=None)
    studies, prompts = [], []
    for group in _fours(words(n)):
        study, refused = _study(group)
        counts["refused"] += refused
        kept.add(study)
        studies.append(study)
        prompts.append(group["prompt"])
    app = App(folder / "cache", {"ED_MAX_TOKENS": "256"})
    try:
        watched = Watched(browser, app.address, counts)
        watched.see("/cases", ".st-key-form-gallery")  # everything of the app's is loaded
        before = _held(app)
        _gallery(watched, len(studies))
        for i, study in enumerate(studies):
            _open(watched, study)
            if i % EVERY == 0:
                file = folder / "report.html"
                file.write_text(report(study), encoding="utf-8")
                watched.see(file.as_uri(), "h1, h2, .js-plotly-plot")
        _live(watched, prompts)
        return counts, _held(app) - before, time.monotonic() - begin
    finally:
        app.stop()


class Watched:
    """A browser's page in which everything that a hostile word could reach is counted."""

    def __init__(self, browser, address: str, counts: Counter):
        self.address, self.counts = address, counts
        self.page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        self.page.set_default_timeout(60_000)
        self.page.on("dialog", lambda dialog: (self.count("scripts run"), dialog.dismiss()))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("popup", lambda _: self.count("windows opened"))

    def count(self, what: str, n: int = 1) -> None:
        self.counts[what] += n

    def _asked(self, url: str) -> None:
        if not url.startswith((self.address, self.address.replace("http", "ws", 1), "data:", "blob:", "file:")):
            self.count("requests to the outside")

    def see(self, path: str, selector: str) -> None:
        """Open an address, wait for what it must show, then look what has happened."""
        self.page.goto(path if "://" in path else self.address + path)
        self.page.locator(selector).first.wait_for()
        self.look()

    def look(self) -> None:
        self.page.wait_for_timeout(150)  # what loads or fails late
        self.count(
            "scripts run", self.page.evaluate("(() => { const n = window.__ran || 0; window.__ran = 0; return n })()")
        )
        self.count("pages broken", self.page.locator("[data-testid=stException]").count())


def rows(counts: Counter, grown: float, seconds: float) -> list[Row]:
    bad = {
        what: n
        for what, n in counts.items()
        if what not in ("words", "refused", "seen", "run", "refused on Home") and n
    }
    told = ", ".join(f"{n} {what}" for what, n in bad.items()) or (
        f"none ({counts['refused']} refused; {counts['seen']} case studies opened; {counts['run']} prompts run, "
        f"{counts['refused on Home']} refused; {seconds:.0f} s)"
    )
    return [
        Row(f"{counts['words']} hostile prompts, titles, notes, tags in Chromium: harm", told, "none", not bad),
        Row("what the app's processes grew by", f"{grown:.0f} MiB", f"<= {MEMORY} MiB", grown <= MEMORY),
    ]


def _fours(pairs) -> Iterator[dict[str, str]]:
    pairs = list(pairs)
    for at in range(0, len(pairs), len(KINDS)):
        yield INNOCENT | dict(pairs[at : at + len(KINDS)])


def _study(group: dict[str, str]) -> tuple[case_study.Case, int]:
    """A case study with these words, and how many of them it refused."""
    held, refused = dict(INNOCENT), 0
    for kind, text in group.items():
        try:
            _make(INNOCENT | {kind: text})
            held[kind] = text
        except (CaseError, PromptError):
            refused += 1
    return _make(held), refused


def _make(held: dict[str, str]) -> case_study.Case:
    check_text(Prompt(held["prompt"], "7"))
    results = [_with_prompt(r, held["prompt"]) for r in _shipped()]
    return case_study.make(held["title"], results, notes=held["notes"], tags=[held["tag"]])


@lru_cache
def _shipped() -> list[ProbeResult]:
    found = {r.request.probe: r for r in (unpack(file.read_bytes()) for file in sorted(EXAMPLES.glob("*.npz")))}
    return [found[probe] for probe in PROBES]


def _with_prompt(result: ProbeResult, text: str) -> ProbeResult:
    """The result as if it were of this prompt: its text, its tokens, what the model continues with."""
    pieces = tuple(text[i : i + 40] or "x" for i in range(0, 40 * len(result.tokens), 40))
    request = replace(result.request, prompts=(Prompt(text, "7"),))
    told = dict(result.provenance) | ({"continuation": text[:200]} if "continuation" in result.provenance else {})
    vocabulary = {number: text[:60] or "x" for number in result.token_text}
    return replace(result, request=request, tokens=pieces, token_text=vocabulary, provenance=told)


def _gallery(watched: Watched, n: int) -> None:
    """Every page of the list."""
    page = watched.page
    watched.see("/cases", "[class*=st-key-card-]")
    next_page = page.get_by_role("button", name="Next page")
    while next_page.count() and next_page.is_enabled():
        before = page.locator("[class*=st-key-card-]").first.get_attribute("class")
        next_page.click()
        page.wait_for_function(
            "before => document.querySelector('[class*=st-key-card-]')?.className !== before", arg=before
        )
        watched.look()


def _open(watched: Watched, study: case_study.Case) -> None:
    """The page of a case study; its title must read as it is."""
    watched.see(f"/case?id={study.id}", ".js-plotly-plot .main-svg")
    title = watched.page.locator(".st-key-case [data-testid=stHeading]").first.text_content() or ""
    seen = lambda text: text.replace("\u2060", "")  # noqa: E731 (a word joiner cannot be seen)
    watched.count("titles that read otherwise", seen(case_study.tidy(title)) != seen(study.title))
    watched.count("seen")


def _live(watched: Watched, prompts: list[str]) -> None:
    """Type every prompt into Home, and run those that it accepts."""
    page = watched.page
    watched.see("/?model=ed-demo-8", ".st-key-prompt-box")
    for text in prompts:
        box, run = page.get_by_label("Prompt", exact=True), page.get_by_role("button", name="Run", exact=True)
        box.fill(text.encode("utf-8", "replace").decode())
        box.blur()
        page.wait_for_timeout(700)
        watched.look()
        if run.is_enabled():
            run.click()
            page.get_by_role("button", name="Cancel", exact=True).and_(page.locator(":disabled")).wait_for()
            page.locator(f".st-key-box-skip .js-plotly-plot, {SAID}").first.wait_for()
            watched.look()
            watched.count("refused on Home" if page.locator(SAID).count() else "run")
        else:
            watched.count("refused on Home")


def _held(app: App) -> float:
    """MiB that the app's processes hold; its worker, which keeps models open, is left out."""
    server = psutil.Process(app.process.pid)
    return server.memory_info().rss / 2**20
