"""What claims are read off: per-prompt sums of a study, and numbers made of them. Numpy only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .. import statistics
from ..depth.rules import COSINES
from ..errors import ClaimRefused
from ..results.aggregate import counted
from ..statistics import FEWEST, FEWEST_FORMS, Resampled, Units
from .judging import Estimate
from .record import Curve


@dataclass(frozen=True)
class Part:
    """One probe's sums over a set's prompts: `columns` `[prompt, …]` under the names of its summary; of every prompt
    its level, its mark (prompts of different levels with one mark belong together), its place in the set, and its
    form."""

    columns: Mapping[str, np.ndarray]
    levels: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    index: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    forms: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @cached_property
    def units(self) -> Units:
        """What is independent: forms where enough are known, else prompts."""
        return statistics.units(len(self), self.forms)

    def keep(self, chosen: np.ndarray) -> Part:
        """Some of the prompts, by a mask or by their numbers."""
        at = np.arange(len(self))[chosen]
        levels, pairs, forms = (tuple(m[i] for i in at) if m else () for m in (self.levels, self.pairs, self.forms))
        columns = {name: values[at] for name, values in self.columns.items()}
        return Part(columns, levels, pairs, self.index[at] if len(self.index) else self.index, forms)


class Sized(NamedTuple):
    """A model of a family: its name, parameters and layers, and its logit lens."""

    name: str
    parameters: int | None
    n_layers: int
    lens: Part


@dataclass(frozen=True)
class Evidence:
    """What was measured of one model on one prompt set. `parts`: by their names (`running.PARTS`). `family`: the model
    and others of its family. `twins`: the contributions of five untrained twins. `answers`: every prompt has a known
    answer, or enough have. `worked`: the set has a worked-out counterpart. `passes`: how often the layers run."""

    n_layers: int
    parts: Mapping[str, Part]
    answers: bool = True
    level_names: tuple[str, ...] = ()
    family: tuple[Sized, ...] = ()
    models: int = 1
    seed: int = 0
    twins: tuple[Part, ...] = ()
    worked: bool = False
    passes: int = 1
    trouble: str = ""


@dataclass(frozen=True)
class Measured:
    """An estimate of each quantity, by its name; the number of prompts, and in words what is independent among them;
    the curve that is drawn; a note in words."""

    estimates: Mapping[str, Estimate]
    prompts: int
    curve: Curve
    over: str
    note: str = ""


def enough(part: Part | int, what: str = "prompts", take: str = "a larger set") -> None:
    """Refuse what is too small for an interval."""
    n = part if isinstance(part, int) else len(part)
    if n < FEWEST and not (isinstance(part, Part) and part.units.enough):
        of_forms = "" if isinstance(part, int) else f" (or {FEWEST_FORMS} of different forms)"
        there = f"there {'is' if n == 1 else 'are'} {n}"
        raise ClaimRefused(f"An interval needs at least {FEWEST} {what}{of_forms}, and {there}; use {take}.")


def sums_of(part: Part, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A measure's sums over tokens `[prompt, place]` and how many tokens each is over `[prompt]`."""
    return part[f"{name}.sum"].reshape(len(part), -1), counted(part.columns, name)


def per_token(part: Part, name: str, seed: int) -> Resampled:
    """A measure's mean over all tokens of all prompts. The resamples of one part and seed are the same prompts."""
    return statistics.mean(*sums_of(part, name), part.units, seed)


