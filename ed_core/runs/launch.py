"""A run in a folder: begun as a process of its own that outlives tab and server, looked at, ended, begun again; and
whose turn it is among the runs of an installation.

One ticket a run in the cache folder, in the order of asking. Runs of the browser wait here, `Settings.runs` of them
compute at once; those of the shell begin at once, and the others wait for them. A ticket counts as long as its process
lives."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import psutil
from pydantic import ValidationError

from .. import bounds, disk, machine, outside, settings
from ..errors import EffectiveDepthError, NotAllowed, QueueFull, StudyError
from ..machine import ROOM, free_memory
from ..sources.specs import size_of
from ..types import from_json
from .run import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    SPEC,
    TAIL,
    WAITING,
    CardRun,
    ClaimsRun,
    FitRun,
    Spec,
    Status,
    Statuses,
    StudyRun,
    read_statuses,
    seconds_left,
)

FILE, LOG = "run.json", "run.log"
END_SECONDS = 5.0  # for a process to end when it is asked to
SAID = 3  # lines of a process that ended, as they are shown
LOCK_SECONDS = 10.0  # how long another process may hold the lock
POLL = 0.5  # seconds between two looks at the queue
HOLDS = 2  # times its weights, what a run of a model needs beside another run


@dataclass(frozen=True)
class Run:
    """What a folder tells of its run, as it was when it was looked at first."""

    folder: Path

    @cached_property
    def process(self) -> psutil.Process | None:
        """The process that computes it or waits, if it still does."""
        told = _read(self.folder)
        return alive(told["pid"], told["created"]) if {"pid", "created"} <= told.keys() else None

    @cached_property
    def statuses(self) -> list[Status]:
        return read_statuses(self.folder)

    @property
    def status(self) -> Status | None:
        return self.statuses[-1] if self.statuses else None

    @property
    def running(self) -> bool:
        """Whether it computes or waits."""
        return self.process is not None and not (self.status and self.status.over)

    @property
    def waiting(self) -> bool:
        return self.running and self.status is not None and self.status.state == WAITING

    @property
    def unfinished(self) -> bool:
        """Whether it ended in the middle of its work."""
        return not self.running and self.status is not None and 0 < self.status.share < 1

    @property
    def spec(self) -> Spec | None:
        """What it computes; None for a folder without a run, or one of an older version."""
        try:
            return SPEC.validate_python(_read(self.folder).get("spec"))
        except ValidationError:
            return None

    @property
    def left(self) -> float | None:
        """Seconds that it still computes; None where that cannot be told."""
        return seconds_left(self.statuses) if self.running else None

    @property
    def begins(self) -> float | None:
        """Seconds until it is its turn, by the pace of those ahead; None where that cannot be told."""
        ahead = []
        for ticket in line():
            if self.process and ticket.pid == self.process.pid:
                break
            ahead.append(Run(Path(ticket.folder)).left)
        known = [seconds for seconds in ahead if seconds is not None]
        return sum(known, 0.0) if len(known) == len(ahead) else None

    @property
    def trouble(self) -> str:
        """Why it ended before it was done; "" where it did not, was cancelled, or is of an older version."""
        last = self.status
        if last is None or self.running or last.state in (DONE, CANCELLED):
            return ""
        if last.state == FAILED:
            return last.message
        said = " · ".join(_last_lines(self.folder / LOG)) or "nothing"
        return f"The process ended before it was done; it said last: {said}. Begin again: what was computed stays."

    def stop(self) -> None:
        """End it; what is computed stays, and it goes on from there when it is begun again."""
        if (process := self.process) is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, sign) if os.getpgid(process.pid) == process.pid else process.send_signal(sign)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(END_SECONDS)
                break
        last = Run(self.folder).status  # of its last moment
        if not (last and last.over):
            told = (last.share, last.what) if last and last.state == RUNNING else ()
            Statuses(self.folder).add(CANCELLED, *told)


def begin(spec: Spec, folder: Path, visitor: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Start a run, or go on with it, in a process of its own that waits for its turn. `files`: what its spec reads, by
    name, written into its folder. `NotAllowed` where this installation runs none, `StudyError` where it runs already,
    `QueueFull` where there is no room."""
    if not settings.current().studies:
        raise NotAllowed(
            "This installation starts no runs from the browser (studies); run it on the machine itself, in the shell."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked():
            if Run(folder).running:
                raise StudyError(f"This run is under way already, in {folder.name}; wait for it, or cancel it first.")
            require_room(visitor)
            for name, data in (files or {}).items():
                disk.write(folder / name, data)
            _write(folder, spec)
            process = _start(folder)
            try:
                note(folder, spec, process)
                enter(Ticket(process.pid, began(process), str(folder), visitor))
            except OSError:  # it waits for the lock still
                process.kill()
                raise
    except filelock.Timeout as error:
        raise StudyError(
            "The run cannot be started: another process holds the queue. Try again in a moment."
        ) from error
    except OSError as error:
        raise StudyError(f"The run cannot be started: {disk.why(error)}") from error


def _start(folder: Path) -> psutil.Process:
    """A process that works where this one does, so that relative names mean the same to both; -P: files that lie there
    are no modules."""
    paths = filter(None, (str(settings.ROOT), os.environ.get("PYTHONPATH")))
    with (folder / LOG).open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-P", "-m", "ed_core.runs", str(folder.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | machine.PASSIVE | {"PYTHONPATH": os.pathsep.join(paths)},
        )
    Statuses(folder).add(WAITING)
    process = psutil.Process(started.pid)
    with contextlib.suppress(psutil.Error):  # it has ended already
        process.nice(min(19, process.nice() + machine.RUN))  # before it starts a thread
    return process


