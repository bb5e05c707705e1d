"""Several workers: where a request goes, what they share, and what one that dies takes with it."""

from __future__ import annotations

import os
import signal
import sys

import prepared
import pytest
from hosted_app import until
from small_models import computed

from ed_core.errors import QueueFull, WorkerDied
from ed_core.probes import Continuation, Contributions
from ed_core.service.estimate import Expected, Pace
from ed_core.service.pool import Pool
from ed_core.service.resolve import resolve
from ed_core.types import Prompt

IDLE = (sys.executable, "-c", "import sys; sys.stdin.read()")  # a worker that never answers


class Known(Pace):
    """A request takes 4 s, and where its model is not open `opening` more; a model is open where it was asked for."""

    opening = 30.0

    def expect(self, request):
        here = request.models[0].identity() in getattr(self, "here", [])
        return Expected(4.0 + (0.0 if here else self.opening))

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
    assert two.place(waits).ahead == 1 and two.place(waits).seconds == 4.0
    assert two.counts() == {"waiting": 2, "running": 2, "gave way": 0}


def test_two_workers_compute_at_once_and_one_that_dies_loses_only_its_own(specs, monkeypatch, tmp_path):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    monkeypatch.setenv("ED_TEST_STEP_DELAY", "0.1")
    spec, made = specs[0], Pool(2, command=(prepared.python(), "-m", "ed_core.service.worker"))
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
