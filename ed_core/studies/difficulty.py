"""Do harder prompts use more of the depth? Depth scores by level, with intervals over prompts. Numpy only.

Per level the effects of skipped layers are put together over its prompts, then the depth score is read off them
(`probes.scores.depth_score`, Csordás et al. 2025 §5; there the maximum over prompts, here also the mean). Per prompt it
is read off the prompt's own effects, which is what pairs are compared by. The interval is a seeded bootstrap: prompts
are drawn anew within each level, pairs as pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..depth.criteria import ENDS, FEWEST, RESAMPLES
from ..errors import StudyError
from ..probes.scores import depth_score, layer_effect
from .folder import Folder

PROBE = "layer_skip"
KINDS = {"effect": "effect on later layers", "output": "change of the prediction"}


@dataclass(frozen=True)
class Level:
    """One level: `maximum` and `mean` are the depth scores of its prompts put together, `low` and `high` the interval
    of `mean`, `own` each prompt's own score, `pairs` their marks. Scores are layers, counted from 0."""

    name: str
    maximum: float
    mean: float
    low: float
    high: float
    own: np.ndarray
    pairs: tuple[str, ...]


@dataclass(frozen=True)
class Trend:
    """A line through the levels: layers per step from one level to the next, with its interval. `first` and `last`: the
    scores at both ends, of the same prompts. `paired`: over how many pairs that have a prompt on each level, 0 where
    prompts are not paired. `size`: the paired change per step over its standard deviation (Cohen's d_z); NaN where
    there are no pairs."""

    first: float
    last: float
    slope: float
    low: float
    high: float
    paired: int
    size: float


@dataclass(frozen=True)
class Difficulty:
    """One model on one set, by one kind of effect."""

    label: str
    name: str
    kind: str
    n_layers: int
    levels: tuple[Level, ...]
    trend: Trend

    @property
    def sentence(self) -> str:
        """What the data support, with its figures."""
        t, share = self.trend, _signed(100 * self.trend.slope / self.n_layers, 1)
        first, last = self.levels[0], self.levels[-1]
        if not np.isfinite(t.slope):
            return f"No depth score is defined on every level of {self.name}, so nothing can be said of a trend."
        told = (
            f"From level {first.name} to {last.name} of {self.name} the depth score ({KINDS[self.kind]}) of "
            f"{self.label} goes from {t.first:.2f} to {t.last:.2f} of {self.n_layers} layers; a straight line "
            f"has {_signed(t.slope)} a level"
        )
        if not np.isfinite(t.low):
            return f"{told}. With fewer than {FEWEST} prompts a level there is no interval, and no conclusion."
        over = f"{t.paired} pairs" if t.paired else "prompts"
        told += f" (5–95 % over {over}: {_signed(t.low)} to {_signed(t.high)}; {share} % of the depth)"
        if t.low <= 0 <= t.high:
            return f"{told}. Whether harder prompts go deeper cannot be told from these."
        all_in_all = abs(t.slope) * (len(self.levels) - 1)
        small = ", by less than one layer from the first level to the last" if all_in_all < 1 else ""
        return f"{told}. Harder prompts go {'deeper' if t.low > 0 else 'less deep'} here{small}."


def look(folder: Folder, label: str, name: str, kind: str = "effect") -> Difficulty:
    """The levels of a set on a model. `kind`: one of `KINDS`. `StudyError` where the study cannot say."""
    groups = {group: places for group, places in folder.groups(name).items() if group != name}
    if len(groups) < 2:
        raise StudyError(f"The set {name} has no levels to compare; give it two or more.")
    some = folder.sums(label, name)
    columns, levels, effects = some.probe(PROBE), [], []
    if not columns:
        raise StudyError(f"The study has no {PROBE} of {label} on {name}: depth scores are read off skipped layers.")
    ran = some.index[np.isfinite(some.columns[f"{PROBE}.n_tokens"])]
    marks = np.asarray(folder.sets[name]["pairs"] or [""] * len(folder.sets[name]["ids"]), str)
    drawn = np.random.default_rng(folder.plan["seed"])
    for group, places in groups.items():
        keep = np.isin(ran, places)
        if not keep.any():
            raise StudyError(
                f"Level {group.rpartition('/')[2]} of {name} has no prompt that is computed on {label} yet."
            )
        values = columns[kind][keep]
        levels.append(over_prompts(group.rpartition("/")[2], values, kind, tuple(marks[ran[keep]]), drawn))
        effects.append(values)
    n_layers = columns["output"].shape[1]
    return Difficulty(label, name, kind, n_layers, tuple(levels), trend(levels, effects, kind, drawn))


