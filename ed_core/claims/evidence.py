"""What claims are read off, and what they estimate. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import statistics
from ..studies.part import Part, in_pairs
from .judging import Estimate


class Sized(NamedTuple):
    """A model of a family: its name, parameters and layers, and its logit lens."""

    name: str
    parameters: int | None
    n_layers: int
    lens: Part


@dataclass(frozen=True)
class Evidence:
    """What was measured of one model on one prompt set. `parts`: by their names (`running.PARTS`). `family`: the model
    and others of its family. `twins`: the contributions of five untrained copies. `answers`: every prompt has a known
    answer, or enough have. `worked`: the set has a worked-out counterpart. `passes`: how often the layers run.
    `trouble`: why the model could not be measured."""

    n_layers: int
    parts: Mapping[str, Part]
    answers: bool = True
    level_names: tuple[str, ...] = ()
    family: tuple[Sized, ...] = ()
    models: int = 1
    twins: tuple[Part, ...] = ()
    worked: bool = False
    passes: int = 1
    trouble: str = ""


@dataclass(frozen=True)
class Measured:
    """The estimates of a claim's quantities, in their order; `prompts`: how many they rest on; `over`: in words what is
    independent among these; `note`: a remark."""

    estimates: tuple[Estimate, ...]
    prompts: int
    over: str
    note: str = ""

    @classmethod
    def of(cls, part: Part, *estimates: Estimate, note: str = "") -> Measured:
        """Return the estimates with the number of prompts of a part, and in words what is independent among them."""
        return cls(estimates, len(part), part.units.words, note)


def fisher(correlation: np.ndarray) -> np.ndarray:
    """Return correlations on Fisher's scale, on which their spread does not depend on them."""
    bound = 1 - statistics.SMALLEST
    return np.asarray(np.arctanh(np.clip(correlation, -bound, bound)))


def line(values: Sequence[np.ndarray], parts: Sequence[Part], scale: float = 1.0) -> tuple[Estimate, str]:
    """Return the slope of the straight line through the prompts' own `values` `[prompt]` of each level, in units of
    `scale` a level, and in words what is independent: pairs (a mark that each level has once) where enough, else each
    level's prompts. A NaN is left out. Undefined, with no words, where a level is left with too few prompts."""
    finite = [np.isfinite(v) for v in values]
    values, parts = [v[f] for v, f in zip(values, finite)], [p.keep(f) for p, f in zip(parts, finite)]
    steps = np.arange(len(parts)) - (len(parts) - 1) / 2
    weights = steps / (steps @ steps)
    own, first, marks = in_pairs(values, parts)
    order = np.array(sorted(range(len(marks)), key=marks.__getitem__), int)
    if first.units.enough:
        slope, over = first.keep(order).mean(own[order] @ weights), first.units.groups
    elif (few := next((len(p) for p in parts if not p.units.enough), None)) is not None:
        return Estimate.undefined(f"a level has only {few} prompts with a value"), ""
    else:
        means = [statistics.mean(v, None, p.units, p.seed + i) for i, (v, p) in enumerate(zip(values, parts))]
        forms = [form for p in parts for form in p.forms] if all(p.forms for p in parts) else ()
        slope, over = statistics.contrast(weights, means), statistics.units(sum(map(len, parts)), forms).words
    return Estimate(float(slope.value) / scale, (slope.draws / scale,)), over
