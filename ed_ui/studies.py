"""Studies of this installation as pages read them: where they lie, what they say; one that is new comes in."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from ed_core import settings
from ed_core.errors import ImportRefused, NotAllowed
from ed_core.studies import agreement, bundle, tables
from ed_core.studies.folder import Folder, home, open_folder, shipped
from ed_core.studies.plan import PLAN
from ed_core.studies.points import Point, measured_points
from ed_ui.runs import STUDY

T = TypeVar("T")


def known() -> dict[str, Path]:
    """All studies by name: those made here, latest first, then those that come with the product."""
    begun = {file.parent: file.stat().st_mtime for name in (PLAN, STUDY) for file in home().glob(f"*/{name}")}
    made = sorted(begun, key=lambda place: -begun[place])
    own = {place.name: place for place in made}
    return own | {place.name: place for place in shipped() if place.name not in own}


def take_in(data: bytes) -> str:
    """Open a `.edstudy` of somebody else's; returns its name. `ImportRefused` for what is none, or where a study of
    that name lies here, `NotAllowed` where this installation runs none."""
    if not settings.current().studies:
        raise NotAllowed("This installation takes no studies from the browser (studies); open it in the shell.")
    name = re.sub(r"[^\w.+-]", "-", bundle.name_of(io.BytesIO(data)))
    if name in known():
        raise ImportRefused(f"There is a study {name} here already; delete or rename its folder first.")
    bundle.unpack(io.BytesIO(data), home() / name)
    return name


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
    """What `look` finds in a study's folder, called with what is `asked`: resampling over prompts takes its time.
    Looked for anew where something was added; for all sessions, so that nobody may change it."""
    return _looked(out, look, asked, _state(out))


@lru_cache(maxsize=128)
def _looked(out: Path, look: Callable[..., T], asked: tuple[str, ...], state: tuple) -> T:
    return look(read(out)[0], *asked)
