"""A page's jobs: handed to the queue a few at a time, cancelled whole, their troubles told once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from kept_cases import results
from streamlit.testing.v1 import AppTest

from ed_core.errors import Cancelled, JobError, PromptError
from ed_core.probes import Contributions, Surgery, find
from ed_core.results import lookup
from ed_core.results.wire import pack
from ed_core.service import estimate
from ed_core.service.estimate import Pace
from ed_core.service.jobs import Job
from ed_core.service.resolve import resolve
from ed_core.service.turns import Place
from ed_core.types import ModelSpec, Prompt
from ed_ui import control_model, running, session


class Queue:
    """Stands in for `Jobs`: remembers what came, ends what it is told to."""

    def __init__(self):
        self.all: list[Job] = []

    def submit(self, request, viewer, visitor):
        self.all.append(Job(request, {viewer}))
        return self.all[-1]

    def poll(self, job):
        return job

    def cancel(self, job, viewer):
        job.state, job.error = "cancelled", Cancelled("The computation was cancelled.")

    def place(self, job):
        return self.places[job.request.prompts[0].text]

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
    return running.Batch(
        {f"contributions.{i}": Contributions().request(ModelSpec("m"), Prompt(f"p{i}")) for i in range(n)}, **more
    )


@pytest.mark.parametrize("at_once", [1, 4])
def test_jobs_are_handed_over_a_few_at_a_time_in_order(queue, at_once):
    made, most = batch(at_once=at_once), 0
    running.submit(made)
    ended = False
    while not ended:
        most = max(most, len(queue.open))
        assert made.running and not ended
        queue.open[0].state = "done"
        ended = running.poll(made)
    assert most == at_once and [job.request.prompts[0].text for job in queue.all] == [f"p{i}" for i in range(10)]
    assert not made.running and not running.poll(made), "said once"


def test_progress_tells_which_of_how_many_and_the_time_left_of_all(queue, monkeypatch):
    kept = results()
    made = running.Batch(
        {name: kept[name].request for name in ("contributions", "logit_lens", "layer_skip")}, at_once=1
    )
    monkeypatch.setattr(lookup, "estimate", lambda requests, n: 7.0 * len(requests))
    monkeypatch.setattr(Job, "seconds_left", lambda job: 3.0)
    running.submit(made)
    job = queue.open[0]
    job.arrived(pack(replace(kept["contributions"], complete=False, progress=0.25, summary={})))
    job.state = "running"
    assert running.status(made) == "contributions: starting · 25 % · 1 of 3 · about 17 s left"
    job.state = "done"
    running.poll(made)
    queue.open[0].state = "running"
    assert "· 2 of 3" in running.status(made)


@pytest.mark.parametrize(
    "name, said",
    [
        ("contributions", "contributions"),
        ("logit_lens.control", "logit lens of the control"),
        ("contributions.twin.3", "contributions of another twin"),
        ("prune.1", "prune, prompt 1"),
        ("prune.0.control", "prune, prompt 0 of the control"),
        ("a.logit_lens", "a · logit lens"),
    ],
)
def test_what_is_computed_is_named_by_probe_prompt_and_control(queue, name, said):
    others = ["prune.0", "prune.1"] if name.startswith("prune") else ["contributions", "logit_lens"]
    requests = dict.fromkeys([*others, name], Contributions().request(ModelSpec("m"), Prompt("p")))
    made = running.Batch({name: requests.pop(name)} | requests)
    running.submit(made)
    queue.open[0].state = "running"
    assert running.status(made).startswith(f"{said}: starting")


def test_who_waits_is_told_his_place_and_when_it_begins(queue):
    """That of the first of his jobs; what is over waits no more."""
    made = batch(3)
    running.submit(made)
    queue.places = {"p0": Place(1, 45.3), "p1": Place(3, 90.0), "p2": Place(0, 0.2)}
    queue.all[2].state = "cancelled"
    assert running.status(made) == "waiting, 1 job ahead · begins in about 45 s"
    queue.places |= {"p0": Place(3, 400.0), "p1": Place(0, 0.2)}
    assert running.status(made) == "waiting, next · begins in about 1 s"
    queue.places["p1"] = Place(4, 900.0)
    assert running.status(made) == "waiting, 3 jobs ahead · begins in about 7 min"


def test_who_gave_way_is_told(queue):
    made = batch(1)
    running.submit(made)
    job = queue.open[0]
    job.state, job.stage, job.started, job.gave_way = "running", "computing", 1.0, 2.0
    assert running.status(made).startswith("contributions: a shorter job goes first")


def test_a_visitor_is_there_while_his_page_is_drawn_anew(queue, monkeypatch):
    """A run of the page that takes long on a stalled server shows nothing yet: what it showed before stays."""
    there, now = {"tab"}, [0.0]
    monkeypatch.setattr(running, "_open", {})
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(running, "connected", lambda session: session in there)
    monkeypatch.setattr(running, "session_id", lambda: "tab")
    made = batch(1)
    job = Job(next(iter(made.requests.values())), {"me"})
    running.page_begins()
    assert not running._on_screen(job)
    running.shown(made)
    running.page_ended()
    assert running._on_screen(job)
    running.page_begins()
    assert running._on_screen(job), "not drawn yet"
    now[0] += running.DRAWN_SECONDS - 1
    running.page_begins()
    assert running._on_screen(job), "cut short, and begun anew"
    now[0] += 2
    assert not running._on_screen(job), "such a page has failed"
    now[0] -= 2
    running.page_ended()
    assert not running._on_screen(job), "another page is there now"
    running.shown(made)
    there.clear()
    assert not running._on_screen(job), "the tab is closed"


def test_a_cancel_takes_back_what_was_not_handed_over(queue):
    made = batch()
    running.submit(made)
    queue.all[1].state = "done"  # just before
    running.cancel(made)
    assert list(made.jobs) == ["contributions.1"], "whoever cancels waits for no block to end"
    assert running.poll(made) and not made.running and len(queue.all) == 4
    assert [job.state for job in queue.all] == ["cancelled", "done", "cancelled", "cancelled"]
    assert running.troubles(made) == {}, "who cancels knows"
    assert len(made.missing) == 10


def test_a_job_that_ends_while_the_page_is_drawn_is_still_followed(queue):
    """The page looked before it ended: it must look once more, or it stays with the part it has."""
    found = batch(1)
    running.submit(found)
    running.poll(found)
    queue.all[0].state = "done"
    assert found.running
    assert running.poll(found) and not found.running


def test_a_trouble_is_told_once_with_the_prompts_it_befell(queue):
    made = batch(3)
    running.submit(made)
    for job, error in zip(queue.all, (PromptError("too long"), None, PromptError("too long"))):
        job.state, job.error = "failed" if error else "done", error
    assert running.poll(made)
    assert running.troubles(made) == {"too long": ["0", "2"]}


def test_a_partial_result_goes_with_the_job_that_failed(queue):
    made = batch(2)
    running.submit(made)
    for job in queue.all:
        job._bytes = pack(results()["contributions"])
    queue.all[0].state = "running"
    running.poll(made)
    assert set(made.results) == {"contributions.0", "contributions.1"}
    queue.all[0].state, queue.all[0].error = "failed", JobError("out of memory")
    queue.all[1].state = "done"
    running.poll(made)
    assert set(made.results) == {"contributions.1"} and set(made.errors) == {"contributions.0"}


def test_another_request_under_the_same_name_is_another_batch(queue, monkeypatch):
    batches = {}
    monkeypatch.setattr(session, "current", lambda: SimpleNamespace(batches=batches))
    monkeypatch.setattr(lookup, "find", lambda request: None)
    ask = lambda text: running.batch("home", {"contributions": Contributions().request(ModelSpec("m"), Prompt(text))})
    first = ask("one")
    assert ask("one") is first and ask("two") is not first


def test_the_time_to_come_is_that_of_what_is_not_stored():
    spec = resolve("ed-demo-8")
    asked = [Contributions().request(spec, Prompt(text)) for text in ("5 + 7 = ", "3 + 4 = ", "1 + 1 = ")]
    told = [running.outlook(asked, asked[:n], 8, 10**10).seconds for n in range(4)]
    assert told[0] == 0 and told[1] > 0 and told[3] == pytest.approx(3 * told[1])


@pytest.mark.parametrize(
    "probes, n_tokens, refused",
    [((Surgery,), 1, True), ((Surgery,), 2, False), ((Surgery, Contributions), 1, False), ((Surgery,), None, False)],
)
def test_a_prompt_that_no_probe_takes_is_refused_before_run(probes, n_tokens, refused):
    asked = [probe().request(resolve("ed-demo-8"), Prompt("x")) for probe in probes]
    said = running.outlook(asked, asked, n_tokens, 10**10).obstacle
    assert said == ("The prompt has 1 token; surgery needs at least 2: give it a longer prompt." if refused else "")


def test_the_time_of_a_stored_run_is_scaled_by_tokens(monkeypatch):
    """A run with other parameters may take another time, and says nothing."""
    spec = resolve("ed-demo-8")
    asked = [Surgery("drop").request(spec, Prompt(text)) for text in ("one", "two")]
    ran = Surgery("all").request(spec, Prompt("one")), Surgery("drop").request(spec, Prompt("three"))
    cards = [{"series": r.series, "seconds": s, "n_tokens": 10} for r, s in zip(ran, (50.0, 2.0))]
    monkeypatch.setattr(lookup, "store", lambda: SimpleNamespace(recent=lambda n: cards))
    assert lookup.estimate(asked, 30) == 12.0 and lookup.estimate(asked, None) is None
    assert lookup.estimate([Surgery("swap").request(spec, Prompt("one"))], 30) is None


def test_the_time_of_surgery_is_that_of_the_maps_it_is_asked_for():
    """On the page, in the queue, in a study."""
    spec = resolve("ed-demo-16")
    asked = {kind: Surgery(kind).request(spec, Prompt("5 + 7 = ")) for kind in ("all", "drop", "swap", "repeat")}
    short = Surgery("drop", longest=2).request(spec, Prompt("5 + 7 = "))
    for told in (
        lambda request: running.outlook([request], [request], 8, 10**10).seconds,
        lambda request: Pace().expect(request).seconds,
        lambda request: estimate.work(find("surgery").make(dict(request.parameters)), 16, 8),
    ):
        whole, drop, swap, repeat = (told(request) for request in asked.values())
        assert told(short) < drop < swap < repeat < whole
    both = [asked["drop"], asked["all"]]
    seconds = [running.outlook([request], [request], 8, 10**10).seconds for request in both]
    assert running.outlook(both, both, 8, 10**10).seconds == pytest.approx(sum(seconds))


def test_the_control_is_the_twin_of_the_chosen_seed(monkeypatch):
    spec = resolve("ed-demo-8")
    monkeypatch.setattr(control_model, "chosen", lambda: ("shuffled", 3))
    found = control_model.with_control({"contributions": Contributions().request(spec, Prompt("one"))})
    (twin,) = found["contributions.control"].models
    assert (twin.source, twin.control, twin.control_seed) == (spec.source, "shuffled", 3)


APP = """
import streamlit as st
from ed_ui import live
live.follow(st.session_state["home"], lambda home: home.running and live.status(home))
"""


def test_what_goes_on_is_said_until_the_last_job_ends(queue):
    made = batch(1)
    made.page = "home"
    running.submit(made)
    job = queue.all[0]
    job.state, job.stage = "running", "computing"
    test = AppTest.from_string(APP)
    test.session_state["home"] = made
    assert [m.value for m in test.run().markdown] == ["**contributions: computing**"]
    job.state = "done"
    assert not test.run().exception and not test.markdown and not made.running
