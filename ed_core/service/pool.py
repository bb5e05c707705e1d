"""Several workers, each with a queue, models and a share of the machine of its own, that look like one queue; and
whether this installation can do its work now. Torch-free."""

from __future__ import annotations

import http.client
import os
import shutil
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import bounds, settings
from ..disk import why
from ..errors import EffectiveDepthError, SettingsError
from ..machine import gigabytes, share
from ..types import ModelSpec, Request, from_json
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

    def counts(self) -> dict[str, int]:
        """How many jobs wait, compute, and gave way, of all visitors."""
        each = [queue.counts() for queue in self._queues]
        return {name: sum(counts[name] for counts in each) for name in each[0]}

    @property
    def devices(self) -> dict[str, int]:
        """What a worker can use, with the most bytes that were free there when one started."""
        found: dict[str, int] = {}
        for queue in self._queues:
            for device, free in queue.devices.items():
                found[device] = max(free, found.get(device, 0))
        return found

    @property
    def models(self) -> tuple[int, int]:
        """Models that are open, one that is open twice counting twice, and their bytes."""
        numbers, sizes = zip(*(queue.models for queue in self._queues))
        return sum(numbers), sum(sizes)

    def trouble(self) -> str:
        """Why none of the workers can compute, "" where one can."""
        found = ""
        for queue in self._queues:
            if not (found := queue.trouble()):
                break
        return found

    def close(self) -> None:
        """End the workers."""
        for queue in self._queues:
            queue.close()

    def _of(self, job: Job) -> Jobs | None:
        return next((queue for queue in self._queues if queue.holds(job)), None)


# ---------------------------------------------------------------- whether this installation can do its work now

# What an orchestrator asks before it sends visitors.

ROOM = 200_000_000  # bytes that must be free where results and case studies are written


def problems(jobs: Jobs | Pool) -> list[str]:
    """What stands in the way, a line each; empty where all is well."""
    try:
        cache = settings.current().cache
    except SettingsError as error:
        return [str(error)]
    return [*filter(None, (jobs.trouble(), _folder_problem(cache)))]


def ask_problems(url: str) -> list[str]:
    """The same of a running server, over its `/ready`."""
    place = f"{url.rstrip('/')}/ready"
    if not place.lower().startswith(("http://", "https://")):  # the library opens files too, and waits for pipes
        return [f"{url!r} is no address of a server; give --url http://…"]
    try:
        with urllib.request.urlopen(place, timeout=10) as answer:
            body = answer.read(bounds.STATUS)
    except urllib.error.HTTPError as error:
        body = error.read(bounds.STATUS)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        told = getattr(reason, "strerror", None) or reason
        return [f"{place!r} does not answer ({told}); start it with python -m ed_ui.server, or give --url"]
    try:
        return list(map(str, from_json(body)["problems"]))
    except (ValueError, KeyError, TypeError):
        return [f"{place} is no readiness check; serve with python -m ed_ui.server"]


def _folder_problem(cache: Path) -> str:
    """Why nothing can be kept in the cache folder, or ""."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache) as handle:
            handle.write(b"ready?")
            os.fsync(handle.fileno())
        free = shutil.disk_usage(cache).free
    except OSError as error:
        return f"the cache folder cannot be written: {why(error)}"
    return (
        f"{gigabytes(free)} are free where results are kept, expected {gigabytes(ROOM)} at least" if free < ROOM else ""
    )
