"""The queue and its worker: order, sharing, cancelling, death, abandonment, and what a message may hold. Several
workers: where a request goes, what they share, and what one that dies takes with it."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hosted_app import until
from kept_cases import results
from small_models import computed

from ed_core.errors import QueueFull, WorkerDied
from ed_core.probes import Continuation, Contributions, LayerSkip, LogitLens
from ed_core.types import Prompt
from ed_core.work import jobs as jobs_module
from ed_core.work.estimate import Pace
from ed_core.work.jobs import Jobs
from ed_core.work.pool import Pool
from ed_core.work.resolve import resolve
from ed_core.work.worker import DEVICE_LOST, receive, send

pytestmark = pytest.mark.process
TEXT = "5 + 7 + 5 + 3 + 1 + 7 = "
LONG = Continuation(n_tokens=64)  # seconds in which to interfere, on a busy machine too


def worker() -> tuple[str, ...]:
    """The worker's command; it need not import torch. How it starts by itself, `test_server` sees."""
    return sys.executable, "-m", "ed_core.work.worker"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """One queue for all tests. Every block takes at least 0.1 s, so that there is time
    to interfere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("ED_TEST_STEP_DELAY", "0.1")
        made = Jobs(command=worker())
        yield made
        made.close()


def request(spec, probe=Contributions(), text=TEXT):
    return probe.request(spec, Prompt(text))


def test_whoever_looks_while_a_result_is_unpacked_gets_that_one(monkeypatch, spec):
    """Two sessions follow one job; in the end neither is left with a partial result."""
    job, begun, go, seen = jobs_module.Job(request(spec), {"me", "you"}), threading.Event(), threading.Event(), []
    complete = results()["contributions"]
    partial = replace(complete, complete=False)

    def unpack(data):
        if data == b"partial":
            return partial
        begun.set()
        assert go.wait(60)
        return complete

    monkeypatch.setattr(jobs_module, "unpack", unpack)
    job.arrived(b"partial")
    assert job.result is partial
    job.arrived(b"complete")
    both = [threading.Thread(target=lambda: seen.append(job.result)) for _ in range(2)]
    both[0].start()
    assert begun.wait(60)
    both[1].start()
    both[1].join(0.5)  # one that does not wait ends at once
    go.set()
    for one in both:
        one.join(60)
    assert len(seen) == 2 and all(one is complete for one in (*seen, job.result))


def test_a_job_fills_and_completes(jobs, spec):
    job = jobs.submit(request(spec), "me")
    versions, filled = set(), set()
    while not jobs.poll(job).over:  # as a page does: what nobody polls for 20 s is cancelled
        if job.result is not None:
            versions.add(job.result.version)
            filled.add(int((job.result["layer_cos"] == job.result["layer_cos"]).sum()))
        time.sleep(0.03)
    assert job.state == "done" and job.result.complete
    assert len(versions) >= 3 and len(filled) >= 3, "partial results, each with more filled than the last"
    assert job.result.provenance["identities"]["miss"] < 1e-5
    assert jobs.devices["cpu"] > 1_000_000, "what is free there, told by the worker when it is ready"


def test_a_chosen_model_is_open_before_anybody_asks_for_a_result(spec, monkeypatch, tmp_path):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    queue = Jobs(command=worker())
    try:
        queue.open_ahead(spec)
        until(lambda: queue.models[0] == 1)
        assert queue._pace.opening(spec) == 0 and queue.counts() == {"waiting": 0, "running": 0}
        job = queue.submit(request(spec), "me")
        until(lambda: queue.poll(job).over)
        assert job.state == "done" and queue.models[0] == 1, "the one that was open"
    finally:
        queue.close()


class Opens(Pace):
    """Stands in for `Pace`: how long a model takes to open."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.known = seconds, []

    def opening(self, spec):
        return self.seconds

    def opened(self, spec, seconds):
        self.known.append((spec, seconds))


def idle(monkeypatch, seconds: float | None = 3.0) -> tuple[Jobs, list]:
    """A queue whose worker has nothing to do, and what that is told."""
    queue, told = Jobs(warm=False, pace=Opens(seconds)), []
    monkeypatch.setattr(queue, "_worker", object())
    monkeypatch.setattr(queue, "_tell", told.append)
    return queue, told


