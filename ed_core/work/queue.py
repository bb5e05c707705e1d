"""Jobs and the two lanes that compute them, as the app sees them. Torch-free, and safe from many threads at once.

The *interactive* lane takes jobs of seconds, first in, first out. The *batch* lane takes all others: a job there is a
series of items, and the lane computes one item of each waiting series in turn. Each lane has one worker process with
the models that it opened; the queue stays here, so that a worker that dies takes only the job with it that it computed.
Equal jobs are one job. A job that no open page shows is dropped, unless it is `kept`: a study goes on when its tab is
closed.

Memory: a lane opens a model where it fits next to the other lane's. Where it does not, the other lane gives up models
that have been idle for a minute; else the job waits, and says for what."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from .. import settings
from ..errors import BY_NAME, Cancelled, EffectiveDepthError, QueueFull, WorkerDied
from ..machine import ROOM, learn
from .turn import Work
from .worker import DEVICE_LOST, Process

INTERACTIVE, BATCH = "interactive", "batch"
ABANDONED_SECONDS = 20.0  # without a poll, on no open page
TICK_SECONDS = 0.5  # between two looks at the queue
RESTART_SECONDS = 5.0  # an idle worker that ended is started again, at most this often
STUCK_SECONDS = 10.0  # a cancelled job that has not stopped by then (a model half loaded) takes its worker down
IDLE_SECONDS = 60.0  # after which a lane gives a model up for the other one
RETRY_SECONDS = 2.0  # between two tries of a job that waits for memory
KEPT_JOBS = 64  # that are over
KNOWN_SERIES = 256  # of which the last turn is remembered


@dataclass(eq=False)
class Job:
    """One piece of work on its way. `key`: equal jobs have the same. `title`: what it computes, in a sentence on its
    end. `series`: whose turn it uses; `kept`: goes on when no page shows it; `read`: what its bytes are.
    `state`: queued, running, done, failed, cancelled."""

    work: Work
    arguments: tuple[Any, ...]
    key: str
    title: str
    series: str
    lane: str
    owner: str = ""
    kept: bool = False
    read: Callable[[bytes], Any] = bytes
    viewers: set[str] = field(default_factory=set)
    id: str = field(default_factory=lambda: uuid4().hex)
    state: str = "queued"
    stage: str = ""
    share: float = 0.0
    since: tuple[float, float] | None = None  # when progress was told first, and which share
    error: EffectiveDepthError | None = None
    unseen: float = 0.0  # seconds without a poll, on no open page
    cancelling: float | None = None
    begun: bool = False  # its worker knows it
    heard: bool = False  # its worker has said something of it
    not_before: float = 0.0
    _data: bytes = b""
    _result: Any = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def result(self) -> Any:
        """The newest result, partial or complete; read when somebody looks, once."""
        with self._reading:
            if self._data:
                data, self._data = self._data, b""
                self._result = self.read(data)
            return self._result

    def arrived(self, data: bytes) -> None:
        """Take the place of what came before."""
        with self._reading:
            self._data = data

    def seconds_left(self, now: float | None = None) -> float | None:
        """By the pace since progress was told first; None before there is one."""
        if self.since is None or self.over or self.share <= self.since[1]:
            return None
        then, share = self.since
        took = (time.monotonic() if now is None else now) - then
        return took * (1 - self.share) / (self.share - share)


class Worker(Protocol):
    """A lane's process, as the queue sees it."""

    def send(self, header: dict[str, Any], *payload: Any) -> None: ...

    def kill(self) -> None: ...


Starts = Callable[[str, Callable[[Worker, dict[str, Any], bytes], None], Callable[[Worker, int], None]], Worker]
"""Starts a lane's worker: its name, what is called with each message, and with the exit code. `OSError` where it cannot
be started."""


