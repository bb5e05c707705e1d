"""A study as one file, `.edstudy`, that opens elsewhere, and back. Numpy and pyarrow; no torch, no model.

A zip: `manifest.json` first (format, name, the digest of all measures, every other file with its size and SHA-256),
then what lies in a study's folder. What comes in is a stranger's: only known names, sizes bounded before anything is
inflated, every hash and every column checked; tables and report are made anew from the items, and must come to the
digest that the manifest tells. It appears at its place whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import secrets
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import pyarrow
from pyarrow import parquet
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import disk
from ..errors import ImportRefused, NewerSchema, StudyError
from ..probes import find
from ..types import canonical_json, from_json
from . import items, report, tables
from .folder import Folder, open_folder
from .formats import FORMATS
from .plan import FAILURES, FORMAT, ITEMS, PLAN, STUDY
from .study import NAME, SPLIT_POINTS, parse

ENDING, KIND, SCHEMA, MANIFEST = ".edstudy", "effective-depth study", 1, "manifest.json"
MAX_FILES, MAX_UNPACKED, MAX_FILE = 200_000, 4 << 30, 256 << 20
MAX_VALUES = 1 << 22  # of one column of one prompt
DIGEST = "[0-9a-f]{16}"
TABLES = tuple(f"{name}.{kind}" for name in tables.TABLES for kind in ("parquet", "csv"))
KNOWN = re.compile(
    "|".join(
        (
            *map(re.escape, (STUDY, PLAN, "report.md", *TABLES)),
            rf"{ITEMS}/{DIGEST}/{DIGEST}\.parquet",
            rf"{FAILURES}/{DIGEST}\.json",
        )
    )
)
OF_A_MEASURE = ("", ".sum", ".first", ".count", ".mean", ".no_sinks")  # endings of an item's columns
OF_A_PROBE = ("n_tokens", "n_no_sinks", "n_sinks", "first_is_sink", "echo")


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _File(_Told):
    bytes: int = Field(ge=0, le=MAX_FILE)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class _Manifest(_Told):
    format: Literal["effective-depth study"]
    schema_: int = Field(alias="schema")
    name: str = Field(pattern=f"^{NAME}$")
    measures: str = Field(pattern="^[0-9a-f]{64}$")
    files: Annotated[dict[str, _File], Field(max_length=MAX_FILES)]


class _Model(_Told):
    label: str = Field(max_length=400)
    digest: str = Field(pattern=f"^{DIGEST}$")
    trouble: str = ""
    name: str = ""
    precision: str = ""
    control: str = ""
    seed: int = 0
    n_layers: int | None = Field(None, ge=1, le=10_000)
    parameters: int | None = Field(None, ge=0)


class _Probe(_Told):
    name: str
    limit: int | None
    parameters: dict[str, Any]


class _Set(_Told):
    name: str = Field(pattern=f"^{NAME}$")
    of: str = ""
    left_out: int = Field(ge=0)
    ids: list[str]
    levels: list[str]
    pairs: list[str]
    forms: list[str] = []
    chunks: list[Annotated[str, Field(pattern=f"^{DIGEST}$")]]


class _Plan(_Told):
    """`plan.json`, as `plan.write_plan` writes it."""

    format: Literal[1]
    name: str
    note: str
    seed: int = Field(ge=0)
    chunk: int = Field(ge=1, le=1000)
    models: list[_Model] = Field(min_length=1)
    probes: list[_Probe] = Field(min_length=1)
    sets: list[_Set] = Field(min_length=1)
    pairs: list[list[str]] = []


def write(out: str | Path, file: str | Path) -> str:
    """Write a study's folder as one file; returns the digest of its measures."""
    folder, file = open_folder(out), Path(file)
    measures = items.digest(folder.out, folder.keys())
    try:
        with disk.written(file) as handle:
            _pack(folder, measures, handle)
    except OSError as error:
        raise StudyError(f"{file} cannot be written: {disk.why(error)}") from error
    return measures


