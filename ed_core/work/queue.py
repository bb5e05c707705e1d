"""Jobs and the two lanes that compute them, as the app sees them. Torch-free and thread-safe.

The *interactive* lane takes jobs of seconds, first in, first out. The *batch* lane takes all others: a job there is a
series of items, and the lane computes one item of each waiting series in turn. Each lane has one worker process with
the models that it opened. The queue is in the app, so a worker that dies fails only the job that it was computing.
Equal jobs are one job. A job that no page polls is dropped, unless it is `kept`: a study goes on without its tab.

Memory: a lane opens a model where it fits next to the other lane's. Where it does not, the other lane closes models
that have been idle for a minute, and the job waits and says for what."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ..errors import BY_NAME, Cancelled, EffectiveDepthError, WorkerDied
from ..machine import learn
from .turn import Work
from .worker import DEVICE_LOST, Process

INTERACTIVE, BATCH = "interactive", "batch"
ABANDONED_SECONDS = 90.0  # without a poll: a tab in the background polls once a minute
TICK_SECONDS = 0.5  # between two looks at the queue
START_SECONDS = 3.0  # without a job, the interactive worker is started so long after the app, or after it ended
STUCK_SECONDS = 10.0  # a cancelled job that has not stopped by then (a model half loaded) takes its worker down
IDLE_SECONDS = 60.0  # after which a lane gives a model up for the other one
RETRY_SECONDS = 2.0  # between two tries of a job that waits for memory
KEPT_JOBS = 64  # that are over


@dataclass(eq=False)
class Job:
    """A piece of work. `key`: the same for equal jobs. `title`: what it computes, for sentences. `series`: jobs of one
    series share a turn. `kept`: goes on when no page shows it. `read`: from its bytes to its result. `state`: queued,
    running, done, failed, cancelled. `not_before`, `room`: when a job that lacked memory is tried again, and whether
    some may have become free."""

    work: Work
    arguments: tuple[Any, ...]
    key: str
    title: str
    series: str
    lane: str
    kept: bool = False
    read: Callable[[bytes], Any] = bytes
    viewers: set[str] = field(default_factory=set)
    id: str = field(default_factory=lambda: uuid4().hex)
    state: str = "queued"
    stage: str = ""
    share: float = 0.0
    error: EffectiveDepthError | None = None
    cancelling: float | None = None  # when it was cancelled
    polled: float = 0.0
    not_before: float = 0.0
    room: bool = True
    _first: tuple[float, float] | None = None  # the time and share of its first progress
    _data: bytes = b""
    _result: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        """Whether the job is done, failed or cancelled."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def result(self) -> Any:
        """The newest result, partial or complete; None before the first. Read from its bytes once, when asked for."""
        with self._lock:
            if self._data:
                data, self._data = self._data, b""
                self._result = self.read(data)
            return self._result

    def advance(self, now: float, share: float | None, stage: str, data: bytes) -> None:
        """Store what the worker reports: share (0 to 1, None for unchanged), stage, and the bytes of a result."""
        self.stage = stage or self.stage
        if share is not None:
            self.share, self._first = share, self._first or (now, share)
        if data:
            with self._lock:
                self._data = data

    def seconds_left(self, now: float | None = None) -> float | None:
        """Return the seconds until the job's end, by the pace since its first progress; None while it has no pace."""
        if self._first is None or self.over or self.share <= self._first[1]:
            return None
        then, share = self._first
        took = (time.monotonic() if now is None else now) - then
        return took * (1 - self.share) / (self.share - share)


@dataclass
class Lane:
    """One worker and its jobs that are not over, in the order of arrival. `current`: the job of the item that the
    worker computes. `models`: bytes of the models open in the worker, by key. `turns`: the number of each series' last
    turn."""

    name: str
    jobs: list[Job] = field(default_factory=list)
    current: Job | None = None
    worker: Any = None
    started: float = 0.0
    models: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)

    def next(self, now: float) -> Job | None:
        """Return the job of the next turn: a cancelled one, else of the series that waited longest; None without."""
        able = [job for job in self.jobs if job.not_before <= now or job.cancelling]
        return min(able, key=lambda job: (not job.cancelling, self.turns.get(job.series, 0)), default=None)


