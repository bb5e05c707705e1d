"""What a study comes to: the depth without a threshold, the turn, the papers' criteria with their variants, and the
aggregates, with their uncertainty; and what its numbers are taken along as beside these tables: prompt by prompt, as
arrays, as figures. Numpy and pyarrow; no torch.

Uncertainty is a seeded bootstrap over what is independent (`statistics`: the forms of the prompts where enough are
known, else the prompts; 1 000 resamples, 5 to 95 %): bootstrap-t for what is smooth, percentiles for the papers' rules,
which return whole layers."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from numpy.typing import ArrayLike
from pyarrow import compute, csv, parquet

from .. import disk, statistics
from ..depth import continuous, wording
from ..depth import old_verdict as verdict_of
from ..depth.continuous import MeanDepth, Turn
from ..depth.rules import BEST, RULES, Rule, depths
from ..errors import ParameterError
from ..probes import Probe, find
from ..results.aggregate import MEANS, aggregate, counted, counts_first
from ..statistics import Units
from .items import Folder, Sums, open_folder

if TYPE_CHECKING:
    import plotly.graph_objects as go


VERSION = 3  # of how tables are made; those that an earlier one wrote are made anew from the sums
MEAN, TURN = "mean", "turn"  # variants that are no rule of the papers
SAME = ("name", "n_layers", "parameters")  # what a plan tells alike of a model and of its twins
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
        ("over", pyarrow.string()),
        ("p", pyarrow.float64()),
        ("failed", pyarrow.string()),
    ]
)


def verdict(folder: Folder) -> pyarrow.Table:
    """`VERDICT`: per model, set (and level), criterion and variant the depth, its ratio, the interval, the share of
    resamples in which it is not defined; null where there is none. `over`: what the interval is over, in words.

    Variant "mean" (of KL and overlap): the depth without a threshold, in 0..L, ratio `depth / L`. Variant "turn" (of
    the cosine): the last layer before the two-level turn, null where there is none; `p`, `failed` as in
    `continuous.Turn`; no interval. All others: the papers' rules, layers, ratio `(ED + 1) / L`."""
    rows = [
        (label, group, *row)
        for label, name, group, some in _groups(folder)
        if len(some)
        for row in _criteria(folder, label, name, some)
    ]
    columns = [pyarrow.array([row[i] for row in rows], kind.type, from_pandas=True) for i, kind in enumerate(VERDICT)]
    return pyarrow.table(columns, schema=VERDICT)


def summary(folder: Folder) -> pyarrow.Table:
    """`SUMMARY`: the papers' aggregates, tidy; `layer` is the place along a curve (block or depth), `skipped` the row
    of a map, both null for a single number. Intervals are of means; a maximum over prompts has none."""
    parts = [
        _aggregates(folder, label, group, probe, columns, units_of(folder, name, some, probe.name))
        for label, name, group, some in _groups(folder)
        for probe, columns in _probed(folder, some)
    ]
    return pyarrow.concat_tables(parts) if parts else SUMMARY.empty_table()


def _groups(folder: Folder) -> Iterator[tuple[str, str, str, Sums]]:
    """Every model on every set and each of its levels: its label, the set, the group, the sums of its prompts."""
    for label in folder.models:
        for name in folder.sets:
            whole = folder.sums(label, name)
            for group, chosen in folder.groups(name).items():
                yield label, name, group, whole.of(chosen)


def _probed(folder: Folder, some: Sums) -> Iterator[tuple[Probe, dict[str, np.ndarray]]]:
    """Every probe that prompts went through, and their columns."""
    for entry in folder.plan["probes"]:
        if columns := some.probe(entry["name"]):
            yield folder.probe(entry["name"]), columns


