"""A study's folder: `study.toml`, the plan it resolves to, `sums.parquet`, `verdict.parquet`; while it runs, a file for
each item. Numpy and pyarrow; torch and models in functions alone.

Sums are a row per prompt and a column per small sum of `results.aggregate`, never an array over tokens. Column
`<probe>.<sum>`, for instance `contributions.attn_cos.sum` `[layer]`; `<probe>.<measure>.no_sinks` is the sum over
tokens that are no sinks, `<probe>.n_no_sinks` their number (null where the sinks are unknown); `logit_lens.echo` the
share of tokens that the lens at depth 0 takes for the token just read, `logit_lens.kinds` sums by the kind of token
(`depth.kinds`). A sum that a prompt lacks (of a probe with a
limit) is null.

An item's file has the columns' shapes and the first result's certificate, without its prompt, in its metadata. `pack`
moves items into `sums.parquet`: a row group per model, with the digests `model` and `chunk` of an item in each row, and
each model's shapes and certificate in the metadata."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow
from filelock import FileLock
from pyarrow import parquet
from pydantic import BaseModel, Field, model_validator

from .. import bounds, disk, outside, settings
from ..depth import answer, kinds, sinks
from ..depth.sample import CURVES, prompt_sums
from ..errors import InputError, PromptError, StudyError
from ..files import expect, parse
from ..models.bundled import STUDIES
from ..probes import Probe, find
from ..types import ProbeResult, from_json
from . import parquets
from .plan import FAILURES, FORMAT, ITEMS, PLAN, Chunk, Item, Plan
from .sets import Example, split_points
from .study import LEVEL_MARK, NAME, ProbeEntry

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel


OF_ONE = ("prompt", "probe", "run", "seconds", "time")  # parts of a certificate that are of one result: not kept
TIMES = "seconds."  # how columns begin that say how long something took: no measures
SUMS, KEYS = "sums.parquet", ("model", "chunk")
Part = tuple[pyarrow.Table, dict[str, tuple[int, ...]]]
"""Sums of some prompts, and the shapes of their columns."""


def path(out: Path, key: str) -> Path:
    return out / ITEMS / f"{key}.parquet"


def there(out: Path, digest: str) -> set[str]:
    """The chunks of a model that are computed."""
    folder = out / ITEMS / digest
    waiting = {file.stem for file in folder.glob("*.parquet")} if folder.is_dir() else set()
    return waiting | packed(out).get(digest, {}).keys()


def packed(out: Path) -> Mapping[str, Mapping[str, int]]:
    """Of `sums.parquet`: per model its chunks, with their numbers of prompts, in the order of the file."""
    file = out / SUMS
    return _packed(file, file.stat().st_mtime_ns) if file.is_file() else {}


@lru_cache(maxsize=32)
def _packed(file: Path, changed: int) -> Mapping[str, Mapping[str, int]]:
    with _reading(file), outside.opened(file, bounds.SUMS, outside.Unreadable) as handle:
        opened = parquets.opened(handle, bounds.ROWS, bounds.SUMS)
        found: dict[str, dict[str, int]] = {}
        for model, chunk in zip(*(opened.read([name])[name].to_pylist() for name in KEYS)):
            found.setdefault(model, {})
            found[model][chunk] = found[model].get(chunk, 0) + 1
        expect(opened.metadata.num_row_groups == len(found), "a row group per model")
    return found


def check(model: LanguageModel, plan: Plan, label: str, chunks: Iterable[Chunk]) -> None:
    """Refuse what the model of this label has no answer for, before anything is computed."""
    for chunk in chunks:
        for i, example in enumerate(chunk.examples):
            try:
                for entry in chunk.probes(plan.study, label, i):
                    _probe(model, entry, example)
            except InputError as error:
                raise type(error)(f"Prompt {example.prompt.id or example.prompt.text[:40]!r}: {error}") from None


def compute(
    model: LanguageModel,
    plan: Plan,
    item: Item,
    done: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> pyarrow.Table:
    """The item's table. `done` is called after every prompt."""
    from ..work import compute as engine

    found = []
    for i, example in enumerate(item.chunk.examples):
        entries = item.chunk.probes(plan.study, item.model.label, i)
        probes = [_probe(model, entry, example) for entry in entries]
        requests = [probe.request(item.model.known, example.prompt) for probe in probes]
        model.expect(list(zip(probes, requests)))
        found.append({e.column: engine.run(model, r, cancelled=cancelled) for e, r in zip(entries, requests)})
        done()
    return table(found)


