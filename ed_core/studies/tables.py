"""A study's folder, read: sums of its prompts by model and set, and what the criteria and the aggregates come to, with
their uncertainty. Numpy and pyarrow; no torch, no model, no prompt's text.

Uncertainty is a seeded bootstrap over prompts (1 000 resamples, 5 to 95 %), from 5 prompts up; aggregates are made anew
from the prompts' sums in every resample."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import csv, parquet

from ..depth.criteria import FEWEST, VARIANTS, depths, interval, resampled
from ..depth.verdict import COSINES
from ..errors import StudyError
from ..probes import Probe, find
from ..results.aggregate import aggregate
from . import items
from .plan import FORMAT, PLAN
from .study import LEVEL_MARK

RESAMPLES = 1000
READS = {"cosine": ("contributions", COSINES), "kl": ("logit_lens", ("kl",)), "overlap": ("logit_lens", ("overlap",))}
SUMMARY = pyarrow.schema(
    [
        ("model", pyarrow.string()),
        ("set", pyarrow.string()),
        ("prompts", pyarrow.int64()),
        ("tokens", pyarrow.int64()),
        ("probe", pyarrow.string()),
        ("measure", pyarrow.string()),
        ("layer", pyarrow.int32()),
        ("value", pyarrow.float64()),
        ("low", pyarrow.float64()),
        ("high", pyarrow.float64()),
        ("skipped", pyarrow.int32()),
    ]
)
VERDICT = pyarrow.schema(
    [
        ("model", pyarrow.string()),
        ("set", pyarrow.string()),
        ("criterion", pyarrow.string()),
        ("variant", pyarrow.string()),
        ("depth", pyarrow.float64()),
        ("ratio", pyarrow.float64()),
        ("low", pyarrow.float64()),
        ("high", pyarrow.float64()),
        ("undefined", pyarrow.float64()),
        ("prompts", pyarrow.int64()),
        ("n_layers", pyarrow.int64()),
    ]
)


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

    def probe(self, name: str) -> dict[str, np.ndarray]:
        """A probe's columns under the names of its summary, of the prompts that went through it."""
        own = {n.partition(".")[2]: v for n, v in self.columns.items() if n.startswith(f"{name}.")}
        if "n_tokens" not in own:
            return {}
        ran = np.isfinite(own["n_tokens"])
        return {n: v[ran] for n, v in own.items()} if ran.any() else {}


