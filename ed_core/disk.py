"""Writing a file all or nothing, room for what is to come, and what a disk can answer instead of doing its work, in
words."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from . import settings
from .errors import ParameterError, TooLarge, ran_out
from .machine import gigabytes
from .outside import ending, kind_of

LOG_BYTES = 1 << 20  # after which a log is begun anew
SPARE_BYTES = 200 << 20  # what a download or a conversion leaves free
BUSY_SECONDS = 10  # how long a write waits for another process's write
UNFINISHED = ".unfinished"  # the ending of a file that is being written
STALE_SECONDS = 24 * 3600  # after which an unfinished file belongs to a run that was killed
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
    """A new file that takes the place of `file`, and its permissions, when the block ends, and is gone when the block
    fails: at every moment the whole old version lies there, or the whole new one."""
    part = _part(file)
    try:
        with part.open("wb") as handle:
            with contextlib.suppress(FileNotFoundError):
                part.chmod(stat.S_IMODE(file.stat().st_mode))
            yield handle
            sync(handle)
        move(part, file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _part(file: Path) -> Path:
    """Where a file lies while it is written: a name no longer than any may be."""
    return file.with_name(f"{os.fsdecode(os.fsencode(file.stem)[:200])}.{secrets.token_hex(4)}{UNFINISHED}")


@contextlib.contextmanager
def hidden(out: Path) -> Iterator[Path]:
    """A hidden folder next to `out`, to make something in; gone with all in it when the block ends."""
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=UNFINISHED, dir=out.absolute().parent) as made:
        yield Path(made)


def require_out(out: str | Path, inputs: Iterable[str | Path] = (), name: str = "--out", expected: str = "") -> Path:
    """Refuse, before the work, a file that cannot be written or must not be: one of the `inputs`, a folder, a device, a
    pipe, a link, one of another ending than is `expected`. Removes what killed runs left of it. `name`: what the path
    was given as."""
    file, shown = Path(out), _shown(out)
    with _refusing(name, shown):
        try:
            mode = file.lstat().st_mode
        except FileNotFoundError:
            mode = 0
        if not file.name:
            raise ParameterError(f"{name} is {shown or 'empty'}; expected the path of a file.")
        if not file.parent.is_dir():
            raise ParameterError(f"The folder {file.parent} of {name} does not exist; make it first.")
        if stat.S_ISLNK(mode):
            raise ParameterError(f"{name} is {shown}, a link to {os.readlink(file)}; give the path of a file.")
        if mode and not stat.S_ISREG(mode):
            raise ParameterError(f"{name} is {shown}, {kind_of(mode)}; expected the path of a file.")
        if expected and ending(file) != expected:
            raise ParameterError(f"{name} is {shown}; expected a file that ends in {expected}.")
        for read in filter(None, map(str, inputs)):
            with contextlib.suppress(OSError, ValueError):
                if mode and os.path.samefile(read, file):
                    raise ParameterError(f"{name} is {shown}, which is read as well; give the path of another file.")
        for left in file.parent.glob(f"{glob.escape(file.stem)}.????????{UNFINISHED}"):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink(missing_ok=True)
        _try(_part(file))
    return file


def require_apart(written: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Refuse, before the work, a folder of --out in which a file that is `written` is one of the `inputs`."""
    wanted = [Path(read) for read in filter(None, map(str, inputs))]
    for file in written:
        for read in wanted:
            with contextlib.suppress(OSError, ValueError):
                if os.path.samefile(read, file):
                    raise ParameterError(
                        f"{read} would be replaced by the {file.name} that is written; give --out another folder."
                    )


def require_out_folder(out: str | Path) -> Path:
    """Refuse, before the work, a folder that cannot be written into, or whose place something else has."""
    folder, shown = Path(out), _shown(out)
    with _refusing("--out", shown):
        if not str(out):
            raise ParameterError("--out is empty; expected the path of a folder.")
        there = next(p for p in (folder, *folder.absolute().parents) if os.path.lexists(p))
        if not there.is_dir():
            raise ParameterError(
                f"--out is {shown}, and {there} is {not_a_file(there) or 'a file'}; expected the path of a folder."
            )
        for part in folder.absolute().parts[len(there.absolute().parts) :]:
            if len(os.fsencode(part)) > os.pathconf(there, "PC_NAME_MAX"):
                raise ParameterError(f"--out is {shown}, and a name in it is too long; choose a shorter one.")
        _try(_part(there / "x"))
    return folder


def _try(part: Path) -> None:
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    part.unlink()


def _shown(out: str | Path) -> str:
    text = str(out)
    return text if len(text) <= 200 and text.isprintable() else repr(text[:200])


@contextlib.contextmanager
def _refusing(name: str, shown: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        why_not = why(error, name) if isinstance(error, OSError) else f"{error}. Choose another path."
        raise ParameterError(f"{name} is {shown}, which cannot be written: {why_not}") from None


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


def log(name: str, text: str, folder: Path) -> Path:
    """Add to a file of the cache's folder that nobody else reads; begun anew where it has grown large."""
    file = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    if file.is_file() and file.stat().st_size > LOG_BYTES:
        flags |= os.O_TRUNC
    with os.fdopen(os.open(file, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace") as handle:
        handle.write(text)
    return file


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


def not_a_file(file: Path) -> str:
    """What lies in a file's place, a folder or a link to nothing; "" where it is a file, or nothing is there."""
    if file.is_symlink() and not file.exists():
        return "a link to nothing"
    return kind_of(file.stat().st_mode) if file.exists() else ""


def is_damage(cause: BaseException | None) -> bool:
    if not isinstance(cause, sqlite3.DatabaseError):
        return False
    return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in SURROUNDINGS


def reason(cause: BaseException | None, setting: str = "ED_CACHE") -> str:
    """Why the disk did not do it, and what to do."""
    code, number = getattr(cause, "sqlite_errorcode", 0) & 0xFF, getattr(cause, "errno", None)
    if code == sqlite3.SQLITE_FULL or number in DISK_FULL:
        return f"the disk is full. Free some space, or set {setting} to a folder on another disk."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or number in NO_PERMISSION:
        return f"this program may not write there. Give it permission, or set {setting} to another folder."
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"another process has been writing for {BUSY_SECONDS} s. Try again, or stop that process."
    return f"{cause}. Set ED_CACHE to another folder, or delete the results: they can be computed again."


def moves(out: Path) -> str:
    """What moves a folder of many files: --out, or ED_CACHE where it lies in this installation's own."""
    return "ED_CACHE" if out.absolute().is_relative_to(settings.current().cache) else "--out"


def why(error: OSError, setting: str = "ED_CACHE") -> str:
    """What an error of the disk means, and what to do. `setting`: what moves the folder."""
    if error.errno in (*DISK_FULL, *NO_PERMISSION):
        return reason(error, setting)
    return f"{error.strerror or error}. Nothing was changed; set {setting} to another folder if it stays so."


def lacks(error: BaseException, setting: str = "ED_CACHE") -> str:
    """What the machine lacks where an error tells of that, in a sentence, and what to do; "" where it does not."""
    if isinstance(error, OSError) and error.errno in (*DISK_FULL, *NO_PERMISSION):
        return f"{error.filename or 'The output'} cannot be written: {why(error, setting)}"
    if ran_out(error):
        return "The memory ran out; take a smaller model, a narrower precision, or fewer prompts at once."
    return ""