@pytest.mark.parametrize("seconds, asks", [(3.0, True), (0.0, False), (None, False), (60.0, False)])
def test_nothing_is_opened_ahead_that_is_open_unknown_or_slow(monkeypatch, spec, seconds, asks):
    queue, told = idle(monkeypatch, seconds)
    queue.open_ahead(spec)
    queue.open_ahead(spec)
    assert [one["type"] for one in told] == ["open"] * asks, "once"


def test_a_model_that_cannot_be_opened_ahead_is_not_tried_again(monkeypatch, spec):
    queue, told = idle(monkeypatch)
    for is_open in (True, False):
        queue.open_ahead(spec)
        queue._heard({"type": "opened", "open": is_open, "seconds": 2.0, "models": [1, 7]}, b"")
    queue.open_ahead(spec)
    assert len(told) == 2 and queue._pace.known == [(spec, 2.0)] and queue.models == (1, 7)


def test_a_model_that_ends_the_worker_while_it_is_opened_ahead_is_not_tried_again(monkeypatch, spec):
    (queue, told), started = idle(monkeypatch), []
    monkeypatch.setattr(queue, "_dispatch", lambda: started.append(True))
    queue.open_ahead(spec)
    queue._died(-9)
    queue._ahead = None  # as a new worker begins
    queue.open_ahead(spec)
    assert len(told) == 1 and started


@pytest.mark.parametrize(
    "code, begun, state", [(DEVICE_LOST, False, "queued"), (DEVICE_LOST, True, "failed"), (-9, False, "failed")]
)
def test_a_job_that_a_worker_without_its_device_had_not_begun_waits_for_the_next(monkeypatch, spec, code, begun, state):
    """It was handed over when the job before had failed, and the process was about to end."""
    queue = Jobs(warm=False, pace=Opens(3.0))
    monkeypatch.setattr(queue, "_dispatch", lambda: None)
    queue._running = job = jobs_module.Job(request(spec), {"me"}, state="running", begun=begun)
    queue._died(code)
    assert job.state == state and (job in queue._queue) == (state == "queued") and queue._running is None


def test_nothing_is_opened_ahead_while_something_is_computed(monkeypatch, spec):
    queue, told = idle(monkeypatch)
    queue._running = jobs_module.Job(request(spec), {"me"})
    queue.open_ahead(spec)
    assert told == []


def test_equal_requests_share_a_job_and_a_cancel_leaves_the_other_viewer(jobs, spec):
    mine, theirs = jobs.submit(request(spec), "me"), jobs.submit(request(spec), "you")
    assert mine is theirs
    jobs.cancel(mine, "me")
    until(lambda: jobs.poll(theirs).over)
    assert theirs.state == "done"


def test_cancel_ends_a_running_job_and_the_next_one_runs(jobs, spec):
    long, waiting = jobs.submit(request(spec, LONG), "me"), jobs.submit(request(spec, LogitLens()), "me")
    until(lambda: jobs.poll(long).result is not None)
    assert jobs.ahead(waiting) == 1
    jobs.cancel(long, "me")
    until(lambda: jobs.poll(long).over)
    assert long.state == "cancelled" and long.result.progress < 1, "in the middle"
    until(lambda: jobs.poll(waiting).over)
    assert waiting.state == "done"


def test_a_cancelled_request_can_be_submitted_again_at_once(jobs, spec):
    asked = request(spec, Continuation(n_tokens=32))
    first = jobs.submit(asked, "me")
    until(lambda: jobs.poll(first).result is not None)
    jobs.cancel(first, "me")
    again = jobs.submit(asked, "me")
    assert again is not first
    until(lambda: jobs.poll(again).over)
    assert again.state == "done" and again.result.complete


def test_a_queued_job_is_cancelled_without_running(jobs, spec):
    running, queued = jobs.submit(request(spec), "me"), jobs.submit(request(spec, LogitLens()), "me")
    jobs.cancel(queued, "me")
    assert queued.state == "cancelled" and queued.result is None
    until(lambda: jobs.poll(running).over)


