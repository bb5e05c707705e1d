"""Models of a study that differ in their precision alone: how far each curve and each depth is from the widest one's.
Numpy only.

A shift is paired: both precisions have read the same prompts, which are drawn together. Of a curve it is the mean over
the layers of the absolute difference, of a mean depth or a rule the difference in layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import statistics
from ..depth import say
from ..depth.rules import RULES
from ..depth.sample import CURVES, Sample
from ..errors import StudyError
from ..models.sizes import PRECISIONS
from . import points, tables, trends
from .items import Folder

ALIKE = (*tables.SAME, "control", "seed", "series", "step")  # what models of one pair have in common


@dataclass(frozen=True)
class Shift:
    """A quantity in one precision less that in the widest one of the same model. `wide`, `narrow`: its values, layers
    or NaN, of a curve NaN; `low`, `high`: 5 and 95 % over `over`, NaN without."""

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
    """The labels of models that differ in their precision alone: the widest one, and each other."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for label, model in folder.models.items():
        if model.get("precision") in PRECISIONS:
            groups.setdefault(tuple(model.get(key) for key in ALIKE), []).append(label)
    order = list(dict.fromkeys(PRECISIONS.values())).index
    ordered = (sorted(labels, key=lambda one: order(folder.models[one]["precision"])) for labels in groups.values())
    return [
        (wide, other)
        for wide, *rest in ordered
        for other in rest
        if _precision(folder, other) != _precision(folder, wide)
    ]


def shifts(folder: Folder, group: str) -> list[Shift]:
    """Every shift on a set or one of its levels."""
    found = []
    for wide, narrow in pairs(folder):
        head = (folder.models[wide]["name"], _precision(folder, narrow), _precision(folder, wide))
        measured = points.measured_points(folder, group, (wide, narrow))
        for criterion in (*points.MEANS, *RULES):
            own = {p.model: p for p in measured if p.criterion == criterion}
            if len(own) == 2:
                found.append(_of_depth(head, criterion, own[wide], own[narrow]))
        shared = np.intersect1d(folder.some(wide, group)[1].index, folder.some(narrow, group)[1].index)
        a, b = (tables.sample(folder, label, group, shared) for label in (wide, narrow))
        if a is not None and b is not None:
            found += _of_curves(head, a, b)
    return found


def _precision(folder: Folder, label: str) -> str:
    return str(folder.models[label]["precision"])


def _of_depth(head: tuple[str, str, str], criterion: str, wide: points.Point, narrow: points.Point) -> Shift:
    low = high = np.nan
    try:
        found = trends.difference([wide, narrow], wide.model, narrow.model)
        low, high = found.low * wide.n_layers, found.high * wide.n_layers
    except StudyError:
        pass  # one of the two has no depth by this rule
    shift = narrow.depth - wide.depth
    return Shift(*head, criterion, wide.depth, narrow.depth, shift, low, high, wide.over)


def _of_curves(head: tuple[str, str, str], wide: Sample, narrow: Sample) -> list[Shift]:
    found = []
    for probe, measures in CURVES.items():
        if probe not in wide.curves or probe not in narrow.curves:
            continue
        a, b = wide.curves[probe], narrow.curves[probe]
        for measure in (one for one in measures if one in a.sums and one in b.sums):

            def apart(means: Mapping[str, np.ndarray]) -> np.ndarray:
                return np.asarray(np.abs(means["narrow"] - means["wide"]).mean(1))

            sums, tokens = {"wide": a.sums[measure], "narrow": b.sums[measure]}, {"wide": a.tokens, "narrow": b.tokens}
            drawn = statistics.read_off(apart, sums, tokens, a.units, wide.seed).bounded(low=0.0)
            low, high = (drawn.interval.ends if a.units.enough else None) or (np.nan, np.nan)
            head_of = (*head, f"{probe}.{measure}", np.nan, np.nan, float(drawn.value))
            found.append(Shift(*head_of, low, high, a.units.words))
    return found


def rows(found: Sequence[Shift]) -> list[list[str]]:
    """The shifts as cells, their head first."""
    head = ["model", "precision", "against", "of", "there", "here", "shift"]
    cells = []
    for one in found:
        curve = "." in one.quantity
        form = ".2g" if curve else "+.2f"
        shift = say.number(one.shift, form)
        if np.isfinite(one.low):
            shift += f" ({say.number(one.low, form)} to {say.number(one.high, form)})"
        depths = ["", ""] if curve else [say.number(value, ".4g") for value in (one.wide, one.narrow)]
        name = one.quantity if curve else trends.CALLED[one.quantity]
        cells.append([one.model, one.precision, one.against, name, *depths, shift])
    return [head, *cells]


def sentence(found: Sequence[Shift]) -> str:
    """What the shifts of one model and precision come to."""
    by = {one.quantity: one for one in found}
    first = found[0]
    text = f"{first.model} in {first.precision} against {first.against}"
    if (mean := by.get("mean_kl")) is not None:
        ends = f" ({say.interval(mean.low, mean.high, 2)}; {mean.over})" if np.isfinite(mean.low) else ""
        text += f": average depth {say.number(mean.shift, '+.2f')} layers{ends}"
    rules = [by[name] for name in RULES if name in by]
    moved = [
        f"{RULES[one.quantity].label} {say.number(one.wide)} to {say.number(one.narrow)}"
        for one in rules
        if not (one.shift == 0 or (np.isnan(one.wide) and np.isnan(one.narrow)))
    ]
    if rules:
        text += f"; Hu et al.'s rules give {'other layers: ' + ', '.join(moved) if moved else 'the same layers'}"
    return f"{text}."
