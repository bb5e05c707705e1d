"""A run: what it computes, one frozen spec per kind, kept as JSON in its folder; and how far it is, one JSON object a
line in `status.jsonl` there, appended by one writer. Torch-free."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .. import disk, outside
from ..cards import making
from ..cases.snippet import NAMES, opening
from ..claims import running as claims
from ..errors import Cancelled, EffectiveDepthError
from ..types import ModelSpec, command_line, from_json

# ---------------------------------------------------------------- what it computes


JACOBIAN_TOKENS = 128  # that the Jacobian lens reads of a prompt unless told


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Computed(_Spec):
    """Which processes compute: this one, `processes` of this machine, or Ray's at an `address`."""

    engine: Literal["here", "ray"] = "here"
    address: str = ""
    processes: int = 1
    dry_run: bool = False


class StudyRun(_Computed):
    """A study's file (TOML), computed into the run's folder."""

    kind: Literal["study"] = "study"
    file: str
    device: str = "auto"


class ClaimsRun(_Spec):
    """Claims about one model, in the run's folder."""

    kind: Literal["claims"] = "claims"
    asked: claims.Asked
    processes: int = 1


class CardRun(_Spec):
    """A depth card, in the run's folder."""

    kind: Literal["card"] = "card"
    asked: making.Asked
    processes: int = 1


class Opened(_Spec):
    """A model by name, and how it is opened."""

    source: str
    precision: str = "fp32"
    device: str = "auto"
    adapter: str = ""
    offload: str = ""
    control: str = ""
    control_seed: int = 0

    @classmethod
    def of(cls, model: ModelSpec) -> Opened:
        """How a model that was resolved already is opened again."""
        return cls(**opening(model))


class FitRun(_Spec):
    """A lens ("affine", "jacobian"), maps to an `other` model ("maps") or in the layers' place ("replacement"), fitted
    on a file of prompts and written to the file `out`."""

    kind: Literal["fit"] = "fit"
    fit: Literal["affine", "jacobian", "maps", "replacement"]
    model: Opened
    other: Opened | None = None
    prompts: str
    test: str = ""
    out: str
    memory: str = ""
    rank: int | None = None
    max_tokens: int = JACOBIAN_TOKENS

    @property
    def command(self) -> str:
        """What does the same from the shell."""
        options = {NAMES.get(name, name): value for name, value in self.model if value not in ("", 0)}
        if self.other:
            options |= {"other": self.other.source, "other_precision": self.other.precision}
            if self.other.control:
                options |= {"other_control": self.other.control, "other_seed": self.other.control_seed}
        own = {name: getattr(self, name) for name in ("test", "memory", "rank", "max_tokens")}
        own = {name: value for name, value in own.items() if value != type(self).model_fields[name].default}
        return command_line("fit", self.fit, **options, set=self.prompts, **own, out=self.out)


class ReproduceRun(_Computed):
    """A paper's protocol as studies in the run's folder, measured beside published figures."""

    kind: Literal["reproduce"] = "reproduce"
    paper: str
    models: tuple[str, ...]
    sets: tuple[str, ...] = ()
    limit: int | None = None
    precision: str | None = None
    device: str = "auto"


class AuditRun(_Spec):
    """The same prompts (a file, or every fourth of the bundled ones) through several precisions."""

    kind: Literal["audit"] = "audit"
    model: str
    precisions: tuple[str, ...]
    prompts: str = ""
    device: str = "auto"
    out: str = ""

    @property
    def command(self) -> str:
        """What does the same from the shell."""
        return command_line(
            "audit",
            self.model,
            precisions=",".join(self.precisions),
            prompts=self.prompts or None,
            device=None if self.device == "auto" else self.device,
            out=self.out or None,
        )


Spec = StudyRun | ClaimsRun | CardRun | FitRun | ReproduceRun | AuditRun
SPEC: TypeAdapter[Spec] = TypeAdapter(Annotated[Spec, Field(discriminator="kind")])


# ---------------------------------------------------------------- how far it is


STATUS_FILE = "status.jsonl"
TAIL = 1 << 16  # bytes of the file that are read
WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"
STATES = (WAITING, RUNNING, DONE, FAILED, CANCELLED)


@dataclass(frozen=True)
class Status:
    """`time`: seconds since 1970. `share` of the work that is done, 0 to 1. `what` is computed now. `message`: of a
    run that is done what came of it, of one that failed why."""

    time: float
    state: str
    share: float = 0.0
    what: str = ""
    message: str = ""

    @property
    def over(self) -> bool:
        return self.state in (DONE, FAILED, CANCELLED)


