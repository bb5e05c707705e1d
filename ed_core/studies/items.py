"""A study's folder: `study.toml`, the plan it resolves to, `sums.parquet`, `verdict.parquet`; while it runs, a file for
each item. Numpy and pyarrow; torch and models only within functions.

Sums are a row per prompt and a column per small sum of `results.aggregate`, never an array over tokens. Column
`<probe>.<sum>`, for instance `contributions.attn_cos.sum` `[layer]`; `<probe>.<measure>.no_sinks` is the sum over
tokens that are no sinks, `<probe>.n_no_sinks` their number (null where the sinks are unknown); `logit_lens.echo` the
share of tokens that the lens at depth 0 takes for the token just read, `logit_lens.kinds` sums by the kind of token
(`depth.kinds`). A sum that a prompt lacks (of a probe with a limit) is null.

An item's file has the columns' shapes and the first result's certificate, without its prompt, in its metadata. `pack`
moves items into `sums.parquet`: a row group per model, with the digests `model` and `chunk` of an item in each row, and
each model's shapes and certificate in the metadata."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow
from filelock import FileLock
from pyarrow import parquet, types
from pydantic import BaseModel, Field, model_validator

from .. import disk, settings, untrusted
from ..depth import answer, kinds, sinks
from ..depth.sample import CURVES, prompt_sums
from ..errors import InputError, PromptError, StudyError
from ..files import expect, parse
from ..models.bundled import STUDIES
from ..probes import Probe, find
from ..types import ProbeResult, from_json
from .part import Part
from .plan import FAILURES, FORMAT, ITEMS, PLAN, Item, Plan, StudyModel, writing
from .sets import Example, split_points
from .study import LEVEL_MARK, NAME, ProbeEntry

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel

OF_ONE = ("prompt", "probe", "run", "seconds", "time")  # parts of a certificate that are of one result: not kept
TIMES = "seconds."  # columns that begin so say how long something took: no measures
SUMS, KEYS = "sums.parquet", ("model", "chunk")
NUMBERS = (pyarrow.int64(), pyarrow.float32(), pyarrow.float64())
Stored = tuple[pyarrow.Table, dict[str, tuple[int, ...]]]
"""Sums of some prompts, and the shapes of their columns."""


# ---------------------------------------------------------------- made


def compute(
    model: LanguageModel,
    plan: Plan,
    item: Item,
    done: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> pyarrow.Table:
    """Return the table of an item's sums. `done` is called after every prompt; `cancelled` says whether to stop."""
    from ..work import compute as engine

    examples = item.chunk.examples
    probes_of = [_probes(model, item.chunk.probes(plan.study, item.model.label, i), e) for i, e in enumerate(examples)]
    results = []
    for example, probes in zip(examples, probes_of, strict=True):
        requests = {column: probe.request(item.model.known, example.prompt) for column, probe in probes.items()}
        model.expect(list(zip(probes.values(), requests.values())))
        results.append({column: engine.run(model, r, cancelled=cancelled) for column, r in requests.items()})
        done()
    return table(results)


def _probes(model: LanguageModel, entries: Sequence[ProbeEntry], example: Example) -> dict[str, Probe]:
    """Return the probes to run on one prompt, by column, with this prompt's split points; without those with split
    points that need a longer answer [C25 §5]. `InputError` where the prompt does not suit a probe."""
    from ..prompts import max_tokens

    probes: dict[str, Probe] = {}
    try:
        for entry in entries:
            encoding = model.encode(example.prompt, max_tokens())
            boundaries: tuple[int, ...] = ()
            if entry.split_points:
                if encoding.answer_start is None:
                    raise PromptError("split points at the answer need an answer, and it has none.")
                if not (boundaries := split_points(entry.split_points, encoding.answer_start, len(encoding))):
                    continue
            probe = probes[entry.column] = entry.make(boundaries, example.other)
            probe.check_precision(model.spec.precision)
            probe.check(len(encoding), encoding.answer_start)
    except InputError as error:
        raise type(error)(f"Prompt {example.prompt.id or example.prompt.text[:40]!r}: {error}") from None
    return probes