def packed(out: str | Path) -> bytes:
    """The same as bytes."""
    folder, data = open_folder(out), io.BytesIO()
    _pack(folder, items.digest(folder.out, folder.keys()), data)
    return data.getvalue()


def name_of(file: str | Path | io.BufferedIOBase) -> str:
    """The study's name, read without its items; `ImportRefused` for what is no study."""
    with _refusing():
        archive = zipfile.ZipFile(_opened(file))
        return _manifest(archive).name


def unpack(file: str | Path | io.BufferedIOBase, out: str | Path) -> str:
    """Check a bundle and put the study into the folder `out`, which must not be there or be empty; returns the digest
    of its measures. `ImportRefused` says why not, and then nothing is left."""
    out, file = Path(out), _opened(file)
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ImportRefused(f"{out} is there already; give --out a folder that is not there yet, or an empty one.")
    hidden = out.absolute().with_name(f".{secrets.token_hex(4)}{disk.UNFINISHED}")
    part = hidden / "study"  # one folder further in, where nobody takes it for a study
    try:
        part.mkdir(parents=True)
        with _refusing():
            measures = _unpack(file, part)
        part.replace(out)
        disk.sync_folder(hidden.parent)
    except OSError as error:
        raise StudyError(f"{out} cannot be written: {disk.why(error)}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return measures


# ---------------------------------------------------------------- out


def _pack(folder: Folder, measures: str, handle: BinaryIO | io.BufferedIOBase) -> None:
    data = {
        "report.md": report.markdown(folder, tables.stored(folder, "verdict"), measures).encode(),
        **{
            f"{name}.{kind}": tables.as_file(tables.stored(folder, name), kind)
            for name in tables.TABLES
            for kind in ("parquet", "csv")
        },
    }
    digests = {model["digest"] for model in folder.models.values()}
    lying = [STUDY, PLAN]
    lying += [f"{FAILURES}/{f.name}" for f in sorted((folder.out / FAILURES).glob("*.json")) if f.stem in digests]
    lying += [f"{ITEMS}/{key}.parquet" for key in dict.fromkeys(folder.keys())]

    def read(name: str) -> bytes:
        return data[name] if name in data else (folder.out / name).read_bytes()

    told = {}
    for name in (*lying[:2], *data, *lying[2:]):
        content = read(name)
        told[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {"format": KIND, "schema": SCHEMA, "name": folder.plan["name"], "measures": measures, "files": told}
    with zipfile.ZipFile(handle, "w") as archive:
        archive.writestr(zipfile.ZipInfo(MANIFEST), canonical_json(manifest).encode(), zipfile.ZIP_DEFLATED)
        for name in told:
            kind = zipfile.ZIP_STORED if name.endswith(".parquet") else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(name), read(name), kind)


# ---------------------------------------------------------------- in


def _opened(file: str | Path | io.BufferedIOBase) -> io.BufferedIOBase:
    if not isinstance(file, (str, Path)):
        return file
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise ImportRefused(f"{file} cannot be read: {error.strerror or error}.") from None


class _refusing:
    """Whatever zipfile, json, pyarrow and the tables make of a damaged or hostile file becomes one kind of trouble."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, ImportRefused):
            return
        if any(getattr(one, "errno", None) is not None for one in (error, error.__cause__)):
            return  # the disk's
        says = (
            _wrong(error)
            if isinstance(error, ValidationError)
            else (str(error).splitlines() or [type(error).__name__])[0]
        )
        raise ImportRefused(
            f"This is not a study as this program writes it ({says[:200]}); ask for it to be exported again."
        ) from error


def _unpack(file: io.BufferedIOBase, part: Path) -> str:
    with file, zipfile.ZipFile(file) as archive:
        manifest = _manifest(archive)
        disk.require_room("The study", sum(told.bytes for told in manifest.files.values()), part, "--out")
        content = {}
        for name, told in manifest.files.items():
            data = _read(archive, name, told)
            if name in (STUDY, PLAN) or name.startswith((ITEMS, FAILURES)):
                place = part / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            if name in (STUDY, PLAN) or name.startswith(FAILURES):
                content[name] = data
    plan = _plan(content)
    _expect(plan.name == manifest.name, "the manifest names another study")
    _check_failures(plan, content)
    _check_items(plan, part, [name for name in manifest.files if name.startswith(ITEMS)])
    (part / ITEMS).mkdir(exist_ok=True)
    measures = report.write(part)
    _expect(measures == manifest.measures, "its measures do not have the digest it tells")
    for place in part.rglob("*"):
        if place.is_file():
            with place.open("rb+") as handle:
                disk.sync(handle)
    return measures


def _manifest(archive: zipfile.ZipFile) -> _Manifest:
    """The manifest, after the archive's directory has been found harmless."""
    entries = archive.infolist()
    _expect(0 < len(entries) <= MAX_FILES + 1 and entries[0].filename == MANIFEST, f"it does not begin with {MANIFEST}")
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        _expect(kind in (0, stat.S_IFREG) and entry.filename == entry.orig_filename, "an entry is not a plain file")
        packing = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not entry.flag_bits & 1
        _expect(packing, "an entry is packed in another way")
    if (size := sum(entry.file_size for entry in entries)) > MAX_UNPACKED:
        raise ImportRefused(f"Unpacked, the study would have {size >> 20} MiB; at most {MAX_UNPACKED >> 20} are read.")
    _expect(entries[0].file_size <= MAX_FILE, "the manifest's size")
    with archive.open(MANIFEST) as handle:
        text = handle.read(MAX_FILE + 1)
    told = from_json(text)
    _expect(isinstance(told, dict) and canonical_json(told).encode() == text, "the manifest")
    schema = told.get("schema")
    _expect(type(schema) is int and schema > 0, "the schema")
    if schema > SCHEMA:
        raise NewerSchema(
            f"This study has schema {schema}, this version of the program reads up to {SCHEMA}; update the program to "
            "open it."
        )
    manifest = _Manifest.model_validate(told)
    names = [entry.filename for entry in entries[1:]]
    _expect(len(set(names)) == len(names) and set(names) == set(manifest.files), "its files are not those it lists")
    strange = next((name for name in names if not KNOWN.fullmatch(name)), None)
    _expect(strange is None, f"{strange!r} is no file of a study")
    _expect({STUDY, PLAN} <= set(names), f"{STUDY} or {PLAN} is missing")
    return manifest


def _read(archive: zipfile.ZipFile, name: str, told: _File) -> bytes:
    """An entry's bytes, never more than the manifest says."""
    with archive.open(name) as handle:
        data = handle.read(told.bytes + 1)
    fits = len(data) == told.bytes and hashlib.sha256(data).hexdigest() == told.sha256
    _expect(fits, f"{name} does not have its hash")
    return data


def _plan(content: Mapping[str, bytes]) -> _Plan:
    """The plan, which must be that of the study's file."""
    plan = _Plan.model_validate(from_json(content[PLAN]))
    study = parse(content[STUDY].decode(), STUDY)
    same = (plan.name, plan.note, plan.seed, plan.chunk) == (study.name, study.note, study.seed, study.chunk)
    same &= [one.name for one in plan.sets] == [one.name for one in study.sets]
    same &= plan.pairs == [[pair.base, pair.other] for pair in study.pairs]
    same &= {name for pair in plan.pairs for name in pair} <= {model.label for model in plan.models}
    same &= [one.of in ("", *FORMATS) for one in plan.sets] == [True] * len(study.sets)
    same &= len(plan.models) == len(study.models) == len({model.label for model in plan.models})
    same &= [(p.name, p.limit) for p in plan.probes] == [(p.name, p.limit) for p in study.probes]
    same &= [p.parameters for p in plan.probes] == [_as_json(p.parameters) for p in study.probes]
    _expect(same and plan.format == FORMAT, f"{PLAN} is not the plan of {STUDY}")
    for one in plan.sets:
        n = len(one.ids)
        _expect(len(one.chunks) == math.ceil(n / plan.chunk), f"the chunks of {one.name}")
        told = (one.levels, one.pairs, one.forms)
        _expect(all(len(marks) in (0, n) for marks in told), f"the levels, pairs or forms of {one.name}")
    return plan


def _as_json(parameters: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(parameters))
    return told


def _check_failures(plan: _Plan, content: Mapping[str, bytes]) -> None:
    labels = {model.digest: model.label for model in plan.models}
    for name, data in content.items():
        if name.startswith(FAILURES):
            told = from_json(data)
            fits = isinstance(told, dict) and told.keys() == {"model", "why"} and isinstance(told["why"], str)
            _expect(fits and told["model"] == labels.get(Path(name).stem), f"{name} is of no model of the plan")


def _check_items(plan: _Plan, part: Path, names: list[str]) -> None:
    """Every item is of the plan, has its prompts as rows and only columns that its probes write."""
    rows = {}
    for one in plan.sets:
        for i, chunk in enumerate(one.chunks):
            rows[chunk] = min(plan.chunk, len(one.ids) - i * plan.chunk)
    known, digests = set(_columns(plan)), {model.digest for model in plan.models}
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    for name in names:
        _, digest, file = name.split("/")
        chunk = file.removesuffix(".parquet")
        _expect(digest in digests and chunk in rows, f"{name} is of no part of the plan")
        _check_size(part / name, name, rows[chunk], len(known))
        table, found = items.read(part / name)
        for column, shape in found.items():
            _expect(column in known, f"{name} has a column {column!r} that no probe of the study writes")
            _check_column(table[column].combine_chunks(), shape, f"{name}, {column}")
            _expect(shapes.setdefault((digest, column), shape) == shape, f"{name}, {column}: another shape than before")


def _check_size(file: Path, name: str, rows: int, most: int) -> None:
    """Before anything is inflated: rows and columns are as expected, and not large."""
    told = parquet.read_metadata(file)
    groups = [told.row_group(i) for i in range(told.num_row_groups)]
    large = sum(group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns))
    _expect(told.num_rows == rows, f"{name} has {told.num_rows} rows, expected {rows}")
    _expect(told.num_columns <= most and large <= MAX_FILE, f"{name} is larger than an item can be")