def _prompts(columns: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """A probe's columns, prompt by prompt."""
    return [{n: np.asarray(v[i]) for n, v in columns.items()} for i in range(len(columns["n_tokens"]))]


def state(folder: Folder) -> str:
    """What a folder's tables are made of, as a digest: its plan and the items that are there."""
    made_of = json.dumps([VERSION, folder.plan, list(folder.keys())], sort_keys=True)
    return hashlib.sha256(made_of.encode()).hexdigest()


def store(out: Path) -> Folder:
    """Write both tables into a study's folder, as Parquet and as CSV."""
    folder = open_folder(out)
    made_of = {"state": state(folder)}
    for name, make in TABLES.items():
        table = make(folder)
        with disk.written(folder.out / f"{name}.parquet") as handle:
            parquet.write_table(table.replace_schema_metadata(made_of), handle)
        disk.write(folder.out / f"{name}.csv", as_file(table, "csv"))
    return folder


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
    except (OSError, pyarrow.ArrowException):
        return None
    same = found.schema.equals(SCHEMAS[name]) and (found.schema.metadata or {}).get(b"state", b"").decode() == now
    return found if same else None


def as_file(table: pyarrow.Table, kind: str) -> bytes:
    """A table as "parquet" or "csv"."""
    data = io.BytesIO()
    (parquet.write_table if kind == "parquet" else csv.write_csv)(table, data)
    return data.getvalue()


def units_of(folder: Folder, name: str, some: Sums, probe: str) -> Units:
    """What is drawn anew among the prompts of a set that went through a probe, in the order of `some.probe`: their
    forms where enough are known, else the prompts."""
    ran = some.index[np.isfinite(some.columns[f"{probe}.n_tokens"])]
    return statistics.units(len(ran), [str(form) for form in folder.forms(name)[ran]])


def mean_depths(folder: Folder, name: str, some: Sums) -> dict[str, MeanDepth]:
    """The depth without a threshold of prompts of a set, by "kl" and "overlap", with its interval."""
    lens = some.probe("logit_lens")
    if not lens or lens["kl.sum"].shape[1] < 3:
        return {}
    over, seed = units_of(folder, name, some, "logit_lens"), folder.plan["seed"]
    return {
        of: continuous.over_prompts(of, lens[f"{of}.sum"], lens["n_tokens"], over, seed)
        for of in continuous.MEAN_DEPTH
        if f"{of}.sum" in lens
    }


def turn(folder: Folder, label: str, name: str, some: Sums) -> Turn | None:
    """The turn of the cosine of a model on prompts of a set, held against its untrained twins where the study has five;
    None where there is nothing to fit."""
    return verdict_of.held(_own_turn(folder, name, some), twins(folder, label, name, some))


def settles(folder: Folder, label: str, group: str) -> str:
    """Where the lens settles on a set or one of its levels, and whether the cosine turns, in words."""
    name, some = folder.some(label, group)
    over = units_of(folder, name, some, "logit_lens") if some.probe("logit_lens") else None
    beside = twins(folder, label, name, some)
    held = verdict_of.held(_own_turn(folder, name, some), beside)
    said = wording.settles(mean_depths(folder, name, some), held, beside, over=over)
    return " ".join(filter(None, [said, over.alone])) if over else said


def twins(folder: Folder, label: str, name: str, some: Sums) -> wording.Twins:
    """What those of a model's untrained twins give that have been through the same prompts."""
    readings = []
    for twin in twins_of(folder, label):
        own = folder.sums(twin, name).of(some.index)
        if len(own) < len(some):
            continue
        read = {criterion: curves(folder, own, criterion, "paper") for criterion in RULES}
        there = {criterion: found for criterion, found in read.items() if found is not None and _judgeable(*found)}
        criteria = {criterion: RULES[criterion].of_curve(curve_of(*found)) for criterion, found in there.items()}
        readings.append(wording.Reading(criteria, mean_depths(folder, name, own), _own_turn(folder, name, own)))
    return wording.Twins("untrained", tuple(readings))


def sinks(folder: Folder, label: str, group: str) -> float | None:
    """Sinks a prompt of a model on a set or one of its levels, the mean over prompts; None where they cannot be
    told."""
    counts = folder.some(label, group)[1].columns.get("contributions.n_sinks", np.empty(0))
    return float(counts.mean()) if len(counts) and np.isfinite(counts).all() else None


def twins_of(folder: Folder, label: str) -> list[str]:
    """The labels of a model's untrained twins; none of a control. A name is the last part of a path, which models of
    several folders share: a twin has the layers and the parameters of its model as well."""
    own = folder.models[label]
    if own.get("control") or not own.get("name"):
        return []
    same = {one: model for one, model in folder.models.items() if all(model.get(key) == own.get(key) for key in SAME)}
    drawn: dict[Any, str] = {}  # a draw counts once, in whatever precisions it is there
    for one in sorted(same, key=lambda one: same[one].get("precision") != own.get("precision")):
        if same[one].get("control") == "untrained":
            drawn.setdefault(same[one].get("seed", one), one)
    return [one for one in same if one in drawn.values()]


def _judgeable(sums: Mapping[str, np.ndarray], counts: np.ndarray) -> bool:
    """Whether a rule can be read off these sums."""
    return bool(counts.sum()) and next(iter(sums.values())).shape[1] > 1


def _own_turn(folder: Folder, name: str, some: Sums) -> Turn | None:
    found = curves(folder, some, "cosine", "paper")
    over = units_of(folder, name, some, "contributions") if found else None
    return continuous.fit_over_prompts(*found, over, folder.plan["seed"]) if found and over else None


def curves(folder: Folder, some: Sums, criterion: str, variant: str) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
    """The prompts' sums over tokens that a criterion reads, `[prompt, layer]` by curve, and the numbers of tokens; None
    where they are not there. The lens's last row, the output, is left out."""
    probe, names = RULES[criterion].probe, RULES[criterion].measures
    columns = some.probe(probe)
    if not columns:
        return None
    first = criterion != "cosine" or counts_first(folder.probe(probe))
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
    curve: np.ndarray = np.mean([v.sum(0) for v in sums.values()], 0) / counts.sum()
    return curve


def best_of(folder: Folder, rule: Rule) -> int:
    """How many best tokens the overlap compares that a rule reads."""
    return int(getattr(folder.probe(rule.probe), "k", BEST))


def statements(folder: Folder, label: str, group: str) -> dict[str, wording.Statement]:
    """What each criterion says of a model on a set or one of its levels, with its interval and its variants."""
    name, some = folder.some(label, group)
    said, beside = {}, twins(folder, label, name, some)
    for criterion, rule in RULES.items():
        found = curves(folder, some, criterion, "paper")
        if found is None or not _judgeable(*found):
            continue
        curve, best = curve_of(*found), best_of(folder, rule)
        judged = replace(rule.of_curve(curve), best=best)
        without = curves(folder, some, criterion, "without_sinks")
        if without is not None and without[1].sum():
            judged = replace(judged, without_sinks=rule.of_curve(curve_of(*without)))
        over, within = units_of(folder, name, some, rule.probe), None
        if over.enough:
            within = statistics.interval(resampled_depths(folder, criterion, "paper", *found, over))
        said[criterion] = wording.over_prompts(judged, curve, within, over, beside)
    return said


def resampled_depths(
    folder: Folder, criterion: str, variant: str, sums: Mapping[str, Any], counts: np.ndarray, over: Units
) -> np.ndarray:
    """A criterion's depth in every resample of the prompts, `[resample]`, NaN where it is not defined. The same prompts
    are drawn for every model that has as many, so that models are compared on the same prompts."""

    def read(drawn: dict[str, np.ndarray]) -> np.ndarray:
        return depths(criterion, np.mean(list(drawn.values()), 0), variant)

    return statistics.percentile(read, sums, counts, over, folder.plan["seed"])


def _criteria(folder: Folder, label: str, name: str, some: Sums) -> Iterator[tuple[Any, ...]]:
    """Rows of `VERDICT` without model and set."""
    for of, mean in mean_depths(folder, name, some).items():
        over = units_of(folder, name, some, "logit_lens")
        read = (mean.depth, mean.ratio, *(mean.interval or (None, None, None)), len(over.of), mean.n_layers)
        yield of, MEAN, *read, over.words if mean.interval else None, None, None
    if (turned := turn(folder, label, name, some)) is not None:
        over = units_of(folder, name, some, "contributions")
        read = (turned.layer, turned.ratio, None, None, None, len(over.of), turned.n_layers)
        yield "cosine", TURN, *read, None, turned.p, turned.failed or None
    for criterion, rule in RULES.items():
        for variant in rule.variants:
            found = curves(folder, some, criterion, variant)
            if found is None:
                continue
            sums, counts = found
            over = units_of(folder, name, some, rule.probe)
            n, layers = len(counts), next(iter(sums.values())).shape[1]
            depth, low, high, undefined = np.nan, np.nan, np.nan, np.nan
            if counts.sum():
                depth = depths(criterion, curve_of(sums, counts)[None], variant)[0]
            told = over.enough and counts.sum() and layers > 1
            if told:
                drawn = resampled_depths(folder, criterion, variant, sums, counts, over)
                low, high, undefined = statistics.interval(drawn)
            figures = (depth, (depth + 1) / layers, low, high, undefined, n, layers)
            yield criterion, variant, *figures, over.words if told else None, None, None


def _aggregates(
    folder: Folder, label: str, group: str, probe: Probe, columns: Mapping[str, Any], over: Units
) -> pyarrow.Table:
    rows, first_token = _prompts(columns), counts_first(probe)
    whole = aggregate(probe, rows, first_token)
    derived = probe.derive(whole)
    bounds: dict[str, np.ndarray] = {}
    if over.enough:
        sums = _sums(probe, columns, first_token)
        bounds = {measure: _ends(*of_one, over, folder.plan["seed"]) for measure, of_one in sums.items()}
        bounds |= _derived(probe, sums, derived, over, folder.plan["seed"])
    n, n_tokens = len(rows), int(columns["n_tokens"].sum())
    parts = []
    for name, values in (whole | derived).items():
        ends = bounds.get(name, np.full((2, *values.shape), np.nan))
        parts.append(_tidy((label, group, n, n_tokens, probe.name, name), (values, *ends), SUMMARY))
    return pyarrow.concat_tables(parts)


def _sums(probe: Probe, columns: Mapping[str, Any], first_token: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of the aggregates that are means, over tokens or over prompts (NaN left out): what is summed, `[prompt, …]`, and
    its weights, `[prompt]` or `[prompt, …]`."""
    found = {}
    for spec in probe.measures:
        if spec.reduce in MEANS and f"{spec.name}.sum" in columns:
            sums, counts = columns[f"{spec.name}.sum"], counted(columns, spec.name)
            if not first_token:
                sums, counts = sums - columns[f"{spec.name}.first"], counts - 1
            if counts.sum():
                found[spec.name] = sums, counts
        elif spec.reduce and spec.name in columns:
            values = columns.get(f"{spec.name}.mean", columns[spec.name]).astype(np.float64)
            there = np.isfinite(values)
            called = spec.name if spec.reduce == "mean" else f"{spec.name}_mean"
            found[called] = np.where(there, values, 0.0), there.astype(np.float64)
    return found


def _ends(sums: np.ndarray, weights: np.ndarray, over: Units, seed: int) -> np.ndarray:
    """5 % and 95 % of means, `[2, …]`; `AT_ONCE` of a map's places at a time."""
    flat = sums.reshape(len(sums), -1)
    of_place = weights.reshape(len(sums), -1) if weights.ndim > 1 else weights
    found = []
    for start in range(0, flat.shape[1], AT_ONCE):
        at = slice(start, start + AT_ONCE)
        w = of_place[:, at] if of_place.ndim > 1 else of_place
        found.append(statistics.mean(flat[:, at], w, over, seed).ends)
    return np.concatenate(found, 1).reshape(2, *sums.shape[1:])


def _derived(
    probe: Probe, sums: Mapping[str, tuple[np.ndarray, np.ndarray]], derived: Mapping[str, Any], over: Units, seed: int
) -> dict[str, np.ndarray]:
    """5 % and 95 % of what a probe derives from means."""
    of_means = [name for name in derived if name.endswith("_mean")]
    if not (of_means and probe.derives_stacked):
        return {}
    read_of = {name: of_one for name, of_one in sums.items() if name.endswith("_mean")}
    shapes = {name: values.shape[1:] for name, (values, _) in read_of.items()}

    def read(curves: dict[str, np.ndarray]) -> np.ndarray:
        found = probe.derive({name: c.reshape(len(c), *shapes[name]) for name, c in curves.items()})
        return np.concatenate([found[name].reshape(len(found[name]), -1) for name in of_means], 1)

    flat, tokens = ({n: of_one[i].reshape(len(of_one[i]), -1) for n, of_one in read_of.items()} for i in (0, 1))
    ends = statistics.read_off(read, flat, tokens, over, seed).ends
    parts = np.split(ends, np.cumsum([derived[name].size for name in of_means])[:-1], axis=1)
    return {name: part.reshape(2, *derived[name].shape) for name, part in zip(of_means, parts)}


def _tidy(names: Sequence[str | int], figures: Sequence[ArrayLike], schema: pyarrow.Schema) -> pyarrow.Table:
    """A row for each number of an aggregate: what it is of, its `layer`, the figures, its `skipped`."""
    shape, count = np.shape(figures[0]), np.size(figures[0])
    at = np.indices(shape).reshape(len(shape), count)
    nothing = pyarrow.nulls(count, pyarrow.int32())
    columns = [
        *(pyarrow.array([one] * count, kind.type) for one, kind in zip(names, schema)),
        pyarrow.array(at[-1], pyarrow.int32()) if shape else nothing,
        *(pyarrow.array(np.asarray(v, np.float64).ravel(), pyarrow.float64(), from_pandas=True) for v in figures),
        pyarrow.array(at[0], pyarrow.int32()) if len(shape) == 2 else nothing,
    ]
    return pyarrow.table(columns, schema=schema)


AT_ONCE = 4096  # places of a map whose resamples are held at once
TABLES = {"verdict": verdict, "summary": summary}
SCHEMAS = {"verdict": VERDICT, "summary": SUMMARY}


PROMPTS = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("model", "set", "prompt", "probe", "measure")),
        ("layer", pyarrow.int32()),
        ("value", pyarrow.float64()),
        ("skipped", pyarrow.int32()),
    ]
)
DEPTHS = "depths"
LEADING = (MEAN, "paper")  # what the figure of depths shows