def table(results_by_prompt: Iterable[Mapping[str, ProbeResult]]) -> pyarrow.Table:
    """Return an item's table, a row per prompt and a column per sum, from the results of each prompt by probe."""
    results_by_prompt = list(results_by_prompt)
    rows = [_row(results) for results in results_by_prompt]
    shapes = {name: np.shape(value) for row in rows for name, value in row.items()}
    first = next((result.provenance for results in results_by_prompt for result in results.values()), {})
    certificate = {name: value for name, value in first.items() if name not in OF_ONE}
    meta = {"shapes": json.dumps(shapes), "certificate": json.dumps(certificate, sort_keys=True)}
    columns = {name: _column([row.get(name) for row in rows]) for name in sorted(shapes)}
    return pyarrow.table(columns).replace_schema_metadata(meta)


def _row(results: Mapping[str, ProbeResult]) -> dict[str, np.ndarray]:
    """Return one prompt's sums over tokens by column name, from its results by probe."""
    written = results.get(sinks.PROBE)
    known = None if written is None else sinks.of_result(written)
    row: dict[str, np.ndarray] = {}
    for name, result in results.items():
        row |= {f"{name}.{sum_}": np.asarray(values) for sum_, values in result.summary.items()}
        row[f"{TIMES}{name}"] = np.asarray(result.provenance["seconds"])
        if known is not None and name in CURVES:
            sums, (n,) = prompt_sums([result], CURVES[name], True, [{s.pos for s in known}])
            row |= {f"{name}.{curve}.no_sinks": values[0] for curve, values in sums.items()}
            row[f"{name}.n_no_sinks"] = np.asarray(n)
    if "logit_lens" in results:
        row["logit_lens.echo"] = np.asarray(answer.echo(results["logit_lens"]))
        row["logit_lens.kinds"] = kinds.sums(results["logit_lens"])
    if known is not None:
        row["contributions.n_sinks"] = np.asarray(len(known))
        row["contributions.first_is_sink"] = np.asarray(int(any(s.pos == 0 for s in known)))
    return row


def _column(values: list[np.ndarray | None]) -> pyarrow.Array:
    """Return an Arrow column of numbers, or of flat lists where the values are arrays; null where a prompt has none."""
    one = next(v for v in values if v is not None)
    kind = pyarrow.int64() if one.dtype.kind == "i" else pyarrow.float64()
    kind = pyarrow.float32() if one.dtype == np.float32 else kind
    if one.ndim == 0:
        return pyarrow.array([None if v is None else v.item() for v in values], kind)
    return pyarrow.array([None if v is None else v.ravel() for v in values], pyarrow.list_(kind))


# ---------------------------------------------------------------- written


def path(out: Path, key: str) -> Path:
    """Return the path of an item's own file, which it has until `pack` moves it into `sums.parquet`."""
    return out / ITEMS / f"{key}.parquet"


def write(out: Path, item: Item, table: pyarrow.Table) -> None:
    """Write an item's table to its own file in the study's folder `out`, whole or not at all."""
    file = path(out, item.key)
    with writing(out):
        file.parent.mkdir(parents=True, exist_ok=True)
        with disk.written(file) as handle:
            # no two sums are alike and none is searched for, so dictionaries and statistics only slow reading down
            parquet.write_table(table, handle, compression="zstd", use_dictionary=False, write_statistics=False)


