"""Writing a file all or nothing, checking before the work that it can be written, and what the disk's errors mean."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from . import settings
from .errors import ParameterError, TooLarge, ran_out
from .machine import gigabytes
from .untrusted import ending

SPARE_BYTES = 200 << 20  # what a download or a conversion leaves free
BUSY_SECONDS = 10  # how long a write waits for another process's write
UNFINISHED = ".unfinished"  # the ending of a file that is being written
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
SQLITE_NO_PERMISSION = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
SQLITE_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextlib.contextmanager
def written(file: Path) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `file`, with its permissions, when the block ends, and is deleted when the block
    fails: at every moment `file` is the whole old version or the whole new one."""
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
    """Return the path of a file while it is written, with a name no longer than any may be."""
    return file.with_name(f"{os.fsdecode(os.fsencode(file.stem)[:200])}.{secrets.token_hex(4)}{UNFINISHED}")


def write(file: Path, data: bytes) -> None:
    """Replace a file's content by `data`, all or nothing."""
    with written(file) as handle:
        handle.write(data)


def move(file: Path, to: Path) -> None:
    """Rename a file so that a power cut does not undo it."""
    os.replace(file, to)
    for folder in {file.parent, to.parent}:
        sync_folder(folder)


def make_once(place: Path, make: Callable[[Path], Path], cancelled: Callable[[], bool] | None = None) -> None:
    """Let `make(folder)` write a file or folder into an empty folder, and move that to `place`, unless `place` exists:
    one process at a time, and a failure leaves nothing. Raises `filelock.Timeout` where cancelled before its turn."""
    from filelock import FileLock

    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.parent / "lock").acquire(cancel_check=cancelled):
        for left in place.parent.glob(f"*{UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)  # by a process that was killed: this one has the lock
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=f"{place.stem}.", suffix=UNFINISHED) as folder:
                move(make(Path(folder)), place)


def sync(handle: BinaryIO) -> None:
    """Wait until what was written is on the disk."""
    handle.flush()
    os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def hidden(out: Path) -> Iterator[Path]:
    """Yield a hidden folder next to `out`, to make something in; it is deleted with all in it when the block ends."""
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=UNFINISHED, dir=out.absolute().parent) as made:
        yield Path(made)


# ---------------------------------------------------------------- before the work


def require_out(out: str | Path, inputs: Iterable[str | Path] = (), name: str = "--out", expected: str = "") -> Path:
    """Return the path of a file that can be written, is none of the `inputs` and ends as `expected`; raise a
    `ParameterError` otherwise. `name`: the flag of the path."""
    file = Path(out)
    with _refusing(name, out):
        if not file.name or not file.parent.is_dir():
            raise ValueError(f"the folder {file.parent} does not exist" if file.name else "expected the path of a file")
        if os.path.lexists(file) and not (file.is_file() and not file.is_symlink()):
            raise ValueError("it is a folder, a link or a device; expected the path of a file")
        if expected and ending(file) != expected:
            raise ValueError(f"expected a file that ends in {expected}")
        if file.suffix == ".safetensors" and any(
            (file.parent / f"{of}config.json").is_file() for of in ("", "adapter_")
        ):
            raise ValueError("the folder holds a model")
        if _is_among(file, inputs):
            raise ValueError("the file is read as well")
        _try(file)
    return file


def require_out_folder(out: str | Path) -> Path:
    """Return the path of a folder that can be written into, or made; raise a `ParameterError` otherwise."""
    folder = Path(out)
    with _refusing("--out", out):
        if not str(out):
            raise ValueError("expected the path of a folder")
        nearest = next(p for p in (folder, *folder.absolute().parents) if os.path.lexists(p))
        if not nearest.is_dir():
            raise ValueError(f"{nearest} is no folder")
        _try(nearest / "x")
    return folder


