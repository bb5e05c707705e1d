"""What of a page is drawn again while jobs run: only what has something new, and no more often than the browser keeps
up with."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kept_cases import results
from streamlit.testing.v1 import AppTest
from test_pages import ROOT

from ed_ui import live, running


@pytest.fixture
def batch(monkeypatch):
    """Home's three maps, the lens filling, all of it drawn at second 100, which took the browser 0.2 s."""
    monkeypatch.setattr(running, "status", lambda batch: "computing")
    found = results()
    made = running.Batch({name: one.request for name, one in found.items()}, page="home")
    made.results = {name: one for name, one in found.items() if name in ("contributions", "logit_lens")}
    made.results["logit_lens"] = partial(made, 1)
    made.screen.parts = {"lens": ("logit_lens", "logit_lens.control")}
    live._drawn(made, tuple(made.results))
    made.screen.begun, made.screen.cost = 100.0, 0.2
    return made


def partial(batch, version):
    return replace(batch.results["logit_lens"], complete=False, version=version, progress=0.5)


def test_nothing_new_draws_nothing(batch):
    assert live.news(batch, 1000.0) == []


def test_of_a_result_that_fills_only_its_own_part_is_drawn(batch):
    batch.results["logit_lens"] = partial(batch, 2)
    assert live.news(batch, 102.0) == ["lens"]
    live._drawn(batch, ("logit_lens",))
    assert live.news(batch, 1e9) == [], "it is known now"


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.results.update(logit_lens=replace(partial(batch, 2), complete=True, progress=1.0)),
        lambda batch: batch.results.update(layer_skip=replace(partial(batch, 1))),
        lambda batch: batch.results.pop("logit_lens"),
        lambda batch: batch.errors.update(logit_lens=ValueError("no")),
    ],
    ids=["ended", "began", "gone", "failed"],
)
def test_a_result_that_begins_or_ends_or_fails_draws_the_whole(batch, change):
    change(batch)
    assert live.news(batch, 102.0) == [""]


def test_a_result_of_no_part_draws_the_whole(batch):
    batch.screen.parts.clear()
    batch.results["logit_lens"] = partial(batch, 2)
    assert live.news(batch, 102.0) == [""]


def test_the_next_drawing_waits_for_a_multiple_of_what_the_last_one_took(batch):
    batch.results["logit_lens"] = partial(batch, 2)
    batch.screen.cost, batch.screen.asked, batch.screen.pause = None, 99.5, 0.5  # the browser was to look at 100
    assert live.news(batch, 101.0) == [] and batch.screen.cost == 1.0
    assert live.news(batch, 100.0 + live.REST - 0.1) == [] and live.news(batch, 100.0 + live.REST) == ["lens"]


def test_the_first_panel_never_waits(batch):
    batch.screen.seen, batch.screen.cost = {}, 60.0
    assert live.news(batch, 100.1) == [""]


def test_looks_for_news_become_rarer(batch):
    paused = [live.pause(seconds) for seconds in (0, 1, 4, 10, 30, 1000)]
    assert paused == sorted(paused) and paused[0] == live.POLLS[0] and paused[-1] == live.POLLS[-1]


def test_the_end_of_a_run_is_looked_for_when_it_comes():
    assert live.pause(30.0, 0.4) == 0.4 and live.pause(30.0, 60.0) == live.pause(30.0) == live.POLLS[-1]
    assert live.pause(30.0, 0.001) == live.POLLS[0], "it may come a little later than it was told"


APP = """
import streamlit as st
from ed_ui import live, running
batch, runs = st.session_state["batch"], st.session_state["runs"]

def count(name):
    runs[name] = runs.get(name, 0) + 1

def draw(batch):
    count("whole")
    live.status(batch)
    live.part(batch, "lens", ("logit_lens",), lambda: count("lens"))
    live.part(batch, "norms", ("contributions",), lambda: count("norms"))

live.follow(batch, draw)
"""


def test_only_a_result_that_fills_has_a_part_of_its_own(batch, monkeypatch):
    monkeypatch.setattr(running.Batch, "running", property(lambda self: True))
    test = AppTest.from_string(APP)
    test.session_state["batch"], test.session_state["runs"] = batch, (runs := {})
    test.run()
    assert not test.exception and runs == {"whole": 1, "lens": 1, "norms": 1}
    assert batch.screen.parts == {"lens": ("logit_lens",)}, "a complete one is drawn with the whole"
    assert batch.screen.watched and [m.value for m in test.markdown] == ["**computing**"]


def test_a_page_that_fails_still_looks_for_news(batch, monkeypatch):
    monkeypatch.setattr(running.Batch, "running", property(lambda self: True))
    test = AppTest.from_string(
        APP.replace('count("whole")', "from ed_core.errors import JobError; raise JobError('no')")
    )
    test.session_state["batch"], test.session_state["runs"] = batch, {}
    test.run()
    assert batch.screen.watched and len(test.error) == 1


@pytest.mark.parametrize("left", [False, True])
def test_a_part_of_a_batch_that_a_click_has_left_runs_the_page(batch, monkeypatch, left):
    """As *Stop here* does, in the whole, in a part, and where news is looked for: nothing else would look again."""

    class PageRuns(Exception):
        pass

    def runs():
        raise PageRuns

    found, drawn = [], []
    monkeypatch.setattr(live, "fragment", lambda draw, *_: found.append(draw) or (lambda: None))
    monkeypatch.setattr(live.st, "rerun", runs)
    monkeypatch.setattr(running, "shown", lambda batch: None)
    monkeypatch.setattr(running.Batch, "running", property(lambda self: True))
    now = running.Batch(batch.requests, page="home") if left else batch
    monkeypatch.setattr(live.session, "current", lambda: SimpleNamespace(batches={"home": now}))
    live.follow(batch, lambda batch: drawn.append("whole"))
    live.status(batch)
    live.part(batch, "lens", ("logit_lens",), lambda: drawn.append("lens"))
    assert len(found) == 3
    for draw in found:
        if left:
            with pytest.raises(PageRuns):
                draw()
        else:
            draw()
    assert drawn == ([] if left else ["whole", "lens"])


def test_streamlit_collects_no_garbage_after_every_run():
    assert tomllib.loads((ROOT / ".streamlit/config.toml").read_text())["runner"]["postScriptGC"] is False