def table(found: Iterable[Mapping[str, ProbeResult]]) -> pyarrow.Table:
    """An item's table, from the results of each of its prompts by probe."""
    rows: list[dict[str, np.ndarray]] = []
    shapes: dict[str, tuple[int, ...]] = {}
    certificate = None
    for results in found:
        row = _row(results)
        for result in results.values():
            certificate = certificate or {n: v for n, v in result.provenance.items() if n not in OF_ONE}
        shapes |= {name: np.shape(value) for name, value in row.items()}
        rows.append(row)
    meta = {"shapes": json.dumps(shapes), "certificate": json.dumps(certificate or {}, sort_keys=True)}
    columns = {name: _column([row.get(name) for row in rows]) for name in sorted({n for row in rows for n in row})}
    return pyarrow.table(columns).replace_schema_metadata(meta)


def write(out: Path, item: Item, table: pyarrow.Table) -> None:
    """Put the item's file in its place, whole or not at all."""
    file = path(out, item.key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with disk.written(file) as handle:
            # no two sums are alike, and nobody looks for one: dictionaries and statistics only cost when it is read
            parquet.write_table(table, handle, compression="zstd", use_dictionary=False, write_statistics=False)
    except OSError as error:
        raise StudyError(f"The study's folder {out} cannot be written: {disk.why(error, disk.moves(out))}") from error


def read(file: Path) -> Part:
    """An item's sums. `StudyError` for a file that is damaged, or is larger than an item can be."""
    with _reading(file):
        data = outside.content(file, bounds.ITEM, outside.Unreadable)
        table = parquets.numbers(parquets.opened(io.BytesIO(data), bounds.CHUNK))
        return _part(table, parse(table.schema.metadata[b"shapes"], bounds.ITEM_HEAD))


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException):
        raise StudyError(
            f"The study's file {file.name} in {file.parent} is damaged; delete it and run the study again: only what "
            "it had is computed again."
        ) from None


def _part(table: pyarrow.Table, meta: Mapping[str, Sequence[int]]) -> Part:
    """A table of sums with its columns' shapes; columns that are empty are left out. `ValueError` where they differ."""
    table = table.select([name for name in table.column_names if table[name].null_count < len(table)])
    shapes = {name: tuple(meta[name]) for name in table.column_names}
    for name, shape in shapes.items():
        _check_column(table[name].combine_chunks(), shape, name)
    return table, shapes


def packed_keys(out: Path) -> list[str]:
    """The items of `sums.parquet`, in its order."""
    return [f"{model}/{chunk}" for model, chunks in packed(out).items() for chunk in chunks]


def pack(folder: Folder) -> None:
    """Move the items of a study into `sums.parquet`, and keep what is there of other plans. Killed at any moment, it
    loses nothing: an item's file goes once its rows are on the disk."""
    out, lock = folder.out, folder.out / ITEMS / ".lock"
    waiting = [key for key in folder.item_keys() if path(out, key).is_file()]
    if not waiting:
        return
    with FileLock(lock):
        waiting = [key for key in folder.item_keys() if path(out, key).is_file()]
        with disk.written(out / SUMS) as handle:
            write_sums(handle, folder, dict.fromkeys([*packed_keys(out), *waiting]))
        for key in waiting:
            path(out, key).unlink(missing_ok=True)
    lock.unlink(missing_ok=True)
    for place in (*(out / ITEMS).glob("*"), out / ITEMS):
        with contextlib.suppress(OSError):  # items of another plan are in it
            place.rmdir()


