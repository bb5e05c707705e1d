"""What others made: the most that is read of it, and how a file is opened: no larger than its bound, UTF-8 with or
without a byte order mark. What is wrong with one is a sentence, of the class that the reader asks for.

A bound is checked before anything of that size is read or allocated. Containers have theirs in `files.Bounds`, models
the free memory (`work.resolve`)."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

from .errors import InputError
from .types import from_json

# Bytes unless said otherwise.
PROMPTS = 64 << 20  # a file of prompts
LINES = 100_000  # prompts of one file
CHUNK = 1000  # prompts of one item of a study
VALUES = 1 << 22  # numbers that an item has for one prompt in one column
TOML = 1 << 20  # a study's file
CONFIG = 16 << 20  # a JSON file of a model's folder, an adapter or a fit
TOKENIZER = 64 << 20  # tokenizer.json, and the lists of its tokens; one takes 17 times as much memory
WEIGHTS = 1 << 46  # a file of weights, which is never read whole
SET = 1 << 30  # a table that a study's set reads
ITEM = 256 << 20  # the sums of one item of a study
SUMS, ROWS = 4 << 30, 10_000_000  # all sums of a study: bytes, prompts of all its models
FOOTER, PARTS = 64 << 20, 20_000  # of a parquet file: its metadata; columns and groups of rows, each
PLAN = 256 << 20  # the plan of a study, which names each of its prompts
ITEM_HEAD = 1 << 20  # what such a file says about its columns
CHARACTERS = 100  # of a prompt for each token that may be: longer ones are refused before they are tokenized
LEAST_CHARACTERS = 10_000  # of a prompt that are read whatever `max_tokens` is
WHOLE = 10**9  # any size that a config names: layers, width, vocabulary
LAYERS = 10_000
TEMPLATE = 1 << 18  # characters of a chat template
TEMPLATE_SECONDS, TEMPLATE_MEMORY = 5.0, 256 << 20  # what rendering one may take

DOTTED = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){32}")  # a name that tomllib reads in quadratic time
MARK = b"\xef\xbb\xbf"
Refuses = Callable[[str], Exception]


class Unreadable(InputError, ValueError):
    """A file that cannot be read as what it should be."""


def ending(file: str | Path) -> str:
    """Return the ending of a file's name in small letters: ".npz"."""
    return Path(file).suffix.lower()


def size(n: int) -> str:
    """Return a number of bytes in words: "2 MiB", "30 bytes"."""
    return f"{n / 2**20:.3g} MiB" if n >= 1 << 20 else f"{n} bytes"


def opened(file: str | Path, most: int, refuses: Refuses = InputError, noun: str = "file") -> BufferedReader:
    """Return a file of at most `most` bytes, open for reading; else raise `refuses(sentence)`. `noun`: what a
    missing file is called."""
    shown = f"{str(file)[:200]!r}" if len(str(file)) > 200 or not str(file).isprintable() else str(file)
    try:
        handle = open(file, "rb")  # noqa: SIM115  # which the caller closes
    except FileNotFoundError:
        raise refuses(f"There is no {noun} {shown or repr('')}; check the path.") from None
    except (OSError, ValueError) as error:
        raise refuses(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if (length := os.fstat(handle.fileno()).st_size) > most:
        handle.close()
        raise refuses(f"{shown} has {size(length)}; at most {size(most)} are read.")
    return handle


def content(file: str | Path, most: int, refuses: Refuses = InputError, noun: str = "file") -> bytes:
    """Return the bytes of a file of at most `most` bytes; else raise `refuses(sentence)`."""
    with opened(file, most, refuses, noun) as handle:
        try:
            return handle.read(most)
        except OSError as error:
            raise refuses(f"{file} cannot be read: {error.strerror or error}.") from None


def text(file: str | Path, most: int, refuses: Refuses = InputError, noun: str = "file") -> str:
    """Return the text of a UTF-8 file of at most `most` bytes, without its mark; else raise `refuses(sentence)`."""
    return decoded(content(file, most, refuses, noun), str(file), most, refuses)


def decoded(data: bytes, name: str, most: int, refuses: Refuses = InputError) -> str:
    """Return the text of at most `most` bytes of UTF-8 called `name`; else raise `refuses(sentence)`."""
    if len(data) > most:
        raise refuses(f"{name} has {size(len(data))}; at most {size(most)} are read.")
    try:
        return data.removeprefix(MARK).decode()
    except UnicodeDecodeError as error:
        raise refuses(f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None


def json_of(file: str | Path, most: int = CONFIG) -> Any:
    """Return the value of a JSON file of at most `most` bytes; `OSError` or `ValueError` where it cannot be read."""
    return from_json(text(file, most, Unreadable))


def toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text of bounded size; `ValueError` says what is wrong."""
    if len(text) > TOML:
        raise ValueError(f"it has {size(len(text))}, and at most {size(TOML)} are read")
    if DOTTED.search(text):
        raise ValueError("a name in it has more than 32 parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