def cosine(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The same sums of the mean of attention's, the MLP's and the layer's cosine."""
    found = [sums_of(part, name) for name in COSINES]
    return np.mean([sums for sums, _ in found], 0), found[0][1]


def added(part: Part, seed: int) -> Resampled:
    """The loss that leaving something out adds, nats per token."""
    loss, tokens = sums_of(part, "nll")
    return statistics.mean(loss - sums_of(part, "nll_whole")[0], tokens, part.units, seed)


def read_off(
    part: Part, read: Callable[[dict[str, np.ndarray]], np.ndarray], names: Sequence[str], seed: int
) -> Resampled:
    """A smooth number read off mean curves over tokens, by their names."""
    found = {name: sums_of(part, name) for name in names}
    sums, tokens = ({name: one[i] for name, one in found.items()} for i in (0, 1))
    return statistics.read_off(read, sums, tokens, part.units, seed)


def rank_order(part: Part, name: str, seed: int) -> statistics.RankOrder:
    """How well a measure orders its places."""
    return statistics.rank_order(*sums_of(part, name), part.units, seed)


def fisher(correlation: np.ndarray) -> np.ndarray:
    """Correlations on Fisher's scale, on which their spread does not depend on them; ±1 is cut to a finite number."""
    found: np.ndarray = np.arctanh(np.clip(correlation, -1 + statistics.SMALLEST, 1 - statistics.SMALLEST))
    return found


def correlation(
    found: Resampled, curves: tuple[np.ndarray, np.ndarray], n_layers: int, **more: statistics.RankOrder
) -> Estimate:
    """A rank correlation over layers: `found` on Fisher's scale with its resamples over prompts; `curves`: the two
    orders, over blocks of which it is uncertain too; `more`: the `RankOrder` of those that are measured."""

    def read(at: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
        return float(fisher(statistics.rank_correlations(a[None], b[None]))[0])

    layers = np.tanh(statistics.over_layers(read, n_layers, *curves))
    return Estimate(float(np.tanh(found.value)), (np.tanh(found.draws),), layers, ranks=more)


def as_curve(numbers: Sequence[Resampled]) -> Resampled:
    """Single numbers with their resamples, as one curve."""
    value, error, again, errors = (
        np.stack([getattr(one, of) for one in numbers], -1) for of in ("value", "error", "again", "errors")
    )
    return Resampled(value, error, again, errors)


@dataclass(frozen=True)
class Line:
    """A straight line through levels. `slope`: per step from one level to the next; `levels`: the mean of each; `over`:
    what is independent, in words."""

    slope: Resampled
    levels: Resampled
    over: str


def by_level(part: Part, levels: Sequence[str]) -> list[Part]:
    """The part of each level; refused where one is too small for an interval."""
    found = [part.keep(np.asarray(part.levels) == level) for level in levels]
    for level, of_level in zip(levels, found):
        enough(of_level, f"prompts of level {level}")
    return found


def line(values: Sequence[np.ndarray], parts: Sequence[Part], seed: int) -> Line | str:
    """The line through the prompts' own values `[prompt]` of each level: over pairs (a mark that each level has once)
    where there are enough of them, else over each level's prompts. A prompt without a value (NaN) is left out. In words
    why not, where a level is left with too few."""
    there = [np.isfinite(v) for v in values]
    values, parts = [v[t] for v, t in zip(values, there)], [p.keep(t) for p, t in zip(parts, there)]
    counts = [Counter(p.pairs) for p in parts]
    by_mark = [{m: i for i, m in enumerate(p.pairs) if m and n[m] == 1} for p, n in zip(parts, counts)]
    shared = sorted(set.intersection(*(set(one) for one in by_mark)))
    first = parts[0].keep(np.array([by_mark[0][m] for m in shared], int)) if shared else None
    steps = np.arange(len(parts)) - (len(parts) - 1) / 2
    weights = steps / (steps @ steps)
    if first is not None and first.units.enough:
        own = np.stack([v[[one[m] for m in shared]] for v, one in zip(values, by_mark)], 1)
        slope, levels = (statistics.mean(v, None, first.units, seed) for v in (own @ weights, own))
        return Line(slope, levels, first.units.groups)
    few = next((len(p) for p in parts if not p.units.enough), None)
    if few is not None:
        return f"a level has only {few} prompts with a value"
    means = [statistics.mean(v, None, p.units, seed + i) for i, (v, p) in enumerate(zip(values, parts))]
    forms = [form for p in parts for form in p.forms] if all(p.forms for p in parts) else ()
    return Line(
        statistics.contrast(weights, means), as_curve(means), statistics.units(sum(map(len, parts)), forms).words
    )


def slope_of(found: Line | str, scale: float = 1.0) -> Estimate:
    """The slope of a line as a quantity, in units of `scale`."""
    if isinstance(found, str):
        return Estimate.undefined(found)
    return Estimate(float(found.slope.value) / scale, (found.slope.draws / scale,))