class Statuses:
    """The one writer. `folder`: where they are kept once there is such a folder, None to keep nothing; `show` is called
    with each, `first` before the first one is kept, and none is where it says no. `held`: none is kept before the run
    is admitted, so that one that is refused changes nothing. A disk that does not take them stops no run."""

    def __init__(
        self,
        folder: Path | None = None,
        show: Callable[[Status], None] = lambda status: None,
        first: Callable[[], bool] = lambda: True,
        held: bool = False,
    ):
        self._folder, self._show, self._first, self._held = folder, show, first, held
        self._last = Status(0.0, "")
        self.message = ""  # of a run that ends well

    def admit(self) -> None:
        """Nothing speaks against what was asked for: from here on statuses are kept."""
        if self._held:
            self._held = False
            self.add(RUNNING)

    def tell(self, share: float, what: str = "") -> None:
        """The share that is done, and of what: added where the whole per cent or the words change."""
        self.admit()
        before = self._last
        if (before.state, int(100 * before.share), before.what) != (RUNNING, int(100 * share), what):
            self.add(RUNNING, share, what)

    def wait(self, what: str) -> None:
        """What it waits for, in words."""
        if self._last.what != what:
            self.add(WAITING, what=what)

    def add(self, state: str, share: float = 0.0, what: str = "", message: str = "") -> None:
        self._last = Status(round(time.time(), 3), state, round(share, 4), what, message)
        self._show(self._last)
        if self._folder is not None and not self._held and self._folder.is_dir():
            with contextlib.suppress(OSError):
                first, self._first = self._first, lambda: True
                if not first():
                    self._folder = None
                    return
                _append(self._folder / STATUS_FILE, json.dumps(asdict(self._last), ensure_ascii=False))

    @contextlib.contextmanager
    def of_run(self) -> Iterator[None]:
        """The statuses of a run's beginning and end."""
        self.add(RUNNING)
        with self.of_trouble():
            yield
        self.admit()
        self.add(DONE, 1.0, message=self.message)

    @contextlib.contextmanager
    def of_trouble(self) -> Iterator[None]:
        """What goes wrong is written down and raised."""
        try:
            yield
        except (KeyboardInterrupt, Cancelled):
            self._end(CANCELLED)
            raise
        except EffectiveDepthError as error:
            self._end(FAILED, str(error))
            raise
        except BaseException as error:
            lacks = disk.lacks(error, disk.moves(self._folder) if self._folder else "ED_CACHE")
            defect = f"The run ended with a defect, {type(error).__name__}: {error}. Please report it."
            self._end(FAILED, lacks or defect)
            raise

    def _end(self, state: str, message: str = "") -> None:
        self.add(state, self._last.share, self._last.what, message)


def _append(file: Path, line: str) -> None:
    """A line at the end of a file, whole whatever else is appended meanwhile; behind a torn one it begins anew."""
    data = f"{line}\n".encode()
    with file.open("a+b", buffering=0) as handle:
        if end := handle.seek(0, os.SEEK_END):
            handle.seek(end - 1)
            data = data if handle.read(1) == b"\n" else b"\n" + data
        handle.write(data)


def read_statuses(folder: Path) -> list[Status]:
    """The last statuses of a run, oldest first; a line that is torn or not one of ours is left out."""
    try:
        with outside.regular(folder / STATUS_FILE) as handle:
            start = max(0, handle.seek(0, os.SEEK_END) - TAIL)
            handle.seek(start)
            lines = handle.read().split(b"\n")
    except OSError:
        return []
    found = (_status(line) for line in lines[bool(start) : -1])  # behind the last newline stands a torn line, or none
    return [status for status in found if status is not None]


def _status(line: bytes) -> Status | None:
    try:
        told: Any = from_json(line.decode())
        status = Status(**{field.name: told[field.name] for field in fields(Status)})
        sound = status.state in STATES and 0 <= float(status.share) <= 1 and float(status.time) >= 0
    except (ValueError, KeyError, TypeError):
        return None
    return status if sound else None


def seconds_left(statuses: list[Status]) -> float | None:
    """Seconds that are left, by the pace since the run began computing last (opening a model does not count), or the
    clock was set back; None before there is one."""
    since: Status | None = None
    for before, now in zip(statuses[:1] + statuses, statuses):
        if now.state != RUNNING:
            since = None
        elif since is None or now.share <= since.share or now.time < before.time:
            since = now
    if since is None or statuses[-1].share <= since.share:
        return None
    last = statuses[-1]
    pace = (last.share - since.share) / max(last.time - since.time, 1e-3)
    return max(0.0, (1 - last.share) / pace - (time.time() - last.time))
