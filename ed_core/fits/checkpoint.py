"""What a fit has summed up so far, in a file beside the one it will write: stopped anywhere, it goes on from there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import Bounds, Head, Kind, open_sealed, write_sealed
from ..types import Prompt, canonical_json

EVERY = 60.0  # seconds
LARGE = 1 << 44  # bytes: as large as a disk
SUMS = Bounds(LARGE, 1 << 20, LARGE, LARGE, 64 << 20, ratio=1)  # of a file of sums


class Header(Head):
    """Of which fit the sums are, as a digest."""

    what: str


CHECKPOINT = Kind(
    "checkpoint",
    "a fit's checkpoint",
    2,
    Header,
    "begin the fit anew",
    members=r"\w+(\.\w+)*\.npy",
    bounds=SUMS,
    refuses=ValueError,
)


def digest(*what: Any) -> str:
    """What a fit is made of, as 32 hex digits."""
    return hashlib.sha256(canonical_json(what).encode()).hexdigest()[:32]


def of_prompts(prompts: Sequence[Prompt]) -> str:
    """A prompt set by its content."""
    return digest([p.identity() for p in prompts])


class Checkpoint:
    """The sums of one fit, `what` says which; another fit's are not read. Without a `file` nothing is kept."""

    def __init__(self, file: Path | None, *what: Any):
        self.file, self.what = file, digest(*what)
        self._written = time.monotonic()

    def read(self) -> Mapping[str, np.ndarray] | None:
        """The sums kept last, or None where there are none of this fit; a damaged file counts as none."""
        if self.file is None or not self.file.is_file():
            return None
        try:
            with open_sealed(self.file, CHECKPOINT) as sealed:
                return sealed.arrays() if sealed.head.what == self.what else None
        except (OSError, ValueError):
            return None

    def due(self) -> bool:
        """Whether it is time to keep the sums again."""
        return self.file is not None and time.monotonic() - self._written >= EVERY

    def write(self, arrays: Mapping[str, np.ndarray], now: bool = False) -> None:
        """Keep the sums, once a minute unless `now`."""
        if self.file is None or not (now or self.due()):
            return
        write_sealed(self.file, CHECKPOINT, {"what": self.what}, arrays)
        self._written = time.monotonic()

    def done(self) -> None:
        """The fit is written: its sums are not needed any more."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def beside(out: Path, number: int = 0) -> Path:
    """Where the sums of the fit that `out` will hold are kept; `number`: of the group, where there are several."""
    return out.with_name(f"{out.name}.{number or ''}part")
