"""The measurements that drive a browser count rightly: small runs hold, and what is broken on purpose is seen."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from test_browser import browser  # noqa: F401 (fixture)

from ed_core.bench import kills, opening, words
from ed_core.bench.browser import ROOT, serving
from ed_core.bench.hostile_words import KINDS, OUTSIDE, RAN
from ed_core.bench.hostile_words import words as hostile
from ed_core.cases.kept import Kept

pytestmark = pytest.mark.browser


def test_the_app_is_killed_and_nothing_is_lost(browser, tmp_path):  # noqa: F811
    counts, seconds = kills.run(tmp_path, 2, random.Random(3), browser)
    assert counts["kills"] == 2 and counts["reported"] > 0 and counts["lost"] == counts["torn"] == 0
    assert all(row.ok for row in kills.rows(counts, seconds))


def test_what_is_lost_or_damaged_is_counted(tmp_path):
    kept, counts = Kept(tmp_path, shipped=None), Counter()
    case = kills.template()
    kept.add(case)
    kills._look(tmp_path, {case.id: {"reported"}}, {"kept on Home": True, "under way": False}, counts)
    assert counts["lost"] == 2 and counts["torn"] == 0 and not kills.rows(counts, 1.0)[0].ok
    next(tmp_path.glob("kept/*.edcase")).write_bytes(b"half of it")
    kills._look(tmp_path, {}, {}, counts)
    assert counts["torn"] > 0


def test_hostile_words_do_no_harm(browser, tmp_path):  # noqa: F811
    counts, grown, seconds = words.run(tmp_path, 8, browser)
    assert counts["seen"] == 2 and counts["run"] + counts["refused on Home"] == 2
    assert all(row.ok for row in words.rows(counts, grown, seconds)), counts


@pytest.mark.parametrize(
    "content, what",
    [
        (f"<img src=x: onerror='{RAN}'>", "scripts run"),
        ("<script>alert(1)</script>", "scripts run"),
        (f"<img src={OUTSIDE}>", "requests to the outside"),
        ("<div data-testid=stException></div>", "pages broken"),
    ],
)
def test_what_does_run_is_seen(browser, content, what):  # noqa: F811
    counts = Counter(words=1)
    watched = words.Watched(browser, "http://127.0.0.1:9", counts)
    watched.page.set_content(content)
    watched.look()
    assert counts[what] >= 1 and not words.rows(counts, 0.0, 1.0)[0].ok


def test_words_come_in_turn_and_the_same_every_time():
    found = list(hostile(1000))
    assert found == list(hostile(1000)) and [kind for kind, _ in found[:8]] == [*KINDS, *KINDS]
    assert (
        max(len(text) for _, text in found) > 100_000
        and any("\u202e" in text for _, text in found)
        and any("{{" in text for _, text in found)
    )


def test_a_page_that_opens_late_misses_its_target():
    bare = {"word": (0.9, 0.8), "figure": (2.0, 1.9)}
    assert opening.rows(bare, (1.2, 0.95), (2.5, 2.4))[0].ok and not opening.rows(bare, (1.2, 1.05), (2.5, 2.4))[0].ok


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


def test_what_a_stranger_wrote_reads_as_it_is(tmp_path, browser):  # noqa: F811
    (tmp_path / "app.py").write_text(PLAIN, encoding="utf-8")
    page = browser.new_page()
    with serving(tmp_path / "cache", script=tmp_path / "app.py", PYTHONPATH=str(ROOT)) as app:
        page.goto(app.address)
        page.locator(f".st-key-line-{len(AS_THEY_ARE) - 1} p").wait_for(timeout=60_000)
        for i, text in enumerate(AS_THEY_ARE):
            line = page.locator(f".st-key-line-{i}")
            assert line.inner_text().replace("\u2060", "").split() == text.split()
            assert not line.locator(
                "a, img, code, em, strong, del, li, table, .katex, [role=img], h1, h2, h3, hr, blockquote"
            ).count(), text
    page.close()