def pack(folder: Folder) -> None:
    """Move the computed items of a study from their own files into `sums.parquet`. Killed at any moment, it loses
    nothing: an item's file goes once its rows are on the disk. Items of other plans stay."""
    out, lock = folder.out, folder.out / ITEMS / ".lock"
    if not any(path(out, key).is_file() for key in folder.item_keys()):
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
    """Write the items of these keys (`<model digest>/<chunk digest>`) to `handle`, in the layout of `sums.parquet`."""
    models: dict[str, list[str]] = {}
    for key in keys:
        models.setdefault(key.partition("/")[0], []).append(key)
    meta: dict[str, Any] = {}
    kinds: dict[str, pyarrow.DataType] = {}
    for digest, of_model in models.items():
        shapes: dict[str, tuple[int, ...]] = {}
        for part, more in map(folder.part, of_model):
            shapes |= more
            kinds |= {field.name: field.type for field in part.schema}
        meta[digest] = {"shapes": shapes, "certificate": folder.certificate(of_model[0])}
    columns = [*((name, pyarrow.string()) for name in KEYS), *sorted(kinds.items())]
    schema = pyarrow.schema(columns, {"models": json.dumps(meta, sort_keys=True)})
    how = {"compression": "zstd", "use_dictionary": list(KEYS), "write_statistics": False}
    with parquet.ParquetWriter(handle, schema, **how) as writer:
        for of_model in models.values():
            parts = [schema.remove_metadata().empty_table()]
            for key in of_model:
                part = folder.part(key)[0].replace_schema_metadata(None)
                for name, value in zip(KEYS, key.split("/")):
                    part = part.append_column(name, pyarrow.repeat(value, len(part)))
                parts.append(part)
            group = pyarrow.concat_tables(parts, promote_options="default")
            writer.write_table(group, row_group_size=max(1, len(group)))


# ---------------------------------------------------------------- read


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn errors while reading `file` into a `StudyError` that calls the file damaged."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException):
        raise StudyError(
            f"The study's file {file.name} in {file.parent} is damaged; delete it and run the study again: only what "
            "it had is computed again."
        ) from None


@contextlib.contextmanager
def _opened(file: Path, rows: int, size: int) -> Iterator[parquet.ParquetFile]:
    """Yield an opened parquet file that somebody else may have made, after checking that its footer declares at most
    `rows` rows and `size` unpacked bytes."""
    with _reading(file), untrusted.opened(file, size, untrusted.Unreadable) as handle:
        limits = {"thrift_string_size_limit": untrusted.FOOTER, "thrift_container_size_limit": untrusted.PARTS}
        with parquet.ParquetFile(handle, **limits) as opened:
            groups = [opened.metadata.row_group(i) for i in range(opened.num_row_groups)]
            large = sum(group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns))
            expect(opened.metadata.num_rows <= rows and large <= size, "the size")
            yield opened


def computed_chunks(out: Path, digest: str) -> set[str]:
    """Return the digests of the computed chunks of prompts of the model with this digest."""
    return {file.stem for file in (out / ITEMS / digest).glob("*.parquet")} | packed(out).get(digest, {}).keys()


def packed(out: Path) -> Mapping[str, Mapping[str, range]]:
    """Return the rows of each chunk in `sums.parquet` by model and chunk digest, counted within the model's row group;
    {} where the file is missing."""
    file = out / SUMS
    return _packed(file, file.stat().st_mtime_ns) if file.is_file() else {}


@lru_cache(maxsize=32)
def _packed(file: Path, changed: int) -> Mapping[str, Mapping[str, range]]:
    """Return the index of `packed` for one file; `changed`: its modification time, part of the cache's key."""
    index: dict[str, dict[str, range]] = {}
    with _opened(file, untrusted.ROWS, untrusted.SUMS) as opened:
        keys = opened.read(list(KEYS))
        for (model, chunk), n in Counter(zip(*(keys[name].to_pylist() for name in KEYS))).items():
            chunks = index.setdefault(model, {})
            start = next(reversed(chunks.values())).stop if chunks else 0
            chunks[chunk] = range(start, start + n)
        expect(opened.num_row_groups == len(index), "a row group per model")
    return index


def packed_keys(out: Path) -> list[str]:
    """Return the keys (`<model digest>/<chunk digest>`) of the items in `sums.parquet`, in its order."""
    return [f"{model}/{chunk}" for model, chunks in packed(out).items() for chunk in chunks]