def test_a_killed_worker_is_reported_and_the_queue_goes_on(jobs, spec):
    victim, next_one = jobs.submit(request(spec, LONG), "me"), jobs.submit(request(spec), "me")
    until(lambda: jobs.poll(victim).result is not None)
    os.kill(jobs._worker.pid, signal.SIGKILL)
    until(lambda: jobs.poll(victim).over)
    assert victim.state == "failed" and "worker process ended" in str(victim.error) and "memory" in str(victim.error)
    until(lambda: jobs.poll(next_one).over)
    assert next_one.state == "done"


def test_a_job_nobody_polls_is_cancelled(jobs, spec, monkeypatch):
    monkeypatch.setattr(jobs_module, "ABANDONED_SECONDS", 3.0)
    left, watched = jobs.submit(request(spec, LONG), "gone"), jobs.submit(request(spec), "here")
    until(lambda: jobs.poll(watched).over and left.over)
    assert left.state == "cancelled" and watched.state == "done"


def test_a_job_on_somebodys_screen_goes_on_however_long_the_browser_is_busy(spec, monkeypatch, tmp_path):
    monkeypatch.setattr(jobs_module, "ABANDONED_SECONDS", 0.5)
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    monkeypatch.setenv("ED_TEST_STEP_DELAY", "0.1")
    open_pages = {"here"}
    queue = Jobs(command=worker(), on_screen=lambda job: bool(job.viewers & open_pages))
    try:
        stalled, left = queue.submit(request(spec, LONG), "here"), queue.submit(request(spec), "gone")
        until(lambda: left.over)
        time.sleep(2)
        assert left.state == "cancelled" and stalled.state in ("queued", "running") and stalled.cancelling is None
        open_pages.clear()
        until(lambda: stalled.over)
        assert stalled.state == "cancelled"
    finally:
        queue.close()


def test_a_refusal_arrives_as_itself_and_the_worker_lives(jobs, spec):
    refused = jobs.submit(request(spec, LayerSkip(), text="5"), "me")
    until(lambda: jobs.poll(refused).over)
    assert refused.state == "failed" and type(refused.error).__name__ == "PromptError"
    assert "at least 2" in str(refused.error)
    pid = jobs._worker.pid
    fine = jobs.submit(request(spec), "me")
    until(lambda: jobs.poll(fine).over)
    assert fine.state == "done" and jobs._worker.pid == pid


def test_the_worker_ends_when_the_app_does(jobs, spec):
    job = jobs.submit(request(spec, LONG), "me")
    until(lambda: jobs.poll(job).result is not None)
    worker = jobs._worker
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0


def test_a_worker_that_cannot_start_fails_the_job(spec):
    jobs = Jobs(command=(sys.executable, "-c", "raise SystemExit(3)"), warm=False)
    job = jobs.submit(request(spec), "me")
    until(lambda: jobs.poll(job).over)
    jobs.close()
    assert job.state == "failed" and "exit code 3" in str(job.error)


def test_a_worker_that_the_machine_does_not_start_fails_the_job_and_the_next_one_runs(spec, monkeypatch, tmp_path):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    queue = Jobs(warm=False, command=worker())
    try:
        with monkeypatch.context() as full:
            full.setattr(jobs_module.subprocess, "Popen", Mock(side_effect=OSError(12, "Cannot allocate memory")))
            first = queue.submit(request(spec), "me")
            assert first.state == "failed" and "cannot be started: Cannot allocate memory" in str(first.error)
            queue._look_after(0.5)
        second = queue.submit(request(spec), "me")
        until(lambda: queue.poll(second).over)
        assert second.state == "done"
    finally:
        queue.close()


def test_frames_survive_and_a_cut_one_is_the_end():
    stream = io.BytesIO()
    send(stream, {"type": "partial", "job": "ü"}, b"\0" * 1000)
    whole = stream.getvalue()
    assert receive(io.BytesIO(whole)) == ({"type": "partial", "job": "ü"}, b"\0" * 1000)
    assert receive(io.BytesIO(whole[:-1])) is None
    assert receive(io.BytesIO(whole[:5])) is None
    assert receive(io.BytesIO(b"")) is None


# ---------------------------------------------------------------- several workers


IDLE = (sys.executable, "-c", "import sys; sys.stdin.read()")  # a worker that never answers


