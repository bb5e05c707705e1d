"""What a study comes to: the criteria with their variants, and the aggregates, with their uncertainty. Numpy and
pyarrow; no torch.

Uncertainty is a seeded bootstrap over prompts (1 000 resamples, 5 to 95 %), from 5 prompts up; aggregates are made anew
from the prompts' sums in every resample."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow
from pyarrow import csv, parquet

from .. import disk
from ..depth import wording
from ..depth.criteria import (
    ENDS,
    FEWEST,
    RESAMPLES,
    VARIANTS,
    Criterion,
    by_cosine,
    by_kl,
    by_overlap,
    depths,
    interval,
    resampled,
)
from ..depth.statistics import units
from ..depth.verdict import COSINES
from ..probes import Probe
from ..results.aggregate import MEANS, aggregate
from .folder import Folder, Sums

READS = {"cosine": ("contributions", COSINES), "kl": ("logit_lens", ("kl",)), "overlap": ("logit_lens", ("overlap",))}
RULES: dict[str, Callable[..., Criterion]] = {"cosine": by_cosine, "kl": by_kl, "overlap": by_overlap}
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


def state(folder: Folder) -> str:
    """What a folder's tables are made of, as a digest: its plan and the items that are there."""
    made_of = json.dumps([folder.plan, list(folder.keys())], sort_keys=True)
    return hashlib.sha256(made_of.encode()).hexdigest()


def store(folder: Folder) -> None:
    """Write both tables into the folder, as Parquet and as CSV."""
    made_of = {"state": state(folder)}
    for name, make in TABLES.items():
        table = make(folder)
        with disk.written(folder.out / f"{name}.parquet") as handle:
            parquet.write_table(table.replace_schema_metadata(made_of), handle)
        disk.write(folder.out / f"{name}.csv", as_file(table, "csv"))


def stored(folder: Folder, name: str) -> pyarrow.Table:
    """One of the tables: as it lies in the folder where it is of this state, else made anew, once."""
    now = state(folder)
    before, found = folder.tables.get(name, ("", None))
    if before != now:
        lying = _lying(folder, name, now)
        folder.tables[name] = now, (found := TABLES[name](folder) if lying is None else lying)
    return found


def _lying(folder: Folder, name: str, now: str) -> pyarrow.Table | None:
    try:
        found = parquet.read_table(folder.out / f"{name}.parquet")
        return found if (found.schema.metadata or {}).get(b"state", b"").decode() == now else None
    except (OSError, ValueError, pyarrow.ArrowException):
        return None


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


def curve_of(sums: Mapping[str, np.ndarray], counts: np.ndarray) -> np.ndarray:
    """The curve over all tokens of all prompts, `[layer]`."""
    return np.mean([v.sum(0) for v in sums.values()], 0) / counts.sum()


def statements(folder: Folder, label: str, group: str) -> dict[str, wording.Statement]:
    """What each criterion says of a model on a set or one of its levels, with its interval and its variants."""
    name = next(name for name in folder.sets if group in folder.groups(name))
    some = folder.sums(label, name).of(folder.groups(name)[group])
    said = {}
    for criterion, rule in RULES.items():
        found = curves(folder, some, criterion, "paper")
        if found is None or not found[1].sum() or next(iter(found[0].values())).shape[1] < 2:
            continue
        curve, judged = curve_of(*found), rule(curve_of(*found))
        without = curves(folder, some, criterion, "without_sinks")
        if without is not None and without[1].sum():
            judged = replace(judged, without_sinks=rule(curve_of(*without)))
        within = None
        if len(found[1]) >= FEWEST:
            within = interval(resampled_depths(folder, criterion, "paper", *found))
        said[criterion] = wording.over_prompts(judged, curve, within, units(len(found[1])))
    return said


def resampled_depths(folder: Folder, criterion: str, variant: str, sums: Mapping, counts: np.ndarray) -> np.ndarray:
    """A criterion's depth in every resample of the prompts, `[resample]`, NaN where it is not defined. The same prompts
    are drawn for every model that has as many, so that models are compared on the same prompts."""
    drawn = resampled(sums, counts, RESAMPLES, folder.plan["seed"])
    return depths(criterion, np.mean(list(drawn.values()), 0), variant)


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
                depth = depths(criterion, curve_of(sums, counts)[None], variant)[0]
            if n >= FEWEST and counts.sum() and layers > 1:
                low, high, undefined = interval(resampled_depths(folder, criterion, variant, sums, counts))
            yield criterion, variant, depth, (depth + 1) / layers, low, high, undefined, n, layers


def _aggregates(folder: Folder, label: str, group: str, probe: Probe, columns: Mapping) -> pyarrow.Table:
    rows = [{name: np.asarray(values[i]) for name, values in columns.items()} for i in range(len(columns["n_tokens"]))]
    first_token = getattr(probe, "first_token", True)
    whole = aggregate(probe, rows, first_token)
    derived = probe.derive(whole)
    drawn = _resampled(probe, columns, first_token, folder.plan["seed"]) if len(rows) >= FEWEST else {}
    bounds = {name: _bounds(values) for name, values in drawn.items()}
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
        if spec.reduce in MEANS and f"{spec.name}.sum" in columns:
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
    if not of_means:
        return {}
    if probe.derives_stacked:
        found = probe.derive(drawn)
    else:
        each = [probe.derive({**whole, **{n: v[r] for n, v in drawn.items()}}) for r in range(RESAMPLES)]
        found = {name: np.stack([one[name] for one in each]) for name in of_means}
    return {name: _bounds(found[name]) for name in of_means}


def _bounds(values: np.ndarray) -> np.ndarray:
    """5 % and 95 % over the first axis, `[2, …]`, NaN left out; NaN where nothing else is there."""
    if np.isfinite(values).all():
        return np.quantile(values, ENDS, axis=0)
    flat = values.reshape(len(values), -1)
    found = np.full((2, flat.shape[1]), np.nan)
    some = np.isfinite(flat).any(0)
    found[:, some] = np.nanquantile(flat[:, some], ENDS, axis=0)
    return found.reshape(2, *values.shape[1:])


def _nullable(values: np.ndarray) -> pyarrow.Array:
    return pyarrow.array(values, pyarrow.float64(), from_pandas=True)


def _table(rows: Sequence[tuple], schema: pyarrow.Schema) -> pyarrow.Table:
    columns = [pyarrow.array([row[i] for row in rows], kind.type, from_pandas=True) for i, kind in enumerate(schema)]
    return pyarrow.table(columns, schema=schema)


TABLES = {"verdict": verdict, "summary": summary}