class Lane:
    """One worker and its jobs. Used under the queue's lock."""

    def __init__(self, name: str):
        self.name = name
        self.jobs: list[Job] = []  # that are not over, in the order in which they came
        self.current: Job | None = None  # the worker is at an item of it
        self.worker: Worker | None = None
        self.started = 0.0
        self.models: dict[str, int] = {}  # open in the worker: their bytes
        self._turns: dict[str, int] = {}  # by series: the number of its last turn
        self._number = 0

    def next(self, now: float) -> Job | None:
        """What has the next turn: what is to end; else the first job of the series that has waited longest for one."""
        able = [job for job in self.jobs if job.not_before <= now or job.cancelling]
        firsts: dict[str, Job] = {}
        for job in able:
            if job.cancelling:
                return job
            firsts.setdefault(job.series, job)
        return min(firsts.values(), key=lambda job: self._turns.get(job.series, 0), default=None)

    def takes(self, job: Job) -> None:
        """Its turn begins."""
        self._number += 1
        self.current = job
        self._turns.pop(job.series, None)
        self._turns[job.series] = self._number
        while len(self._turns) > KNOWN_SERIES:
            del self._turns[next(iter(self._turns))]


class Queue:
    """The jobs of a server. `warm` starts the interactive worker at once, so that importing torch is over before the
    first click. `on_screen`: whether an open page shows a job; a browser that is busy may not poll for minutes.
    `watch=False`: nobody looks after the queue but who calls `look_after`."""

    def __init__(
        self,
        start: Starts = Process,
        on_screen: Callable[[Job], bool] = lambda job: False,
        warm: bool = True,
        watch: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._start, self._on_screen, self._warm, self._clock = start, on_screen, warm, clock
        self._lock = threading.RLock()
        self._lanes = {name: Lane(name) for name in (INTERACTIVE, BATCH)}
        self._jobs: dict[str, Job] = {}
        self._withdrawn: dict[str, EffectiveDepthError] = {}
        self._closed = False
        self.devices: dict[str, int] = {}  # what a worker can use, and the bytes free there when it started
        if warm:
            with self._lock:
                self._start_worker(self._lanes[INTERACTIVE])
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
        """Queue a job, or join the one that does the same already. `viewer`: a browser session; `owner`: who sits
        there, whose series it is. `QueueFull` where the settings leave no room."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None or job.over or job.cancelling:
                self._require_room(owner or viewer)
                series = "" if lane == INTERACTIVE else key if kept else owner or viewer
                job = Job(work, arguments, key, title, series, lane, owner or viewer, kept, read)
                self._jobs[key] = job
                self._withdrawn.pop(key, None)
                self._lanes[lane].jobs.append(job)
                for old in [k for k, one in self._jobs.items() if one.over][:-KEPT_JOBS]:
                    del self._jobs[old]
            job.viewers.add(viewer)
            job.unseen = 0.0
            self._dispatch(self._lanes[job.lane])
            return job

    def find(self, key: str) -> Job | None:
        """The last job of this key, if it is remembered."""
        with self._lock:
            return self._jobs.get(key)

    def poll(self, job: Job) -> Job:
        """Say that somebody still looks at this job."""
        job.unseen = 0.0
        return job

    def cancel(self, job: Job, viewer: str | None = None) -> None:
        """This viewer no longer wants it, and it stops when nobody does; without a viewer it stops."""
        with self._lock:
            job.viewers.discard(viewer or "")
            if viewer is None or not job.viewers:
                self._cancel(job)

    def ahead(self, job: Job) -> int:
        """How many jobs of its lane came before this one and are not over."""
        with self._lock:
            jobs = self._lanes[job.lane].jobs
            return jobs.index(job) if job in jobs else 0

    def idle(self, lane: str) -> bool:
        """Whether a lane's worker runs and has nothing to do."""
        with self._lock:
            return self._lanes[lane].worker is not None and not self._lanes[lane].jobs

    def open_models(self, lane: str) -> set[str]:
        """The keys of the models that a lane's worker has open."""
        with self._lock:
            return set(self._lanes[lane].models)

    def withdrawn(self, key: str) -> EffectiveDepthError | None:
        """Why a result that was computed here counts no more: the identities that it rested on do not hold."""
        return self._withdrawn.get(key)

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            self._closed = True
            for lane in self._lanes.values():
                if lane.worker is not None:
                    lane.worker.kill()

    def look_after(self, passed: float) -> None:
        """Drop what no page shows, end a worker that does not stop when told, start one again that ended, and go on
        with what waited for memory. `passed`: seconds since the last look."""
        with self._lock:
            now = self._clock()
            for lane in self._lanes.values():
                for job in list(lane.jobs):
                    job.unseen = 0.0 if job.kept or self._on_screen(job) else job.unseen + min(passed, 2 * TICK_SECONDS)
                    if job.unseen > ABANDONED_SECONDS:
                        self._cancel(job)
                one = lane.current
                if one and one.cancelling and now - one.cancelling > STUCK_SECONDS and lane.worker is not None:
                    lane.worker.kill()
                wanted = self._warm and lane.name == INTERACTIVE and not self._closed
                if wanted and lane.worker is None and now - lane.started > RESTART_SECONDS:
                    self._start_worker(lane)
                self._dispatch(lane)

    # ---------------------------------------------------------------- under the lock

    def _require_room(self, owner: str) -> None:
        allowed, jobs = settings.current(), [job for lane in self._lanes.values() for job in lane.jobs]
        own = sum(job.owner == owner and job.cancelling is None for job in jobs)
        if 0 < allowed.max_jobs_per_visitor <= own:
            raise QueueFull(
                f"You have {own} jobs running and waiting, as many as one visitor may (max_jobs_per_visitor); wait "
                "until one is done, or cancel one."
            )
        if allowed.max_jobs <= len(jobs):
            raise QueueFull(
                f"{len(jobs)} jobs are running and waiting, as many as this installation takes (max_jobs); try again "
                "in a minute."
            )

    def _dispatch(self, lane: Lane) -> None:
        """Give the worker its next item where it has none."""
        if self._closed or lane.current is not None or (job := lane.next(self._clock())) is None:
            return
        if job.cancelling and not job.begun:
            return self._end(job, "cancelled", Cancelled("The computation was cancelled before it began."))
        if lane.worker is None and (why := self._start_worker(lane)):
            return self._end(job, "failed", WorkerDied(why))
        assert lane.worker is not None
        lane.takes(job)
        payload = () if job.begun else (job.work, job.arguments)
        job.begun, job.state = True, "running"
        lane.worker.send({"type": "step", "job": job.id}, *payload)

    def _cancel(self, job: Job) -> None:
        lane = self._lanes[job.lane]
        if job.over or job.cancelling:
            return
        job.cancelling = self._clock()
        if job.begun and lane.worker is not None:
            lane.worker.send({"type": "cancel", "job": job.id})
        elif not job.begun:
            self._end(job, "cancelled", Cancelled("The computation was cancelled before it began."))
        self._dispatch(lane)

    def _end(self, job: Job, state: str, error: EffectiveDepthError | None = None) -> None:
        lane = self._lanes[job.lane]
        lane.jobs.remove(job)
        if lane.current is job:
            lane.current = None
        job.state, job.error = state, error
        self._dispatch(lane)

    def _start_worker(self, lane: Lane) -> str:
        """Why that cannot be, for instance for want of memory; "" where it can."""
        lane.started, lane.models = self._clock(), {}
        try:
            lane.worker = self._start(lane.name, self._heard, self._died)
        except OSError as error:
            return f"The worker process cannot be started: {error.strerror or error}. Try again in a moment."
        return ""

    def _lane_of(self, worker: Worker) -> Lane | None:
        return next((lane for lane in self._lanes.values() if lane.worker is worker), None)

    def _heard(self, worker: Worker, header: dict[str, Any], body: bytes) -> None:
        """One message of a worker."""
        with self._lock:
            if (lane := self._lane_of(worker)) is None:
                return
            kind = header["type"]
            lane.models = header.get("models", lane.models)
            if kind == "ready":
                learn(header["totals"])
                self.devices = {d: max(free, self.devices.get(d, 0)) for d, free in header["devices"].items()}
            elif kind == "withdrawn":
                self._withdrawn |= dict.fromkeys(header["keys"], _error(header))
            elif kind == "gave":
                self._wake()
            elif lane.current is not None and lane.current.id == header.get("job"):
                self._follow(lane, lane.current, header, body)

    def _follow(self, lane: Lane, job: Job, header: dict[str, Any], body: bytes) -> None:
        """What a worker says of the job that has its turn."""
        kind, job.heard = header["type"], True
        if kind == "stage":
            job.stage = header["text"]
        elif kind == "progress":
            job.share, job.stage = header["share"], header["what"] or job.stage
            job.since = job.since or (self._clock(), job.share)
            if body:
                job.arrived(body)
        elif kind == "item":
            lane.current = None
            self._dispatch(lane)
        elif kind == "full" and lane.worker is not None:
            if self._may_wait(lane, job, header):
                lane.current = None
                self._dispatch(lane)
            else:
                lane.worker.send({"type": "step", "job": job.id, "room": False})
        elif kind == "done":
            job.arrived(body)
            job.share = 1.0
            self._end(job, "done")
        elif kind == "failed":
            error = _error(header)
            self._end(job, "cancelled" if isinstance(error, Cancelled) else "failed", error)

    def _may_wait(self, lane: Lane, job: Job, header: dict[str, Any]) -> bool:
        """A model does not fit: whether it would without those of the other lane, which is then asked to give up what
        is idle."""
        other = self._lanes[BATCH if lane.name == INTERACTIVE else INTERACTIVE]
        held = sum(other.models.values())
        if other.worker is None or not held or header["needs"] > ROOM * (header["free"] + held):
            return False
        job.stage = f"waiting for memory that models of the {other.name} lane hold"
        job.not_before = self._clock() + RETRY_SECONDS
        other.worker.send({"type": "give", "idle": IDLE_SECONDS})
        return True

    def _wake(self) -> None:
        """Memory became free: who waits for some tries again."""
        for lane in self._lanes.values():
            for job in lane.jobs:
                job.not_before = 0.0
            self._dispatch(lane)

    def _died(self, worker: Worker, code: int) -> None:
        """A worker ended, and with it the job that it computed. What it had begun and left for others' turns begins
        again: a study goes on from its folder."""
        with self._lock:
            if (lane := self._lane_of(worker)) is None:
                return
            lane.worker, lane.models, job, lane.current = None, {}, lane.current, None
            for one in lane.jobs:
                one.begun, one.state = False, "queued"
            if self._closed:
                return
            if job is not None and (job.heard or code != DEVICE_LOST or job.cancelling):
                self._end(job, *_why_it_ended(job, code))
            self._wake()

    def _watch(self) -> None:
        before = self._clock()
        while not self._closed:
            time.sleep(TICK_SECONDS)
            now = self._clock()
            self.look_after(now - before)
            before = now


def _error(header: dict[str, Any]) -> EffectiveDepthError:
    return BY_NAME.get(header["error"], EffectiveDepthError)(header["message"])


def _why_it_ended(job: Job, code: int) -> tuple[str, EffectiveDepthError]:
    if job.cancelling:
        return "cancelled", Cancelled("The computation was cancelled.")
    causes = {-signal.SIGKILL: "killed, most likely for want of memory", DEVICE_LOST: "its device failed"}
    kept = "What is computed stays: resume it" if job.kept else "If it happens again, use a shorter prompt"
    return "failed", WorkerDied(
        f"The worker process ended while computing {job.title} ({causes.get(code, f'exit code {code}')}); a new one is "
        f"starting. {kept}, or take a smaller model."
    )