class Known(Pace):
    """A request takes 4 s, and where its model is not open `opening` more; a model is open where it was asked for."""

    opening = 30.0

    def expect(self, request):
        here = request.models[0].identity() in getattr(self, "here", [])
        return 4.0 + (0.0 if here else self.opening)

    def nothing_open(self):
        """Workers here open nothing: what is open, a test says."""


@pytest.fixture
def two():
    made = Pool(2, Known, command=IDLE, warm=False, clock=lambda: 1.0)  # time stands still
    yield made
    made.close()


@pytest.fixture(scope="module")
def specs(small_folder):
    return resolve(str(small_folder)), resolve("ed-demo-8")


def asked(spec, text, probe=Contributions()):
    return probe.request(spec, Prompt(text))


def queues(made: Pool) -> list[list[str]]:
    return [sorted(job.request.prompts[0].text for job in queue.under_way()) for queue in made._queues]


def opened(made: Pool, i: int, spec) -> None:
    made._queues[i]._pace.here = [spec.identity()]


def test_a_request_goes_where_its_model_is_open_unless_waiting_takes_longer(two, specs):
    a, b = specs
    opened(two, 1, a)
    for text in "123456789":  # 4 s each: the ninth is done in 36 s behind the others, in 34 s by itself
        two.submit(asked(a, text), "me")
    assert queues(two) == [["9"], list("12345678")]
    two.submit(asked(b, "else"), "me")
    assert "else" in queues(two)[1], "what is open nowhere goes where there is less to do: 32 s, not 34"


def test_equal_requests_meet_wherever_they_are(two, specs):
    opened(two, 1, specs[0])
    first = two.submit(asked(specs[0], "1"), "me")
    opened(two, 0, specs[0])
    assert two.submit(asked(specs[0], "1"), "you") is first and first.viewers == {"me", "you"}
    two.cancel(first, "me")
    assert first.state == "running" and first.cancelling is None
    two.cancel(first, "you")
    assert first.cancelling


def test_there_is_trouble_only_where_no_worker_can_compute(two, monkeypatch):
    first, second = two._queues
    monkeypatch.setattr(first, "trouble", lambda: "the first is starting")
    monkeypatch.setattr(second, "trouble", lambda: "the second is starting")
    assert two.trouble() == "the second is starting"
    monkeypatch.setattr(first, "trouble", lambda: "")
    assert two.trouble() == ""


def test_the_limits_count_all_queues(two, specs, monkeypatch):
    monkeypatch.setenv("ED_MAX_JOBS_PER_VISITOR", "3")
    monkeypatch.setattr(Known, "opening", 0.0)
    for text in "123":
        two.submit(asked(specs[0], text), "me", "ann")
    assert sorted(map(len, queues(two))) == [1, 2], "they are spread over both"
    with pytest.raises(QueueFull, match="You have 3 jobs"):
        two.submit(asked(specs[0], "4"), "me", "ann")
    waits = two.submit(asked(specs[0], "4"), "me", "bob")
    assert two.ahead(waits) == 1
    assert two.counts() == {"waiting": 2, "running": 2}


def test_two_workers_compute_at_once_and_one_that_dies_loses_only_its_own(specs, monkeypatch, tmp_path):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    monkeypatch.setenv("ED_TEST_STEP_DELAY", "0.1")
    spec, made = specs[0], Pool(2, command=(sys.executable, "-m", "ed_core.work.worker"))
    try:
        until(lambda: not made.trouble() and len(made.devices) > 0, 120)
        jobs = [made.submit(asked(spec, text, Continuation(n_tokens=24)), "me") for text in ("5 + 7 = ", "3 + 1 = ")]
        until(lambda: all(made.poll(job).result is not None for job in jobs), 120)
        assert [job.state for job in jobs] == ["running"] * 2 and made.counts()["running"] == 2
        os.kill(made._queues[0]._worker.pid, signal.SIGKILL)
        until(lambda: all(made.poll(job).over for job in jobs), 120)
        assert isinstance(jobs[0].error, WorkerDied) and jobs[1].state == "done"
        assert (jobs[1].result["ids"] == computed(jobs[1].request)["ids"]).all()
    finally:
        made.close()
