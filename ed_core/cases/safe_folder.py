"""A folder that is written all or nothing, by one process at a time. Torch-free.

Written beside its place, synced, renamed, and the folder synced: at every moment there is the old version or the new
one. The lock is the kernel's, which gives it back when a process dies, however that ends, so none can be left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ..disk import why
from ..errors import CaseError, StoreError

LOCK_SECONDS = 10.0  # how long a write waits for another process's write
UNFINISHED = ".unfinished"


class SafeFolder:
    """Writing, moving and locking in one folder and those below it. `StoreError` where the disk does not do it."""

    def __init__(self, path: Path):
        self.path = path
        self._threads, self._depth = threading.RLock(), 0

    def write(self, file: Path, data: bytes) -> None:
        """All or nothing. Called under the lock, so any other unfinished file is of a process that died."""
        with self.disk("written"):
            for left in self.path.glob(f"*{UNFINISHED}"):
                left.unlink()
            part = file.with_name(f"{file.stem}.{secrets.token_hex(4)}{UNFINISHED}")
            try:
                with part.open("wb") as handle:
                    handle.write(data)
                    handle.flush()
                    os.fsync(handle.fileno())
                os.replace(part, file)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            _sync(file.parent)

    def move(self, file: Path, to: Path) -> None:
        try:
            with self.disk("moved"):
                to.parent.mkdir(exist_ok=True)
                os.rename(file, to)
                _sync(to.parent)
                _sync(file.parent)
        except FileNotFoundError:
            raise CaseError(
                f"There is no case study {file.name.split('.')[0]} here; it may have been deleted already."
            ) from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time, among threads and processes. The kernel releases the lock with its process, however
        that ends."""
        with self.disk("locked"):
            if not self.path.is_dir():
                self.path.mkdir(parents=True, exist_ok=True)
                _sync(self.path.parent)
        with self._threads, contextlib.ExitStack() as stack:
            if self._depth == 0:
                stack.callback(os.close, self._acquire())
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def _acquire(self) -> int:
        end, name = time.monotonic() + LOCK_SECONDS, self.path / ".lock"
        while time.monotonic() < end:
            with self.disk("locked"):
                handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if (
                        os.stat(name).st_ino == os.fstat(handle).st_ino
                    ):  # else somebody deleted the file: what is locked is nobody's any more
                        return handle
            except BlockingIOError:
                pass
            os.close(handle)
            time.sleep(0.005)
        raise StoreError(
            f"Another process has been writing case studies for {LOCK_SECONDS:g} s. Try again, or stop that process."
        )

    @contextlib.contextmanager
    def disk(self, done: str) -> Iterator[None]:
        """What the disk refuses, in one sentence."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"The case studies in {self.path} cannot be {done}: {why(error)}") from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