@dataclass(frozen=True)
class Folder:
    """A study's folder as far as it is computed."""

    out: Path
    plan: Mapping
    _read: dict = field(default_factory=dict)

    @property
    def models(self) -> dict[str, Mapping]:
        return {model["label"]: model for model in self.plan["models"]}

    @property
    def sets(self) -> dict[str, Mapping]:
        return {one["name"]: one for one in self.plan["sets"]}

    def probe(self, name: str) -> Probe:
        """A probe of the study with its parameters, split points apart (which are each prompt's own)."""
        parameters = next(p["parameters"] for p in self.plan["probes"] if p["name"] == name)
        return find(name).make({n: v for n, v in parameters.items() if n != "boundaries"})

    def groups(self, name: str) -> dict[str, np.ndarray]:
        """A set as a whole and each of its levels, as places in the set."""
        one = self.sets[name]
        found = {name: np.arange(len(one["ids"]))}
        levels = np.asarray(one["levels"], str)
        return found | {
            f"{name}{LEVEL_MARK}{level}": np.flatnonzero(levels == level) for level in dict.fromkeys(one["levels"])
        }

    def progress(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Per model and set: items there, items in all."""
        found = {}
        for label, model in self.models.items():
            there = items.there(self.out, model["digest"])
            for name, one in self.sets.items():
                found[label, name] = sum(chunk in there for chunk in one["chunks"]), len(one["chunks"])
        return found

    def keys(self) -> Iterator[str]:
        """The items that are there, in the plan's order."""
        for model in self.models.values():
            there = items.there(self.out, model["digest"])
            yield from (f"{model['digest']}/{c}" for s in self.sets.values() for c in s["chunks"] if c in there)

    def sums(self, label: str, name: str) -> Sums:
        """What is there of a model on a set; of an item that was read already, what was read."""
        digest, one = self.models[label]["digest"], self.sets[name]
        size = self.plan["chunk"]
        there = items.there(self.out, digest)
        parts, index = [], []
        for i, chunk in enumerate(one["chunks"]):
            if chunk in there:
                key = f"{digest}/{chunk}"
                if key not in self._read:
                    self._read[key] = items.read(items.path(self.out, key))
                parts.append(self._read[key])
                index.append(np.arange(i * size, i * size + len(parts[-1][0])))
        return _joined(parts, np.concatenate(index) if index else np.empty(0, int))


def open_folder(out: str | Path) -> Folder:
    """A study's folder. `StudyError` where there is none, or one of a later version."""
    file = Path(out) / PLAN
    try:
        plan = json.loads(file.read_text(encoding="utf-8"))
        if plan["format"] != FORMAT:
            raise StudyError(
                f"The study in {out} is of format {plan['format']}; expected {FORMAT}. Run it again with this program."
            )
        return Folder(Path(out), plan)
    except OSError:
        raise StudyError(f"There is no study in {out}: it has no {PLAN}; run one into it first.") from None
    except (ValueError, KeyError, TypeError):
        raise StudyError(f"{file} is damaged; run the study again: what is computed stays.") from None


def verdict(folder: Folder) -> pyarrow.Table:
    """`VERDICT`: per model, set (and level), criterion and variant the depth, the ratio `(ED + 1) / L`, the interval
    over prompts, the share of resamples in which it is not defined; null where there is none."""
    rows: list[tuple] = []
    for label in folder.models:
        for name in folder.sets:
            whole = folder.sums(label, name)
            for group, chosen in folder.groups(name).items():
                some = whole.of(chosen)
                rows += [(label, group, *row) for row in _criteria(folder, some)] if len(some) else []
    return _table(rows, VERDICT)


def summary(folder: Folder) -> pyarrow.Table:
    """`SUMMARY`: the papers' aggregates, tidy; `layer` is the place along a curve (block or depth), `skipped` the row
    of a map, both null for a single number. Intervals are of means; a maximum over prompts has none."""
    parts = []
    for label in folder.models:
        for name in folder.sets:
            whole = folder.sums(label, name)
            for group, chosen in folder.groups(name).items():
                some = whole.of(chosen)
                for probe in folder.plan["probes"]:
                    if columns := some.probe(probe["name"]):
                        parts.append(_aggregates(folder, label, group, folder.probe(probe["name"]), columns))
    return pyarrow.concat_tables(parts) if parts else SUMMARY.empty_table()


def as_file(table: pyarrow.Table, kind: str) -> bytes:
    """A table as "parquet" or "csv"."""
    data = io.BytesIO()
    (parquet.write_table if kind == "parquet" else csv.write_csv)(table, data)
    return data.getvalue()


def curves(folder: Folder, some: Sums, criterion: str, variant: str) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
    """The prompts' sums over tokens that a criterion reads, `[prompt, layer]` by curve, and the numbers of tokens; None
    where they are not there. The lens' last row, the output, is left out."""
    probe, names = READS[criterion]
    columns = some.probe(probe)
    if not columns:
        return None
    first = criterion != "cosine" or folder.probe(probe).first_token
    if variant == "without_sinks":
        if "n_no_sinks" not in columns or not np.isfinite(columns["n_no_sinks"]).all():
            return None  # the sinks of a prompt cannot be told
        counted = np.zeros(len(columns["n_tokens"])) if first else 1 - columns["first_is_sink"]
        sums, counts = {n: columns[f"{n}.no_sinks"] for n in names}, columns["n_no_sinks"] - counted
    else:
        counted = np.full(len(columns["n_tokens"]), float(not first))
        sums, counts = {n: columns[f"{n}.sum"] for n in names}, columns["n_tokens"] - counted
    sums = {n: v - counted[:, None] * columns[f"{n}.first"] for n, v in sums.items()}
    return (sums, counts) if criterion == "cosine" else ({n: v[:, :-1] for n, v in sums.items()}, counts)


def _criteria(folder: Folder, some: Sums) -> Iterator[tuple]:
    """Rows of `VERDICT` without model and set."""
    for criterion, variants in VARIANTS.items():
        for variant in variants:
            found = curves(folder, some, criterion, variant)
            if found is None:
                continue
            sums, counts = found
            n, layers = len(counts), next(iter(sums.values())).shape[1]
            depth, low, high, undefined = np.nan, np.nan, np.nan, np.nan
            if counts.sum():
                whole = np.mean([v.sum(0) for v in sums.values()], 0) / counts.sum()
                depth = depths(criterion, whole[None], variant)[0]
            if n >= FEWEST and counts.sum() and layers > 1:
                drawn = resampled(sums, counts, RESAMPLES, folder.plan["seed"])
                of_each = depths(criterion, np.mean(list(drawn.values()), 0), variant)
                low, high, undefined = interval(of_each)
            yield criterion, variant, depth, (depth + 1) / layers, low, high, undefined, n, layers


def _aggregates(folder: Folder, label: str, group: str, probe: Probe, columns: Mapping) -> pyarrow.Table:
    rows = [{name: np.asarray(values[i]) for name, values in columns.items()} for i in range(len(columns["n_tokens"]))]
    first_token = getattr(probe, "first_token", True)
    whole = aggregate(probe, rows, first_token)
    derived = probe.derive(whole)
    drawn = _resampled(probe, columns, first_token, folder.plan["seed"]) if len(rows) >= FEWEST else {}
    bounds = {name: np.nanquantile(values, [0.05, 0.95], axis=0) for name, values in drawn.items()}
    if derived and drawn:
        bounds |= _derived(probe, whole, drawn, derived)
    n, n_tokens = len(rows), int(columns["n_tokens"].sum())
    parts = []
    for name, values in (whole | derived).items():
        at = np.indices(values.shape).reshape(values.ndim, values.size)
        low, high = bounds.get(name, np.full((2, *values.shape), np.nan))
        count = values.size
        nothing = pyarrow.nulls(count, pyarrow.int32())
        parts.append(
            pyarrow.table(
                [
                    *(pyarrow.array([text] * count) for text in (label, group)),
                    *(pyarrow.array([number] * count, pyarrow.int64()) for number in (n, n_tokens)),
                    *(pyarrow.array([text] * count) for text in (probe.name, name)),
                    pyarrow.array(at[-1], pyarrow.int32()) if values.ndim else nothing,
                    *(_nullable(np.asarray(v, np.float64).ravel()) for v in (values, low, high)),
                    pyarrow.array(at[0], pyarrow.int32()) if values.ndim == 2 else nothing,
                ],
                schema=SUMMARY,
            )
        )
    return pyarrow.concat_tables(parts)


def _resampled(probe: Probe, columns: Mapping, first_token: bool, seed: int) -> dict[str, np.ndarray]:
    """Aggregates that are means, `[resample, …]`: over tokens, or over prompts (NaN left out)."""
    n, found = len(columns["n_tokens"]), {}
    for spec in probe.measures:
        if spec.reduce == "token_mean" and f"{spec.name}.sum" in columns:
            sums, counts = columns[f"{spec.name}.sum"], columns.get(f"{spec.name}.count", columns["n_tokens"])
            if not first_token:
                sums, counts = sums - columns[f"{spec.name}.first"], counts - 1
            if counts.sum():
                found[spec.name] = _drawn(sums, counts, seed)
        elif spec.reduce and spec.name in columns:
            values = columns.get(f"{spec.name}.mean", columns[spec.name]).astype(np.float64)
            there = np.isfinite(values)
            with np.errstate(invalid="ignore"):
                mean = _drawn(np.where(there, values, 0.0), np.ones(n), seed) / _drawn(there, np.ones(n), seed)
            found[spec.name if spec.reduce == "mean" else f"{spec.name}_mean"] = mean
    return found


def _drawn(values: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    flat = np.asarray(values, np.float64).reshape(len(values), -1)
    return resampled({"": flat}, counts, RESAMPLES, seed)[""].reshape(RESAMPLES, *values.shape[1:])


def _derived(probe: Probe, whole: Mapping, drawn: Mapping, derived: Mapping) -> dict[str, np.ndarray]:
    """5 % and 95 % of what a probe derives from means."""
    of_means = [name for name in derived if name.endswith("_mean")]
    each = [probe.derive({**whole, **{n: v[r] for n, v in drawn.items()}}) for r in range(RESAMPLES if of_means else 0)]
    return {name: np.nanquantile(np.stack([one[name] for one in each]), [0.05, 0.95], axis=0) for name in of_means}


def _joined(parts: Sequence[tuple[pyarrow.Table, Mapping[str, tuple]]], index: np.ndarray) -> Sums:
    if not parts:
        return Sums({}, index)
    shapes: dict[str, tuple] = {}
    for _, found in parts:
        shapes |= found
    table = pyarrow.concat_tables([t.replace_schema_metadata(None) for t, _ in parts], promote_options="default")
    return Sums({name: _values(table[name], shapes[name]) for name in table.column_names}, index)


def _values(column: pyarrow.ChunkedArray, shape: tuple) -> np.ndarray:
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


def _nullable(values: np.ndarray) -> pyarrow.Array:
    return pyarrow.array(values, pyarrow.float64(), from_pandas=True)


def _table(rows: Sequence[tuple], schema: pyarrow.Schema) -> pyarrow.Table:
    columns = [pyarrow.array([row[i] for row in rows], kind.type, from_pandas=True) for i, kind in enumerate(schema)]
    return pyarrow.table(columns, schema=schema)
