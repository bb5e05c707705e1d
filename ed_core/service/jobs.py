"""The app's side of the worker: jobs, each a request on its way, and the queue of them; progress, cancelling.
Torch-free, and safe from many threads at once.

The queue lives here and the worker holds only what runs, so that a worker that dies takes nothing else with it. Equal
requests share a job. Whose turn it is, `turns` says; what runs may give way to a shorter job between two blocks, which
then runs inside it. A job that nobody has polled for 20 s, and that is on nobody's screen, is cancelled: its tab is
closed. Time in which this server could not hear anybody does not count."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from .. import settings
from ..errors import BY_NAME, Cancelled, EffectiveDepthError, QueueFull, WorkerDied
from ..machine import PASSIVE, ROOM, free_memory, learn
from ..results.wire import unpack
from ..types import ModelSpec, ProbeResult, Request
from .estimate import Expected, Pace
from .resolve import admit
from .turns import Ask, Place, Turns, credit
from .worker import COMPUTING, DEVICE_LOST, receive, send

PROGRESS = 0.1  # a job's own pace tells what is left of it from here on, what was expected before


@dataclass
class Job:
    """One request on its way. `state`: queued, running, done, failed, cancelled."""

    request: Request
    viewers: set[str]
    asked_by: str = ""  # the visitor it counts for: whoever joins later adds nothing to compute
    expected: Expected = field(default_factory=Expected)
    # of this submission: a late cancel must not hit the next one of the same request
    id: str = field(default_factory=lambda: uuid4().hex)
    state: str = "queued"
    stage: str = ""
    error: EffectiveDepthError | None = None
    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None
    ended: float | None = None
    opened: float | None = None  # when its model was
    unseen: float = 0.0  # seconds without a poll, off every screen
    cancelling: float | None = None
    progress: float = 0.0
    away: float = 0.0  # seconds for which it gave way
    gave_way: float | None = None  # since when it does
    resumed: float | None = None  # when it went on
    owed: float = 0.0  # seconds it computes before it gives way again
    credit: float = 0.0  # seconds it had computed beyond that when it gave way last
    alone: bool = False  # it was tried inside another job, and did not fit
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

    def worked(self, now: float, since: float | None = None) -> float:
        """Seconds computed, less those for which it gave way; `since` its beginning, unless another moment is told."""
        since = self.started if since is None else since
        return 0.0 if since is None else (now if self.gave_way is None else self.gave_way) - since - self.away

    def had(self, now: float) -> float:
        """Seconds computed since it gave way last, or began, and its credit then."""
        since = self.resumed or self.started
        return self.credit + (0.0 if since is None or self.gave_way is not None else now - since)

    def gives_way(self, now: float) -> None:
        """From now on another one computes."""
        self.credit, self.gave_way = credit(self.had(now), self.owed), now

    def seconds_left(self, now: float | None = None) -> float | None:
        """From the share done so far; None before there is one."""
        if self.started is None or self.progress <= 0:
            return None
        worked = self.worked(time.monotonic() if now is None else now, self.opened)
        return worked * (1 - self.progress) / self.progress

    def to_come(self, now: float) -> float:
        """Seconds it will still take: by its own pace, else as expected; one that takes longer than expected is taken
        to be two thirds done."""
        if self.progress >= PROGRESS and (left := self.seconds_left(now)) is not None:
            return left
        worked = self.worked(now)
        return max(self.expected.seconds - worked, worked / 2)


ABANDONED_SECONDS = 20.0
TICK_SECONDS = 0.5  # between two looks at the queue
FORECAST_SECONDS = 0.5  # a forecast serves all who ask for so long
RESTART_SECONDS = 5.0  # an idle worker that ended is started again, at most this often
ANSWER_SECONDS = 3.0  # how long a worker may take to answer a ping
AHEAD_SECONDS = 15.0  # the longest opening that is begun before anybody asks for it
KEPT_JOBS = 64  # that are over
STUCK_SECONDS = 10.0  # a cancelled job that has not stopped by then (a model half loaded) takes its worker down


class Jobs:
    """Queue in front of one worker process. `warm=True` starts it at once, so that importing torch is over before the
    first click. `on_screen`: whether a page that shows a job is open; a browser that is busy, or a tab in the
    background, may not poll for minutes. `hears`: whether this server is responsive, or stalled. `pace`: what a
    request will take. `told` is notified of job events (refused, begun, ended) under the queue's lock. `environment`:
    variables of the worker beside this process'."""

    def __init__(
        self,
        warm: bool = True,
        command: tuple[str, ...] = (sys.executable, "-m", "ed_core.service.worker"),
        on_screen: Callable[[Job], bool] = lambda job: False,
        hears: Callable[[], bool] = lambda: True,
        pace: Pace | None = None,
        told: Callable[[str, Job], None] = lambda what, job: None,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] = {},
    ):
        self._on_screen, self._hears, self._told, self._clock = on_screen, hears, told, clock
        self._pace = pace or Pace()
        # what the worker can use, with the bytes free there when it started; empty until it is ready
        self.devices: dict[str, int] = {}
        self.models = (0, 0)  # opened there, and their bytes, when a job ended last
        self._command, self._environment = command, environment
        self._lock = threading.RLock()
        self._queue: list[Job] = []
        self._jobs: dict[str, Job] = {}
        self._running: Job | None = None
        self._inside: Job | None = None  # sent to run inside the running one; queued until the worker takes it up
        self._ahead: ModelSpec | None = None  # what the worker opens before anybody asks for it
        self._not_ahead: set[ModelSpec] = set()  # what it could not open so
        self._withdrawn: dict[str, EffectiveDepthError] = {}  # by run id
        self._turn: dict[str, float] = {}  # when visitors who wait had a turn last
        self._forecast: tuple[float, dict[str, Place]] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._closed, self._warm = False, warm
        self._ready, self._started, self._pong = False, 0.0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        if warm:
            with self._lock:
                self._start_worker()

    def submit(self, request: Request, viewer: str, visitor: str = "", beside: Sequence[Job] = ()) -> Job:
        """Queue a request, or join the job that computes it already. `viewer` is a session, `visitor` who sits there:
        the login, else the session too; `beside`: what is under way in other queues. `NotAllowed` and `QueueFull` where
        the settings do not let the request in."""
        visitor = visitor or viewer
        try:
            admit(request)
            expected = self._pace.expect(request)
            with self._lock:
                job = self._computes(request)
                if job is None:
                    self._require_room(visitor, [*self._under_way(), *beside])
                    job = Job(request, {viewer}, visitor, expected, submitted=self._clock())
                    self._jobs[request.key] = job
                    self._withdrawn.pop(request.key, None)
                    self._queue.append(job)
                    self._forget_old()
                job.viewers.add(viewer)
                job.unseen = 0.0
                self._dispatch()
                return job
        except EffectiveDepthError as error:
            self._told("refused", Job(request, set(), error=error))
            raise

    def withdrawn(self, key: str) -> EffectiveDepthError | None:
        """Why a result that was computed here counts no more: the identities that it rested on do not hold. None where
        it counts, or is being computed anew."""
        return self._withdrawn.get(key)

    def open_ahead(self, spec: ModelSpec) -> None:
        """Let the worker open a model that somebody chose, while it has nothing else to do, so that the first run need
        not wait for it. Only where that takes seconds, and where nothing has to be fetched, converted or closed."""
        expected = self._pace.opening(spec)
        with self._lock:
            idle = self._worker is not None and not self._closed and not self._under_way() and self._ahead is None
            if idle and spec not in self._not_ahead and expected is not None and 0 < expected <= AHEAD_SECONDS:
                self._ahead = spec
                self._tell({"type": "open", "model": asdict(spec)})

    def computes(self, request: Request) -> bool:
        """Whether a job for it is under way, that it would join."""
        with self._lock:
            return self._computes(request) is not None

    def done_in(self, request: Request) -> float:
        """Seconds until it would be done here, by what is known: all that is under way, and itself, its model's opening
        included where that is not open."""
        expected = self._pace.expect(request).seconds
        with self._lock:
            now = self._clock()
            return sum(job.to_come(now) for job in self._under_way()) + expected

    def under_way(self) -> list[Job]:
        """What waits, computes, or gave way."""
        with self._lock:
            return self._under_way()

    def holds(self, job: Job) -> bool:
        """Whether it was submitted here."""
        with self._lock:
            return self._jobs.get(job.request.key) is job

    def poll(self, job: Job) -> Job:
        """Say that somebody still looks at this job."""
        job.unseen = 0.0
        return job

    def place(self, job: Job) -> Place:
        """How many jobs end before this one begins, and how long that takes by what is known now."""
        with self._lock:
            now = self._clock()
            if self._forecast is None or now - self._forecast[0] > FORECAST_SECONDS:
                self._forecast = now, self._turns(now).forecast()
            made, places = self._forecast
            found = places.get(job.id, Place(0, 0.0))
            return Place(found.ahead, max(0.0, found.seconds - (now - made)))

    def counts(self) -> dict[str, int]:
        """How many jobs wait, compute, and gave way, of all visitors."""
        with self._lock:
            running = [job for job in (self._running, self._inside) if job is not None and job.state == "running"]
            away = sum(job.gave_way is not None for job in running)
            waiting = len(self._under_way()) - len(running)
            return {"waiting": waiting, "running": len(running) - away, "gave way": away}

    def cancel(self, job: Job, viewer: str) -> None:
        """This viewer no longer wants it; it stops when nobody does."""
        with self._lock:
            job.viewers.discard(viewer)
            if not job.viewers:
                self._cancel(job)
                self._dispatch()

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
        return [*self._queue, *filter(None, [self._running, self._inside])]

    def _computes(self, request: Request) -> Job | None:
        job = self._jobs.get(request.key)
        return None if job is None or job.over or job.cancelling else job

    @staticmethod
    def _require_room(visitor: str, jobs: Sequence[Job]) -> None:
        allowed = settings.current()
        own = sum(job.asked_by == visitor and job.cancelling is None for job in jobs)
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
        sent = job is self._inside and job.state == "queued"
        under_way = (job is self._running or job is self._inside) and job.cancelling is None
        if sent or under_way:
            self._tell({"type": "cancel", "job": job.id})
        if job in self._queue or sent:
            self._end(job, "cancelled", Cancelled("The computation was cancelled before it began."))
        elif under_way:
            job.cancelling = self._clock()

    def _end(self, job: Job, state: str, error: EffectiveDepthError | None = None) -> None:
        self._leave(job)
        job.state, job.error, job.ended = state, error, self._clock()
        self._told("ended", job)

    def _leave(self, job: Job) -> None:
        """Take a job out of its place; what gave way to it goes on, what was to run inside it runs by itself."""
        self._forecast = None
        if job in self._queue:
            self._queue.remove(job)
        elif job is self._inside:
            self._inside, outer, now = None, self._running, self._clock()
            if outer is not None and outer.gave_way is not None:
                outer.owed, outer.resumed = now - outer.gave_way, now
                outer.away, outer.gave_way = outer.away + outer.owed, None
        elif job is self._running:
            self._running, self._inside = self._inside, None
            if self._running is not None:
                self._running.state = "running"

    def _turns(self, now: float) -> Turns:
        """The queue as the rules see it."""
        one, inner = self._running, self._inside
        free = ROOM * free_memory() if one is not None and self._queue else 0.0

        def ask(job: Job) -> Ask:
            alone = job.alone or not self._fits_inside(job, one, free)
            whole = max(job.expected.seconds, job.worked(now))
            return Ask(job.id, job.asked_by, job.submitted, job.to_come(now), whole, alone)

        turns = Turns(now, [ask(job) for job in self._queue], dict(self._turn))
        if one is not None:
            turns.running = ask(one)
            turns.had, turns.owed = one.had(now), one.owed
        if one is not None and inner is not None:
            turns.inside = ask(inner)
            if one.gave_way is None:  # it is about to
                turns.had = credit(turns.had, turns.owed)
            turns.owed = inner.worked(now)
        return turns

    @staticmethod
    def _fits_inside(job: Job, one: Job | None, free: float) -> bool:
        """Whether there is memory for this job beside the one that runs, as far as that is known here."""
        if one is None or job.expected.alone:
            return not job.expected.alone
        model, other = job.request.models[0], one.request.models[0]
        weights = 0 if model.identity() == other.identity() else job.expected.weights
        return model.device != "cpu" or weights + job.expected.sweep + one.expected.sweep <= free

    def _dispatch(self) -> None:
        """Hand the worker what is to begin now."""
        self._forecast = None
        if not self._queue or self._closed or (self._running is not None and self._running.cancelling):
            return
        turns = self._turns(self._clock())
        ask = turns.next() if self._running is None else turns.passing()
        if ask is None:
            return
        job = next(job for job in self._queue if job.id == ask.id)
        if self._worker is None and (why := self._start_worker()):
            return self._end(job, "failed", WorkerDied(why))
        self._queue.remove(job)
        waiting = {other.asked_by for other in self._queue}
        self._turn = {who: at for who, at in self._turn.items() if who in waiting} | {job.asked_by: turns.now}
        if self._running is None:
            self._running, job.state, job.started = job, "running", turns.now
        else:
            self._inside = job
        self._tell({"type": "run", "job": job.id, "request": job.request.to_json()})

    def _tell(self, header: dict[str, Any]) -> None:
        if self._worker is not None and self._worker.stdin is not None:
            with contextlib.suppress(OSError):  # it just died: its reader reports that
                send(self._worker.stdin, header)

    def _start_worker(self) -> str:
        """Why that cannot be, for instance for want of memory; "" where it can."""
        env = os.environ | PASSIVE | dict(self._environment)
        self._ready, self._started, self.models = False, time.monotonic(), (0, 0)
        self._ahead = None
        self._pace.nothing_open()
        try:
            self._worker = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        except OSError as error:
            return f"The worker process cannot be started: {error.strerror or error}. Try again in a moment."
        threading.Thread(target=self._read, args=(self._worker,), daemon=True).start()
        return ""

    def _forget_old(self) -> None:
        for key in [k for k, job in self._jobs.items() if job.over][:-KEPT_JOBS]:
            del self._jobs[key]

    def _heard(self, header: dict[str, Any], body: bytes) -> None:
        """One frame of the worker."""
        kind = header["type"]
        if kind == "ready":
            learn(header["totals"])
            self.devices, self._ready = header["devices"], True
        elif kind == "pong":
            self._pong.set()
        elif kind == "withdrawn":
            error = BY_NAME.get(header["error"], EffectiveDepthError)(header["message"])
            self._withdrawn |= dict.fromkeys(header["keys"], error)
        elif kind == "opened" and self._ahead is not None:
            if header["open"]:
                self._pace.opened(self._ahead, header["seconds"])
            else:
                self._not_ahead.add(self._ahead)
            opened, n_bytes = header["models"]
            self.models, self._ahead = (opened, n_bytes), None
        job = next((one for one in (self._running, self._inside) if one and one.id == header.get("job")), None)
        ends, outer = kind in ("done", "failed", "later"), self._running
        if job is not None:
            self._follow(job, kind, header, body)
        if ends:
            self._dispatch()
            if job is not outer and self._inside is None:  # it was inside, cancelled before it began or not
                self._tell({"type": "on"})

    def _follow(self, job: Job, kind: str, header: dict[str, Any], body: bytes) -> None:
        """What the worker says of one job."""
        if kind == "begun":
            job.state, job.started = "running", self._clock()
            if job is self._inside and self._running is not None:
                self._running.gives_way(job.started)
            self._told("begun", job)
        elif kind == "stage":
            job.stage = header["text"]
            job.opened = self._clock() if job.stage == COMPUTING else None
        elif kind == "partial":
            job.arrived(body)
            job.progress = header["progress"]
        elif kind == "done":
            job.arrived(body)
            opened, n_bytes = header["models"]
            self.models = (opened, n_bytes)
            self._pace.learn(job.request, header["tokens"], header["seconds"], header["opening"])
            self._end(job, "done")
        elif kind == "failed":
            error = BY_NAME.get(header["error"], EffectiveDepthError)(header["message"])
            self._end(job, "cancelled" if isinstance(error, Cancelled) else "failed", error)
        elif kind == "later":
            self._again(job)

    def _again(self, job: Job) -> None:
        """What did not fit inside another job waits until it can run by itself."""
        self._leave(job)
        if job.cancelling:
            return self._end(job, "cancelled", Cancelled("The computation was cancelled."))
        job.state, job.stage, job.started, job.opened, job.progress, job.alone = "queued", "", None, None, 0.0, True
        job.away, job.owed, job.credit, job.gave_way, job.resumed = 0.0, 0.0, 0.0, None, None
        self._queue.append(job)
        self._queue.sort(key=lambda one: one.submitted)

    # ---------------------------------------------------------------- threads

    def _read(self, worker: subprocess.Popen[bytes]) -> None:
        """Everything one worker says, until it ends."""
        assert worker.stdout is not None  # a pipe
        while (frame := receive(worker.stdout)) is not None:
            with self._lock:
                self._heard(*frame)
        code = worker.wait()
        with self._lock:
            if self._worker is worker:
                self._worker = None
            self._died(code)

    def _died(self, code: int) -> None:
        """The worker ended, and with it what it computed; what it had not begun waits again, and what it computed
        beside a cancelled job that did not stop."""
        if self._ahead is not None:  # it may have ended over that: the next one is not to
            self._not_ahead.add(self._ahead)
        two = [job for job in (self._inside, self._running) if job is not None]
        ended_here = code == -signal.SIGKILL and any(job.cancelling for job in two)  # see `_look_after`
        for one in two:
            # the running one is queued where it was handed over while the worker ended
            not_begun = one.state == "queued" and (one is self._inside or code == DEVICE_LOST)
            if not_begun or (ended_here and not one.cancelling):
                self._again(one)
                one.alone = False
        for job in (self._inside, self._running):
            if job is not None and not self._closed:
                self._end(job, *self._why_it_ended(job, code))
        self._dispatch()

    @staticmethod
    def _why_it_ended(job: Job, code: int) -> tuple[str, EffectiveDepthError]:
        if job.cancelling:
            return "cancelled", Cancelled("The computation was cancelled.")
        causes = {-9: "killed, most likely for want of memory", DEVICE_LOST: "its device failed under another job"}
        cause = causes.get(code, f"exit code {code}")
        return "failed", WorkerDied(
            f"The worker process ended while computing {job.request.probe} ({cause}); a new one is starting. "
            "Other jobs go on; if this happens again, use a shorter prompt or a smaller model."
        )

    def _watch(self) -> None:
        """Look after the queue until it is closed."""
        before = self._clock()
        while not self._closed:
            time.sleep(TICK_SECONDS)
            with self._lock:
                now = self._clock()
                self._look_after(now - before)
                before = now

    def _look_after(self, passed: float) -> None:
        """Cancel what nobody polls, end a worker that does not stop when told, start one again that ended, and let pass
        what may by now. `passed`: seconds since the last look; a look that comes late comes from a stalled server,
        which could hear nobody either."""
        now, heard = self._clock(), min(passed, 2 * TICK_SECONDS) if self._hears() else 0.0
        for job in self._under_way():
            job.unseen = 0.0 if self._on_screen(job) else job.unseen + heard
            if job.unseen > ABANDONED_SECONDS:
                self._cancel(job)
        ended = self._worker is None and not self._closed
        if self._warm and ended and time.monotonic() - self._started > RESTART_SECONDS:
            self._start_worker()
        computing = self._running if self._running is None or self._running.gave_way is None else self._inside
        if computing is not None and computing.cancelling and self._worker is not None:
            since = max(computing.cancelling, computing.resumed or 0.0)
            if now - since > STUCK_SECONDS:
                self._worker.kill()
        self._dispatch()
