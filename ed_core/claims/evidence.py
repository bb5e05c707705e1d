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
from ..statistics import FEWEST, FEWEST_FORMS, RankOrder, Resampled, Units
from .judging import Estimate

Read = Callable[[dict[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Part:
    """One probe's sums over a set's prompts: `columns` `[prompt, …]` under the names of its summary; of every prompt
    its level, its mark (prompts of different levels with one mark belong together), its place in the set, and its
    form. `seed`: of resamples; those of parts with one seed and as many units draw the same ones."""

    columns: Mapping[str, np.ndarray]
    levels: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    index: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    forms: tuple[str, ...] = ()
    seed: int = 0

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
        rows = np.arange(len(self))[chosen]
        levels, pairs, forms = (tuple(m[i] for i in rows) if m else () for m in (self.levels, self.pairs, self.forms))
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Part(columns, levels, pairs, self.index[rows] if len(self.index) else self.index, forms, self.seed)

    def by_level(self, levels: Sequence[str]) -> list[Part]:
        """The part of each level; refused where one is too small for an interval."""
        parts = [self.keep(np.asarray(self.levels) == level) for level in levels]
        for level, part in zip(levels, parts):
            part.require(f"prompts of level {level}")
        return parts

    def require(self, what: str = "prompts") -> None:
        """Raise `ClaimRefused` where the part has too few prompts or templates for an interval."""
        if not self.units.enough:
            require(len(self), what, forms=True)

    def sums(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A measure's sums over tokens `[prompt, place]` and how many tokens each is over `[prompt]`."""
        return self[f"{name}.sum"].reshape(len(self), -1), counted(self.columns, name)

    def cosine(self) -> tuple[np.ndarray, np.ndarray]:
        """The same sums of the mean of attention's, the MLP's and the layer's cosine."""
        sums = [self.sums(name) for name in COSINES]
        return np.mean([one for one, _ in sums], 0), sums[0][1]

    def added_loss(self) -> tuple[np.ndarray, np.ndarray]:
        """The same sums of the loss that leaving something out adds, nats."""
        loss, tokens = self.sums("nll")
        return loss - self.sums("nll_whole")[0], tokens

    def mean(self, sums: np.ndarray, weights: np.ndarray | None = None) -> Resampled:
        """A mean over prompts, weighted where `weights` are given."""
        return statistics.mean(sums, weights, self.units, self.seed)

    def per_token(self, name: str) -> Resampled:
        """A measure's mean over all tokens of all prompts."""
        return self.mean(*self.sums(name))

    def read(self, read: Read, *names: str) -> Resampled:
        """A smooth number read off mean curves over tokens, by their names."""
        sums = {name: self.sums(name) for name in names}
        each, tokens = ({name: one[i] for name, one in sums.items()} for i in (0, 1))
        return statistics.read_off(read, each, tokens, self.units, self.seed)

    def read_curve(
        self, read: Callable[[np.ndarray], np.ndarray], sums: np.ndarray, weights: np.ndarray | None = None
    ) -> Resampled:
        """A smooth number read off one mean curve over prompts."""
        weights = np.ones(len(self)) if weights is None else weights
        return statistics.read_off(lambda curves: read(curves[""]), {"": sums}, weights, self.units, self.seed)

    def steps(self, read: Callable[[np.ndarray], np.ndarray], sums: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Draws `[resample]` of a number that steps, read off one mean curve over prompts."""
        return statistics.percentile(lambda curves: read(curves[""]), {"": sums}, weights, self.units, self.seed)

    def order(self, name: str) -> RankOrder:
        """How well a measure orders its places."""
        return statistics.rank_order(*self.sums(name), self.units, self.seed)


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
    """An estimate of each quantity, in their order; the number of prompts, and in words what is independent among them;
    a note."""

    estimates: tuple[Estimate, ...]
    prompts: int
    over: str
    note: str = ""

    @classmethod
    def of(cls, part: Part, *estimates: Estimate, note: str = "") -> Measured:
        """The estimates from the prompts of a part."""
        return cls(estimates, len(part), part.units.words, note)


def require(n: int, what: str = "prompts", take: str = "a larger set", forms: bool = False) -> None:
    """Raise `ClaimRefused` where `n` is below the fewest prompts of an interval."""
    if n < FEWEST:
        of_forms = f" (or {FEWEST_FORMS} of different forms)" if forms else ""
        verb = "is" if n == 1 else "are"
        raise ClaimRefused(f"An interval needs at least {FEWEST} {what}{of_forms}, and there {verb} {n}; use {take}.")


def fisher(correlation: np.ndarray) -> np.ndarray:
    """Correlations on Fisher's scale, on which their spread does not depend on them; ±1 is cut to a finite number."""
    bound = 1 - statistics.SMALLEST
    return np.asarray(np.arctanh(np.clip(correlation, -bound, bound)))


@dataclass(frozen=True)
class Line:
    """A straight line through levels. `slope`: per step from one level to the next; `over`: what is independent, in
    words."""

    slope: Resampled
    over: str


def line(values: Sequence[np.ndarray], parts: Sequence[Part]) -> Line | str:
    """The line through the prompts' own values `[prompt]` of each level: over pairs (a mark that each level has once)
    where there are enough of them, else over each level's prompts. A prompt without a value (NaN) is left out. A reason
    in words where a level is left with too few."""
    finite = [np.isfinite(v) for v in values]
    values, parts = [v[f] for v, f in zip(values, finite)], [p.keep(f) for p, f in zip(parts, finite)]
    counts = [Counter(p.pairs) for p in parts]
    by_mark = [{m: i for i, m in enumerate(p.pairs) if m and n[m] == 1} for p, n in zip(parts, counts)]
    shared = sorted(set.intersection(*(set(one) for one in by_mark)))
    first = parts[0].keep(np.array([by_mark[0][m] for m in shared], int)) if shared else None
    steps = np.arange(len(parts)) - (len(parts) - 1) / 2
    weights = steps / (steps @ steps)
    if first is not None and first.units.enough:
        own = np.stack([v[[one[m] for m in shared]] for v, one in zip(values, by_mark)], 1)
        return Line(first.mean(own @ weights), first.units.groups)
    few = next((len(p) for p in parts if not p.units.enough), None)
    if few is not None:
        return f"a level has only {few} prompts with a value"
    means = [statistics.mean(v, None, p.units, p.seed + i) for i, (v, p) in enumerate(zip(values, parts))]
    forms = [form for p in parts for form in p.forms] if all(p.forms for p in parts) else ()
    over = statistics.units(sum(map(len, parts)), forms).words
    return Line(statistics.contrast(weights, means), over)


def slope_of(found: Line | str, scale: float = 1.0) -> Estimate:
    """The slope of a line as a quantity, in units of `scale`."""
    if isinstance(found, str):
        return Estimate.undefined(found)
    return Estimate(float(found.slope.value) / scale, (found.slope.draws / scale,))
