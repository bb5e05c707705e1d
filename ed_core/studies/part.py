"""One probe's sums over the prompts of a set, and numbers made of them. Numpy only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .. import statistics
from ..depth.rules import COSINES
from ..errors import ClaimRefused
from ..results.aggregate import counted
from ..statistics import FEWEST, FEWEST_FORMS, RankOrder, Resampled, Units

Read = Callable[[dict[str, np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Part:
    """One probe's sums over a set's prompts: `columns` `[prompt, …]` under the names of its summary, empty where no
    prompt went through it; of every prompt its level, its mark (prompts of different levels with one mark belong
    together), its place in the set, and its form. `seed`: of resamples; those of parts with one seed and as many units
    draw the same ones."""

    columns: Mapping[str, np.ndarray]
    levels: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    index: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    forms: tuple[str, ...] = ()
    seed: int = 0

    def __len__(self) -> int:
        return next((len(values) for values in self.columns.values()), 0)

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


def require(n: int, what: str = "prompts", take: str = "a larger set", forms: bool = False) -> None:
    """Raise `ClaimRefused` where `n` is below the fewest prompts of an interval."""
    if n < FEWEST:
        of_forms = f" (or {FEWEST_FORMS} of different forms)" if forms else ""
        verb = "is" if n == 1 else "are"
        raise ClaimRefused(f"An interval needs at least {FEWEST} {what}{of_forms}, and there {verb} {n}; use {take}.")


def in_pairs(values: Sequence[np.ndarray], parts: Sequence[Part]) -> tuple[np.ndarray, Part, list[str]]:
    """The prompts' values `[pair, level]` where a mark is on every level, once; the first level's prompts of these
    pairs, whose forms are the pairs'; and the marks, in their order. `values`: `[prompt]` of each level's part."""
    counts = [Counter(part.pairs) for part in parts]
    by_mark = [{m: i for i, m in enumerate(p.pairs) if m and n[m] == 1} for p, n in zip(parts, counts)]
    marks = [mark for mark in by_mark[0] if all(mark in of_level for of_level in by_mark)]
    rows = [np.array([of_level[mark] for mark in marks], int) for of_level in by_mark]
    return np.stack([v[own] for v, own in zip(values, rows)], 1), parts[0].keep(rows[0]), marks