def write_sums(handle: IO[bytes], folder: Folder, keys: Iterable[str]) -> None:
    """Write the items of these keys as `sums.parquet`."""
    models: dict[str, list[str]] = {}
    for key in keys:
        models.setdefault(key.partition("/")[0], []).append(key)
    meta, kinds = {}, dict.fromkeys(KEYS, pyarrow.string())
    for digest, of_model in models.items():
        shapes: dict[str, tuple[int, ...]] = {}
        for table, more in map(folder.part, of_model):
            shapes |= more
            kinds |= {field.name: field.type for field in table.schema}
        meta[digest] = {"shapes": shapes, "certificate": folder.certificate(of_model[0])}
    names = [*KEYS, *sorted(kinds.keys() - set(KEYS))]
    schema = pyarrow.schema([(name, kinds[name]) for name in names], {"models": json.dumps(meta, sort_keys=True)})
    how = {"compression": "zstd", "use_dictionary": list(KEYS), "write_statistics": False}
    with parquet.ParquetWriter(handle, schema, **how) as writer:
        for of_model in models.values():
            parts = []
            for key in of_model:
                table, _ = folder.part(key)
                for name, value in zip(KEYS, key.split("/")):
                    table = table.append_column(name, pyarrow.repeat(value, len(table)))
                parts.append(table.replace_schema_metadata(None))
            whole = pyarrow.concat_tables([schema.remove_metadata().empty_table(), *parts], promote_options="default")
            writer.write_table(whole, row_group_size=max(1, len(whole)))


def _check_column(column: pyarrow.Array, shape: tuple[int, ...], where: str) -> None:
    """Numbers where the shape is (), else lists of as many numbers as the shape has places."""
    right = all(type(n) is int and 0 <= n <= bounds.VALUES for n in shape) and math.prod(shape) <= bounds.VALUES
    expect(right, f"{where}: the shape")
    kind = column.type
    if shape:
        expect(pyarrow.types.is_list(kind), f"{where}: the type")
        lengths = {n for n in column.value_lengths().to_pylist() if n is not None}
        expect(lengths <= {math.prod(shape)} and not column.flatten().null_count, f"{where}: the length")
        kind = kind.value_type
    expect(kind in (pyarrow.int64(), pyarrow.float32(), pyarrow.float64()), f"{where}: the type")


def _probe(model: LanguageModel, entry: ProbeEntry, example: Example) -> Probe:
    """The probe as it goes with this prompt; an `InputError` where it does not."""
    from ..prompts import max_tokens

    encoding = model.encode(example.prompt, max_tokens())
    boundaries: tuple[int, ...] = ()
    if entry.split_points:
        if encoding.answer_start is None:
            raise PromptError("split points at the answer need an answer, and it has none.")
        boundaries = split_points(entry.split_points, encoding.answer_start, len(encoding))
        if not boundaries:
            raise PromptError("its answer has at most 4 tokens, too few for split points within it; leave it out.")
    probe = entry.make(boundaries, example.other)
    probe.check_precision(model.spec.precision)
    probe.check(len(encoding), encoding.answer_start)
    return probe


def _row(results: Mapping[str, ProbeResult]) -> dict[str, np.ndarray]:
    """One prompt's sums, by column."""
    written = results.get(sinks.PROBE)
    found = None if written is None else sinks.of_result(written)
    row: dict[str, np.ndarray] = {}
    for name, result in results.items():
        row |= {f"{name}.{sum_}": np.asarray(values) for sum_, values in result.summary.items()}
        row[f"{TIMES}{name}"] = np.asarray(result.provenance["seconds"])
        if found is not None and name in CURVES:
            sums, (n,) = prompt_sums([result], CURVES[name], True, [{s.pos for s in found}])
            row |= {f"{name}.{curve}.no_sinks": values[0] for curve, values in sums.items()}
            row[f"{name}.n_no_sinks"] = np.asarray(n)
    if "logit_lens" in results:
        row["logit_lens.echo"] = np.asarray(answer.echo(results["logit_lens"]))
        row[kinds.COLUMN] = kinds.sums(results["logit_lens"])
    if found is not None:
        row["contributions.n_sinks"] = np.asarray(len(found))
        row["contributions.first_is_sink"] = np.asarray(int(any(s.pos == 0 for s in found)))
    return row


def _column(values: list[np.ndarray | None]) -> pyarrow.Array:
    """Numbers, or flat lists of them; null where there is none."""
    one = next(v for v in values if v is not None)
    kind = {"i": pyarrow.int64(), "f": pyarrow.float32() if one.dtype == np.float32 else pyarrow.float64()}[
        one.dtype.kind
    ]
    if one.ndim == 0:
        return pyarrow.array([None if v is None else v.item() for v in values], kind)
    return pyarrow.array([None if v is None else v.ravel() for v in values], pyarrow.list_(kind))


