"""A study as one file, `.edstudy`, that opens elsewhere, and back. Numpy and pyarrow; no torch, no model.

A sealed container: its manifest names the study and the digest of all measures, its members are what lies in a study's
folder. What comes in is untrusted: `ed_core.files` bounds and checks the container, every column of an item is checked
as it is read; tables and report are made again from the items, and must come to the manifest's digest. It appears at
its place whole or not at all."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path

from pydantic import Field

from .. import bounds, disk
from ..errors import ImportRefused, StudyError
from ..files import Bounds, Head, Kind, Sealed, expect, open_sealed, parse, seal
from . import items, report, tables
from .items import Folder, open_folder
from .plan import FAILURES, ITEMS, PLAN, STUDY
from .study import NAME
from .study import parse as parse_study

ENDING = ".edstudy"
MAX_FILES, MAX_UNPACKED, MAX_FILE, MAX_HEAD = 200_000, 4 << 30, bounds.ITEM, 64 << 20
DIGEST = "[0-9a-f]{16}"
TABLES = tuple(f"{name}.{kind}" for name in tables.TABLES for kind in ("parquet", "csv"))
KNOWN = "|".join(
    (
        *map(re.escape, (STUDY, PLAN, "report.md", *TABLES)),
        rf"{ITEMS}/{DIGEST}/{DIGEST}\.parquet",
        rf"{FAILURES}/{DIGEST}\.json",
    )
)


class Header(Head):
    """What the manifest says of the study; `measures`: the digest of all of them."""

    name: str = Field(pattern=f"^{NAME}$")
    measures: str = Field(pattern="^[0-9a-f]{64}$")


KIND = Kind(
    "study",
    "a study",
    2,
    Header,
    "ask for it to be exported again",
    members=KNOWN,
    compressed=r".*\.(toml|json|md|csv)",
    bounds=Bounds(MAX_UNPACKED, MAX_FILES, MAX_UNPACKED, MAX_FILE, MAX_HEAD),
)


def packed(out: str | Path) -> bytes:
    """A study's folder as one file, its bytes."""
    folder = open_folder(out)
    keys = list(folder.keys())  # once: the study may go on meanwhile
    head = {"name": folder.plan["name"], "measures": items.digest(folder.out, keys)}
    return seal(KIND, head, _members(folder, head["measures"], keys))


def name_of(file: str | Path | BufferedIOBase) -> str:
    """The study's name, read without its items; `ImportRefused` for what is no study."""
    with _opened(file) as sealed:
        return sealed.head.name


def unpack(file: str | Path | BufferedIOBase, out: str | Path) -> str:
    """Check a bundle and put the study into the folder `out`, which must not be there or be empty; returns the digest
    of its measures. `ImportRefused` says why not, and then nothing is left."""
    out = require_new(Path(out))
    with _opened(file, disk.moves(out)) as sealed, disk.hidden(out) as hidden:
        part = hidden / "study"  # one folder further in, where nobody takes it for a study
        part.mkdir()
        measures = _unpack(sealed, part)
        part.replace(out)
        disk.sync_folder(hidden.parent)
    return measures


def require_new(out: Path) -> Path:
    """Refuse a folder that has something in it, or whose place something else has."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ImportRefused(f"{out} is there already; give --out a folder that is not there yet, or an empty one.")
    return out


# ---------------------------------------------------------------- out


def _members(folder: Folder, measures: str, keys: list[str]) -> Iterator[tuple[str, bytes]]:
    """What lies in the folder, with the items of these `keys`, but for failures of another plan."""
    for name in (STUDY, PLAN):
        yield name, (folder.out / name).read_bytes()
    yield "report.md", report.markdown(folder, tables.stored(folder, "verdict"), measures).encode()
    for table in TABLES:
        name, _, kind = table.partition(".")
        yield table, tables.as_file(tables.stored(folder, name), kind)
    digests = {model["digest"] for model in folder.models.values()}
    lying = [f"{FAILURES}/{f.name}" for f in sorted((folder.out / FAILURES).glob("*.json")) if f.stem in digests]
    for name in (*lying, *(f"{ITEMS}/{key}.parquet" for key in dict.fromkeys(keys))):
        yield name, (folder.out / name).read_bytes()


# ---------------------------------------------------------------- in


@contextlib.contextmanager
def _opened(file: str | Path | BufferedIOBase, moves: str = "--out") -> Iterator[Sealed[Header]]:
    """A bundle; what the disk answers, in words: of the file, or of the folder that is written meanwhile, which `moves`
    puts elsewhere."""
    try:
        with open_sealed(Path(file) if isinstance(file, str) else file, KIND) as sealed:
            yield sealed
    except OSError as error:
        if isinstance(file, (str, Path)) and error.filename == str(file):
            raise ImportRefused(f"{file} cannot be read: {error.strerror or error}.") from None
        raise StudyError(f"The study cannot be written: {disk.why(error, moves)}") from error


def _unpack(sealed: Sealed[Header], part: Path) -> str:
    expect({STUDY, PLAN} <= set(sealed.names), f"{STUDY} or {PLAN} is missing")
    disk.require_room("The study", sum(map(sealed.size, sealed.names)), part, disk.moves(part))
    content = {}
    for name in sealed.names:
        data = bytes(sealed.read(name))
        if name in (STUDY, PLAN) or name.startswith((ITEMS, FAILURES)):
            place = part / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        if name in (STUDY, PLAN) or name.startswith(FAILURES):
            content[name] = data
    folder = open_folder(part)
    named = {folder.plan["name"], parse_study(content[STUDY].decode(), STUDY).name, sealed.head.name}
    expect(len(named) == 1, "the manifest names another study")
    expect(len(folder.models) == len(folder.plan["models"]), "two models of one label")
    chunks = [chunk for one in folder.sets.values() for chunk in one["chunks"]]
    planned = {f"{ITEMS}/{model['digest']}/{c}.parquet" for model in folder.models.values() for c in chunks}
    strange = next((name for name in sealed.names if name.startswith(ITEMS) and name not in planned), "")
    expect(not strange, f"{strange} is of no part of the plan")
    _check_failures(folder, content)
    (part / ITEMS).mkdir(exist_ok=True)
    measures = report.write(part)
    expect(measures == sealed.head.measures, "its measures do not have the digest it tells")
    for place in part.rglob("*"):
        if place.is_file():
            with place.open("rb+") as handle:
                disk.sync(handle)
    return measures


def _check_failures(folder: Folder, content: Mapping[str, bytes]) -> None:
    labels = {model["digest"]: label for label, model in folder.models.items()}
    for name, data in content.items():
        if name.startswith(FAILURES):
            told = parse(data, MAX_FILE)
            fits = isinstance(told, dict) and told.keys() == {"model", "why"} and isinstance(told["why"], str)
            expect(fits and told["model"] == labels.get(Path(name).stem), f"{name} is of no model of the plan")
