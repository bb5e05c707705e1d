"""Sums over the prompts of a set, and numbers made of them. Numpy only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """Sums over tokens of one model for prompts of a set, of all probes or of one: `columns` `[prompt, …]` by name, NaN
    where a prompt has none; empty where nothing is computed. Of every prompt: its level; in `pairs` a mark that prompts
    of different levels share where they belong together; its form (template); its place in the set, from 0. `seed`: of
    resamples; those of parts with one seed and as many units are the same."""

    columns: Mapping[str, np.ndarray]
    levels: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    index: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    seed: int = 0

    def __len__(self) -> int:
        """Return the number of prompts."""
        return next((len(values) for values in self.columns.values()), 0)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the column `name`, `[prompt, …]`."""
        return self.columns[name]

    @cached_property
    def units(self) -> Units:
        """What the bootstrap draws as independent: forms where enough are known, else prompts."""
        return statistics.units(len(self), self.forms)

    def keep(self, chosen: np.ndarray) -> Part:
        """Return the part of some of its prompts, chosen by a boolean mask or by their indices in this part."""
        rows = np.arange(len(self))[chosen]
        levels, pairs, forms = (tuple(m[i] for i in rows) if m else () for m in (self.levels, self.pairs, self.forms))
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Part(columns, levels, pairs, forms, self.index[rows] if len(self.index) else self.index, self.seed)

    def of(self, places: np.ndarray) -> Part:
        """Return the part of the prompts at these places in the set."""
        return self.keep(np.isin(self.index, places))

    def probe(self, name: str) -> Part:
        """Return the part of the prompts that went through a probe, with its columns by their names in its summary."""
        columns = {n.partition(".")[2]: v for n, v in self.columns.items() if n.startswith(f"{name}.")}
        if not columns:
            return Part({}, seed=self.seed)
        return replace(self, columns=columns).keep(np.isfinite(columns["n_tokens"]))

    def by_level(self, levels: Sequence[str]) -> list[Part]:
        """Return the part of each of these levels; `ClaimRefused` where one has too few prompts for an interval."""
        parts = [self.keep(np.asarray(self.levels) == level) for level in levels]
        for level, part in zip(levels, parts):
            part.require(f"prompts of level {level}")
        return parts

    def require(self, what: str = "prompts") -> None:
        """Raise `ClaimRefused` where the part has too few prompts or templates for an interval."""
        if not self.units.enough:
            require(len(self), what, forms=True)

    def sums(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a measure's sums over tokens `[prompt, place]` and the number of tokens `[prompt]`."""
        return self[f"{name}.sum"].reshape(len(self), -1), counted(self.columns, name)

    def cosine(self) -> tuple[np.ndarray, np.ndarray]:
        """Return sums and counts, as `sums` does, of the mean of attention's, the MLP's and the layer's cosine."""
        sums = [self.sums(name) for name in COSINES]
        return np.mean([one for one, _ in sums], 0), sums[0][1]

    def added_loss(self) -> tuple[np.ndarray, np.ndarray]:
        """Return token sums and counts, as `sums` does, of the loss (nats) that leaving out layers adds."""
        loss, tokens = self.sums("nll")
        return loss - self.sums("nll_whole")[0], tokens

    def mean(self, sums: np.ndarray, weights: np.ndarray | None = None) -> Resampled:
        """Return `Σ sums / Σ weights` over prompts with its bootstrap resamples; a weight is 1 unless given."""
        return statistics.mean(sums, weights, self.units, self.seed)

    def per_token(self, name: str) -> Resampled:
        """Return a measure's mean over all tokens of all prompts, with its bootstrap resamples."""
        return self.mean(*self.sums(name))

    def read(self, read: Read, *names: str) -> Resampled:
        """Return a smooth number that `read` computes from mean curves over tokens, with its bootstrap resamples.
        `read` gets the curves `[resample, layer]` by their `names` and returns `[resample]`."""
        sums = {name: self.sums(name) for name in names}
        each, tokens = ({name: one[i] for name, one in sums.items()} for i in (0, 1))
        return statistics.read_off(read, each, tokens, self.units, self.seed)

    def read_curve(
        self, read: Callable[[np.ndarray], np.ndarray], sums: np.ndarray, weights: np.ndarray | None = None
    ) -> Resampled:
        """Return a smooth number that `read` computes from the mean curve `Σ sums / Σ weights`, with its resamples."""
        weights = np.ones(len(self)) if weights is None else weights
        return statistics.read_off(lambda curves: read(curves[""]), {"": sums}, weights, self.units, self.seed)

    def steps(self, read: Callable[[np.ndarray], np.ndarray], sums: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return bootstrap draws `[resample]` of a number that jumps, such as a layer, read off one mean curve."""
        return statistics.percentile(lambda curves: read(curves[""]), {"": sums}, weights, self.units, self.seed)

    def order(self, name: str) -> RankOrder:
        """Return how well a measure's mean curve ranks its layers."""
        return statistics.rank_order(*self.sums(name), self.units, self.seed)


def require(n: int, what: str = "prompts", take: str = "a larger set", forms: bool = False) -> None:
    """Raise `ClaimRefused` where `n` is below the fewest prompts of an interval. `what`: their name in the message;
    `take`: its advice; `forms`: whether it offers different forms, too."""
    if n < FEWEST:
        of_forms = f" (or {FEWEST_FORMS} of different forms)" if forms else ""
        verb = "is" if n == 1 else "are"
        raise ClaimRefused(f"An interval needs at least {FEWEST} {what}{of_forms}, and there {verb} {n}; use {take}.")


def in_pairs(values: Sequence[np.ndarray], parts: Sequence[Part]) -> tuple[np.ndarray, Part, list[str]]:
    """Match the prompts of several levels by their marks in `Part.pairs`, where each level has a mark exactly once.
    `values`: `[prompt]` of each level's part. Returns the values `[pair, level]`, the part of these pairs' prompts on
    the level that has the fewest forms, as pairs that share a form are not independent, and the marks, all in one
    order."""
    counts = [Counter(part.pairs) for part in parts]
    by_mark = [{m: i for i, m in enumerate(p.pairs) if m and n[m] == 1} for p, n in zip(parts, counts)]
    marks = [mark for mark in by_mark[0] if all(mark in of_level for of_level in by_mark)]
    rows = [np.array([of_level[mark] for mark in marks], int) for of_level in by_mark]
    kept = min((part.keep(own) for part, own in zip(parts, rows)), key=lambda part: len({*part.forms}))
    return np.stack([v[own] for v, own in zip(values, rows)], 1), kept, marks
