"""The app's side of the worker: a queue of jobs, their progress, cancelling. Torch-free, and safe from many threads at
once.

The queue lives here and the worker holds only the running job, so that a worker that dies takes nothing else with it.
Equal requests share a job. A job that nobody has polled for 20 s, and that is on nobody's screen, is cancelled: its tab
is closed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from .. import settings
from ..errors import BY_NAME, Cancelled, EffectiveDepthError, QueueFull, WorkerDied
from ..results.wire import unpack
from ..types import ProbeResult, Request
from . import admission
from .worker import receive, send

ABANDONED_SECONDS = 20.0
RESTART_SECONDS = 5.0  # an idle worker that ended is started again, at most this often
ANSWER_SECONDS = 3.0  # how long a worker may take to answer a ping
STUCK_SECONDS = 10.0  # a cancelled job that has not stopped by then (a model half loaded) takes its worker down


@dataclass
class Job:
    """One request on its way. `state`: queued, running, done, failed, cancelled."""

    request: Request
    viewers: set[str]
    asked_by: str = ""  # the visitor it counts for: whoever joins later adds nothing to compute
    # of this submission: a late cancel must not hit the next one of the same request
    id: str = field(default_factory=lambda: uuid4().hex)
    state: str = "queued"
    stage: str = ""
    error: EffectiveDepthError | None = None
    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None
    polled: float = field(default_factory=time.monotonic)
    cancelling: float | None = None
    _bytes: bytes = b""
    _result: ProbeResult | None = None
    _unpacking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def result(self) -> ProbeResult | None:
        """The newest result, partial or complete; unpacked when somebody looks. Whoever looks meanwhile waits for it:
        the one before it would stay on their page."""
        with self._unpacking:
            if self._bytes:
                data, self._bytes = self._bytes, b""
                self._result = unpack(data)
            return self._result

    def arrived(self, packed: bytes) -> None:
        """Take the place of what came before."""
        with self._unpacking:
            self._bytes = packed

    def seconds_left(self) -> float | None:
        """From the share done so far; None before there is one."""
        result = self.result
        if self.started is None or result is None or result.progress <= 0:
            return None
        return (time.monotonic() - self.started) * (1 - result.progress) / result.progress


class Jobs:
    """Queue in front of one worker process. `warm=True` starts it at once, so that importing torch is over before the
    first click. `on_screen`: whether a page that shows a job is open; a browser that is busy, or a tab in the
    background, may not poll for minutes."""

    def __init__(
        self,
        warm: bool = True,
        command: tuple[str, ...] = (sys.executable, "-m", "ed_core.service.worker"),
        on_screen: Callable[[Job], bool] = lambda job: False,
    ):
        self._on_screen = on_screen
        # what the worker can use, with the bytes free there when it started; empty until it is ready
        self.devices: dict[str, int] = {}
        self._command = command
        self._lock = threading.RLock()
        self._queue: deque[Job] = deque()
        self._jobs: dict[str, Job] = {}
        self._running: Job | None = None
        self._worker: subprocess.Popen | None = None
        self._closed, self._warm = False, warm
        self._ready, self._started, self._pong = False, 0.0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        if warm:
            with self._lock:
                self._start_worker()

    def submit(self, request: Request, viewer: str, visitor: str = "") -> Job:
        """Queue a request, or join the job that computes it already. `viewer` is a session, `visitor` who sits there:
        the login, else the session too. `NotAllowed` and `QueueFull` where the settings do not let the request in."""
        admission.request(request)
        visitor = visitor or viewer
        with self._lock:
            job = self._jobs.get(request.key)
            if job is None or job.over or job.cancelling:
                self._require_room(visitor)
                job = self._jobs[request.key] = Job(request, {viewer}, visitor)
                self._queue.append(job)
                self._forget_old()
            job.viewers.add(viewer)
            job.polled = time.monotonic()
            self._dispatch()
            return job

    def poll(self, job: Job) -> Job:
        """Say that somebody still looks at this job."""
        job.polled = time.monotonic()
        return job

    def position(self, job: Job) -> int:
        """How many jobs run or wait before this one."""
        with self._lock:
            return self._queue.index(job) + (self._running is not None) if job in self._queue else 0

    def cancel(self, job: Job, viewer: str) -> None:
        """This viewer no longer wants it; it stops when nobody does."""
        with self._lock:
            job.viewers.discard(viewer)
            if not job.viewers:
                self._cancel(job)

    def trouble(self) -> str:
        """Why this queue can compute nothing at the moment, "" where it can: the worker is asked, and answers even
        while it computes."""
        with self._lock:
            if self._worker is None or not self._ready:
                return "the worker is starting"
            self._pong.clear()
            self._tell({"type": "ping"})
        return "" if self._pong.wait(ANSWER_SECONDS) else f"the worker does not answer within {ANSWER_SECONDS:g} s"

    def close(self) -> None:
        """End the worker; for tests and an app that stops."""
        with self._lock:
            self._closed = True
            if self._worker is not None:
                self._worker.kill()

    # ---------------------------------------------------------------- under the lock

    def _under_way(self) -> list[Job]:
        return [*self._queue, *filter(None, [self._running])]

    def _require_room(self, visitor: str) -> None:
        allowed, jobs = settings.current(), self._under_way()
        own = sum(job.asked_by == visitor for job in jobs)
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

    def _cancel(self, job: Job) -> None:
        if job in self._queue:
            self._queue.remove(job)
            self._end(job, "cancelled", Cancelled("The computation was cancelled before it began."))
        elif job is self._running and job.cancelling is None:
            job.cancelling = time.monotonic()
            self._tell({"type": "cancel", "job": job.id})

    def _end(self, job: Job, state: str, error: EffectiveDepthError | None = None) -> None:
        job.state, job.error = state, error
        if self._running is job:
            self._running = None

    def _dispatch(self) -> None:
        if self._running is not None or not self._queue or self._closed:
            return
        if self._worker is None:
            self._start_worker()
        job = self._running = self._queue.popleft()
        job.state, job.started = "running", time.monotonic()
        self._tell({"type": "run", "job": job.id, "request": job.request.to_json()})

    def _tell(self, header: dict) -> None:
        with contextlib.suppress(OSError, AttributeError):  # it just died: its reader reports that
            send(self._worker.stdin, header)

    def _start_worker(self) -> None:
        env = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        self._ready, self._started = False, time.monotonic()
        self._worker = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        threading.Thread(target=self._read, args=(self._worker,), daemon=True).start()

    def _forget_old(self, keep: int = 64) -> None:
        for key in [k for k, job in self._jobs.items() if job.over][:-keep]:
            del self._jobs[key]

    # ---------------------------------------------------------------- threads

    def _read(self, worker: subprocess.Popen) -> None:
        """Everything one worker says, until it ends."""
        while (frame := receive(worker.stdout)) is not None:
            header, body = frame
            with self._lock:
                job = self._running
                if header["type"] == "ready":
                    self.devices, self._ready = header["devices"], True
                elif header["type"] == "pong":
                    self._pong.set()
                if job is None or header.get("job") != job.id:
                    continue
                if header["type"] == "stage":
                    job.stage = header["text"]
                elif header["type"] == "partial":
                    job.arrived(body)
                elif header["type"] == "done":
                    job.arrived(body)
                    self._end(job, "done")
                elif header["type"] == "failed":
                    error = BY_NAME.get(header["error"], EffectiveDepthError)(header["message"])
                    self._end(job, "cancelled" if isinstance(error, Cancelled) else "failed", error)
                self._dispatch()
        code = worker.wait()
        with self._lock:
            if self._worker is worker:
                self._worker = None
            if self._running is not None and not self._closed:
                self._end(self._running, *self._why_it_ended(self._running, code))
            self._dispatch()

    @staticmethod
    def _why_it_ended(job: Job, code: int) -> tuple[str, EffectiveDepthError]:
        if job.cancelling:
            return "cancelled", Cancelled("The computation was cancelled.")
        cause = "killed, most likely for want of memory" if code == -9 else f"exit code {code}"
        return "failed", WorkerDied(
            f"The worker process ended while computing {job.request.probe} ({cause}); a new one is starting. "
            "Other jobs go on; if this happens again, use a shorter prompt or a smaller model."
        )

    def _watch(self) -> None:
        """Cancel what nobody polls, end a worker that does not stop when told, start one again that ended."""
        while not self._closed:
            time.sleep(0.5)
            now = time.monotonic()
            with self._lock:
                for job in self._under_way():
                    if now - job.polled > ABANDONED_SECONDS and not self._on_screen(job):
                        self._cancel(job)
                if self._warm and self._worker is None and not self._closed and now - self._started > RESTART_SECONDS:
                    self._start_worker()
                stuck = self._running and self._running.cancelling and now - self._running.cancelling > STUCK_SECONDS
                if stuck and self._worker is not None:
                    self._worker.kill()
