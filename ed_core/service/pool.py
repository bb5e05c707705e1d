"""Several workers, each with a queue, models and a share of the machine of its own, that look like one queue.
Torch-free."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..errors import EffectiveDepthError
from ..machine import share
from ..types import ModelSpec, Request
from .estimate import Pace
from .jobs import Job, Jobs
from .turns import Place


class Pool:
    """`n` queues. A request joins the job that computes it already, in whichever queue; else it goes where it will be
    done first by what is known, the opening of its model included where that is not open. So models stay where they
    are open, unless waiting for them takes longer than opening them once more. A worker that dies takes what it
    computed with it and nothing else. `pace` makes what each queue knows of times; `options` are those of `Jobs`."""

    def __init__(self, n: int, pace: Callable[[], Pace] = Pace, **options: Any):
        self._lock = threading.Lock()  # one submission at a time: two of one request must meet
        self._queues = [Jobs(pace=pace(), environment=share(i, n), **options) for i in range(n)]

    def submit(self, request: Request, viewer: str, visitor: str = "") -> Job:
        """As `Jobs.submit`; the room that the settings leave is that of all queues together."""
        with self._lock:
            queue = next((one for one in self._queues if one.computes(request)), None)
            queue = queue or min(self._queues, key=lambda one: one.done_in(request))
            beside = [job for other in self._queues if other is not queue for job in other.under_way()]
            return queue.submit(request, viewer, visitor, beside)

    def withdrawn(self, key: str) -> EffectiveDepthError | None:
        """As `Jobs.withdrawn`, of whichever queue."""
        return next(filter(None, (queue.withdrawn(key) for queue in self._queues)), None)

    def open_ahead(self, spec: ModelSpec) -> None:
        """As `Jobs.open_ahead`, in one queue that has nothing to do."""
        if idle := next((queue for queue in self._queues if not queue.under_way()), None):
            idle.open_ahead(spec)

    def poll(self, job: Job) -> Job:
        """Say that somebody still looks at this job."""
        return self._queues[0].poll(job)

    def place(self, job: Job) -> Place:
        """Its place in its own queue."""
        queue = self._of(job)
        return queue.place(job) if queue else Place(0, 0.0)

    def cancel(self, job: Job, viewer: str) -> None:
        """This viewer no longer wants it; it stops when nobody does."""
        if queue := self._of(job):
            queue.cancel(job, viewer)

    @property
    def devices(self) -> dict[str, int]:
        """What a worker can use, with the most bytes that were free there when one started."""
        found: dict[str, int] = {}
        for queue in self._queues:
            for device, free in queue.devices.items():
                found[device] = max(free, found.get(device, 0))
        return found

    def close(self) -> None:
        """End the workers."""
        for queue in self._queues:
            queue.close()

    def _of(self, job: Job) -> Jobs | None:
        return next((queue for queue in self._queues if queue.holds(job)), None)
