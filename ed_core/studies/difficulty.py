"""Do harder prompts use more of the depth? Depth by level, with intervals over what is independent. Numpy only.

Two kinds of depth. *Mean depth* (`depth.continuous`, in 0..L): where the lens' distribution settles, read off a level's
mean curve. *Depth scores* (`probes.base.depth_score`, Csordás et al. 2025 §5, layers from 0): where the effects of
skipped layers are centred, put together over a level's prompts (there the maximum over prompts, here also the mean).
Per prompt both are read off the prompt's own curve, which is what pairs are compared by. Intervals are bootstrap-t over
the forms of the prompts (or of the pairs) where enough are known, else over prompts (or pairs)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from .. import statistics
from ..depth import mean_depth, say
from ..depth.mean_depth import MEAN_DEPTH
from ..depth.rules import OF_LENS
from ..errors import StudyError
from ..probes.base import depth_score, layer_effect
from ..statistics import Resampled, Units
from .items import Folder, Sums
from .sets import in_order
from .study import LEVEL_MARK
from .tables import units_of
from .trends import NOTHING

LENS, PROBE = "logit_lens", "layer_skip"
DEPTHS = {name: f"average depth by {rule.label}" for name, rule in OF_LENS.items()}
KINDS = {"effect": "effect on later layers", "output": "change of the prediction"}  # of the depth scores
READS = dict.fromkeys(DEPTHS, LENS) | dict.fromkeys(KINDS, PROBE)
MARGIN = 0.02  # of the depth, a level: what counts as no change


@dataclass(frozen=True)
class Level:
    """One level. `mean`: the depth of its prompts put together, `low` and `high` its interval (NaN without), which ends
    where the prompts' own depths do (a bootstrap-t of few units can pass them all), `own` each prompt's own depth,
    `pairs` their marks. `maximum`: the depth score of the maxima over prompts, NaN of a mean depth.
    Mean depths are in 0..L, scores are layers counted from 0. `drawn`: `mean` with its resamples, None without."""

    name: str
    maximum: float
    mean: float
    low: float
    high: float
    own: np.ndarray
    pairs: tuple[str, ...]
    drawn: Resampled | None = field(default=None, compare=False, repr=False)
    over: Units | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Trend:
    """A line through the levels: its change per step from one level to the next, with its interval. `first` and `last`:
    the depths at both ends, of the same prompts. `paired`: over how many pairs that have a prompt on each level, 0
    where prompts are not paired. `size`: the paired change per step over its standard deviation (Cohen's d_z); NaN
    where there are no pairs. `over`: what the interval is over, in words."""

    first: float
    last: float
    slope: float
    low: float
    high: float
    paired: int
    size: float
    over: str = "prompts"


@dataclass(frozen=True)
class Difficulty:
    """One model on one set, by one kind of depth: of `DEPTHS` or `KINDS`."""

    label: str
    name: str
    kind: str
    n_layers: int
    levels: tuple[Level, ...]
    trend: Trend

    @property
    def sentence(self) -> str:
        """What the data support, with its figures."""
        t, margin = self.trend, MARGIN * self.n_layers
        if not np.isfinite(t.slope):
            return f"{self.label}: on some level of {self.name} the {called(self.kind)} is not defined."
        finding = "no clear change with the level"
        if max(abs(t.low), abs(t.high)) < margin:
            finding = f"no change with the level beyond {100 * MARGIN:g} % of the depth"
        if t.low > NOTHING or t.high < -NOTHING:
            little = f", by less than {100 * MARGIN:g} % of the depth a level" * (" beyond " in finding)
            finding = f"harder prompts go {'deeper' if t.low > 0 else 'less deep'}{little}"
        slope = f"{say.number(t.slope, '+.2f')} a level"
        if np.isfinite(t.low):
            digits = 2 if min(abs(t.low), abs(t.high)) >= 0.005 else 3
            slope += f" ({say.interval(t.low, t.high, digits)}; {t.over})"
        else:
            slope += " (no interval)"
        ends = " to ".join(
            f"{say.number(depth, '.2f')} at level {level.name}"
            for depth, level in zip((t.first, t.last), (self.levels[0], self.levels[-1]))
        )
        return (
            f"{self.label} on {self.name}: {finding}, {slope}; {called(self.kind)} of {self.n_layers} layers: {ends}."
        )


def called(kind: str) -> str:
    """A kind of depth in a sentence."""
    return DEPTHS[kind] if kind in DEPTHS else f"depth score ({KINDS[kind]})"


def kinds(folder: Folder) -> list[str]:
    """The kinds of depth that a study has."""
    there = {probe["name"] for probe in folder.plan["probes"]}
    return [kind for kind, probe in READS.items() if probe in there]


def look(folder: Folder, label: str, name: str, kind: str = "kl") -> Difficulty:
    """The levels of a set on a model, in order (`sets.in_order`). `kind`: one of `DEPTHS` or `KINDS`. `StudyError`
    where the study cannot say."""
    there = {group.partition(LEVEL_MARK)[2]: places for group, places in folder.groups(name).items() if group != name}
    if len(there) < 2:
        raise StudyError(f"The set {name} has no levels to compare; give it two or more.")
    some, probe = folder.sums(label, name), READS[kind]
    if not some.probe(probe):
        raise StudyError(f"The study has no {probe} of {label} on {name}, which this depth is read off.")
    marks = np.asarray(folder.sets[name]["pairs"] or [""] * len(folder.sets[name]["ids"]), str)
    levels, forms = [], []
    for i, called in enumerate(in_order(there)):
        own = some.of(there[called])
        columns = own.probe(probe)
        if not columns:
            raise StudyError(f"Level {called} of {name} has no prompt that is computed on {label} yet.")
        ran = own.ran(probe)
        over = units_of(folder, name, own, probe)
        seed = folder.plan["seed"] + i  # levels share no prompts: each is drawn by itself
        if kind in DEPTHS:
            level = of_lens(called, columns[f"{kind}.sum"], columns["n_tokens"], kind, tuple(marks[ran]), over, seed)
        else:
            level = of_skips(called, columns[kind], kind, tuple(marks[ran]), over, seed)
        levels.append(level)
        forms.append([str(form) for form in folder.forms(name)[ran]])
    return Difficulty(
        label, name, kind, _n_layers(some, kind), tuple(levels), trend(levels, forms, folder.plan["seed"])
    )


def of_lens(
    name: str, sums: np.ndarray, tokens: np.ndarray, kind: str, pairs: tuple[str, ...], over: Units, seed: int = 0
) -> Level:
    """The mean depth of prompts put together: `sums` of the lens's measure `[prompt, L + 1]` over `tokens`."""
    found = mean_depth.resampled(kind, sums, tokens, over, seed)
    return _level(name, np.nan, found, MEAN_DEPTH[kind](sums / tokens[:, None]), pairs, over)


def of_skips(name: str, values: np.ndarray, kind: str, pairs: tuple[str, ...], over: Units, seed: int = 0) -> Level:
    """The depth score of prompts put together. `values`: the effects `[prompt, skipped, layer]` or, of the prediction,
    `[prompt, skipped]`."""
    curves = layer_effect(values) if kind == "effect" else values
    there = np.isfinite(curves)
    found = statistics.read_off(
        lambda c: np.asarray(depth_score(c[kind])),
        {kind: np.where(there, curves, 0.0)},
        there.astype(float),
        over,
        seed,
    ).bounded(0.0, curves.shape[1] - 1.0)
    return _level(name, float(score(np.fmax.reduce(values), kind)), found, depth_score(curves), pairs, over)


def _level(name: str, maximum: float, found: Resampled, own: ArrayLike, pairs: tuple[str, ...], over: Units) -> Level:
    own, mean, drawn = np.asarray(own), float(found.value), found if over.enough else None
    there = [mean, *own[np.isfinite(own)]]
    low, high = drawn.bounded(min(there), max(there)).interval.ends or (np.nan, np.nan) if drawn else (np.nan, np.nan)
    return Level(name, maximum, mean, low, high, own, pairs, drawn, over)


def score(values: np.ndarray, kind: str) -> float | np.ndarray:
    """The depth score of one map `[skipped, layer]` (`effect`) or curve `[skipped]` (`output`), or of many of them,
    along the first axis; NaN where a value is missing."""
    return depth_score(layer_effect(values) if kind == "effect" else values)


def trend(levels: Sequence[Level], forms: Sequence[Sequence[str]] = (), seed: int = 0) -> Trend:
    """The line through levels, with its interval: over pairs where prompts are paired across all levels, else over each
    level's prompts. `forms`: of each level's prompts."""
    by_pair = _complete_pairs(levels)
    scores, marks = np.array(list(by_pair.values())), list(by_pair)
    over = statistics.units(len(marks), _forms_of_pairs(levels, forms, marks)) if marks else None
    if over is not None and over.enough:
        slopes = slope_of(scores)
        found = statistics.mean(slopes, None, over, seed)
        low, high = found.interval.ends or (np.nan, np.nan)
        spread = slopes.std(ddof=1)
        size = float(slopes.mean() / spread) if spread > 0 else np.nan
        ends = float(scores[:, 0].mean()), float(scores[:, -1].mean())
        return Trend(*ends, float(found.value), float(low), float(high), len(slopes), size, over.groups)
    slope, ends = float(slope_of([level.mean for level in levels])), (levels[0].mean, levels[-1].mean)
    parts = [level.drawn for level in levels]
    if any(part is None for part in parts) or not np.isfinite(slope):
        return Trend(*ends, slope, np.nan, np.nan, 0, np.nan)
    x = np.arange(len(levels)) - (len(levels) - 1) / 2
    low, high = statistics.contrast(x / (x @ x), [p for p in parts if p is not None]).interval.ends or (np.nan, np.nan)
    return Trend(*ends, slope, float(low), float(high), 0, np.nan, _words(levels))


def _words(levels: Sequence[Level]) -> str:
    """What an interval over the prompts of each level is over."""
    over = [level.over for level in levels if level.over is not None]
    least, most = (of(len(one.of) for one in over) for of in (min, max))
    text = f"{least if least == most else f'{least} to {most}'} prompts a level"
    if all(one.by_form for one in over):
        return f"{text}, of {min(one.n for one in over)} forms or more"
    return f"{text} of few forms; other text may differ" if any(one.forms for one in over) else text


def _complete_pairs(levels: Sequence[Level]) -> Mapping[str, list[float]]:
    """The own depths of prompts that belong together, by their mark, in the order of the levels; only where every level
    has exactly one."""
    found: list[dict[str, float]] = []
    for level in levels:
        n = Counter(level.pairs)
        own = zip(level.pairs, level.own)
        found.append({mark: float(one) for mark, one in own if mark and n[mark] == 1 and np.isfinite(one)})
    shared = [mark for mark in found[0] if all(mark in of_level for of_level in found)]
    return {mark: [of_level[mark] for of_level in found] for mark in shared}


def _forms_of_pairs(levels: Sequence[Level], forms: Sequence[Sequence[str]], marks: Sequence[str]) -> list[str]:
    """The form of each pair, "" where none is known: pairs that share a form on any level, directly or through others,
    are of one."""
    group = {mark: mark for mark in marks}

    def root(mark: str) -> str:
        while group[mark] != mark:
            mark = group[mark]
        return mark

    known: set[str] = set()
    for level, of_level in zip(levels, forms):
        first: dict[str, str] = {}
        for mark, form in zip(level.pairs, of_level):
            if form and mark in group:
                known.add(mark)
                group[root(mark)] = root(first.setdefault(form, mark))
    return [root(mark) if mark in known else "" for mark in marks]


def _n_layers(some: Sums, kind: str) -> int:
    probe = some.probe(READS[kind])
    n: int = probe[f"{kind}.sum"].shape[1] - 1 if kind in DEPTHS else probe["output"].shape[1]
    return n


def slope_of(scores: ArrayLike) -> np.ndarray:
    """Of the straight line through equally spaced levels (the last axis), by least squares; NaN where a score is
    missing."""
    y = np.asarray(scores, float)
    x = np.arange(y.shape[-1]) - (y.shape[-1] - 1) / 2
    return np.asarray(y @ x / (x @ x))
