"""The queue and its two lanes: whose turn it is, sharing, cancelling, memory, and what a worker that dies takes along.

A worker is a list of messages here, or a `Server` in threads of this process; real ones are at the end."""

from __future__ import annotations

import os
import signal

import pytest
from workers import Messages, Threads, until

from ed_core.errors import Cancelled, NotAllowed, StudyError, TooLarge, WorkerDied
from ed_core.models.ref import ModelRef
from ed_core.probes import Continuation, Contributions, IntegratedGradients, LogitLens
from ed_core.studies import items, plan, running, study
from ed_core.types import Prompt
from ed_core.work import estimate, measure
from ed_core.work import queue as lanes
from ed_core.work.queue import BATCH, INTERACTIVE, Queue
from ed_core.work.runs import study as long_work
from ed_core.work.turn import Turn
from ed_core.work.worker import DEVICE_LOST, Process


class Lab:
    """A queue with such workers, and a clock that the test moves."""

    def __init__(self):
        self.now, self.workers, self.names = 100.0, {}, {}
        self.queue = Queue(self._start, warm=False, watch=False, clock=lambda: self.now)

    def _start(self, lane, on_message, on_exit):
        self.workers[lane] = Messages(lane, on_message, on_exit)
        return self.workers[lane]

    def submit(self, name, lane=BATCH, viewer="me", **more):
        told = dict(key=name, title=name, lane=lane, viewer=viewer, read=bytes.decode)
        job = self.queue.submit(Turn, **told, **more)
        self.names[job.id] = name
        return job

    def order(self, lane=BATCH):
        """The names of the jobs whose turn it was, in order."""
        return "".join(self.names[id] for id in self.workers[lane].steps())

    def says(self, kind, *jobs, lane=BATCH):
        for job in jobs:
            self.workers[lane].says(kind, job)


@pytest.fixture
def lab():
    return Lab()


def test_the_interactive_lane_is_first_in_first_out_and_equal_jobs_are_one(lab):
    a, b, c = (lab.submit(name, INTERACTIVE, viewer) for name, viewer in (("a", "me"), ("b", "you"), ("c", "me")))
    assert lab.submit("b", INTERACTIVE, "they") is b and lab.queue.ahead(c) == 2
    for job in (a, b, c):
        lab.workers[INTERACTIVE].says("done", job, b"well")
    assert lab.order(INTERACTIVE) == "abc" and b.result == "well" and b.state == "done"
    assert lab.submit("b", INTERACTIVE) is not b, "over"


def test_the_batch_lane_takes_one_item_from_each_in_turn(lab):
    """An hour of study, another one, and what two visitors wait for."""
    s, t = lab.submit("s", kept=True), lab.submit("t", kept=True)
    lab.says("item", s, t, s)
    g, h = lab.submit("g", owner="ann"), lab.submit("h", owner="ann")
    i = lab.submit("i", owner="bob")
    lab.says("item", t, g, i, s)
    assert lab.order() == "stst" + "gist", "ann's second job waits for her first"
    lab.says("done", t, g, i)
    lab.says("item", s)
    assert lab.order()[8:] == "gish" and h.state == "running"


def test_progress_and_partial_results_arrive(lab):
    job, worker = lab.submit("a"), lab.workers[BATCH]
    worker.says("progress", job, what="opening m")
    assert (job.state, job.stage, job.result, job.seconds_left(100.0)) == ("running", "opening m", None, None)
    worker.says("progress", job, share=0.0, what="computing")
    lab.now = 110.0
    worker.says("progress", job, b"half", share=0.5, what="")
    assert (job.stage, job.share, job.result) == ("computing", 0.5, "half") and job.seconds_left(110.0) == 10.0


def test_a_job_stops_when_its_last_viewer_leaves(lab):
    a, b = lab.submit("a", viewer="me"), lab.submit("b", viewer="me")
    lab.submit("a", viewer="you")
    lab.queue.cancel(a, "me")
    assert not a.cancelling
    lab.queue.cancel(b, "me")
    assert b.state == "cancelled" and lab.order() == "a", "it had not begun"
    lab.queue.cancel(a, "you")
    assert a.cancelling is not None and lab.workers[BATCH].sent[-1] == {"type": "cancel", "job": a.id}
    lab.workers[BATCH].says("failed", a, error="Cancelled", message="")
    assert a.state == "cancelled" and isinstance(a.error, Cancelled)


