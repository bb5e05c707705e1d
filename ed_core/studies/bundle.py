"""A study as one file, `.edstudy`, that opens elsewhere, and back. Numpy and pyarrow; no torch, no model.

A sealed container: its manifest names the study and the digest of all measures, its members are what lies in a study's
folder. What comes in is untrusted: `ed_core.files` bounds and checks the container, every column of an item is checked
here; tables and report are made anew from the items, and must come to the manifest's digest. It appears at its place
whole or not at all."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal

import pyarrow
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import bounds, disk, outside
from ..errors import ImportRefused, StudyError
from ..files import Bounds, Head, Kind, Sealed, expect, open_sealed, parse, seal, wrong
from ..probes import find
from . import items, report, tables
from .items import Folder, open_folder
from .plan import FAILURES, FORMAT, ITEMS, PLAN, STUDY, label_of
from .sets import FORMATS
from .study import NAME, SPLIT_POINTS, ModelEntry
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
OF_A_MEASURE = ("", ".sum", ".first", ".count", ".mean", ".no_sinks")  # endings of an item's columns
OF_A_PROBE = ("n_tokens", "n_no_sinks", "n_sinks", "first_is_sink", "echo")


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Model(items.PlannedModel, _Told):
    trouble: str = ""
    name: str = ""
    precision: str = ""
    control: str = ""
    seed: int = 0
    parameters: int | None = Field(None, ge=0)


class _Probe(items.PlannedProbe, _Told):
    limit: int | None


class _Set(items.PlannedSet, _Told):
    of: str = ""
    left_out: int = Field(ge=0)


class _Plan(_Told):
    """`plan.json`, as `plan.write_plan` writes it."""

    format: Literal[1]
    name: str
    note: str
    seed: int = Field(ge=0)
    chunk: int = Field(ge=1, le=bounds.CHUNK)
    models: list[_Model] = Field(min_length=1)
    probes: list[_Probe] = Field(min_length=1)
    sets: list[_Set] = Field(min_length=1)
    pairs: list[list[str]] = []


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
    """A study's folder as one file, its bytes. `StudyError` where nobody could open it."""
    folder = open_folder(out)
    try:
        _plan({name: (folder.out / name).read_bytes() for name in (STUDY, PLAN)})
    except (OSError, ValueError) as error:
        raise StudyError(f"{folder.out} would not open elsewhere: {error}. Run the study again.") from None
    keys = list(folder.keys())  # once: the study may go on meanwhile
    head = {"name": folder.plan["name"], "measures": items.digest(folder.out, keys)}
    return seal(KIND, head, _bounded(_members(folder, head["measures"], keys)))


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


