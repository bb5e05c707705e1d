"""A page's jobs: handed to the queue a few at a time, cancelled whole, their troubles told once."""

from __future__ import annotations

import pytest

from ed_core.errors import Cancelled, PromptError
from ed_core.probes import Contributions
from ed_core.service.jobs import Job
from ed_core.types import ModelSpec, Prompt
from ed_ui import running


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


def test_a_cancel_takes_back_what_was_not_handed_over(queue):
    made = batch()
    running.submit(made)
    running.cancel(made)
    assert running.poll(made) and not made.running and len(queue.all) == 4
    assert running.troubles(made) == {}, "who cancels knows"
    assert len(made.missing) == 10


def test_a_trouble_is_told_once_with_the_prompts_it_befell(queue):
    made = batch(3)
    running.submit(made)
    for job, error in zip(queue.all, (PromptError("too long"), None, PromptError("too long"))):
        job.state, job.error = "failed" if error else "done", error
    assert running.poll(made)
    assert running.troubles(made) == {"too long": ["0", "2"]}