def note(folder: Path, spec: Spec, process: psutil.Process) -> None:
    """Which process computes the run of a folder."""
    _write(folder, spec, pid=process.pid, created=began(process))


def _write(folder: Path, spec: Spec, **more: Any) -> None:
    told = {"spec": spec.model_dump(mode="json")} | more
    disk.write(folder / FILE, json.dumps(told, ensure_ascii=False, indent=1).encode())


def _read(folder: Path) -> dict[str, Any]:
    """What `run.json` tells; empty where it tells nothing."""
    try:
        told = outside.json_of(folder / FILE)
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _last_lines(log: Path) -> list[str]:
    try:
        with outside.regular(log) as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - TAIL))
            text = handle.read().decode(errors="replace").replace("\r", "\n")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()][-SAID:]


# ---------------------------------------------------------------- whose turn it is


@dataclass(frozen=True)
class Ticket:
    """A run in the queue. `created`: when its process `began`, which tells it from a later one of the same number."""

    pid: int
    created: float
    folder: str
    visitor: str = ""
    began: bool = False


def began(process: psutil.Process) -> float:
    """When a process began, in seconds since the machine did: setting the clock moves both."""
    return float(process.create_time() - psutil.boot_time())


def alive(pid: int, created: float) -> psutil.Process | None:
    """The process of that number, if it is the one that began at that time and still runs."""
    with contextlib.suppress(psutil.Error, ValueError, TypeError):
        process = psutil.Process(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # ours, and perhaps over
        since = began(process), process.create_time()  # which older versions wrote
        if min(abs(at - created) for at in since) < 1 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def line() -> list[Ticket]:
    """The runs that compute or wait, those that asked first in front."""
    return list(_tickets().values())


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Alone with the queue."""
    _folder().mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(_folder() / "lock", timeout=LOCK_SECONDS):
        yield


def require_room(visitor: str) -> None:
    """Refuse a run that the settings leave no room for; within `locked`."""
    allowed, runs = settings.current(), line()
    own = sum(ticket.visitor == visitor for ticket in runs)
    if 0 < allowed.max_jobs_per_visitor <= own:
        raise QueueFull(
            f"You have {own} runs computing and waiting, as many as one visitor may (max_jobs_per_visitor); wait for "
            "one of them, or cancel it."
        )
    if allowed.max_jobs <= len(runs):
        raise QueueFull(
            f"{len(runs)} runs compute and wait on this installation, as many as there may be (max_jobs); try again "
            "later."
        )


def enter(ticket: Ticket) -> None:
    """Put a run at the end of the line, also where the clock has gone back; within `locked`."""
    stamps = (file.name.partition("-")[0] for file in _tickets())
    last = max(time.time_ns(), *(int(stamp) + 1 for stamp in stamps if stamp.isdecimal()), 0)
    disk.write(_folder() / f"{last}-{ticket.pid}.json", json.dumps(asdict(ticket)).encode())


def wait(spec: Spec, statuses: Statuses) -> None:
    """Wait until it is the turn of this process's run, which stands in the line."""
    while True:
        with contextlib.suppress(filelock.Timeout):  # somebody else's look at the queue takes long
            if (ahead := _ahead(spec)) is None:
                return
            statuses.wait(f"{ahead} run{'s' * (ahead != 1)} ahead" if ahead else "memory")
        time.sleep(POLL)


@contextlib.contextmanager
def of_shell(folder: Path | None) -> Iterator[None]:
    """A run of the shell, which waits for nobody; where the cache folder cannot be written, it is not in the line."""
    me = psutil.Process()
    with contextlib.suppress(OSError, filelock.Timeout), locked():
        enter(Ticket(me.pid, began(me), str(folder.absolute()) if folder else "", began=True))
    try:
        yield
    finally:
        leave()


def leave() -> None:
    """Take this process's run out of the line."""
    with contextlib.suppress(OSError):
        for file in _folder().glob(f"*-{os.getpid()}.json"):
            file.unlink(missing_ok=True)


def _ahead(spec: Spec) -> int | None:
    """Begin this process's run, None where it may; else how many runs are ahead, 0 where memory is missing."""
    with locked():
        tickets = _tickets()
        mine = next((file for file, ticket in tickets.items() if ticket.pid == os.getpid()), None)
        if mine is None:  # somebody emptied the folder: nobody is kept waiting for that
            return None
        computing = sum(ticket.began for ticket in tickets.values())
        before = sum(not ticket.began for ticket in list(tickets.values())[: list(tickets).index(mine)])
        if before or computing >= settings.current().runs:
            return before + computing
        if computing and not _has_memory(spec):
            return 0
        disk.write(mine, json.dumps(asdict(replace(tickets[mine], began=True))).encode())
    return None


def _has_memory(spec: Spec) -> bool:
    """Whether a run finds the memory for its largest model beside what runs already; not where its size is unknown."""
    try:
        needed = max(size_of(source).weight_bytes(precision) for source, precision in _models(spec))
    except (EffectiveDepthError, OSError, KeyError, ValueError):
        return False
    return HOLDS * needed <= ROOM * free_memory()


def _models(spec: Spec) -> list[tuple[str, str]]:
    """The models of a run, each with its precision."""
    if isinstance(spec, StudyRun):
        from ..studies.study import read

        return [(entry.source, entry.precision) for entry in read(spec.file).models]
    if isinstance(spec, FitRun):
        return [(one.source, one.precision) for one in (spec.model, spec.other) if one]
    if isinstance(spec, (ClaimsRun, CardRun)):
        return [(source, spec.asked.precision) for source in (spec.asked.model, *spec.asked.also)]
    return []


def _folder() -> Path:
    return settings.current().cache / "runs"


def _tickets() -> dict[Path, Ticket]:
    """The tickets whose processes live, by their files, oldest first; others are removed."""
    found = {}
    for file in sorted(_folder().glob("*.json")):
        with contextlib.suppress(OSError):
            try:
                ticket = Ticket(**from_json(outside.regular(file).read(bounds.STATUS)))
            except (ValueError, TypeError):
                ticket = None
            if ticket is not None and alive(ticket.pid, ticket.created):
                found[file] = ticket
            else:
                file.unlink(missing_ok=True)
    return found
