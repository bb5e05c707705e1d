"""What a study comes to, made of its sums alone: `verdict.parquet` (mean depth, turn, and the papers' rules with their
variants), aggregates, the numbers of each prompt, figures. Intervals are those of `statistics`. Numpy and pyarrow."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from numpy.typing import ArrayLike
from pyarrow import csv, parquet

from .. import disk, statistics
from ..depth.rules import BEST, RULES
from ..depth.sample import CONTRIBUTIONS, LENS, READS, Sample
from ..depth.verdict import Verdict
from ..depth.verdict import verdict as verdict_of
from ..errors import ParameterError
from ..probes import Probe
from ..results.aggregate import MEANS, aggregate, counted, counts_first
from ..statistics import Units
from .items import Folder
from .part import Part
from .words import measured

if TYPE_CHECKING:
    import plotly.graph_objects as go


VERSION = 5  # of how verdicts are made; those that an earlier one wrote are made again from the sums
VERDICTS = "verdict.parquet"
MEAN, TURN = "mean", "turn"  # variants that are no rule of the papers
SAME = ("name", "n_layers", "parameters")  # what a plan tells alike of a model and of its twins


def _schema(columns: str) -> pyarrow.Schema:
    """Return the schema of columns given as text like "model:string set:string"."""
    named = (column.split(":") for column in columns.split())
    return pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in named])


SUMMARY = _schema(
    "model:string set:string prompts:int64 tokens:int64 probe:string measure:string layer:int32 value:double "
    "low:double high:double skipped:int32"
)
VERDICT = _schema(
    "model:string set:string criterion:string variant:string depth:double ratio:double low:double high:double "
    "undefined:double prompts:int64 n_layers:int64 over:string p:double failed:string"
)
PROMPTS = _schema(
    "model:string set:string prompt:string probe:string measure:string layer:int32 value:double skipped:int32"
)


def verdict(folder: Folder) -> pyarrow.Table:
    """Return the table `VERDICT`: per model, set (and level), criterion and variant the depth, its ratio, the interval,
    the share of resamples in which it is not defined; null where not known. `over`: what the interval is over, in
    words.

    Variant "mean" (of KL and overlap): the depth without a threshold, in 0..L, ratio `depth / L`. Variant "turn" (of
    the cosine): the last layer before the two-level turn, null without a turn; `p`, `failed` as in `turn.Turn`; no
    interval. All others: the papers' rules, layers, ratio `(ED + 1) / L`."""
    rows = [
        {"model": label, "set": group} | row
        for label, group in itertools.product(folder.models, folder.every_group)
        if (one := sample(folder, label, group)) is not None
        for row in _rows(one)
    ]
    return pyarrow.table(
        {f.name: pyarrow.array([r.get(f.name) for r in rows], f.type, from_pandas=True) for f in VERDICT}
    )


def _rows(sample: Sample) -> Iterator[dict[str, Any]]:
    """Yield a sample's rows of `VERDICT`, without model and set."""
    verdict = verdict_of(sample)

    def row(
        criterion: str, variant: str, depth: float | None, ratio: float | None, probe: str, ends: Any
    ) -> dict[str, Any]:
        """Return a row of `VERDICT`; `ends`: low, high and the share undefined, None without."""
        units = sample.curves[probe].units
        figures = dict(zip(("low", "high", "undefined"), ends or ()), over=units.words if ends else None)
        about = {"criterion": criterion, "variant": variant, "depth": depth, "ratio": ratio}
        return about | figures | {"prompts": len(units.of), "n_layers": sample.n_layers}

    for name, mean in verdict.means.items():
        yield row(name, MEAN, mean.depth, mean.ratio, LENS, mean.interval)
    if (turn := verdict.turn) is not None:
        of_turn = row("cosine", TURN, turn.layer, turn.ratio, CONTRIBUTIONS, None)
        yield of_turn | {"p": turn.p, "failed": turn.failed or None}
    for name, rule in verdict.rules.items():
        for variant, layer in rule.variants.items():
            ratio = None if layer is None else (layer + 1) / rule.n_layers
            yield row(name, variant, layer, ratio, RULES[name].probe, rule.intervals[variant])


def sample(folder: Folder, label: str, group: str, among: np.ndarray | None = None) -> Sample | None:
    """Return a model's curves on a set or level, with those of its untrained copies on the same prompts; None where no
    probe that a verdict reads was run. `among`: only these prompts, by their places in the set."""
    some = folder.read(label, group)
    some = some if among is None else some.of(among)
    copies = (folder.read(twin, group).of(some.index) for twin in twins_of(folder, label))
    twins = [_sample(folder, own) for own in copies if len(own) == len(some)]
    return _sample(folder, some, [twin for twin in twins if twin is not None])


