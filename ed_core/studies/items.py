"""One item: computed, written, read. A file holds a row for each prompt and a column for each small sum of
`results.aggregate`, never an array over tokens.

Column `<probe>.<sum>`, for instance `contributions.attn_cos.sum` `[layer]`; `<probe>.<measure>.no_sinks` is the sum
over tokens that are no sinks, `<probe>.n_no_sinks` their number (null where the sinks cannot be told);
`logit_lens.echo` the share of tokens that the lens at depth 0 takes for the token just read. A sum that a
prompt does not have (a probe that took fewer) is null. The columns' shapes and the first result's certificate, without
its prompt, stand in the file's metadata."""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from pyarrow import parquet

from .. import bounds, disk, outside
from ..depth import answer, sinks
from ..depth.criteria import COSINES, OF_LENS
from ..depth.verdict import prompt_sums
from ..errors import InputError, PromptError, StudyError
from ..files import expect, parse
from ..types import ProbeResult, Prompt
from . import parquets
from .plan import ITEMS, Chunk, Item, Plan
from .sets import split_points
from .study import ProbeEntry

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..probes import Probe

CURVES = {"contributions": COSINES, "logit_lens": tuple(OF_LENS)}  # what the criteria read
OF_ONE = ("prompt", "probe", "run", "seconds", "time")  # parts of a certificate that are of one result
TIMES = "seconds."  # how columns begin that say how long something took: no measures


def path(out: Path, key: str) -> Path:
    return out / ITEMS / f"{key}.parquet"


def there(out: Path, digest: str) -> set[str]:
    """The chunks of a model that are computed."""
    folder = out / ITEMS / digest
    return {file.stem for file in folder.glob("*.parquet")} if folder.is_dir() else set()


def check(model: LanguageModel, plan: Plan, chunks: Iterable[Chunk]) -> None:
    """Refuse what this model has no answer for, before anything is computed."""
    for chunk in chunks:
        for i, example in enumerate(chunk.examples):
            try:
                for entry, places in zip(plan.study.probes, chunk.takes):
                    if i in places:
                        _probe(model, entry, example.prompt)
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
    from ..service import compute as engine

    found = []
    for i, example in enumerate(item.chunk.examples):
        entries = [entry for entry, places in zip(plan.study.probes, item.chunk.takes) if i in places]
        probes = [_probe(model, entry, example.prompt) for entry in entries]
        requests = [probe.request(item.model.known, example.prompt) for probe in probes]
        model.expect(list(zip(probes, requests)))
        found.append({e.name: engine.run(model, r, cancelled=cancelled) for e, r in zip(entries, requests)})
        done()
    return table(found)


def table(found: Iterable[Mapping[str, ProbeResult]]) -> pyarrow.Table:
    """An item's table, from the results of each of its prompts by probe."""
    rows: list[dict[str, np.ndarray]] = []
    shapes: dict[str, tuple[int, ...]] = {}
    certificate = None
    for results in found:
        row, certificate = _row(results), certificate or _of_all(next(iter(results.values())).provenance)
        shapes |= {name: np.shape(value) for name, value in row.items()}
        rows.append(row)
    told = {
        "shapes": json.dumps(shapes),
        "certificate": json.dumps(certificate or {}, sort_keys=True),
        "host": platform.node(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    columns = {name: _column([row.get(name) for row in rows]) for name in sorted({n for row in rows for n in row})}
    return pyarrow.table(columns).replace_schema_metadata(told)


def _of_all(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A result's certificate without what is of that one prompt: its text above all."""
    return {name: value for name, value in provenance.items() if name not in OF_ONE}


def write(out: Path, item: Item, table: pyarrow.Table) -> None:
    """Put the item's file in its place, whole or not at all."""
    file = path(out, item.key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with disk.written(file) as handle:
            # no two sums are alike, and nobody looks for one: dictionaries and statistics only cost when it is read
            parquet.write_table(table, handle, compression="zstd", use_dictionary=False, write_statistics=False)
    except OSError as error:
        raise StudyError(f"The study's folder {out} cannot be written: {disk.why(error)}") from error


def read(file: Path) -> tuple[pyarrow.Table, dict[str, tuple[int, ...]]]:
    """An item's table and its columns' shapes. `StudyError` for a file that is damaged, or is larger than an item can
    be."""
    try:
        return table_of(outside.content(file, bounds.ITEM, outside.Unreadable))
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException):
        raise StudyError(
            f"The study's file {file.name} in {file.parent} is damaged; delete it and run the study again: only what "
            "it held is computed anew."
        ) from None


def table_of(data: bytes) -> tuple[pyarrow.Table, dict[str, tuple[int, ...]]]:
    """The same of a file's bytes, which may be anybody's; what is wrong is a `ValueError`, or whatever pyarrow says."""
    table = parquets.numbers(io.BytesIO(data), bounds.CHUNK)
    told = parse(table.schema.metadata[b"shapes"], bounds.ITEM_HEAD)
    shapes = {name: tuple(told[name]) for name in table.column_names}
    for name, shape in shapes.items():
        _check_column(table[name].combine_chunks(), shape, name)
    return table, shapes


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


def digest(out: Path, keys: Iterable[str]) -> str:
    """SHA-256 over the measures of these items, in their order: time, host and seconds are no part of it."""
    found = hashlib.sha256()
    for key in keys:
        table, shapes = read(path(out, key))
        for name in table.column_names:
            if not name.startswith(TIMES):
                found.update(json.dumps([key, name, shapes[name]]).encode())
                column = table[name].combine_chunks()
                found.update(np.asarray(column.is_valid()).tobytes())
                given = column.flatten() if pyarrow.types.is_list(column.type) else column.drop_null()
                found.update(np.asarray(given, np.float64).tobytes())
    return found.hexdigest()


def _probe(model: LanguageModel, entry: ProbeEntry, prompt: Prompt) -> Probe:
    """The probe as it goes with this prompt; an `InputError` where it does not."""
    from ..prompts import max_tokens

    encoding = model.encode(prompt, max_tokens())
    boundaries: tuple[int, ...] = ()
    if entry.split_points:
        if encoding.answer_start is None:
            raise PromptError("split points at the answer need an answer, and it has none.")
        boundaries = split_points(entry.split_points, encoding.answer_start, len(encoding))
        if not boundaries:
            raise PromptError("its answer has at most 4 tokens, too few for split points within it; leave it out.")
    probe = entry.make(boundaries)
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
