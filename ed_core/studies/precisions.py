"""Models of a study that differ in their precision alone: how far each curve and each depth is from the widest one's,
over the prompts that both have read, drawn together. Of a curve it is the mean over the layers of the absolute
difference, of an average depth or a rule the difference in layers. Numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import statistics
from ..depth import say
from ..depth.rules import RULES
from ..depth.sample import CURVES, Sample
from ..models.sizes import PRECISIONS
from . import points, tables, trends, words
from .items import Folder

ALIKE = (*tables.SAME, "control", "seed", "series", "step")  # what models of one pair have in common


@dataclass(frozen=True)
class Shift:
    """How far a quantity moves from a model's widest precision (`against`) to another (`precision`). `wide`, `narrow`:
    its values, layers or NaN, of a curve always NaN; `low`, `high`: 5 and 95 % of `shift` over `over`, NaN without."""

    model: str
    precision: str
    against: str
    quantity: str
    wide: float
    narrow: float
    shift: float
    low: float
    high: float
    over: str


def pairs(folder: Folder) -> list[tuple[str, str]]:
    """Return pairs of labels of models that differ only in their precision: the widest one, and each other one."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for label, model in folder.models.items():
        if model.get("precision") in PRECISIONS:
            groups.setdefault(tuple(model.get(key) for key in ALIKE), []).append(label)
    order = list(dict.fromkeys(PRECISIONS.values())).index
    precision = {label: str(model.get("precision")) for label, model in folder.models.items()}
    ordered = (sorted(labels, key=lambda one: order(precision[one])) for labels in groups.values())
    return [(widest, other) for widest, *rest in ordered for other in rest if precision[other] != precision[widest]]


def shifts(folder: Folder, group: str) -> list[Shift]:
    """Return the shifts of every depth, rule and curve on a set or level, for all models that differ so."""
    all_shifts = []
    for widest, narrow in pairs(folder):
        one, other = folder.models[widest], folder.models[narrow]
        head = (one["name"], other["precision"], one["precision"])
        measured = points.measured_points(folder, group, (widest, narrow))
        for criterion in (*points.MEANS, *RULES):
            own = {p.model: p for p in measured if p.criterion == criterion}
            if len(own) == 2:
                all_shifts.append(_of_depth(head, own[widest], own[narrow]))
        shared = np.intersect1d(folder.read(widest, group).index, folder.read(narrow, group).index)
        a, b = (tables.sample(folder, label, group, shared) for label in (widest, narrow))
        if a is not None and b is not None:
            all_shifts += _of_curves(head, a, b)
    return all_shifts


def _of_depth(head: tuple[str, str, str], wide: points.Point, narrow: points.Point) -> Shift:
    """Return the shift in layers of one depth or rule. `head`: the first fields of `Shift`."""
    low = high = np.nan
    if np.isfinite([wide.ratio, narrow.ratio]).all():
        apart = trends.difference([wide, narrow], wide.model, narrow.model)
        low, high = apart.low * wide.n_layers, apart.high * wide.n_layers
    depths = wide.depth, narrow.depth, narrow.depth - wide.depth
    return Shift(*head, wide.criterion, *depths, low, high, wide.over)


def _of_curves(head: tuple[str, str, str], wide: Sample, narrow: Sample) -> Iterator[Shift]:
    """Yield the shift of each curve that both samples have: the mean over layers of the absolute difference."""

    def apart(means: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.asarray(np.abs(means["narrow"] - means["wide"]).mean(1))

    for probe in (one for one in CURVES if one in wide.curves and one in narrow.curves):
        a, b = wide.curves[probe], narrow.curves[probe]
        for measure in (one for one in CURVES[probe] if one in a.sums and one in b.sums):
            sums, tokens = {"wide": a.sums[measure], "narrow": b.sums[measure]}, {"wide": a.tokens, "narrow": b.tokens}
            shift = statistics.read_off(apart, sums, tokens, a.units, wide.seed).bounded(low=0.0)
            ends = shift.interval[:2] if a.units.enough else (np.nan, np.nan)
            yield Shift(*head, f"{probe}.{measure}", np.nan, np.nan, float(shift.value), *ends, a.units.words)


def rows(found: Sequence[Shift]) -> list[list[str]]:
    """Return the shifts as rows of cells, the head first."""
    cells = [["model", "precision", "against", "of", "wide", "narrow", "shift"]]
    for one in found:
        curve = "." in one.quantity
        form = ".2g" if curve else "+.2f"
        shift = say.number(one.shift, form)
        if np.isfinite(one.low):
            shift += f" ({say.number(one.low, form)} to {say.number(one.high, form)})"
        depths = ["", ""] if curve else [say.number(value, ".4g") for value in (one.wide, one.narrow)]
        name = one.quantity if curve else trends.CALLED[one.quantity]
        cells.append([one.model, one.precision, one.against, name, *depths, shift])
    return cells


def sentence(found: Sequence[Shift]) -> str:
    """Return a sentence on how far average depth and rules move; `found`: all shifts of one model and precision."""
    by = {one.quantity: one for one in found}
    rules = [by[name] for name in RULES if name in by]
    moved = [
        f"{RULES[one.quantity].label} {say.number(one.wide)} to {say.number(one.narrow)}"
        for one in rules
        if not (one.shift == 0 or (np.isnan(one.wide) and np.isnan(one.narrow)))
    ]
    return words.sentence("precision", one=found[0], mean=by.get("mean_kl"), rules=rules, moved=moved)