def _bounded(members: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """These, as far as they are read elsewhere."""
    most, size = KIND.bounds, 0
    for n, (name, data) in enumerate(members, 1):
        size += len(data)
        if n > most.members or len(data) > most.member or size > most.unpacked:
            raise StudyError(
                f"The study is too large for one file, which holds {most.members} files, {outside.size(most.member)} "
                f"each and {outside.size(most.unpacked)} in all, at most; hand on its folder, or its tables."
            )
        yield name, data


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
    plan = _plan(content)
    expect(plan.name == sealed.head.name, "the manifest names another study")
    _check_failures(plan, content)
    _check_items(plan, part, [name for name in sealed.names if name.startswith(ITEMS)])
    (part / ITEMS).mkdir(exist_ok=True)
    measures = report.write(part)
    expect(measures == sealed.head.measures, "its measures do not have the digest it tells")
    for place in part.rglob("*"):
        if place.is_file():
            with place.open("rb+") as handle:
                disk.sync(handle)
    return measures


def _plan(content: Mapping[str, bytes]) -> _Plan:
    """The plan, which must be that of the study's file."""
    try:
        plan = _Plan.model_validate(parse(content[PLAN], MAX_FILE))
    except ValidationError as error:
        raise ValueError(wrong(error)) from None
    study = parse_study(content[STUDY].decode(), STUDY)
    same = (plan.name, plan.note, plan.seed, plan.chunk) == (study.name, study.note, study.seed, study.chunk)
    same &= [one.name for one in plan.sets] == [one.name for one in study.sets]
    same &= plan.pairs == [[pair.base, pair.other] for pair in study.pairs]
    same &= {name for pair in plan.pairs for name in pair} <= {model.label for model in plan.models}
    same &= [one.of in ("", *FORMATS) for one in plan.sets] == [True] * len(study.sets)
    same &= len(plan.models) == len(study.entries) == len({model.label for model in plan.models})
    same &= all(_called(model, entry) for model, entry in zip(plan.models, study.entries))
    steps = [(entry.series, step) for entry in study.models for _, step in entry.each()]
    same &= all(_stepped(model, *told) for model, told in zip(plan.models, steps))
    same &= [(p.name, p.limit) for p in plan.probes] == [(p.name, p.limit) for p in study.probes]
    same &= [p.parameters for p in plan.probes] == [_as_json(p.parameters) for p in study.probes]
    expect(same and plan.format == FORMAT, f"{PLAN} is not the plan of {STUDY}")
    for one in plan.sets:
        n = len(one.ids)
        expect(len(one.chunks) == math.ceil(n / plan.chunk), f"the chunks of {one.name}")
        told = (one.levels, one.pairs, one.forms)
        expect(all(len(marks) in (0, n) for marks in told), f"the levels, pairs or forms of {one.name}")
    return plan


def _called(model: _Model, entry: ModelEntry) -> bool:
    """Whether a model of the plan has the label that its entry gives it."""
    if entry.label or model.trouble:
        named = model.label.startswith(entry.source.rstrip("/").rsplit("/", 1)[-1])
        return model.label == entry.label or (not entry.label and named)
    return bool(model.name) and model.label.startswith(model.name)


def _stepped(model: _Model, series: str, step: int | None) -> bool:
    """Whether a model of the plan is the step that its entry says, or one that was measured while it trained."""
    if step is not None:
        return (model.series, model.step) == (series, step)
    return model.series == "" and (model.step is None or model.label == label_of(model.step))


def _as_json(parameters: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(parameters))
    return told


def _check_failures(plan: _Plan, content: Mapping[str, bytes]) -> None:
    labels = {model.digest: model.label for model in plan.models}
    for name, data in content.items():
        if name.startswith(FAILURES):
            told = parse(data, MAX_FILE)
            fits = isinstance(told, dict) and told.keys() == {"model", "why"} and isinstance(told["why"], str)
            expect(fits and told["model"] == labels.get(Path(name).stem), f"{name} is of no model of the plan")


def _check_items(plan: _Plan, part: Path, names: list[str]) -> None:
    """Every item is of the plan, has its prompts as rows and only columns that its probes write."""
    rows = {}
    for one in plan.sets:
        for i, chunk in enumerate(one.chunks):
            rows[chunk] = min(plan.chunk, len(one.ids) - i * plan.chunk)
    known, models = set(_columns(plan)), {model.digest: model for model in plan.models}
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    for name in names:
        _, digest, file = name.split("/")
        chunk = file.removesuffix(".parquet")
        expect(digest in models and chunk in rows, f"{name} is of no part of the plan")
        table, found = items.table_of((part / name).read_bytes())
        expect(len(table) == rows[chunk], f"{name} has {len(table)} rows, expected {rows[chunk]}")
        _check_model(models[digest], table, found, name)
        for column, shape in found.items():
            expect(column in known, f"{name} has a column {column!r} that no probe of the study writes")
            expect(shapes.setdefault((digest, column), shape) == shape, f"{name}, {column}: another shape than before")


def _check_model(model: _Model, table: pyarrow.Table, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """The plan's model is the one that the item's certificate names, with as many layers as its columns have."""
    told: Any = parse((table.schema.metadata or {}).get(b"certificate", b"{}"), MAX_HEAD)
    expect(isinstance(told, dict) and isinstance(told.get("model", {}), dict), f"{where} has no certificate")
    of_model: dict[str, Any] = told.get("model", {})
    names = {"precision": model.precision, "control": model.control, "control_seed": model.seed}
    same = all(of_model.get(name, value) == value for name, value in names.items())
    source = str(of_model.get("source", model.name)).rstrip("/").rsplit("/", 1)[-1]
    same &= source == model.name and told.get("n_layers", model.n_layers) in (model.n_layers, None)
    expect(same, f"{where} is of another model than the plan's {model.label!r}")
    for probe in ("contributions", "logit_lens"):
        for spec in find(probe).measures:
            shape = shapes.get(f"{probe}.{spec.name}.sum", ())
            if len(shape) == 1 and spec.dims[0] in ("layer", "depth") and model.n_layers:
                expect(shape[0] == model.n_layers + (spec.dims[0] == "depth"), f"{where}: {model.n_layers} layers")


def _columns(plan: _Plan) -> Iterator[str]:
    """The columns that the plan's probes may write."""
    for entry in plan.probes:
        parameters = {n: v for n, v in entry.parameters.items() if not (n == "boundaries" and v in SPLIT_POINTS)}
        probe = find(entry.name).make({n: tuple(v) if isinstance(v, list) else v for n, v in parameters.items()})
        yield f"{items.TIMES}{entry.name}"
        yield from (f"{entry.name}.{name}" for name in OF_A_PROBE)
        yield from (f"{entry.name}.{spec.name}{ending}" for spec in probe.measures for ending in OF_A_MEASURE)