def test_what_rests_and_is_cancelled_ends_next(lab):
    s, t, u = (lab.submit(name, kept=True) for name in "stu")
    lab.says("item", s)
    lab.queue.cancel(s)
    assert lab.submit("s", kept=True) is not s, "it can be asked for again at once"
    lab.says("item", t)
    assert lab.order() == "sts" and not u.over
    lab.now += lanes.STUCK_SECONDS + 1
    lab.queue.look_after()
    assert lab.workers[BATCH].killed, "it does not stop"


def test_what_no_open_page_shows_is_dropped(lab):
    for lane in (INTERACTIVE, BATCH):
        gone, kept = lab.submit(f"gone {lane}", lane), lab.submit(f"kept {lane}", lane, kept=True)
        polled = lab.submit(f"polled {lane}", lane)
        for _ in range(3):
            lab.now += 60
            lab.queue.poll(polled)
            lab.queue.look_after()
        assert gone.cancelling and not (kept.cancelling or polled.cancelling)


def test_a_worker_that_dies_fails_its_job_alone_and_is_replaced(lab):
    s, t = lab.submit("s", kept=True), lab.submit("t", kept=True)
    lab.says("item", s)
    worker = lab.workers[BATCH]
    worker.dies(-signal.SIGKILL)
    assert t.state == "failed" and isinstance(t.error, WorkerDied)
    assert "ended while computing t (killed, most likely for want of memory)" in str(t.error)
    assert lab.workers[BATCH] is not worker and lab.order() == "s", "which begins again, from its folder"
    worker.says("done", s)
    assert not s.over, "who is dead says nothing"
    lab.queue.cancel(lab.submit("u", kept=True))
    lab.workers[BATCH].dies(DEVICE_LOST)
    assert "its device failed" in str(s.error)


def test_a_worker_that_cannot_start_fails_the_job():
    def full(*_):
        raise OSError(12, "Cannot allocate memory")

    queue = Queue(full, warm=False, watch=False)
    job = queue.submit(Turn, key="a", title="a")
    assert "cannot be started: Cannot allocate memory" in str(job.error)


def test_a_model_that_fits_only_without_the_other_lane_s_waits_for_its_memory(lab):
    s, p = lab.submit("s", kept=True), lab.submit("p", INTERACTIVE)
    batch, other = lab.workers[BATCH], lab.workers[INTERACTIVE]
    other.says("done", p, models={"m": 700})
    batch.says("item", s, full=True)
    assert other.sent[-1] == {"type": "give", "idle": lanes.IDLE_SECONDS}
    assert s.stage == "waiting for memory that models of the interactive lane hold" and lab.order() == "s"
    t = lab.submit("t", kept=True)
    assert lab.order() == "st", "others go on meanwhile"
    batch.says("done", t)
    other.says("models", models={})
    lab.now += lanes.RETRY_SECONDS
    lab.queue.look_after()
    assert lab.order() == "sts" and batch.sent[-1]["room"]
    batch.says("item", s, full=True)
    assert batch.sent[-1] == {"type": "step", "job": s.id, "room": False}, "nobody holds any"


def test_a_request_goes_where_its_estimate_says(lab, spec, own_cache):
    asked = Contributions().request(spec, Prompt("5 + 7 = "))
    slow = IntegratedGradients(nodes=4096).request(ModelRef.parse("ed-demo-16"), Prompt("5 + 7 = " * 60))
    assert estimate.expected(asked) < measure.SHORT_SECONDS < estimate.expected(slow)
    assert [measure.submit(lab.queue, one, "me").lane for one in (asked, slow)] == [INTERACTIVE, BATCH]


def test_what_the_settings_do_not_allow_is_not_queued(lab, spec, write):
    write('hosted = true\nmodels = ["ed-demo-8"]')
    with pytest.raises(NotAllowed):
        measure.submit(lab.queue, Contributions().request(spec, Prompt("x")), "me")
    assert not lab.workers


def fails(turn: Turn, error: Exception) -> bytes:
    raise error


def needs_room(turn: Turn, spec) -> bytes:
    if turn.models.room(spec):
        return b"there was room"
    raise TooLarge("It does not fit.")


