"""Studies of this installation: where they lie, and those that run beside the app, each in a process of its own that
outlives a tab and a restart of the server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import psutil

from ed_core import disk, settings
from ed_core.errors import ImportRefused, NotAllowed, StudyError
from ed_core.studies import agreement, bundle, study, tables
from ed_core.studies.folder import Folder, home, open_folder, shipped
from ed_core.studies.plan import PLAN
from ed_core.studies.points import Point, measured_points

T = TypeVar("T")
RUN, LOG, FILE = "run.json", "run.log", "asked.toml"
PROGRAM = "import sys; from ed_core.commands import main; sys.exit(main(sys.argv[1:]))"  # with the settings' permits
LONGEST = 20_000  # characters of a study's text


def known() -> dict[str, Path]:
    """All studies by name: those made here, latest first, then those that come with the product."""
    begun = {file.parent: file.stat().st_mtime for name in (PLAN, FILE) for file in home().glob(f"*/{name}")}
    made = sorted(begun, key=lambda place: -begun[place])
    own = {place.name: place for place in made}
    return own | {place.name: place for place in shipped() if place.name not in own}


def begin(text: str) -> str:
    """Start a study, or go on with it where one of that name lies here; returns its name. `StudyError` for a text that
    is no study, `NotAllowed` where this installation runs none."""
    _allowed()
    if len(text) > LONGEST:
        raise StudyError(f"The study has {len(text)} characters; expected {LONGEST} at most.")
    name = re.sub(r"[^\w.+-]", "-", study.parse(text).name)
    out = home() / name
    if running(out):
        raise StudyError(f"The study {name} is running already; stop it first, or give this one another name.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        disk.write(out / FILE, text.encode())
        start(out, ["study", str(out / FILE), "--out", str(out)])
    except OSError as error:
        raise StudyError(f"The study cannot be started: {disk.why(error)}") from error
    return name


def start(out: Path, arguments: list[str]) -> None:
    """A process of its own that runs this command, under the settings' permits; what it says lies in `out`."""
    with (out / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=settings.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
        )
    told = {"pid": process.pid, "created": psutil.Process(process.pid).create_time()}
    disk.write(out / RUN, json.dumps(told).encode())


def take_in(data: bytes) -> str:
    """Open a `.edstudy` of somebody else's; returns its name. `ImportRefused` for what is none, or where a study of
    that name lies here, `NotAllowed` where this installation runs none."""
    _allowed()
    name = re.sub(r"[^\w.+-]", "-", bundle.name_of(io.BytesIO(data)))
    if name in known():
        raise ImportRefused(f"There is a study {name} here already; delete or rename its folder first.")
    bundle.unpack(io.BytesIO(data), home() / name)
    return name


def _allowed() -> None:
    if not settings.current().studies:
        raise NotAllowed(
            "This installation runs no studies from the browser (studies); run them on the machine itself."
        )


def running(out: Path) -> psutil.Process | None:
    """The process that computes a study, if it was started here and still runs."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
        told = json.loads((out / RUN).read_text(encoding="utf-8"))
        process = psutil.Process(told["pid"])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # ours, and perhaps over
        if abs(process.create_time() - told["created"]) < 1 and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def read(out: Path) -> tuple[Folder, list[dict], list[dict]]:
    """A study's folder, its verdicts and its aggregates; read anew where something was added."""
    return _read(out, _state(out))


def _state(out: Path) -> tuple:
    """What changes whenever something was added to a study."""
    return (out / PLAN).stat().st_mtime_ns, tuple(open_folder(out).progress().values())


@lru_cache(maxsize=4)
def _read(out: Path, state: tuple) -> tuple[Folder, list[dict], list[dict]]:
    folder = open_folder(out)
    verdict, summary = (tables.stored(folder, name).to_pylist() for name in ("verdict", "summary"))
    return folder, verdict, summary


def points(out: Path, group: str) -> tuple[Point, ...]:
    """A study's effective depths on a set or one of its levels."""
    return looked(out, _points, group)


def estimates(folder: Folder, model: str, name: str) -> list[agreement.Estimate]:
    """Every estimator of a model's depth on a prompt set: for `looked`."""
    return agreement.estimates(folder, model, name, [row for row in read(folder.out)[1] if row["set"] == name])


def _points(folder: Folder, group: str) -> tuple[Point, ...]:
    return tuple(measured_points(folder, group))


def looked(out: Path, look: Callable[..., T], *asked: str) -> T:
    """What `look` finds in a study's folder, told what is `asked`: resampling over prompts takes its time. Looked for
    anew where something was added; for all sessions, so that nobody may change it."""
    return _looked(out, look, asked, _state(out))


@lru_cache(maxsize=128)
def _looked(out: Path, look: Callable[..., T], asked: tuple[str, ...], state: tuple) -> T:
    return look(read(out)[0], *asked)


def stop(out: Path) -> None:
    """End it; what is computed stays, and the study goes on from there when it is started again."""
    if process := running(out):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGTERM)


def said(out: Path) -> str:
    """The last line that a run wrote."""
    try:
        lines = (out / LOG).read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
