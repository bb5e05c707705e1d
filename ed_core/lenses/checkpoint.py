"""The sums and finished rows of a fit that is under way, in a file next to the one it will write. Torch-free."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ..files import Bounds, Head, Kind, open_sealed, write_sealed
from ..types import Prompt, canonical_json
from .measured import Plan

EVERY = 60.0  # seconds between two writes
WRITING = 0.05  # share of the time that writing may take
LARGE = 1 << 44  # bytes: as large as a disk


class CheckpointHeader(Head):
    """A digest of what is fitted."""

    what: str


CHECKPOINT = Kind(
    "checkpoint",
    "a fit's checkpoint",
    3,
    CheckpointHeader,
    "start the fit again",
    members=r"\w+(\.\w+)*\.npy",
    bounds=Bounds(LARGE, 1 << 20, LARGE, LARGE, 64 << 20, ratio=1),
    refuses=ValueError,
)


def digest_of(*what: Any) -> str:
    """32 hex digits of JSON values."""
    return hashlib.sha256(canonical_json(what).encode()).hexdigest()[:32]


def digest_of_prompts(prompts: Sequence[Prompt]) -> str:
    """The digest of a prompt set's content."""
    return digest_of([p.identity() for p in prompts])


class Summed(Protocol):
    """Sums that can be kept as arrays and restored."""

    def arrays(self) -> Mapping[str, np.ndarray]: ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...


class Checkpoint:
    """Arrays of one fit, identified by `what`; those of another fit are not read. Without a `file` nothing is kept."""

    def __init__(self, file: Path | None, *what: Any):
        self.file, self.what = file, digest_of(*what)
        self._next = time.monotonic() + EVERY

    def read(self) -> Mapping[str, np.ndarray] | None:
        """The arrays last written; None where there are none of this fit, or they are damaged."""
        if self.file is None or not self.file.is_file():
            return None
        try:
            with open_sealed(self.file, CHECKPOINT) as sealed:
                return sealed.arrays() if sealed.head.what == self.what else None
        except (OSError, ValueError):
            return None

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return self.file is not None and time.monotonic() >= self._next

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep these arrays; a full disk does not stop the fit."""
        if self.file is None:
            return
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            write_sealed(self.file, CHECKPOINT, {"what": self.what}, arrays)
        end = time.monotonic()
        self._next = end + max(EVERY, (end - begin) / WRITING)

    def remove(self) -> None:
        """Delete the file once the fit is written."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def checkpoint_file(out: Path) -> Path:
    """The checkpoint's path for a fit that will be written to `out`."""
    return out.with_name(f"{out.name}.part")


class Rows:
    """The results of a fit, a row per source, and which rows are finished; NaN in the others.

    A fit resumes after its finished rows, and within a group of sources after the prompts already summed."""

    def __init__(self, kept: Checkpoint, planned: Plan, shapes: Mapping[str, tuple[tuple[int, ...], DTypeLike]]):
        self.kept, self.planned = kept, planned
        self.arrays = {name: np.full((planned.n_taps, *row), np.nan, dtype) for name, (row, dtype) in shapes.items()}
        self.finished = np.zeros(planned.n_taps, bool)
        self._stored: Mapping[str, np.ndarray] = kept.read() or {}
        if self._stored:
            self.finished = self._stored["finished"].astype(bool)
            self.arrays = {name: self._stored[f"row.{name}"].copy() for name in shapes}

    def groups(self) -> Iterator[tuple[int, ...]]:
        """The unfinished sources, as many at once as planned."""
        yield from self.planned.groups(np.flatnonzero(~self.finished).tolist())

    def share(self, sources: Sequence[int], within: float) -> float:
        """The share of all sources that is finished, plus `within` of these."""
        return float(self.finished.sum() + within * len(sources)) / len(self.finished)

    def restore(self, sources: Sequence[int], sums: Sequence[Summed]) -> int:
        """Fill these sums from the checkpoint; returns the number of prompts they already hold."""
        stored, self._stored = self._stored, {}
        if "sources" not in stored or stored["sources"].tolist() != list(sources):
            return 0
        for source, one in zip(sources, sums):
            one.restore({name: stored[f"{source}.{name}"] for name in one.arrays()})
        return int(stored["prompts"])

    def keep(self, sources: Sequence[int], sums: Sequence[Summed], prompts: int) -> None:
        """Write the sums over the first `prompts` prompts, where a write is due."""
        if self.kept.due:
            named = {f"{source}.{name}": a for source, one in zip(sources, sums) for name, a in one.arrays().items()}
            self._write(named | {"sources": np.asarray(sources), "prompts": np.asarray(prompts)})

    def finish(self, sources: Sequence[int], found: Mapping[str, np.ndarray]) -> None:
        """Store the results of these sources."""
        for name, values in found.items():
            self.arrays[name][list(sources)] = values
        self.finished[list(sources)] = True
        if not self.finished.all():
            self._write({})

    def _write(self, more: Mapping[str, np.ndarray]) -> None:
        rows = {f"row.{name}": values for name, values in self.arrays.items()}
        self.kept.write(rows | {"finished": self.finished} | dict(more))
