"""A run in a folder: begun as a process of its own that outlives tab and server, looked at, ended, begun again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import psutil
from pydantic import ValidationError

from .. import disk, machine, outside, settings
from ..errors import NotAllowed, StudyError
from . import queue
from .run import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    SPEC,
    TAIL,
    WAITING,
    Spec,
    Status,
    Statuses,
    read_statuses,
    seconds_left,
)

FILE, LOG = "run.json", "run.log"
END_SECONDS = 5.0  # for a process to end when it is asked to
SAID = 3  # lines of a process that ended, as they are shown


@dataclass(frozen=True)
class Run:
    """What a folder tells of its run, as it was when it was looked at first."""

    folder: Path

    @cached_property
    def process(self) -> psutil.Process | None:
        """The process that computes it or waits, if it still does."""
        told = _read(self.folder)
        return queue.alive(told["pid"], told["created"]) if {"pid", "created"} <= told.keys() else None

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
        for ticket in queue.line():
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
        last = self.status
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
        with queue.locked():
            if Run(folder).running:
                raise StudyError(f"This run is under way already, in {folder.name}; wait for it, or cancel it first.")
            queue.require_room(visitor)
            for name, data in (files or {}).items():
                disk.write(folder / name, data)
            _write(folder, spec)
            process = _start(folder)
            note(folder, spec, process)
            queue.enter(queue.Ticket(process.pid, process.create_time(), str(folder), visitor))
    except filelock.Timeout as error:
        raise StudyError(
            "The run cannot be started: another process holds the queue. Try again in a moment."
        ) from error
    except OSError as error:
        raise StudyError(f"The run cannot be started: {disk.why(error)}") from error


def _start(folder: Path) -> psutil.Process:
    with (folder / LOG).open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "ed_core.runs", str(folder.absolute())],
            cwd=settings.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | machine.PASSIVE,
        )
    Statuses(folder).add(WAITING)
    process = psutil.Process(started.pid)
    with contextlib.suppress(psutil.Error):  # it has ended already
        process.nice(min(19, process.nice() + machine.RUN))  # before it starts a thread
    return process


def note(folder: Path, spec: Spec, process: psutil.Process) -> None:
    """Which process computes the run of a folder."""
    _write(folder, spec, pid=process.pid, created=process.create_time())


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
