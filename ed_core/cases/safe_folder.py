"""A folder that is written all or nothing, by one process at a time. Torch-free.

The lock is the kernel's, which gives it back when a process dies, however that ends, so none can be left behind."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from .. import disk
from ..errors import CaseError, StoreError

LOCK_SECONDS, POLL_SECONDS = 10.0, 0.005  # how long a write waits for another process's write, how often it looks


class SafeFolder:
    """Writing, moving and locking in one folder and those below it. `StoreError` where the disk does not do it."""

    def __init__(self, path: Path):
        self.path = path
        self._threads = threading.RLock()
        # never a soft lock, a file that the next program would have to believe: it outlives its process
        self._lock = FileLock(path / ".lock", thread_local=False, fallback_to_soft=False)

    def write(self, file: Path, data: bytes) -> None:
        """All or nothing. Called under the lock, so any other unfinished file is of a process that died."""
        with self.disk("written"):
            for left in self.path.glob(f"*{disk.UNFINISHED}"):
                left.unlink()
            disk.write(file, data)

    def move(self, file: Path, to: Path) -> None:
        try:
            with self.disk("moved"):
                to.parent.mkdir(exist_ok=True)
                disk.move(file, to)
        except FileNotFoundError:
            raise CaseError(
                f"There is no case study {file.name.split('.')[0]} here; it may have been deleted already."
            ) from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time, among threads and processes."""
        with self._threads:
            with self.disk("locked"):
                if not self.path.is_dir():
                    self.path.mkdir(parents=True, exist_ok=True)
                    disk.sync_folder(self.path.parent)
                try:
                    lock = self._lock.acquire(LOCK_SECONDS, POLL_SECONDS)
                except Timeout:
                    raise StoreError(
                        f"Another process has been writing case studies for {LOCK_SECONDS:g} s. Try again, or stop "
                        "that process."
                    ) from None
            with lock:
                yield

    @contextlib.contextmanager
    def disk(self, done: str) -> Iterator[None]:
        """What the disk refuses, in one sentence."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"The case studies in {self.path} cannot be {done}: {disk.why(error)}") from error
