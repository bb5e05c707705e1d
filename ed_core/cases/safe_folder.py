"""A folder that is written all or nothing, by one process at a time, and whose the case studies in it are. Torch-free.

The lock is the kernel's, which gives it back when a process dies, however that ends, so none can be left behind.

An owner is an address in a file of its own beside the case study's, never inside it, so that it does not travel with an
export. It is written before the case study: a kill in between leaves an owner of nothing, which the next case study of
that id replaces. It stays while the case study lies in the trash. No file means no owner (kept without a login, or from
the command line)."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from .. import bounds, disk, outside
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


SUFFIX = ".owner"
UNREADABLE = "?"  # nobody's address: only admins change such a case study
ADDRESS = re.compile(r"[^\s@]{1,200}@[^\s@]{1,200}")


class Owners:
    """The owners in one folder of case studies; the methods that write are called under its lock."""

    def __init__(self, folder: SafeFolder):
        self._folder = folder

    def of(self, id: str) -> str:
        """The owner's address; "" where there is none, `UNREADABLE` where the file is damaged."""
        file = self._file(id)
        try:
            text = outside.text(file, bounds.OWNER, outside.Unreadable)
        except outside.Unreadable:
            return UNREADABLE if os.path.lexists(file) else ""
        found = text[:-1] if text.endswith("\n") else ""  # without its end it is cut off
        return found if ADDRESS.fullmatch(found) else UNREADABLE

    def write(self, id: str, owner: str) -> None:
        """Make a case study that is about to be written `owner`'s, or nobody's where that is ""."""
        if owner:
            self._folder.write(self._file(id), (checked(owner) + "\n").encode())
        else:
            self.forget([id])

    def forget(self, ids: Collection[str]) -> None:
        with self._folder.disk("changed"):
            for id in ids:
                self._file(id).unlink(missing_ok=True)

    def ids(self) -> list[str]:
        """The case studies that have, or had, an owner."""
        return sorted(file.stem for file in self._folder.path.glob(f"*{SUFFIX}"))

    def _file(self, id: str) -> Path:
        return self._folder.path / f"{id}{SUFFIX}"


def checked(owner: str) -> str:
    """An owner as it is written; `CaseError` for what is no address."""
    if not ADDRESS.fullmatch(owner):
        raise CaseError(f"The owner {owner[:80]!r} is no e-mail address; log in with an account that has one.")
    return owner