def _sample(folder: Folder, some: Part, twins: Sequence[Sample] = ()) -> Sample | None:
    """Return a model's curves on some prompts; None where no probe that a verdict reads was run."""
    parts = {probe: own for probe in READS if (own := some.probe(probe))}
    if not parts:
        return None
    return Sample.of_sums(
        {probe: own.columns for probe, own in parts.items()},
        forms={probe: own.forms for probe, own in parts.items()},
        first_token=CONTRIBUTIONS not in parts or counts_first(folder.probe(CONTRIBUTIONS)),
        best=int(getattr(folder.probe(LENS), "k", BEST)) if LENS in parts else BEST,
        twins=twins,
        seed=folder.plan["seed"],
    )


def summary(folder: Folder) -> pyarrow.Table:
    """Return the table `SUMMARY`: the papers' aggregates, tidy; `layer` is the place along a curve (block or depth),
    `skipped` the row of a map, both null for a single number. Intervals are of means; a maximum over prompts has
    none."""
    parts = []
    for label, group in itertools.product(folder.models, folder.every_group):
        for entry, part in _probed(folder, folder.read(label, group)):
            head = (label, group, len(part), int(part["n_tokens"].sum()), entry)
            for name, figures in aggregates(folder, label, group, entry).items():
                parts.append(_tidy((*head, name), figures, SUMMARY))
    return pyarrow.concat_tables(parts) if parts else SUMMARY.empty_table()


def aggregates(folder: Folder, label: str, group: str, probe: str, only: str = "") -> dict[str, tuple[np.ndarray, ...]]:
    """Return a probe's aggregates over a set or level by measure: the values and the ends of their interval, NaN
    without; {} where no prompt went through it. `only`: the one measure that needs an interval, "" for all."""
    part = folder.read(label, group, probe)
    if not len(part):
        return {}
    made, columns, over, seed = folder.probe(probe), part.columns, part.units, part.seed
    values_of = _all_measures(made, columns)
    ends: dict[str, np.ndarray] = {}
    if over.enough:
        sums = _sums(made, columns, counts_first(made))
        ends = {measure: _ends(*of_one, over, seed) for measure, of_one in sums.items() if only in ("", measure)}
        derived = {name: values for name, values in values_of.items() if name not in sums and name.endswith("_mean")}
        if not only or only in derived:
            ends |= _derived(made, sums, derived, over, seed)
    return {name: (values, *ends.get(name, np.full((2, *values.shape), np.nan))) for name, values in values_of.items()}


def curve(folder: Folder, label: str, group: str, measure: str) -> tuple[np.ndarray, ...] | None:
    """Return a measure along the layers, like "contributions.layer_cos", with the ends of its interval; or None."""
    probe, _, name = measure.partition(".")
    values = aggregates(folder, label, group, probe, name).get(name)
    n = folder.models[label].get("n_layers")
    return values if values is not None and n and values[0].shape in ((n,), (n + 1,)) else None


def measures(folder: Folder, group: str) -> list[str]:
    """Return the names `<probe>.<measure>` of the measures that have a curve on a set or level."""
    names = {
        f"{entry}.{name}": None
        for label in folder.models
        for entry, part in _probed(folder, folder.read(label, group))
        for name, values in _all_measures(folder.probe(entry), part.columns).items()
        if values.ndim == 1
    }
    return list(names)