def _checked(table: pyarrow.Table, meta: Mapping[str, Sequence[int]]) -> Stored:
    """Return a table of sums without empty columns, and the shape of each column (`meta`: shapes by name). `ValueError`
    where a column has anything but numbers, or lists of another length than its shape."""
    table = table.select([name for name in table.column_names if table[name].null_count < len(table)])
    shapes = {name: tuple(meta[name]) for name in table.column_names}
    for name, shape in shapes.items():
        expect(
            all(type(n) is int and n >= 0 for n in shape) and math.prod(shape) <= untrusted.VALUES, f"{name}: the shape"
        )
        column = table[name].combine_chunks()
        if shape:
            expect(types.is_list(column.type), f"{name}: the type")
            lengths = {n for n in column.value_lengths().to_pylist() if n is not None}
            column = column.flatten()
            expect(lengths <= {math.prod(shape)} and not column.null_count, f"{name}: the length")
        expect(column.type in NUMBERS, f"{name}: the type")
    return table, shapes


def _joined(parts: Sequence[Stored]) -> dict[str, np.ndarray]:
    """Return the columns `[prompt, …]` of several chunks, joined; `ValueError` where they differ in shape."""
    shapes = {name: shape for _, of_part in parts for name, shape in of_part.items()}
    expect(all(of_part.items() <= shapes.items() for _, of_part in parts), "the shapes differ")
    tables = [table.replace_schema_metadata(None) for table, _ in parts]
    joined = pyarrow.concat_tables(tables, promote_options="default") if tables else pyarrow.table({})
    return {name: _values(joined[name].combine_chunks(), shapes[name]) for name in joined.column_names}