def over_prompts(name: str, values: np.ndarray, kind: str, pairs: tuple[str, ...], drawn: np.random.Generator) -> Level:
    """The depth score of prompts put together. `values`: the effects `[prompt, skipped, layer]` or, of the prediction,
    `[prompt, skipped]`; `drawn`: what the interval's resamples come from."""
    own = np.asarray(score(values, kind))
    low = high = np.nan
    if len(values) >= FEWEST:
        again = _again(values, kind, drawn)
        low, high = np.nanquantile(again, ENDS) if np.isfinite(again).any() else (np.nan, np.nan)
    maximum = score(np.fmax.reduce(values), kind)
    return Level(name, maximum, score(_mean(values), kind), float(low), float(high), own, pairs)


def score(values: np.ndarray, kind: str) -> float | np.ndarray:
    """The depth score of one map `[skipped, layer]` (`effect`) or curve `[skipped]` (`output`), or of many of them,
    along the first axis; NaN where a value is missing."""
    return depth_score(layer_effect(values) if kind == "effect" else values)


def _signed(value: float, digits: int = 2) -> str:
    """A number with its sign, a minus as one is printed."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _mean(values: np.ndarray) -> np.ndarray:
    """Over prompts, those without a value left out."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0.0).sum(0) / there.sum(0)


def _again(values: np.ndarray, kind: str, drawn: np.random.Generator) -> np.ndarray:
    """The score of a level's prompts put together, of every resample."""
    n, there = len(values), np.isfinite(values)
    counts = drawn.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)
    flat = np.where(there, values, 0.0).reshape(n, -1), there.reshape(n, -1).astype(float)
    with np.errstate(invalid="ignore"):
        mean = (counts @ flat[0]) / (counts @ flat[1])
    return np.asarray(score(mean.reshape(RESAMPLES, *values.shape[1:]), kind))


def trend(levels: Sequence[Level], effects: Sequence[np.ndarray], kind: str, drawn: np.random.Generator) -> Trend:
    """The line through levels made by `over_prompts` of these effects, with its interval: over pairs where prompts are
    paired across all levels, else over each level's prompts."""
    by_pair = _complete_pairs(levels)
    if len(by_pair) >= FEWEST:
        scores = np.array(list(by_pair.values()))
        slopes = slope_of(scores)
        again = slopes[drawn.integers(len(slopes), size=(RESAMPLES, len(slopes)))].mean(1)
        low, high = np.quantile(again, ENDS)
        spread = slopes.std(ddof=1)
        size = float(slopes.mean() / spread) if spread > 0 else np.nan
        ends = float(scores[:, 0].mean()), float(scores[:, -1].mean())
        return Trend(*ends, float(slopes.mean()), float(low), float(high), len(slopes), size)
    slope, ends = float(slope_of([level.mean for level in levels])), (levels[0].mean, levels[-1].mean)
    if min(map(len, effects)) < FEWEST or not np.isfinite(slope):
        return Trend(*ends, slope, np.nan, np.nan, 0, np.nan)
    again = slope_of(np.stack([_again(values, kind, drawn) for values in effects], -1))
    low, high = np.nanquantile(again, ENDS)
    return Trend(*ends, slope, float(low), float(high), 0, np.nan)


def _complete_pairs(levels: Sequence[Level]) -> Mapping[str, list[float]]:
    """The own scores of prompts that belong together, by their mark, in the order of the levels; only where every level
    has one."""
    found: dict[str, list[float]] = {}
    for level in levels:
        for mark, own in zip(level.pairs, level.own):
            if mark and np.isfinite(own):
                found.setdefault(mark, []).append(float(own))
    return {mark: scores for mark, scores in found.items() if len(scores) == len(levels)}


def slope_of(scores: ArrayLike) -> np.ndarray:
    """Of the straight line through equally spaced levels (the last axis), by least squares; NaN where a score is
    missing."""
    y = np.asarray(scores, float)
    x = np.arange(y.shape[-1]) - (y.shape[-1] - 1) / 2
    return np.asarray(y @ x / (x @ x))