@dataclass(frozen=True)
class Sums:
    """What is there of one model on one set: per column the prompts' values `[prompt, …]`, NaN where a prompt has none.
    `index`: which prompts of the set these are."""

    columns: Mapping[str, np.ndarray]
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def of(self, chosen: np.ndarray) -> Sums:
        """Some of the prompts, by their place in the set."""
        keep = np.isin(self.index, chosen)
        return Sums({name: values[keep] for name, values in self.columns.items()}, self.index[keep])

    def ran(self, probe: str) -> np.ndarray:
        """The prompts that went through a probe, as places in the set."""
        tokens = self.columns.get(f"{probe}.n_tokens", np.full(len(self), np.nan))
        return np.asarray(self.index[np.isfinite(tokens)])

    def probe(self, name: str) -> dict[str, np.ndarray]:
        """A probe's columns under the names of its summary, of the prompts that went through it."""
        ran = np.isin(self.index, self.ran(name))
        own = {n.partition(".")[2]: v[ran] for n, v in self.columns.items() if n.startswith(f"{name}.")}
        return own if ran.any() else {}


class _Model(BaseModel):
    label: str = Field(max_length=400)
    digest: str = Field(pattern="^[0-9a-f]{16}$")
    trouble: str = ""
    name: str = ""
    precision: str = ""
    control: str = ""
    seed: int = 0
    parameters: int | None = Field(None, ge=0)
    n_layers: int | None = Field(None, ge=1, le=bounds.LAYERS)
    series: str = Field("", max_length=400)
    step: int | None = Field(None, ge=0, lt=10**12)


class _Probe(BaseModel):
    name: str
    label: str = ""
    models: list[str] = []
    sets: list[str] = []
    limit: int | None = None
    parameters: dict[str, Any]


class _Set(BaseModel):
    name: str = Field(pattern=f"^{NAME}$")
    of: str = ""
    left_out: int
    ids: list[str]
    levels: list[str]
    pairs: list[str]
    forms: list[str] = []
    chunks: list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]]


