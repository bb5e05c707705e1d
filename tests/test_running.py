"""A page's jobs: handed to the queue a few at a time, cancelled whole, their troubles told once. And when
a page is drawn again meanwhile."""

from __future__ import annotations

import pytest
from kept_cases import results
from streamlit.testing.v1 import AppTest

from ed_core.errors import Cancelled, PromptError
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions
from ed_core.results.wire import pack, unpack
from ed_core.types import ModelSpec, Prompt
from ed_core.work.queue import Job
from ed_ui import live, running, session


class Queue:
    """Stands in for the queue: remembers what came, ends what it is told to."""

    def __init__(self):
        self.all: list[Job] = []

    def submit(self, work, request, **how):
        self.all.append(Job(work, (request,), how["key"], "", "", "interactive", read=unpack))
        return self.all[-1]

    def ahead(self, job):
        return self.before[job.arguments[0].prompts[0].text]

    def open_models(self, lane):
        return ()

    def poll(self, job):
        return job

    def cancel(self, job, viewer):
        job.state, job.error = "cancelled", Cancelled("The computation was cancelled.")

    @property
    def open(self):
        return [job for job in self.all if not job.over]


@pytest.fixture
def queue(monkeypatch):
    made = Queue()
    monkeypatch.setattr(running, "jobs", lambda: made)
    monkeypatch.setattr(running, "viewer", lambda: "me")
    return made


def batch(n=10, **more) -> running.Batch:
    asked = {f"contributions.{i}": Contributions().request(ModelSpec("m"), Prompt(f"p{i}")) for i in range(n)}
    return running.Batch(asked, **more)


def test_who_waits_is_told_how_many_come_before(queue):
    made, queue.before = batch(2), {"p0": 3, "p1": 1}
    running.submit(made)
    assert running.status(made) == "waiting, 1 job ahead"
    queue.before["p0"] = 0
    assert running.status(made) == "waiting, next"


@pytest.mark.parametrize("at_once", [1, 4])
def test_jobs_are_handed_over_a_few_at_a_time_in_order(queue, at_once):
    made, most = batch(at_once=at_once), 0
    running.submit(made)
    ended = False
    while not ended:
        most = max(most, len(queue.open))
        assert made.running
        queue.open[0].state = "done"
        ended = running.poll(made)
    handed = [job.arguments[0].prompts[0].text for job in queue.all]
    assert most == at_once and handed == [f"p{i}" for i in range(10)]
    assert not made.running and not running.poll(made), "said once"


def test_a_cancel_takes_back_what_was_not_handed_over(queue):
    made = batch()
    running.submit(made)
    queue.all[1].state = "done"  # just before
    running.cancel(made)
    assert list(made.jobs) == ["contributions.1"], "whoever cancels waits for no block to end"
    assert running.poll(made) and not made.running and len(queue.all) == 4
    assert [job.state for job in queue.all] == ["cancelled", "done", "cancelled", "cancelled"]
    assert running.troubles(made) == {}, "who cancels knows"


def test_a_trouble_is_told_once_with_the_prompts_it_befell_and_their_partial_results_go(queue):
    made = batch(3)
    running.submit(made)
    for job in queue.all:
        job.advance(0.0, None, "", pack(results()["contributions"]))
    queue.all[0].state = "running"
    running.poll(made)
    assert set(made.results) == {"contributions.0", "contributions.1", "contributions.2"}
    for job, error in zip(queue.all, (PromptError("too long"), None, PromptError("too long"))):
        job.state, job.error = "failed" if error else "done", error
    assert running.poll(made)
    assert running.troubles(made) == {"too long": ["0", "2"]}
    assert set(made.results) == {"contributions.1"} and set(made.errors) == {"contributions.0", "contributions.2"}


def test_the_time_to_come_is_that_of_what_is_not_stored():
    spec = ModelRef.parse("ed-demo-8")
    asked = [Contributions().request(spec, Prompt(text)) for text in ("5 + 7 = ", "3 + 4 = ", "1 + 1 = ")]
    told = [running.outlook(asked, asked[:n], 8, 10**10).seconds for n in range(4)]
    assert told[0] == 0 and told[1] > 0 and told[3] == pytest.approx(3 * told[1])


APP = """
import streamlit as st
from ed_ui import live
live.follow(st.session_state["batch"], lambda batch: (live.status(batch), st.session_state["drawn"].append(1)))
"""


@pytest.mark.parametrize("left", [False, True])
def test_while_jobs_run_a_batch_is_drawn_again_unless_a_click_asked_for_another(queue, monkeypatch, left):
    """When the last job has ended, or another batch is asked for, the page runs as a whole."""
    whole = []
    monkeypatch.setattr(live.st, "rerun", lambda: whole.append(1))
    monkeypatch.setattr(running, "status", lambda batch: "computing")
    made = batch(1, page="home")
    running.submit(made)
    now = session.Session(batches={"home": batch(1) if left else made})
    monkeypatch.setattr(session, "current", lambda: now)
    test = AppTest.from_string(APP)
    test.session_state["batch"], test.session_state["drawn"] = made, (drawn := [])
    test.run()
    assert not test.exception and test.markdown
    assert bool(whole) == left and len(drawn) == 1
    if not left:
        queue.all[0].state = "done"
        test.run()
        assert whole and not test.exception
