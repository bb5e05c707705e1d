"""The sums and finished rows of a fit that is under way, in a file next to the one it will write. Torch-free."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from .. import disk
from ..types import Prompt, canonical_json

EVERY = 60.0  # seconds between two writes
WRITING = 0.05  # share of the time that writing may take


def digest_of(*what: Any) -> str:
    """Return 32 hex digits of the SHA-256 of JSON values."""
    return hashlib.sha256(canonical_json(what).encode()).hexdigest()[:32]


def digest_of_prompts(prompts: Sequence[Prompt]) -> str:
    """Return 32 hex digits of a prompt set's content."""
    return digest_of([p.identity() for p in prompts])


class Checkpoint:
    """The `.npz` of one fit's unfinished arrays, for resuming. `what`: JSON values that identify the fit; another fit's
    file is not read. `file` None: nothing is written."""

    def __init__(self, file: Path | None, *what: Any):
        self.file, self.what = file, digest_of(*what)
        self._next = time.monotonic() + EVERY

    def read(self) -> dict[str, np.ndarray]:
        """Return the arrays written last; empty if the file is missing, damaged or of another fit."""
        if self.file is not None:
            with (
                contextlib.suppress(OSError, ValueError, KeyError, EOFError, BadZipFile),
                np.load(self.file, allow_pickle=False) as stored,
            ):
                if str(stored["what"]) == self.what:
                    return {name: stored[name] for name in stored.files if name != "what"}
        return {}

    @property
    def due(self) -> bool:
        """Whether enough time has passed to write again."""
        return self.file is not None and time.monotonic() >= self._next

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write these arrays; a full disk is ignored, so the fit goes on."""
        if self.file is None:
            return
        begin = time.monotonic()
        with contextlib.suppress(OSError), disk.written(self.file) as handle:
            np.savez(handle, allow_pickle=False, **arrays, what=np.asarray(self.what))
        end = time.monotonic()
        self._next = end + max(EVERY, (end - begin) / WRITING)

    def remove(self) -> None:
        """Delete the file once the fit is written."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)


def checkpoint_file(out: Path) -> Path:
    """Return the checkpoint's path for a fit that will be written to `out`."""
    return out.with_name(f"{out.name}.part")
