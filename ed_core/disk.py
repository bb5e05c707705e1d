"""What a disk can answer instead of doing its work, in words."""

from __future__ import annotations

import errno
import sqlite3

BUSY_SECONDS = 10  # how long a write waits for another process's write
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
    return (
        reason(error)
        if error.errno in (*DISK_FULL, *NO_PERMISSION)
        else f"{error.strerror or error}. Nothing was changed; set ED_CACHE to another folder if it stays so."
    )