def _values(column: pyarrow.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Return an Arrow column as a float64 array `[prompt, …]`, NaN for null."""
    valid = np.asarray(column.is_valid())
    values = np.full((len(valid), *shape), np.nan)
    given = column.flatten() if types.is_list(column.type) else column.drop_null()
    values[valid] = np.asarray(given, np.float64).reshape(-1, *shape)
    return values


# ---------------------------------------------------------------- the folder


class _Probe(BaseModel):
    """A probe in `plan.json`."""

    name: str
    label: str = ""
    models: list[str] = []
    sets: list[str] = []
    limit: int | None = None
    parameters: dict[str, Any]


class _Set(BaseModel):
    """A prompt set in `plan.json`; its lists have an entry per prompt, or per chunk."""

    name: str = Field(pattern=f"^{NAME}$")
    of: str = ""
    left_out: int
    ids: list[str]
    levels: list[str]
    pairs: list[str]
    forms: list[str] = []
    chunks: list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]]


class _Plan(BaseModel):
    """The fields of `plan.json` that are checked when a study is opened."""

    name: str
    note: str = ""
    seed: int = Field(ge=0)
    chunk: int = Field(ge=1, le=untrusted.CHUNK)
    models: list[StudyModel]
    probes: list[_Probe]
    sets: list[_Set]

    @model_validator(mode="after")
    def _check_lengths(self) -> _Plan:
        """Refuse a set with chunks, levels, pairs or forms that do not fit its number of prompts."""
        for one in self.sets:
            n = len(one.ids)
            if len(one.chunks) != -(-n // self.chunk) or {len(one.levels), len(one.pairs), len(one.forms)} - {0, n}:
                raise ValueError(one.name)
        return self


@dataclass(frozen=True)
class Folder:
    """An opened study (`open_folder`), as far as it is computed when it is first read: later items are not seen."""

    out: Path
    plan: Mapping[str, Any]
    verdicts: dict[str, pyarrow.Table] = field(default_factory=dict)  # by what they are made of (`tables.stored`)
    _sums: dict[tuple[str, str], Part] = field(default_factory=dict)
    _group: dict[tuple[str, int], tuple[pyarrow.Table, Any]] = field(default_factory=dict)  # of the last model

    @cached_property
    def models(self) -> dict[str, Mapping[str, Any]]:
        """The models of the plan, by label."""
        return {model["label"]: model for model in self.plan["models"]}

    @cached_property
    def sets(self) -> dict[str, Mapping[str, Any]]:
        """The sets of the plan, by name."""
        return {one["name"]: one for one in self.plan["sets"]}

    @cached_property
    def computed(self) -> dict[str, set[str]]:
        """The digests of the computed chunks of each model, by the model's label."""
        return {label: computed_chunks(self.out, model["digest"]) for label, model in self.models.items()}

    def probe(self, name: str) -> Probe:
        """Return the probe with this column name, with its parameters except split points, which are each prompt's own.
        Raises `StudyError` where the plan has no such probe."""
        for entry in self.plan["probes"]:
            if (entry.get("label") or entry["name"]) == name:
                return find(entry["name"]).make({n: v for n, v in entry["parameters"].items() if n != "boundaries"})
        planned = ", ".join(repr(str(p["name"])[:40]) for p in self.plan["probes"])  # a stranger's words
        raise StudyError(
            f"{self.out.name} holds results of {name[:40]!r}, and its plan names {planned or 'no probe'}; run the "
            "study again in another folder."
        )

    def groups(self, name: str) -> dict[str, np.ndarray]:
        """Return the prompts of a set and of each of its levels (`<set>/<level>`), as places in the set from 0; prompts
        without a level are in no level."""
        one = self.sets[name]
        levels = np.asarray(one["levels"], str)
        named = {f"{name}{LEVEL_MARK}{level}": levels == level for level in dict.fromkeys(one["levels"]) if level}
        return {name: np.arange(len(one["ids"]))} | {group: np.flatnonzero(mask) for group, mask in named.items()}

    @property
    def every_group(self) -> list[str]:
        """The names of all sets and of their levels (`<set>/<level>`)."""
        return [group for name in self.sets for group in self.groups(name)]

    def set_of(self, group: str) -> str:
        """Return the name of the set that `group` names, by itself or as `<set>/<level>`."""
        return next(name for name in self.sets if group in self.groups(name))

    def read(self, label: str, group: str, probe: str = "") -> Part:
        """Return the sums of the model `label` on a set or level (`group`): of one probe, or all columns."""
        name = self.set_of(group)
        part = self.sums(label, name)
        return (part.probe(probe) if probe else part).of(self.groups(name)[group])

    def progress(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return the number of computed items and of all items, by model and set."""
        return {
            (label, name): (sum(chunk in self.computed[label] for chunk in one["chunks"]), len(one["chunks"]))
            for label in self.models
            for name, one in self.sets.items()
            if any(
                label in (probe.get("models") or [label]) and name in (probe.get("sets") or [name])
                for probe in self.plan["probes"]
            )
        }

    def item_keys(self) -> Iterator[str]:
        """Yield the keys (`<model digest>/<chunk digest>`) of the computed items, in the plan's order."""
        for label, model in self.models.items():
            every = (chunk for one in self.sets.values() for chunk in one["chunks"])
            yield from (f"{model['digest']}/{chunk}" for chunk in every if chunk in self.computed[label])

    def failures(self) -> dict[str, str]:
        """Return why models of the plan failed, by label; {} where none did."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            reasons = untrusted.json_of(self.out / FAILURES).items()
            return {label: str(why) for label, why in reasons if label in self.models}
        return {}

    def digest(self) -> str:
        """Return the SHA-256 over the measures of all computed items, in the plan's order, without computing times."""
        sha = hashlib.sha256()
        for key in self.item_keys():
            part, shapes = self.part(key)
            for name in sorted(part.column_names):
                if not name.startswith(TIMES):
                    sha.update(json.dumps([key, name, shapes[name]]).encode())
                    column = part[name].combine_chunks()
                    sha.update(np.asarray(column.is_valid()).tobytes())
                    given = column.flatten() if types.is_list(column.type) else column.drop_null()
                    sha.update(np.asarray(given, np.float64).tobytes())
        return sha.hexdigest()

    def part(self, key: str) -> Stored:
        """Return an item's sums and the shapes of their columns, from its own file or else from `sums.parquet`."""
        if (file := path(self.out, key)).is_file():
            with _opened(file, untrusted.CHUNK, untrusted.ITEM) as opened:
                head = opened.schema_arrow.metadata[b"shapes"]
                return _checked(opened.read(use_threads=False), parse(head, untrusted.ITEM_HEAD))
        model, chunk = key.split("/")
        rows = packed(self.out)[model][chunk]
        group, meta = self._of_model(model)
        with _reading(self.out / SUMS):
            return _checked(group.slice(rows.start, len(rows)), meta["shapes"])

    def certificate(self, key: str) -> Any:
        """Return the provenance of an item's first result, without what concerns only that result."""
        if (file := path(self.out, key)).is_file():
            return json.loads(parquet.read_schema(file).metadata[b"certificate"])
        return self._of_model(key.partition("/")[0])[1]["certificate"]

    def _of_model(self, digest: str) -> tuple[pyarrow.Table, Any]:
        """Return a model's rows of `sums.parquet` without their keys, and its shapes and certificate."""
        file = self.out / SUMS
        state = digest, file.stat().st_mtime_ns
        if state not in self._group:
            with _opened(file, untrusted.ROWS, untrusted.SUMS) as opened:
                meta = parse(opened.schema_arrow.metadata[b"models"], untrusted.FOOTER)
                group = opened.read_row_group(list(packed(self.out)).index(digest), use_threads=False)
                expect(set(group["model"].to_pylist()) == {digest}, "a row group per model")
                self._group.clear()
                self._group[state] = group.drop_columns(list(KEYS)), meta[digest]
        return self._group[state]

    def sums(self, label: str, name: str) -> Part:
        """Return all sums of the model `label` on the set `name`, with each prompt's marks. A published set's way of
        writing its prompts is one form. `StudyError` where the sums do not fit the plan."""
        if (label, name) in self._sums:
            return self._sums[label, name]
        one, digest, size = self.sets[name], self.models[label]["digest"], self.plan["chunk"]
        n = len(one["ids"])
        places = zip(one["chunks"], np.array_split(np.arange(n), range(size, n, size)), strict=False)
        computed = [(chunk, own) for chunk, own in places if chunk in self.computed[label]]
        parts, index = [self.part(f"{digest}/{chunk}") for chunk, _ in computed], [own for _, own in computed]
        try:
            expect([len(table) for table, _ in parts] == [len(own) for own in index], "the rows")
            columns = _joined(parts)
        except (ValueError, pyarrow.ArrowException):
            raise StudyError(
                f"The sums of {label!r} on {name} in {self.out} have other rows or columns than their plan; delete "
                f"{SUMS} and {ITEMS}, and run the study again."
            ) from None
        every = np.concatenate([np.empty(0, int), *index])
        forms = one.get("forms") or [one.get("of") or ""] * n
        marks = (tuple(str(of[i]) for i in every) if of else () for of in (one["levels"], one["pairs"], forms))
        levels, pairs, forms = marks
        self._sums[label, name] = Part(columns, levels, pairs, forms, every, self.plan["seed"])
        return self._sums[label, name]


def home() -> Path:
    """Return the folder of this installation's studies, which has a folder for each."""
    return settings.current().cache / "studies"


def made_here() -> list[Path]:
    """Return the folders of this installation's studies, latest first."""
    return [file.parent for file in sorted(home().glob(f"*/{PLAN}"), key=lambda file: -file.stat().st_mtime)]


def shipped() -> list[Path]:
    """Return the folders of the studies that come with the product."""
    return [file.parent for file in sorted(STUDIES.glob(f"*/{PLAN}"))]


def open_folder(out: str | Path) -> Folder:
    """Return the study in the folder `out`; `StudyError` where none can be read, or where it has another format."""
    file = Path(out) / PLAN
    try:
        plan = from_json(untrusted.content(file, untrusted.PLAN, untrusted.Unreadable))
        if plan["format"] != FORMAT:
            raise StudyError(
                f"The study in {out} is of format {plan['format']}; expected {FORMAT}. Run it again with this program."
            )
        _Plan.model_validate(plan, strict=True)
        return Folder(Path(out), plan)
    except untrusted.Unreadable:
        raise StudyError(
            f"There is no study in {out}: it has no {PLAN} that can be read; run one into it first."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise StudyError(f"{file} is damaged; run the study again: what is computed stays.") from None
