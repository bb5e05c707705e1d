"""A thousand hostile prompts, titles, notes and tags in a real browser: none runs, none leaves the machine, none breaks
a page.

Four words make one case study, each in its place; a word that is refused with one sentence is replaced by an innocent
one. Every case study is opened, all are listed in the gallery, every tenth is read as a report from a file, and every
prompt is typed into Home and run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hostile_words import KINDS, OUTSIDE, RAN, words
from kept_cases import results
from test_browser import settled

from ed_core.cases import case_study
from ed_core.cases.kept import Kept
from ed_core.cases.report import report
from ed_core.errors import CaseError, PromptError
from ed_core.prompts import check_text
from ed_core.types import ProbeResult, Prompt
from tools.bench.browser import ROOT, App, serving

pytestmark = pytest.mark.browser

INNOCENT = {"title": "A title", "notes": "Notes.", "prompt": "5 + 7 = ", "tag": "tag"}
PROBES = ("contributions", "logit_lens", "layer_skip", "continuation")
MEMORY = 400  # MiB that the app's processes may grow by
SAID = ".st-key-headline [data-testid=stAlert]"  # the sentence with which Home refuses
EVERY = 10  # a report is opened for one case study of so many
EXPECTED = {"refused", "seen", "run", "refused on Home"}  # what else is counted is harm


@pytest.mark.parametrize("n", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_hostile_words_do_no_harm(visitor, tmp_path, n):
    counts, grown = run(tmp_path, n, visitor)
    assert counts["seen"] == counts["run"] + counts["refused on Home"] == n / len(KINDS)
    assert not +Counter({what: times for what, times in counts.items() if what not in EXPECTED}), counts
    assert grown <= MEMORY


@pytest.mark.parametrize(
    "content, what",
    [
        (f"<img src=x: onerror='{RAN}'>", "scripts run"),
        ("<script>alert(1)</script>", "scripts run"),
        (f"<img src={OUTSIDE}>", "requests to the outside"),
        ("<div data-testid=stException></div>", "pages broken"),
    ],
)
def test_what_does_run_is_seen(visitor, content, what):
    counts = Counter()
    watched = Watched(visitor, "http://127.0.0.1:9", counts)
    watched.page.set_content(content)
    watched.look()
    assert counts[what] >= 1


def test_words_come_in_turn_and_the_same_every_time():
    found = list(words(1000))
    assert found == list(words(1000)) and [kind for kind, _ in found[:8]] == [*KINDS, *KINDS]
    assert max(len(text) for _, text in found) > 100_000 and any("\u202e" in text for _, text in found)
    assert any("{{" in text for _, text in found)


def run(folder: Path, n: int, visitor) -> tuple[Counter, float]:
    """What happened, as counts; MiB that the app's processes grew by."""
    counts, kept = Counter(), Kept(folder / "cache", shipped=None)
    studies, prompts = [], []
    for group in _fours(words(n)):
        study, refused = _study(group)
        counts["refused"] += refused
        kept.add(study)
        studies.append(study)
        prompts.append(group["prompt"])
    app = App(folder / "cache", {"ED_MAX_TOKENS": "256"})
    try:
        watched = Watched(visitor, app.address, counts)
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
        return counts, _held(app) - before
    finally:
        app.stop()


class Watched:
    """A browser's page in which everything that a hostile word could reach is counted."""

    def __init__(self, visitor, address: str, counts: Counter):
        self.address, self.counts = address, counts
        self.page = visitor(viewport={"width": 1280, "height": 1000})
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
        settled(self.page)  # what loads or fails late
        self.count(
            "scripts run", self.page.evaluate("(() => { const n = window.__ran || 0; window.__ran = 0; return n })()")
        )
        self.count("pages broken", self.page.locator("[data-testid=stException]").count())


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
    made = [_with_prompt(results()[probe], held["prompt"]) for probe in PROBES]
    return case_study.make(held["title"], made, notes=held["notes"], tags=[held["tag"]])


def _with_prompt(result: ProbeResult, text: str) -> ProbeResult:
    """The result as if it were of this prompt: its text, its tokens, what the model continues with."""
    pieces = tuple(text[i : i + 40] or "x" for i in range(0, 40 * len(result.tokens), 40))
    request = replace(result.request, prompts=(Prompt(text, "7"),))
    told = dict(result.provenance) | ({"continuation": text[:200]} if "continuation" in result.provenance else {})
    vocabulary = dict.fromkeys(result.token_text, text[:60] or "x")
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
    seen = lambda text: text.replace("\u2060", "")
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


AS_THEY_ARE = [
    "a &lt;b&gt; &amp; c",
    ":material/delete: :streamlit: :smile: :+1: :-1: :red[x]",
    "a -- b -> c >= d <-> e ~= f",
    "12:30:45 :: 1.5",
    "1. one",
    "- one",
    "-0.5 = x",
    "a\n===",
    "---",
    "# a",
    "> a",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "[a](b.html)",
    "![a](b.png)",
    "*a* __b__ ~~c~~ `d`",
    "$x^2$",
    r"\* \n",
    "<b>x</b>",
]
PLAIN = f"""
import streamlit as st
from ed_ui.show import plain
for i, text in enumerate({AS_THEY_ARE!r}):
    st.container(key=f"line-{{i}}").markdown(plain(text))
"""


def test_what_a_stranger_wrote_reads_as_it_is(tmp_path, visitor):
    (tmp_path / "app.py").write_text(PLAIN, encoding="utf-8")
    page = visitor()
    with serving(tmp_path / "cache", script=tmp_path / "app.py", PYTHONPATH=str(ROOT)) as app:
        page.goto(app.address)
        page.locator(f".st-key-line-{len(AS_THEY_ARE) - 1} p").wait_for()
        for i, text in enumerate(AS_THEY_ARE):
            line = page.locator(f".st-key-line-{i}")
            assert line.inner_text().replace("\u2060", "").split() == text.split()
            assert not line.locator(
                "a, img, code, em, strong, del, li, table, .katex, [role=img], h1, h2, h3, hr, blockquote"
            ).count(), text