def require_apart(files: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Raise a `ParameterError` where one of the `files` to be written is one of the `inputs`."""
    known = list(inputs)
    if wrong := next((file for file in files if _is_among(file, known)), None):
        raise ParameterError(f"{wrong} is read, and would be replaced; give --out another folder.")


def _is_among(file: Path, inputs: Iterable[str | Path]) -> bool:
    """Return whether `file` exists and is one of the `inputs`, by whatever path."""
    existing = (one for one in map(str, inputs) if one and os.path.exists(one))
    return file.exists() and any(os.path.samefile(file, one) for one in existing)


def _try(file: Path) -> None:
    """Raise an `OSError` where no file can be made in the folder of this one."""
    part = _part(file)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    part.unlink()


@contextlib.contextmanager
def _refusing(name: str, out: str | Path) -> Iterator[None]:
    """Turn an `OSError` or `ValueError` of the block into a `ParameterError` on the path `out` of the flag `name`."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = why(error, name) if isinstance(error, OSError) else f"{error}. Give another path."
        raise ParameterError(f"{name} is {str(out)!r}, which cannot be written: {reason}") from None


def free(folder: Path) -> int:
    """Return the bytes free on the disk of a folder, which may not exist yet."""
    return shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free


def has_room(n_bytes: int, folder: Path) -> bool:
    """Return whether `n_bytes` fit on the disk of a folder, with `SPARE_BYTES` left free."""
    return n_bytes + SPARE_BYTES <= free(folder)


def require_room(what: str, n_bytes: int, folder: Path, setting: str = "ED_CACHE") -> None:
    """Raise `TooLarge` where the disk has no room for `n_bytes`, before the first byte is written. `what`: needs them.
    `setting`: the setting that moves the folder."""
    if not has_room(n_bytes, folder):
        raise TooLarge(
            f"{what} needs {gigabytes(n_bytes + SPARE_BYTES)} of disk and {gigabytes(free(folder))} are free in "
            f"{folder}; make room, or set {setting} to a folder on another disk."
        )


# ---------------------------------------------------------------- errors


def moves(out: Path) -> str:
    """Return the name of what moves an output folder: "ED_CACHE" for one in this installation's cache, else "--out"."""
    return "ED_CACHE" if out.absolute().is_relative_to(settings.current().cache) else "--out"


def is_damage(cause: BaseException | None) -> bool:
    """Return whether a database's error is damage, and not the disk's, a permission's or another process's."""
    if isinstance(cause, sqlite3.OperationalError):  # of which only a missing table is damage
        return getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF == sqlite3.SQLITE_ERROR
    return isinstance(cause, sqlite3.DatabaseError)


def why(error: BaseException | None, setting: str = "ED_CACHE") -> str:
    """Return what an error of the disk or store means, and what to do; `setting` is what moves the folder."""
    code, number = getattr(error, "sqlite_errorcode", 0) & 0xFF, getattr(error, "errno", None)
    if code == sqlite3.SQLITE_FULL or number in DISK_FULL:
        return f"the disk is full. Free some space, or set {setting} to a folder on another disk."
    if code in SQLITE_NO_PERMISSION or number in NO_PERMISSION:
        return f"this program may not write there. Give it permission, or set {setting} to another folder."
    if code in SQLITE_BUSY:
        return f"another process has been writing for {BUSY_SECONDS} s. Try again, or stop that process."
    return f"{getattr(error, 'strerror', None) or error}. Set {setting} to another folder if this stays so."


def lacks(error: BaseException, setting: str = "ED_CACHE") -> str:
    """Return in a sentence what the machine lacks (disk, permission, memory) where an error says so; else ""."""
    if isinstance(error, OSError) and error.errno in (*DISK_FULL, *NO_PERMISSION):
        return f"{error.filename or 'The output'} cannot be written: {why(error, setting)}"
    if ran_out(error):
        return "The memory ran out; take a smaller model, a narrower precision, or fewer prompts at once."
    return ""