def test_what_goes_wrong_in_a_job_is_said(spec):
    threads, raised = Queue(Threads, warm=False, watch=False), (StudyError("No such set."), ZeroDivisionError("x"))
    jobs = [threads.submit(fails, e, key=str(e), title="f") for e in raised]
    jobs.append(threads.submit(needs_room, spec, key="r", title="r"))
    until(lambda: all(job.over for job in jobs))
    threads.close()
    assert isinstance(jobs[0].error, StudyError) and str(jobs[0].error) == "No such set."
    assert "ZeroDivisionError: x. This is a defect" in str(jobs[1].error) and isinstance(jobs[2].error, TooLarge)


# ---------------------------------------------------------------- real workers


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("ED_TEST_STEP_DELAY", "0.02")
        started = {}

        def start(*arguments):
            started[arguments[0]] = Process(*arguments)
            return started[arguments[0]]

        made = Queue(start)
        made.started = started
        yield made
        made.close()


TOML = (
    'name = "s"\nmodels = ["ed-demo-8"]\nprobes = ["contributions"]\nchunk = 1\n'
    '[[sets]]\nname = "sums"\nbundled = "sum_mod10"\nlevels = [2]\nper_level = {}\n'
)


def begin_study(queue, folder, n=12):
    folder.mkdir(exist_ok=True)
    (folder / "asked.toml").write_text(TOML.format(n))
    more = dict(key=str(folder), title="the study", viewer="me", kept=True, read=bytes.decode)
    return queue.submit(long_work.study, str(folder / "asked.toml"), folder, "cpu", **more)


@pytest.mark.process
def test_two_studies_and_eight_visitors_at_once_end_right(queue, spec, tmp_path):
    warm = measure.submit(queue, Contributions().request(spec, Prompt("1 = ")), "me")
    until(lambda: queue.poll(warm).over)
    studies = [begin_study(queue, tmp_path / name) for name in "st"]
    until(lambda: all(job.share > 0 for job in studies))
    for i in range(8):
        asked = [probe.request(spec, Prompt(f"{i} + 7 = ")) for probe in (Contributions(), LogitLens())]
        jobs = [measure.submit(queue, one, f"visitor {i}") for one in asked]
        until(lambda: [queue.poll(job) for job in jobs] and jobs[0].result is not None)
        until(lambda: all(queue.poll(job).over for job in jobs))
        assert all(job.state == "done" and job.lane == INTERACTIVE and job.result.complete for job in jobs)
    until(lambda: all(job.over for job in studies), 120)
    assert [job.error for job in studies] == [None, None] and "12 computed" in studies[0].result
    planned = plan.make(study.parse(TOML.format(12)), tmp_path, "cpu")
    plan.write_plan(planned, tmp_path / "here")
    running.run(planned, tmp_path / "here")
    assert len({items.open_folder(tmp_path / name).digest() for name in ("s", "t", "here")}) == 1


@pytest.mark.process
def test_a_study_whose_worker_is_killed_goes_on_from_its_folder(queue, tmp_path):
    folder = tmp_path / "s"
    job = begin_study(queue, folder)
    until(lambda: 0 < len(list(folder.glob("items/*/*.parquet"))) < 12)
    os.kill(queue.started[BATCH].process.pid, signal.SIGKILL)
    until(lambda: job.over)
    assert "The worker process ended while computing the study (killed" in str(job.error) and "resume" in str(job.error)
    job = begin_study(queue, folder)
    until(lambda: job.over)
    assert job.state == "done" and sum(done for done, _ in items.open_folder(folder).progress().values()) == 12


@pytest.mark.process
def test_a_panel_fills_is_cancelled_and_survives_a_killed_worker(queue, spec):
    ask = lambda text, probe=Continuation(n_tokens=64): measure.submit(queue, probe.request(spec, Prompt(text)), "me")
    long = ask("1 + 1 = ")
    until(lambda: queue.poll(long).result is not None)
    assert not long.result.complete and long.result.progress < 1
    queue.cancel(long, "me")
    until(lambda: long.over)
    assert long.state == "cancelled"
    victim, waiting = ask("2 + 2 = "), ask("3 + 3 = ", Contributions())
    until(lambda: queue.poll(victim).result is not None)
    os.kill(queue.started[INTERACTIVE].process.pid, signal.SIGKILL)
    until(lambda: [queue.poll(waiting)] and victim.over and waiting.over)
    assert isinstance(victim.error, WorkerDied) and waiting.state == "done"
    worker = queue.started[INTERACTIVE].process
    worker.stdin.close()
    assert worker.wait(60) == 0, "it ends with the app"