def by_prompt(folder: Folder) -> pyarrow.Table:
    """Tidy, a row per model, set, prompt, probe, measure and layer: what the aggregates are of that prompt alone.
    `prompt` is its id, or its place in the set counted from 1; `layer` and `skipped` as in the summary."""
    parts = []
    for label in folder.models:
        for name, one in folder.sets.items():
            whole = folder.sums(label, name)
            for probe, columns in _probed(folder, whole):
                ran = whole.index[np.isfinite(whole.columns[f"{probe.name}.n_tokens"])]
                for place, row in zip(ran, _prompts(columns), strict=True):
                    called = one["ids"][place] or str(place + 1)
                    for measure, values in aggregate(probe, [row], counts_first(probe)).items():
                        parts.append(_tidy((label, name, called, probe.name, measure), (values,), PROMPTS))
    return pyarrow.concat_tables(parts) if parts else PROMPTS.empty_table()


def arrays(folder: Folder) -> dict[str, np.ndarray]:
    """The aggregates over a set's prompts, by `<model>/<set>/<probe>.<measure>`, and of every criterion and variant
    `<model>/<set>/effective_depth.<criterion>.<variant>`: depth, ratio, low, high, undefined (NaN = not defined); of
    the variant "turn" also p."""
    found: dict[str, np.ndarray] = {}
    for label in folder.models:
        for name in folder.sets:
            for probe, columns in _probed(folder, folder.sums(label, name)):
                curves = aggregate(probe, _prompts(columns), counts_first(probe))
                for measure, values in (curves | probe.derive(curves)).items():
                    found[f"{label}/{name}/{probe.name}.{measure}"] = np.asarray(values)
    for row in stored(folder, "verdict").to_pylist():
        key = f"{row['model']}/{row['set']}/effective_depth.{row['criterion']}.{row['variant']}"
        figures = [row[column] for column in ("depth", "ratio", "low", "high", "undefined")]
        figures += [row["p"]] if row["variant"] == TURN else []
        found[key] = np.asarray(figures, np.float64)
    return found