def _check_column(column: pyarrow.Array, shape: tuple[int, ...], where: str) -> None:
    """Numbers where the shape is (), else lists of as many numbers as the shape has places."""
    right = all(type(n) is int and 0 <= n <= MAX_VALUES for n in shape) and math.prod(shape) <= MAX_VALUES
    _expect(right, f"{where}: the shape")
    kind = column.type
    if shape:
        _expect(pyarrow.types.is_list(kind), f"{where}: the type")
        lengths = {n for n in column.value_lengths().to_pylist() if n is not None}
        _expect(lengths <= {math.prod(shape)} and not column.flatten().null_count, f"{where}: the length")
        kind = kind.value_type
    _expect(kind in (pyarrow.int64(), pyarrow.float32(), pyarrow.float64()), f"{where}: the type")


def _columns(plan: _Plan) -> Iterator[str]:
    """The columns that the plan's probes may write."""
    for entry in plan.probes:
        parameters = {n: v for n, v in entry.parameters.items() if not (n == "boundaries" and v in SPLIT_POINTS)}
        probe = find(entry.name).make({n: tuple(v) if isinstance(v, list) else v for n, v in parameters.items()})
        yield f"{items.TIMES}{entry.name}"
        yield from (f"{entry.name}.{name}" for name in OF_A_PROBE)
        yield from (f"{entry.name}.{spec.name}{ending}" for spec in probe.measures for ending in OF_A_MEASURE)


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _wrong(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]