def _all_measures(probe: Probe, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a probe's aggregates over prompts and what it derives from them, by name."""
    aggregates_of = aggregate(probe, _prompts(columns), counts_first(probe))
    return aggregates_of | probe.derive(aggregates_of)


def _probed(folder: Folder, some: Part) -> Iterator[tuple[str, Part]]:
    """Yield the label (else the name) of every probe that prompts went through, with its part."""
    for entry in folder.plan["probes"]:
        if part := some.probe(name := entry.get("label") or entry["name"]):
            yield name, part


def _prompts(columns: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return a probe's columns as a dict per prompt."""
    return [{n: np.asarray(v[i]) for n, v in columns.items()} for i in range(len(columns["n_tokens"]))]


def store(folder: Folder) -> None:
    """Write `verdict.parquet` into a study's folder, with a digest of what it is made of."""
    table = verdict(folder).replace_schema_metadata({"state": _state(folder)})
    disk.write(folder.out / VERDICTS, as_file(table, "parquet"))


def stored(folder: Folder) -> pyarrow.Table:
    """Return the table `VERDICT` of a study, made again where the one in its folder is of another state."""
    now = _state(folder)
    if now not in folder.verdicts:
        folder.verdicts.clear()
        try:
            kept = parquet.read_table(folder.out / VERDICTS)
        except (OSError, pyarrow.ArrowException):
            kept = VERDICT.empty_table()
        same = kept.schema.equals(VERDICT) and (kept.schema.metadata or {}).get(b"state", b"").decode() == now
        folder.verdicts[now] = kept.replace_schema_metadata(None) if same else verdict(folder)
    return folder.verdicts[now]


def _state(folder: Folder) -> str:
    """Return a digest of what the verdicts are made of: the plan and the computed items."""
    made_of = json.dumps([VERSION, folder.plan, list(folder.item_keys())], sort_keys=True)
    return hashlib.sha256(made_of.encode()).hexdigest()


def as_file(table: pyarrow.Table, kind: str) -> bytes:
    """Return the bytes of a table as a file; `kind`: "parquet" or "csv"."""
    data = io.BytesIO()
    (parquet.write_table if kind == "parquet" else csv.write_csv)(table, data)
    return data.getvalue()


def verdict_on(folder: Folder, label: str, group: str) -> Verdict | None:
    """Return the verdict on a model on a set or level; None where no probe that it reads was run."""
    measurements = sample(folder, label, group)
    return None if measurements is None else verdict_of(measurements)


def cell(row: Mapping[str, Any] | None) -> str:
    """Return a row's depth with its interval: "18.3 (18.0 to 18.6)", a rule's layer "20 (18 to 21)", or "–"."""
    if row is None or row["depth"] is None:
        return "–"
    value = row["depth"] + (row["variant"] == TURN)  # "after layer n" counts from 1
    return measured(value, row["low"], row["high"], int(row["variant"] == MEAN))


def sinks(folder: Folder, label: str, group: str) -> float | None:
    """Return the mean number of attention sinks per prompt on a set or level; None where unknown."""
    counts = folder.read(label, group).columns.get("contributions.n_sinks", np.empty(0))
    return float(counts.mean()) if len(counts) and np.isfinite(counts).all() else None


def twins_of(folder: Folder, label: str) -> list[str]:
    """Return the labels of a model's untrained copies, one for each seed; [] for a control. A name is the last part of
    a path, which models of several folders share: a copy has the layers and the parameters of its model as well."""
    own = folder.models[label]
    if own.get("control") or not own.get("name"):
        return []
    same = {one: model for one, model in folder.models.items() if all(model.get(key) == own.get(key) for key in SAME)}
    by_seed: dict[Any, str] = {}  # a draw counts once, in whatever precisions it is there
    for one in sorted(same, key=lambda one: same[one].get("precision") != own.get("precision")):
        if same[one].get("control") == "untrained":
            by_seed.setdefault(same[one].get("seed", one), one)
    return [one for one in same if one in by_seed.values()]


def _sums(probe: Probe, columns: Mapping[str, Any], first_token: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return, for each aggregate that is a mean over tokens or prompts, what is summed, `[prompt, …]`, and its weights,
    `[prompt]` or `[prompt, …]`; values that are NaN have no weight."""
    weighted = {}
    for spec in probe.measures:
        if spec.reduce in MEANS and f"{spec.name}.sum" in columns:
            sums, counts = columns[f"{spec.name}.sum"], counted(columns, spec.name)
            if not first_token:
                sums, counts = sums - columns[f"{spec.name}.first"], counts - 1
            if counts.sum():
                weighted[spec.name] = sums, counts
        elif spec.reduce and spec.name in columns:
            values = columns.get(f"{spec.name}.mean", columns[spec.name]).astype(np.float64)
            finite = np.isfinite(values)
            name = spec.name if spec.reduce == "mean" else f"{spec.name}_mean"
            weighted[name] = np.where(finite, values, 0.0), finite.astype(np.float64)
    return weighted


def _ends(sums: np.ndarray, weights: np.ndarray, over: Units, seed: int) -> np.ndarray:
    """Return 5 % and 95 % of means, `[2, …]`, computed for `AT_ONCE` places of a map at a time."""
    flat = sums.reshape(len(sums), -1)
    of_place = weights.reshape(len(sums), -1) if weights.ndim > 1 else weights
    parts = []
    for start in range(0, flat.shape[1], AT_ONCE):
        block = slice(start, start + AT_ONCE)
        w = of_place[:, block] if of_place.ndim > 1 else of_place
        parts.append(statistics.mean(flat[:, block], w, over, seed).ends)
    return np.concatenate(parts, 1).reshape(2, *sums.shape[1:])


def _derived(
    probe: Probe, sums: Mapping[str, tuple[np.ndarray, np.ndarray]], derived: Mapping[str, Any], over: Units, seed: int
) -> dict[str, np.ndarray]:
    """Return 5 % and 95 %, `[2, …]`, of each number that a probe derives from means."""
    of_means = [name for name in derived if name.endswith("_mean")]
    if not (of_means and probe.derives_stacked):
        return {}
    read_of = {name: of_one for name, of_one in sums.items() if name.endswith("_mean")}
    shapes = {name: values.shape[1:] for name, (values, _) in read_of.items()}

    def read(curves: dict[str, np.ndarray]) -> np.ndarray:
        """Return all numbers that the probe derives from these mean curves, `[resample, number]`."""
        values = probe.derive({name: c.reshape(len(c), *shapes[name]) for name, c in curves.items()})
        return np.concatenate([values[name].reshape(len(values[name]), -1) for name in of_means], 1)

    flat, tokens = ({n: of_one[i].reshape(len(of_one[i]), -1) for n, of_one in read_of.items()} for i in (0, 1))
    ends = statistics.read_off(read, flat, tokens, over, seed).ends
    parts = np.split(ends, np.cumsum([derived[name].size for name in of_means])[:-1], axis=1)
    return {name: part.reshape(2, *derived[name].shape) for name, part in zip(of_means, parts)}


def _tidy(names: Sequence[str | int], figures: Sequence[ArrayLike], schema: pyarrow.Schema) -> pyarrow.Table:
    """Return a row for each number of an aggregate: `names` (model, set, …), layer, figures, skipped."""
    shape, count = np.shape(figures[0]), np.size(figures[0])
    indices = np.indices(shape).reshape(len(shape), count)
    nothing = pyarrow.nulls(count, pyarrow.int32())
    columns = [
        *(pyarrow.array([one] * count, kind.type) for one, kind in zip(names, schema)),
        pyarrow.array(indices[-1], pyarrow.int32()) if shape else nothing,
        *(pyarrow.array(np.asarray(v, np.float64).ravel(), pyarrow.float64(), from_pandas=True) for v in figures),
        pyarrow.array(indices[0], pyarrow.int32()) if len(shape) == 2 else nothing,
    ]
    return pyarrow.table(columns, schema=schema)


AT_ONCE = 4096  # places of a map whose resamples are in memory at once
DEPTHS = "depths"
LEADING = (MEAN, "paper")  # what the figure of depths shows


def by_prompt(folder: Folder) -> pyarrow.Table:
    """Return the table `PROMPTS`, a row per model, set, prompt, probe, measure and layer: the aggregates of one prompt.
    `prompt` is its id, or its place in the set counted from 1; `layer` and `skipped` as in the summary."""
    parts = []
    for label, (name, one) in itertools.product(folder.models, folder.sets.items()):
        for entry, part in _probed(folder, folder.sums(label, name)):
            probe = folder.probe(entry)
            for place, row in zip(part.index, _prompts(part.columns), strict=True):
                prompt = one["ids"][place] or str(place + 1)
                for measure, values in aggregate(probe, [row], counts_first(probe)).items():
                    parts.append(_tidy((label, name, prompt, entry, measure), (values,), PROMPTS))
    return pyarrow.concat_tables(parts) if parts else PROMPTS.empty_table()


TABLES = {"verdict": stored, "summary": summary, "prompts": by_prompt}  # that can be exported


def figure(folder: Folder, name: str, of_set: str = "") -> go.Figure:
    """Return a figure of a study: `depths`, every model's average depth on every set, and the papers' rules; or
    `<probe>.<measure>`, the curves of all models over relative depth. `of_set`: one set, "" for all. `ParameterError`
    where nothing has that name."""
    from .. import figures

    sets = [of_set] if of_set else list(folder.sets)
    rows = [row for row in stored(folder).to_pylist() if row["variant"] in LEADING and row["set"] in sets]
    lines = {(label, one): label if len(sets) == 1 else f"{label} · {one}" for label in folder.models for one in sets}
    if name == DEPTHS and rows:
        return figures.study_depths([row | {"line": lines[row["model"], row["set"]]} for row in rows], "line")
    curves = {line: values for place, line in lines.items() if (values := curve(folder, *place, name)) is not None}
    if not curves:
        known = dict.fromkeys([DEPTHS] * bool(rows) + [measure for one in sets for measure in measures(folder, one)])
        expected = f"expected one of {', '.join(known)}" if known else "nothing to draw is computed yet"
        raise ParameterError(f"There is no figure {name!r} of this study; {expected}.")
    layers = {lines[place]: folder.models[place[0]]["n_layers"] for place in lines if lines[place] in curves}
    return figures.study_curves(curves, layers, unit_of(folder, name))


def unit_of(folder: Folder, curve: str) -> str:
    """Return the unit of `<probe>.<measure>` or of its mean; the measure's name where the probe gives no unit."""
    probe, _, name = curve.partition(".")
    units = {spec.name: spec.unit for spec in folder.probe(probe).measures}
    return units.get(name) or units.get(name.removesuffix("_mean")) or name.replace("_", " ")