def figure(folder: Folder, name: str, of_set: str = "") -> go.Figure:
    """`depths`, every model's mean depth on every set, and the papers' rules; or `<probe>.<measure>`, the curves of all
    models and sets over relative depth, or of one set."""
    from .. import figures

    sets = [of_set] if of_set else list(folder.sets)

    def called(row: dict[str, Any]) -> str:
        return row["model"] if len(sets) == 1 else f"{row['model']} · {row['set']}"

    rows = stored(folder, "verdict").to_pylist()
    whole = [r | {"line": called(r)} for r in rows if r["variant"] in LEADING and r["set"] in sets]
    if name == DEPTHS and whole:
        return figures.study_depths(whole, "line")
    curves: dict[str, list[dict[str, Any]]] = {}
    layers, measures, of = {}, {DEPTHS: None} if whole else {}, compute.field
    drawn = of("set").isin(sets) & of("layer").is_valid() & of("skipped").is_null()
    for row in stored(folder, "summary").filter(drawn).to_pylist():
        if n := folder.models[row["model"]].get("n_layers"):
            measures[f"{row['probe']}.{row['measure']}"] = None
            if f"{row['probe']}.{row['measure']}" == name:
                curves.setdefault(called(row), []).append(row)
                layers[called(row)] = n
    fit = {line: rows for line, rows in curves.items() if len(rows) in (layers[line], layers[line] + 1)}
    if not fit:
        expected = f"expected one of {', '.join(measures)}" if measures else "nothing that is drawn is computed yet"
        raise ParameterError(f"There is no figure {name!r} of this study; {expected}.")
    return figures.study_curves(
        {line: tuple([r[k] for r in rows] for k in ("value", "low", "high")) for line, rows in fit.items()},
        layers,
        unit_of(name),
    )


def unit_of(curve: str) -> str:
    """The unit of `<probe>.<measure>`, where it is a measure of the probe's or its mean; else its name."""
    probe, _, name = curve.partition(".")
    units = {spec.name: spec.unit for spec in find(probe).measures}
    return units.get(name) or units.get(name.removesuffix("_mean")) or name.replace("_", " ")