class Queue:
    """The jobs of a server. `start` makes a lane's worker (`worker.Process`). `warm`: start the interactive worker
    without a job, a little later than the app, so that torch is imported before the first click. `watch=False`: the
    caller calls `look_after`."""

    def __init__(
        self,
        start: Callable[..., Any] = Process,
        warm: bool = True,
        watch: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._start, self._warm, self._clock = start, warm, clock
        self._lock = threading.RLock()
        self._lanes = {name: Lane(name, started=clock()) for name in (INTERACTIVE, BATCH)}
        self._jobs: dict[str, Job] = {}
        self._closed = False
        self.devices: dict[str, int] = {}  # what a worker can use, and the bytes free there when it started
        if watch:
            threading.Thread(target=self._watch, daemon=True).start()

    # ---------------------------------------------------------------- what pages call

    def submit(
        self,
        work: Work,
        *arguments: Any,
        key: str,
        title: str,
        lane: str = BATCH,
        viewer: str = "",
        owner: str = "",
        kept: bool = False,
        read: Callable[[bytes], Any] = bytes,
    ) -> Job:
        """Queue a job and return it, or return the equal one that is under way. `viewer`: a browser session; `owner`:
        the person, who has one turn for all their jobs. The rest as in `Job`."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None or job.over or job.cancelling:
                series = "" if lane == INTERACTIVE else key if kept else owner or viewer
                job = self._jobs[key] = Job(work, arguments, key, title, series, lane, kept, read)
                self._lanes[lane].jobs.append(job)
                for old in [k for k, one in self._jobs.items() if one.over][:-KEPT_JOBS]:
                    del self._jobs[old]
            job.viewers.add(viewer)
            self._dispatch(self._lanes[job.lane])
            return self.poll(job)

    def find(self, key: str) -> Job | None:
        """Return the last job of this key, or None."""
        with self._lock:
            return self._jobs.get(key)

    def poll(self, job: Job) -> Job:
        """Return the job, noted as shown by a page now."""
        job.polled = self._clock()
        return job

    def cancel(self, job: Job, viewer: str | None = None) -> None:
        """Stop a job: without a `viewer` at once, with one when it was the job's last viewer."""
        with self._lock:
            job.viewers.discard(viewer or "")
            if viewer is None or not job.viewers:
                self._cancel(job)

    def ahead(self, job: Job) -> int:
        """Return the number of jobs of the job's lane that came before it and are not over."""
        with self._lock:
            jobs = self._lanes[job.lane].jobs
            return jobs.index(job) if job in jobs else 0

    def idle(self, lane: str) -> bool:
        """Return whether a lane's worker runs and has no job."""
        with self._lock:
            return self._lanes[lane].worker is not None and not self._lanes[lane].jobs

    def open_models(self, lane: str) -> set[str]:
        """Return the keys of the models that a lane's worker has open."""
        with self._lock:
            return set(self._lanes[lane].models)

    def close(self) -> None:
        """End the workers for good."""
        with self._lock:
            self._closed = True
            for lane in self._lanes.values():
                if lane.worker is not None:
                    lane.worker.kill()

    def look_after(self) -> None:
        """Drop jobs that no page shows, kill a worker that goes on with a cancelled job, restart one that ended, and
        retry jobs that waited for memory. Called every `TICK_SECONDS`."""
        with self._lock:
            now = self._clock()
            for lane in self._lanes.values():
                for job in [job for job in lane.jobs if not job.kept and now - job.polled > ABANDONED_SECONDS]:
                    self._cancel(job)
                since = lane.current and lane.current.cancelling
                if since and now - since > STUCK_SECONDS:
                    lane.worker.kill()
                wanted = self._warm and lane.name == INTERACTIVE and not self._closed
                if wanted and lane.worker is None and now - lane.started > START_SECONDS:
                    self._start_worker(lane)
                self._dispatch(lane)

    def _watch(self) -> None:
        """Call `look_after` every `TICK_SECONDS` until the queue is closed."""
        while not self._closed:
            time.sleep(TICK_SECONDS)
            self.look_after()

    # ---------------------------------------------------------------- under the lock

    def _dispatch(self, lane: Lane) -> None:
        """Give an idle worker its next item."""
        if self._closed or lane.current is not None or (job := lane.next(self._clock())) is None:
            return
        if lane.worker is None and (why := self._start_worker(lane)):
            return self._end(job, "failed", WorkerDied(why))
        lane.current = job
        lane.turns[job.series] = max(lane.turns.values(), default=0) + 1
        payload = () if job.state == "running" else (job.work, job.arguments)
        job.state = "running"
        lane.worker.send({"type": "step", "job": job.id, "room": job.room}, *payload)

    def _cancel(self, job: Job) -> None:
        """Cancel a job that is not over: a running one stops at its next block."""
        if job.over or job.cancelling:
            return
        job.cancelling = self._clock()
        if job.state == "running":
            self._lanes[job.lane].worker.send({"type": "cancel", "job": job.id})
            self._dispatch(self._lanes[job.lane])
        else:
            self._end(job, "cancelled", Cancelled("The computation was cancelled before it began."))

    def _end(self, job: Job, state: str, error: EffectiveDepthError | None = None) -> None:
        """Take a job off its lane with its last state, and give the worker its next item."""
        lane = self._lanes[job.lane]
        lane.jobs.remove(job)
        if lane.current is job:
            lane.current = None
        if not lane.jobs:
            lane.turns.clear()
        job.state, job.error = state, error
        self._dispatch(lane)

    def _start_worker(self, lane: Lane) -> str:
        """Start a lane's worker; return why that failed, or ""."""
        lane.started = self._clock()
        try:
            lane.worker = self._start(lane.name, self._on_message, self._on_exit)
        except OSError as error:
            return f"The worker process cannot be started: {error.strerror or error}. Try again in a moment."
        return ""

    def _on_message(self, worker: Any, header: dict[str, Any], body: bytes) -> None:
        """Take a message of a worker: what it can use, the models it has open, or news of its job."""
        with self._lock:
            lane = next((lane for lane in self._lanes.values() if lane.worker is worker), None)
            if lane is None:
                return
            lane.models = header.get("models", lane.models)
            if header["type"] == "ready":
                learn(header["totals"])
                self.devices = {d: max(free, self.devices.get(d, 0)) for d, free in header["devices"].items()}
            elif lane.current is not None and lane.current.id == header.get("job"):
                self._follow(lane, lane.current, header, body)

    def _follow(self, lane: Lane, job: Job, header: dict[str, Any], body: bytes) -> None:
        """Apply a worker's message about the current job: progress, an item done, the end, or a failure."""
        kind = header["type"]
        if kind == "progress":
            job.advance(self._clock(), header.get("share"), header["what"], body)
        elif kind == "item":
            if header["full"]:
                self._ask_for_memory(lane, job)
            lane.current = None
            self._dispatch(lane)
        elif kind == "done":
            job.advance(self._clock(), 1.0, "", body)
            self._end(job, "done")
        elif kind == "failed":
            error = BY_NAME[header["error"]](header["message"])
            self._end(job, "cancelled" if isinstance(error, Cancelled) else "failed", error)

    def _ask_for_memory(self, lane: Lane, job: Job) -> None:
        """Let a job with a model that does not fit wait while the other lane closes idle models; where that has none,
        the job's next turn fails (`room`)."""
        other = self._lanes[BATCH if lane.name == INTERACTIVE else INTERACTIVE]
        job.room = bool(other.models)
        if job.room:
            job.stage = f"waiting for memory that models of the {other.name} lane hold"
            job.not_before = self._clock() + RETRY_SECONDS
            other.worker.send({"type": "give", "idle": IDLE_SECONDS})

    def _on_exit(self, worker: Any, code: int) -> None:
        """Fail the job that a worker was computing when it ended. The lane's other jobs begin again."""
        with self._lock:
            lane = next((lane for lane in self._lanes.values() if lane.worker is worker), None)
            if lane is None or self._closed:
                return
            lane.worker, lane.models, current, lane.current = None, {}, lane.current, None
            for job in lane.jobs:
                job.state = "queued"
            for job in [job for job in lane.jobs if job.cancelling or job is current]:
                lane.jobs.remove(job)
                job.state = "cancelled" if job.cancelling else "failed"
                job.error = Cancelled("The computation was cancelled.") if job.cancelling else _worker_died(job, code)
            self._dispatch(lane)


def _worker_died(job: Job, code: int) -> WorkerDied:
    """Return the error of a job during which its worker ended. `code`: the exit code."""
    causes = {-signal.SIGKILL: "killed, most likely for want of memory", DEVICE_LOST: "its device failed"}
    advice = "What is computed stays: resume it" if job.kept else "If it happens again, use a shorter prompt"
    return WorkerDied(
        f"The worker process ended while computing {job.title} ({causes.get(code, f'exit code {code}')}); a new one is "
        f"starting. {advice}, or take a smaller model."
    )
