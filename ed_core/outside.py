"""The one door for files from outside: a regular file, no larger than its bound, UTF-8 with or without a byte order
mark. What is wrong with one is a single sentence, of the class that the reader asks for."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

from . import bounds
from .errors import InputError
from .types import from_json

MARK = b"\xef\xbb\xbf"
DOTTED = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{bounds.NESTING}}}")
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
Refuses = Callable[[str], Exception]


def kind_of(mode: int) -> str:
    """What a mode is of, where it is no regular file; else ""."""
    return next((name for holds, name in KINDS if holds(mode)), "")


def ending(file: str | Path) -> str:
    """How a file's name ends, in small letters: ".npz"."""
    return Path(file).suffix.lower()


def size(n: int) -> str:
    """ "2 MiB", "30 bytes"."""
    return f"{n / 2**20:.3g} MiB" if n >= 1 << 20 else f"{n} bytes"


def opened(file: str | Path, most: int, refuses: Refuses = InputError, noun: str = "file") -> BufferedReader:
    """A regular file of at most `most` bytes, open for reading. A pipe is refused without waiting for its writer.
    `noun`: what it is called where there is none."""
    shown = f"{str(file)[:200]!r}" if len(str(file)) > 200 or not str(file).isprintable() else str(file)
    try:
        handle = regular(file)
    except FileNotFoundError:
        raise refuses(f"There is no {noun} {shown or repr('')}; check the path.") from None
    except (OSError, ValueError) as error:
        raise refuses(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if (found := os.fstat(handle.fileno()).st_size) > most:
        handle.close()
        raise refuses(f"{shown} has {size(found)}; at most {size(most)} are read.")
    return handle


def regular(file: str | Path) -> BufferedReader:
    """A regular file, open for reading; `OSError` for anything else, without waiting for whoever writes into a pipe."""
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if kind := kind_of(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.ENOTSUP, f"it is {kind}, and a file is expected", str(file))
    return os.fdopen(handle, "rb")


def content(file: str | Path, most: int, refuses: Refuses = InputError, noun: str = "file") -> bytes:
    """The bytes of such a file."""
    with opened(file, most, refuses, noun) as handle:
        try:
            data = handle.read(most + 1)
        except OSError as error:
            raise refuses(f"{file} cannot be read: {error.strerror or error}.") from None
    if len(data) > most:  # it grew meanwhile
        raise refuses(f"{file} has more than {size(most)}, which is not read.")
    return data


def text(file: str | Path, most: int, refuses: Refuses = InputError, noun: str = "file") -> str:
    """The text of such a file, without a byte order mark."""
    return decoded(content(file, most, refuses, noun), str(file), most, refuses)


def decoded(data: bytes, name: str, most: int, refuses: Refuses = InputError) -> str:
    """The text of at most `most` bytes, as of a file called `name`, without a byte order mark."""
    if len(data) > most:
        raise refuses(f"{name} has {size(len(data))}; at most {size(most)} are read.")
    try:
        return data.removeprefix(MARK).decode()
    except UnicodeDecodeError as error:
        raise refuses(f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None


def json_of(file: str | Path, most: int = bounds.CONFIG) -> Any:
    """The value of a JSON file whose reader has its own words: `OSError` or `ValueError`."""
    return from_json(text(file, most, Unreadable))


class Unreadable(InputError, ValueError):
    """A file that cannot be read as what it should be."""


def toml(text: str) -> dict[str, Any]:
    """A TOML text of bounded size and nesting; `ValueError` says what is wrong."""
    if len(text) > bounds.TOML:
        raise ValueError(f"it has {size(len(text))}, and at most {size(bounds.TOML)} are read")
    if DOTTED.search(text):
        raise ValueError(f"a name in it has more than {bounds.NESTING} parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {bounds.NESTING} deep") from None
    level: list[Any] = [found]
    for _ in range(bounds.NESTING):
        level = [v for one in level for v in (one.values() if isinstance(one, dict) else one)]
        level = [v for v in level if isinstance(v, (dict, list))]
    if level:
        raise ValueError(f"it is nested more than {bounds.NESTING} deep")
    return found
