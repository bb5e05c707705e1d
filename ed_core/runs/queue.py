"""Whose turn it is among the runs of an installation: one ticket a run in the cache folder, in the order of asking.

Runs of the browser wait here, `Settings.runs` of them compute at once; those of the shell begin at once, and the others
wait for them. A ticket counts as long as its process lives."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import filelock
import psutil

from .. import bounds, disk, outside, settings
from ..errors import EffectiveDepthError, QueueFull
from ..machine import ROOM, free_memory
from ..sources.specs import size_of
from ..types import from_json
from .run import CardRun, ClaimsRun, FitRun, Spec, Statuses, StudyRun

LOCK_SECONDS = 10.0  # how long another process may hold the lock
POLL = 0.5  # seconds between two looks at the queue
HOLDS = 2  # times its weights, what a run of a model needs beside another run


@dataclass(frozen=True)
class Ticket:
    """A run in the queue. `created`: when its process began, which tells it from a later one of the same number."""

    pid: int
    created: float
    folder: str
    visitor: str = ""
    began: bool = False


def alive(pid: int, created: float) -> psutil.Process | None:
    """The process of that number, if it is the one that began at that time and still runs."""
    with contextlib.suppress(psutil.Error, ValueError, TypeError):
        process = psutil.Process(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # ours, and perhaps over
        if abs(process.create_time() - created) < 1 and process.status() != psutil.STATUS_ZOMBIE:
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
    """Put a run at the end of the line; within `locked`."""
    disk.write(_folder() / f"{time.time_ns()}-{ticket.pid}.json", json.dumps(asdict(ticket)).encode())


def wait(spec: Spec, statuses: Statuses) -> None:
    """Wait until it is the turn of this process's run, which stands in the line."""
    while True:
        with contextlib.suppress(filelock.Timeout):  # somebody else's look at the queue takes long
            if (ahead := _begin(spec)) is None:
                return
            statuses.wait(f"{ahead} run{'s' * (ahead != 1)} ahead" if ahead else "memory")
        time.sleep(POLL)


@contextlib.contextmanager
def of_shell(folder: Path | None) -> Iterator[None]:
    """A run of the shell, which waits for nobody; where the cache folder cannot be written, it is not in the line."""
    me = psutil.Process()
    with contextlib.suppress(OSError, filelock.Timeout), locked():
        enter(Ticket(me.pid, me.create_time(), str(folder or ""), began=True))
    try:
        yield
    finally:
        leave()


def leave() -> None:
    """Take this process's run out of the line."""
    with contextlib.suppress(OSError):
        for file in _folder().glob(f"*-{os.getpid()}.json"):
            file.unlink(missing_ok=True)


def _begin(spec: Spec) -> int | None:
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
