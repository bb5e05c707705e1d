"""A study as one file, `.edstudy`, that opens elsewhere, and back. Numpy and pyarrow; no torch, no model.

A sealed container: its manifest names the study and the digest of all measures, its members are the study's file, its
plan, its sums and what failed. What comes in is untrusted: `ed_core.files` bounds and checks the container, and every
column of the sums is checked as it is read; verdicts and report are made again from the sums, and must come to the
manifest's digest. It appears at its place whole or not at all."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

from pydantic import Field

from .. import disk, untrusted
from ..errors import ImportRefused, StudyError
from ..files import Bounds, Head, Kind, Sealed, expect, open_sealed, seal
from . import report
from .items import SUMS, open_folder, packed_keys, write_sums
from .plan import FAILURES, PLAN, STUDY
from .study import NAME
from .study import parse as parse_study

ENDING = ".edstudy"
MAX_FILES, MAX_HEAD = 10_000, 16 << 20
KNOWN = "|".join(map(re.escape, (STUDY, PLAN, SUMS, FAILURES)))


class Header(Head):
    """The manifest of a `.edstudy` file: the study's name, and `measures`, the SHA-256 of all its measures in hex."""

    name: str = Field(pattern=f"^{NAME}$")
    measures: str = Field(pattern="^[0-9a-f]{64}$")


KIND = Kind(
    "study",
    "a study",
    4,
    Header,
    "ask for it to be exported again",
    members=KNOWN,
    compressed=r".*\.(toml|json)",
    bounds=Bounds(untrusted.SUMS, MAX_FILES, untrusted.SUMS, untrusted.SUMS, MAX_HEAD),
)


def packed(out: str | Path) -> bytes:
    """Return the bytes of a `.edstudy` file with the study in the folder `out`."""
    folder = open_folder(out)
    sums = io.BytesIO()
    write_sums(sums, folder, folder.item_keys())
    members = {name: (folder.out / name).read_bytes() for name in (STUDY, PLAN)} | {SUMS: sums.getvalue()}
    if (file := folder.out / FAILURES).is_file():
        members[FAILURES] = file.read_bytes()
    return seal(KIND, {"name": folder.plan["name"], "measures": folder.digest()}, members)


def name_of(file: str | Path | BufferedIOBase) -> str:
    """Return the name of the study in a `.edstudy` file; `ImportRefused` for any other file."""
    with _opened(file) as sealed:
        return sealed.head.name


def unpack(file: str | Path | BufferedIOBase, out: str | Path) -> str:
    """Check a `.edstudy` file, write its study into the folder `out` (new or empty), and return the digest of its
    measures. Raises `ImportRefused` where file or folder are refused, and then leaves nothing in `out`."""
    out = require_new(Path(out))
    with _opened(file, disk.moves(out)) as sealed, disk.hidden(out) as hidden:
        part = hidden / "study"  # one folder further in, where the list of studies does not look
        part.mkdir()
        measures = _unpack(sealed, part)
        part.replace(out)
        disk.sync_folder(hidden.parent)
    return measures


def require_new(out: Path) -> Path:
    """Return `out`; `ImportRefused` where it is a link, a file, or a folder that is not empty."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ImportRefused(f"{out} is there already; give --out a folder that is not there yet, or an empty one.")
    return out


@contextlib.contextmanager
def _opened(file: str | Path | BufferedIOBase, moves: str = "--out") -> Iterator[Sealed[Header]]:
    """Yield the opened `.edstudy` file; errors of the disk become `ImportRefused` or `StudyError`. `moves`: the option
    that names another folder, for the message."""
    try:
        with open_sealed(Path(file) if isinstance(file, str) else file, KIND) as sealed:
            yield sealed
    except OSError as error:
        if isinstance(file, (str, Path)) and error.filename == str(file):
            raise ImportRefused(f"{file} cannot be read: {error.strerror or error}.") from None
        raise StudyError(f"The study cannot be written: {disk.why(error, moves)}") from error


def _unpack(sealed: Sealed[Header], part: Path) -> str:
    """Write the members of a `.edstudy` into the folder `part`, check them, and return the digest of the measures."""
    expect({STUDY, PLAN, SUMS} <= set(sealed.names), f"{STUDY}, {PLAN} or {SUMS} is missing")
    disk.require_room("The study", sum(map(sealed.size, sealed.names)), part, disk.moves(part))
    for name in sealed.names:
        disk.write(part / name, bytes(sealed.read(name)))
    folder = open_folder(part)
    named = {folder.plan["name"], parse_study(bytes(sealed.read(STUDY)).decode(), STUDY).name, sealed.head.name}
    expect(len(named) == 1, "the manifest names another study")
    expect(len(folder.models) == len(folder.plan["models"]), "two models of one label")
    expect(set(packed_keys(part)) == set(folder.item_keys()), "it holds sums that are of no part of the plan")
    measures = report.write(part)
    expect(measures == sealed.head.measures, "its measures do not have the digest it gives")
    return measures
