"""What a study's numbers are taken along as, beside its tables: prompt by prompt, as arrays, as figures. Numpy and
pyarrow; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from pyarrow import compute

from ..errors import ParameterError
from ..probes import find
from ..results.aggregate import aggregate, counts_first
from . import tables
from .items import Folder

if TYPE_CHECKING:
    import plotly.graph_objects as go

PROMPTS = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("model", "set", "prompt", "probe", "measure")),
        ("layer", pyarrow.int32()),
        ("value", pyarrow.float64()),
        ("skipped", pyarrow.int32()),
    ]
)
DEPTHS = "depths"
LEADING = (tables.MEAN, "paper")  # what the figure of depths shows


def prompts(folder: Folder) -> pyarrow.Table:
    """Tidy, a row per model, set, prompt, probe, measure and layer: what the aggregates are of that prompt alone.
    `prompt` is its id, or its place in the set counted from 1; `layer` and `skipped` as in the summary."""
    parts = [pyarrow.table(columns, schema=PROMPTS) for columns in _prompts(folder)]
    return pyarrow.concat_tables(parts) if parts else PROMPTS.empty_table()


def arrays(folder: Folder) -> dict[str, np.ndarray]:
    """The aggregates over a set's prompts, by `<model>/<set>/<probe>.<measure>`, and of every criterion and variant
    `<model>/<set>/effective_depth.<criterion>.<variant>`: depth, ratio, low, high, undefined (NaN = not defined); of
    the variant "turn" also p."""
    found: dict[str, np.ndarray] = {}
    for label in folder.models:
        for name in folder.sets:
            whole = folder.sums(label, name)
            for entry in folder.plan["probes"]:
                if columns := whole.probe(entry["name"]):
                    probe = folder.probe(entry["name"])
                    rows = [{n: np.asarray(v[i]) for n, v in columns.items()} for i in range(len(columns["n_tokens"]))]
                    curves = aggregate(probe, rows, counts_first(probe))
                    for measure, values in (curves | probe.derive(curves)).items():
                        found[f"{label}/{name}/{probe.name}.{measure}"] = np.asarray(values)
    for row in tables.stored(folder, "verdict").to_pylist():
        key = f"{row['model']}/{row['set']}/effective_depth.{row['criterion']}.{row['variant']}"
        figures = [row[column] for column in ("depth", "ratio", "low", "high", "undefined")]
        figures += [row["p"]] if row["variant"] == tables.TURN else []
        found[key] = np.asarray(figures, np.float64)
    return found


def figure(folder: Folder, name: str, of_set: str = "") -> go.Figure:
    """`depths`, every model's mean depth on every set, and the papers' rules; or `<probe>.<measure>`, the curves of all
    models and sets over relative depth, or of one set."""
    from .. import figures

    sets = [of_set] if of_set else list(folder.sets)

    def called(row: dict[str, Any]) -> str:
        return row["model"] if len(sets) == 1 else f"{row['model']} · {row['set']}"

    if name == DEPTHS:
        rows = tables.stored(folder, "verdict").to_pylist()
        whole = [r | {"line": called(r)} for r in rows if r["variant"] in LEADING and r["set"] in sets]
        return figures.study_depths(whole, "line")
    curves: dict[str, list[dict[str, Any]]] = {}
    layers, measures, of = {}, {DEPTHS: None}, compute.field
    drawn = of("set").isin(sets) & of("layer").is_valid() & of("skipped").is_null()
    for row in tables.stored(folder, "summary").filter(drawn).to_pylist():
        if n := folder.models[row["model"]].get("n_layers"):
            measures[f"{row['probe']}.{row['measure']}"] = None
            if f"{row['probe']}.{row['measure']}" == name:
                curves.setdefault(called(row), []).append(row)
                layers[called(row)] = n
    fit = {line: rows for line, rows in curves.items() if len(rows) in (layers[line], layers[line] + 1)}
    if not fit:
        raise ParameterError(f"There is no figure {name!r} of this study; expected one of {', '.join(measures)}.")
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


def _prompts(folder: Folder) -> Iterator[list[Any]]:
    for label in folder.models:
        for name, one in folder.sets.items():
            whole = folder.sums(label, name)
            for entry in folder.plan["probes"]:
                probe = folder.probe(entry["name"])
                n_tokens = whole.columns.get(f"{probe.name}.n_tokens", np.empty(0))
                columns = whole.probe(probe.name)
                ran = whole.index[np.isfinite(n_tokens)] if columns else []
                for i, place in enumerate(ran):
                    row = {n: np.asarray(v[i]) for n, v in columns.items()}
                    curves = aggregate(probe, [row], counts_first(probe))
                    for measure, values in curves.items():
                        yield _rows((label, name, one["ids"][place] or str(place + 1), probe.name, measure), values)


def _rows(names: tuple[str, ...], values: np.ndarray) -> list[Any]:
    at, count = np.indices(values.shape).reshape(values.ndim, values.size), values.size
    nothing = pyarrow.nulls(count, pyarrow.int32())
    return [
        *(pyarrow.array([text] * count, pyarrow.string()) for text in names),
        pyarrow.array(at[-1], pyarrow.int32()) if values.ndim else nothing,
        pyarrow.array(np.asarray(values, np.float64).ravel(), pyarrow.float64(), from_pandas=True),
        pyarrow.array(at[0], pyarrow.int32()) if values.ndim == 2 else nothing,
    ]