class _Plan(BaseModel):
    """What is read of a plan."""

    name: str
    note: str = ""
    seed: int = Field(ge=0)
    chunk: int = Field(ge=1, le=bounds.CHUNK)
    models: list[_Model]
    probes: list[_Probe]
    sets: list[_Set]

    @model_validator(mode="after")
    def _whole(self) -> _Plan:
        for one in self.sets:
            n = len(one.ids)
            marks = (one.levels, one.pairs, one.forms)
            if len(one.chunks) != -(-n // self.chunk) or any(len(of_all) not in (0, n) for of_all in marks):
                raise ValueError(one.name)
        return self


@dataclass(frozen=True)
class Folder:
    """A study's folder as far as it is computed."""

    out: Path
    plan: Mapping[str, Any]
    verdicts: dict[str, pyarrow.Table] = field(default_factory=dict)  # by what they are made of (`tables.stored`)
    _sums: dict[tuple[str, str], tuple[list[int], Sums]] = field(default_factory=dict)
    _group: dict[tuple[str, int], tuple[pyarrow.Table, Any]] = field(default_factory=dict)  # of the last model

    @cached_property
    def models(self) -> dict[str, Mapping[str, Any]]:
        return {model["label"]: model for model in self.plan["models"]}

    @cached_property
    def sets(self) -> dict[str, Mapping[str, Any]]:
        return {one["name"]: one for one in self.plan["sets"]}

    def probe(self, name: str) -> Probe:
        """A probe of the study by its column, with its parameters, split points apart (which are each prompt's own)."""
        entry = next((p for p in self.plan["probes"] if (p.get("label") or p["name"]) == name), None)
        if entry is None:
            planned = ", ".join(repr(str(p["name"])[:40]) for p in self.plan["probes"])  # a stranger's words
            raise StudyError(
                f"{self.out.name} holds results of {name[:40]!r}, and its plan names {planned or 'no probe'}; run the "
                "study again in another folder."
            )
        return find(entry["name"]).make({n: v for n, v in entry["parameters"].items() if n != "boundaries"})

    def groups(self, name: str) -> dict[str, np.ndarray]:
        """A set as a whole and each of its levels, as places in the set; prompts without a level are of none."""
        one = self.sets[name]
        found = {name: np.arange(len(one["ids"]))}
        levels = np.asarray(one["levels"], str)
        return found | {
            f"{name}{LEVEL_MARK}{level}": np.flatnonzero(levels == level)
            for level in dict.fromkeys(one["levels"])
            if level
        }

    @property
    def every_group(self) -> list[str]:
        """All sets, each with its levels."""
        return [group for name in self.sets for group in self.groups(name)]

    def set_of(self, group: str) -> str:
        """The set that a group is, or is a level of."""
        return next(name for name in self.sets if group in self.groups(name))

    def some(self, label: str, group: str) -> tuple[str, Sums]:
        """The set of a group, and what is there of a model on the group's prompts."""
        name = self.set_of(group)
        return name, self.sums(label, name).of(self.groups(name)[group])

    def forms(self, name: str) -> np.ndarray:
        """Of each prompt of a set, by its place, the form it was written in: a string, "" where it has none or the plan
        is older than forms. A published set's way of writing its prompts is one form."""
        one = self.sets[name]
        return np.asarray(one.get("forms") or [one.get("of") or ""] * len(one["ids"]), str)

    def progress(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Per model and set: items there, items in all."""
        found = {}
        for label, model in self.models.items():
            computed = there(self.out, model["digest"])
            for name, one in self.sets.items():
                if not any(self._takes(probe, label, name) for probe in self.plan["probes"]):
                    continue
                found[label, name] = sum(chunk in computed for chunk in one["chunks"]), len(one["chunks"])
        return found

    @staticmethod
    def _takes(probe: Mapping[str, Any], label: str, name: str) -> bool:
        return all(not probe.get(of) or one in probe[of] for of, one in (("models", label), ("sets", name)))

    def item_keys(self) -> Iterator[str]:
        """The items that are there, in the plan's order."""
        for model in self.models.values():
            computed = there(self.out, model["digest"])
            yield from (f"{model['digest']}/{c}" for s in self.sets.values() for c in s["chunks"] if c in computed)

    def failures(self) -> dict[str, str]:
        """What went wrong in the runs of the study, by the label of the model; what a model of an earlier plan could
        not do is left out."""
        found, planned = {}, {model["digest"] for model in self.models.values()}
        for file in sorted((self.out / FAILURES).glob("*.json")):
            if file.stem not in planned:
                continue
            with contextlib.suppress(ValueError, KeyError, TypeError):
                meta = outside.json_of(file)
                found[meta["model"]] = meta["why"]
        return found

    def digest(self, keys: Iterable[str] | None = None) -> str:
        """SHA-256 over the measures that are there, in the plan's order; seconds are no part of it. `keys`: of these
        items."""
        found = hashlib.sha256()
        for key in self.item_keys() if keys is None else keys:
            table, shapes = self.part(key)
            for name in sorted(table.column_names):
                if not name.startswith(TIMES):
                    found.update(json.dumps([key, name, shapes[name]]).encode())
                    column = table[name].combine_chunks()
                    found.update(np.asarray(column.is_valid()).tobytes())
                    given = column.flatten() if pyarrow.types.is_list(column.type) else column.drop_null()
                    found.update(np.asarray(given, np.float64).tobytes())
        return found.hexdigest()

    def part(self, key: str) -> Part:
        """The sums of an item, from its own file while there is one."""
        if (file := path(self.out, key)).is_file():
            return read(file)
        model, chunk = key.split("/")
        rows = packed(self.out)[model]
        start = sum(rows[one] for one in itertools.takewhile(lambda one: one != chunk, rows))
        table, meta = self._of_model(model)
        with _reading(self.out / SUMS):
            return _part(table.slice(start, rows[chunk]), meta["shapes"])

    def certificate(self, key: str) -> Any:
        """The certificate of the first result of an item."""
        if (file := path(self.out, key)).is_file():
            return json.loads(parquet.read_schema(file).metadata[b"certificate"])
        return self._of_model(key.partition("/")[0])[1]["certificate"]

    def _of_model(self, digest: str) -> tuple[pyarrow.Table, Any]:
        """A model's row group of `sums.parquet`, without its keys; what the metadata says of it."""
        file = self.out / SUMS
        state = digest, file.stat().st_mtime_ns
        if state not in self._group:
            with _reading(file), outside.opened(file, bounds.SUMS, outside.Unreadable) as handle:
                opened = parquets.opened(handle, bounds.ROWS, bounds.SUMS)
                meta = parse(opened.schema_arrow.metadata[b"models"], bounds.FOOTER)
                group = opened.read_row_group(list(packed(self.out)).index(digest), use_threads=False)
                expect(set(group["model"].to_pylist()) == {digest}, "a row group per model")
            self._group.clear()
            self._group[state] = group.drop_columns(list(KEYS)), meta[digest]
        return self._group[state]

    def sums(self, label: str, name: str) -> Sums:
        """What is there of a model on a set; read again where something was added."""
        digest, chunks, size = self.models[label]["digest"], self.sets[name]["chunks"], self.plan["chunk"]
        computed = there(self.out, digest)
        at = [i for i, chunk in enumerate(chunks) if chunk in computed]
        if (before := self._sums.get((label, name))) is not None and before[0] == at:
            return before[1]
        parts, index = [], [np.empty(0, int)]
        for i in at:
            parts.append(self.part(f"{digest}/{chunks[i]}"))
            rows = min(size, len(self.sets[name]["ids"]) - i * size)
            if len(parts[-1][0]) != rows:
                raise StudyError(
                    f"The sums of {label!r} on {name} in {self.out} have {len(parts[-1][0])} rows in part {i + 1}, "
                    f"expected {rows}; delete {SUMS} and {ITEMS}, and run the study again."
                )
            index.append(np.arange(i * size, i * size + rows))
        try:
            found = _joined(parts, np.concatenate(index))
        except (ValueError, pyarrow.ArrowException):
            raise StudyError(
                f"The sums of {label!r} on {name} in {self.out} have other columns from part to part; delete {SUMS} "
                f"and {ITEMS}, and run the study again."
            ) from None
        self._sums[label, name] = at, found
        return found


def home() -> Path:
    """The folder of this installation's studies, a folder for each."""
    return settings.current().cache / "studies"


def made_here() -> list[Path]:
    """The folders of this installation's studies, latest first."""
    return [file.parent for file in sorted(home().glob(f"*/{PLAN}"), key=lambda file: -file.stat().st_mtime)]


def shipped() -> list[Path]:
    """The folders of the studies that come with the product."""
    return [file.parent for file in sorted(STUDIES.glob(f"*/{PLAN}"))]


def open_folder(out: str | Path) -> Folder:
    """A study's folder. `StudyError` where there is none, or one of a later version."""
    file = Path(out) / PLAN
    try:
        plan = from_json(outside.content(file, bounds.PLAN, outside.Unreadable))
        if plan["format"] != FORMAT:
            raise StudyError(
                f"The study in {out} is of format {plan['format']}; expected {FORMAT}. Run it again with this program."
            )
        _Plan.model_validate(plan, strict=True)
        return Folder(Path(out), plan)
    except outside.Unreadable:
        raise StudyError(
            f"There is no study in {out}: it has no {PLAN} that can be read; run one into it first."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise StudyError(f"{file} is damaged; run the study again: what is computed stays.") from None


def _joined(parts: Sequence[Part], index: np.ndarray) -> Sums:
    if not parts:
        return Sums({}, index)
    shapes: dict[str, tuple[int, ...]] = {}
    for _, found in parts:
        if any(shapes.setdefault(column, shape) != shape for column, shape in found.items()):
            raise ValueError("shapes")
    table = pyarrow.concat_tables([t.replace_schema_metadata(None) for t, _ in parts], promote_options="default")
    return Sums({name: _values(table[name], shapes[name]) for name in table.column_names}, index)


def _values(column: pyarrow.ChunkedArray, shape: tuple[int, ...]) -> np.ndarray:
    """A column as `[prompt, …]`, NaN for null."""
    there = np.asarray(column.is_valid())
    flat = column.combine_chunks()
    if pyarrow.types.is_list(flat.type):
        given = np.asarray(flat.flatten(), np.float64).reshape(int(there.sum()), *shape)
    else:
        given = np.asarray(flat.drop_null(), np.float64)
    if there.all():
        return given
    values = np.full((len(there), *shape), np.nan)
    values[there] = given
    return values
