"""Writing a file all or nothing, room for what is to come, and what a disk can answer instead of doing its work, in
words."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import TooLarge
from .memory import gigabytes

SPARE_BYTES = 200 << 20  # what a download or a conversion leaves free
BUSY_SECONDS = 10  # how long a write waits for another process's write
UNFINISHED = ".unfinished"  # the ending of a file that is being written
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
# SQLite's errors that tell of the disk, of permissions or of other processes; any other one tells of a damaged
# database.
SURROUNDINGS = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
)


@contextlib.contextmanager
def written(file: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `file` when the block ends, and is gone when the block fails: at every moment
    the whole old version lies there, or the whole new one."""
    part = file.with_name(f"{file.stem}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with part.open("wb") as handle:
            yield handle
            sync(handle)
        move(part, file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write(file: Path, data: bytes) -> None:
    """Replace a file's content, all or nothing."""
    with written(file) as handle:
        handle.write(data)


def move(file: Path, to: Path) -> None:
    """Rename a file so that a power cut does not undo it."""
    os.replace(file, to)
    for folder in {file.parent, to.parent}:
        sync_folder(folder)


def sync(handle: BinaryIO) -> None:
    """Wait until what was written lies on the disk."""
    handle.flush()
    os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder lie on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free(folder: Path) -> int:
    """Bytes that are free where a folder lies, or will lie."""
    there = next(p for p in (folder, *folder.parents) if p.exists())
    return shutil.disk_usage(there).free


def has_room(n_bytes: int, folder: Path) -> bool:
    return n_bytes + SPARE_BYTES <= free(folder)


def require_room(what: str, n_bytes: int, folder: Path, setting: str = "ED_CACHE") -> None:
    """Refuse before the first byte what the disk has no room for. `setting`: what moves the folder."""
    if not has_room(n_bytes, folder):
        raise TooLarge(
            f"{what} needs {gigabytes(n_bytes + SPARE_BYTES)} of disk and {gigabytes(free(folder))} are free in "
            f"{folder}; make room, or set {setting} to a folder on another disk."
        )


def is_damage(cause: BaseException | None) -> bool:
    if not isinstance(cause, sqlite3.DatabaseError):
        return False
    return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in SURROUNDINGS


def reason(cause: BaseException | None) -> str:
    """Why the disk did not do it, and what to do."""
    code, number = getattr(cause, "sqlite_errorcode", 0) & 0xFF, getattr(cause, "errno", None)
    if code == sqlite3.SQLITE_FULL or number in DISK_FULL:
        return "the disk is full. Free some space, or set ED_CACHE to a folder on another disk."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or number in NO_PERMISSION:
        return "this program may not write there. Give it permission, or set ED_CACHE to another folder."
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"another process has been writing for {BUSY_SECONDS} s. Try again, or stop that process."
    return f"{cause}. Set ED_CACHE to another folder, or delete the results: they can be computed again."


def why(error: OSError) -> str:
    """What an error of the disk means, and what to do."""
    if error.errno in (*DISK_FULL, *NO_PERMISSION):
        return reason(error)
    return f"{error.strerror or error}. Nothing was changed; set ED_CACHE to another folder if it stays so."
