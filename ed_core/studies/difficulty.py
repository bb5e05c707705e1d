"""Do harder prompts use more of the depth? Depth by level, with intervals over what is independent. Numpy only.

Two kinds of depth. *Average depth* (`depth.mean_depth`, in 0..L): where the lens' distribution settles. *Depth scores*
(`probes.base.depth_score`, Csordás et al. 2025 §5, layers from 0): where the effects of skipped layers are centred. A
level's depth is read off the mean curve of its prompts, a prompt's off its own curve, by which pairs are compared.
Intervals are bootstrap-t over the templates of the prompts (or pairs) where enough are known, else over prompts."""

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
from . import words
from .items import Folder
from .sets import in_order
from .study import LEVEL_MARK
from .trends import NOTHING

LENS, PROBE = "logit_lens", "layer_skip"
DEPTHS = {name: f"average depth by {rule.label}" for name, rule in OF_LENS.items()}
KINDS = {"effect": "effect on later layers", "output": "change of the prediction"}  # of the depth scores
CALLED = DEPTHS | {kind: f"depth score ({name})" for kind, name in KINDS.items()}
READS = dict.fromkeys(DEPTHS, LENS) | dict.fromkeys(KINDS, PROBE)
MARGIN = 0.02  # of the depth, per level: what counts as no change


@dataclass(frozen=True)
class Level:
    """One level. `mean`: the depth of its prompts put together, an average depth in 0..L or a score in layers from 0;
    `low`, `high`: its interval (NaN without), cut where the prompts' own depths end, which a bootstrap-t of few units
    can pass; `own`: each prompt's depth, `pairs`: its mark. `drawn`: `mean` with its resamples, None without."""

    name: str
    mean: float
    low: float
    high: float
    own: np.ndarray
    pairs: tuple[str, ...]
    drawn: Resampled | None = field(default=None, compare=False, repr=False)
    over: Units | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Trend:
    """A line through the levels: its change per level, with an interval over `over`. `first`, `last`: the depths at
    both ends, of the same prompts. `paired`: how many pairs have a prompt on each level, 0 where prompts are
    unpaired."""

    first: float
    last: float
    slope: float
    low: float
    high: float
    paired: int
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
    def finding(self) -> str:
        """What the interval supports: "deeper", "less deep", "same" (all of it within `MARGIN`), or "unclear"."""
        if self.trend.low > NOTHING or self.trend.high < -NOTHING:
            return "deeper" if self.trend.low > 0 else "less deep"
        return "same" if self._within_margin else "unclear"

    @property
    def little(self) -> bool:
        """Whether there is a change, all of it within `MARGIN`."""
        return self.finding in ("deeper", "less deep") and self._within_margin

    @property
    def _within_margin(self) -> bool:
        return max(abs(self.trend.low), abs(self.trend.high)) < MARGIN * self.n_layers

    @property
    def sentence(self) -> str:
        """What the data support, with its figures."""
        return words.sentence("difficulty", one=self, depth=CALLED[self.kind], margin=100 * MARGIN)


def called(kind: str) -> str:
    """A kind of depth in a sentence."""
    return CALLED[kind]


def kinds(folder: Folder) -> list[str]:
    """The kinds of depth that a study has."""
    probes = {probe["name"] for probe in folder.plan["probes"]}
    return [kind for kind, probe in READS.items() if probe in probes]


def look(folder: Folder, label: str, name: str, kind: str = "kl") -> Difficulty:
    """The levels of a set on a model, in order (`sets.in_order`). `kind`: one of `DEPTHS` or `KINDS`. `StudyError`
    where the study cannot say."""
    levels = in_order(group.partition(LEVEL_MARK)[2] for group in folder.groups(name) if group != name)
    if len(levels) < 2:
        raise StudyError(f"The set {name} has no levels to compare; give it two or more.")
    if not folder.read(label, name, READS[kind]).columns:
        raise StudyError(f"The study has no {READS[kind]} of {label} on {name}, which this depth is read off.")
    marks = np.asarray(folder.sets[name]["pairs"] or [""] * len(folder.sets[name]["ids"]), str)
    seed, n_layers, graded, forms = folder.plan["seed"], 0, [], []
    for i, level in enumerate(levels):
        columns, over, ran = folder.read(label, f"{name}{LEVEL_MARK}{level}", READS[kind])
        if not columns:
            raise StudyError(f"Level {level} of {name} has no prompt that is computed on {label} yet.")
        read = of_lens if kind in DEPTHS else of_skips
        depth, own = read(columns, kind, over, seed + i)  # levels share no prompts: each has its own seed
        n_layers = columns[f"{kind}.sum"].shape[1] - 1 if kind in DEPTHS else columns["output"].shape[1]
        graded.append(level_of(level, depth, own, tuple(marks[ran]), over))
        forms.append([str(form) for form in folder.forms(name)[ran]])
    return Difficulty(label, name, kind, n_layers, tuple(graded), trend(graded, forms, seed))


def of_lens(columns: Mapping[str, np.ndarray], kind: str, over: Units, seed: int = 0) -> tuple[Resampled, np.ndarray]:
    """The average depth of prompts put together, and of each alone."""
    sums, tokens = columns[f"{kind}.sum"], columns["n_tokens"]
    return mean_depth.resampled(kind, sums, tokens, over, seed), MEAN_DEPTH[kind](sums / tokens[:, None])


def of_skips(columns: Mapping[str, np.ndarray], kind: str, over: Units, seed: int = 0) -> tuple[Resampled, np.ndarray]:
    """The depth score of prompts put together, and of each alone."""
    curves = layer_effect(columns[kind]) if kind == "effect" else columns[kind]
    finite = np.isfinite(curves)
    depth = statistics.read_off(
        lambda c: np.asarray(depth_score(c[kind])),
        {kind: np.where(finite, curves, 0.0)},
        finite.astype(float),
        over,
        seed,
    )
    return depth.bounded(0.0, curves.shape[1] - 1.0), np.asarray(depth_score(curves))


def level_of(name: str, found: Resampled, own: np.ndarray, pairs: tuple[str, ...], over: Units) -> Level:
    """A level of prompts with this depth together and these alone."""
    low, high, mean = np.nan, np.nan, float(found.value)
    if over.enough:
        depths = [mean, *own[np.isfinite(own)]]
        low, high = found.bounded(min(depths), max(depths)).interval.ends or (np.nan, np.nan)
    return Level(name, mean, low, high, own, pairs, found if over.enough else None, over)


def trend(levels: Sequence[Level], forms: Sequence[Sequence[str]] = (), seed: int = 0) -> Trend:
    """The line through levels, with its interval: over pairs where prompts are paired across all levels, else over each
    level's prompts. `forms`: of each level's prompts."""
    by_pair = _complete_pairs(levels)
    scores, marks = np.array(list(by_pair.values())), list(by_pair)
    over = statistics.units(len(marks), _forms_of_pairs(levels, forms, marks)) if marks else None
    if over is not None and over.enough:
        slopes = statistics.mean(slope_of(scores), None, over, seed)
        low, high = slopes.interval.ends or (np.nan, np.nan)
        ends = float(scores[:, 0].mean()), float(scores[:, -1].mean())
        return Trend(*ends, float(slopes.value), float(low), float(high), len(marks), over.groups)
    slope, ends = float(slope_of([level.mean for level in levels])), (levels[0].mean, levels[-1].mean)
    parts = [level.drawn for level in levels if level.drawn is not None]
    if len(parts) < len(levels) or not np.isfinite(slope):
        return Trend(*ends, slope, np.nan, np.nan, 0)
    x = np.arange(len(levels)) - (len(levels) - 1) / 2
    low, high = statistics.contrast(x / (x @ x), parts).interval.ends or (np.nan, np.nan)
    units = [level.over for level in levels if level.over is not None]
    numbers, templates = sorted({len(one.of) for one in units}), min(one.forms for one in units)
    prompts = f"{' to '.join(dict.fromkeys(map(str, (numbers[0], numbers[-1]))))} prompts per level"
    over_words = f"{prompts} of {say.count(templates, 'template')}" if templates else prompts
    return Trend(*ends, slope, float(low), float(high), 0, over_words)


def _complete_pairs(levels: Sequence[Level]) -> Mapping[str, list[float]]:
    """The depths of prompts that belong together, by their mark, in the order of the levels; only where every level has
    exactly one."""
    depths: list[dict[str, float]] = []
    for level in levels:
        n = Counter(level.pairs)
        own = zip(level.pairs, level.own)
        depths.append({mark: float(one) for mark, one in own if mark and n[mark] == 1 and np.isfinite(one)})
    shared = [mark for mark in depths[0] if all(mark in of_level for of_level in depths)]
    return {mark: [of_level[mark] for of_level in depths] for mark in shared}


def _forms_of_pairs(levels: Sequence[Level], forms: Sequence[Sequence[str]], marks: Sequence[str]) -> list[str]:
    """The template of each pair, "" where none is known: pairs that share a template on any level, directly or through
    others, are of one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    place = {mark: i for i, mark in enumerate(marks)}
    edges = [
        (place[mark], (i, form))
        for i, (level, of_level) in enumerate(zip(levels, forms))
        for mark, form in zip(level.pairs, of_level)
        if form and mark in place
    ]
    nodes = {node: len(marks) + k for k, node in enumerate(dict.fromkeys(node for _, node in edges))}
    pairs, templates, n = [pair for pair, _ in edges], [nodes[node] for _, node in edges], len(marks) + len(nodes)
    _, group = connected_components(coo_array((np.ones(len(edges)), (pairs, templates)), (n, n)), directed=False)
    known = set(pairs)
    return [str(group[i]) if i in known else "" for i in range(len(marks))]


def slope_of(scores: ArrayLike) -> np.ndarray:
    """Of the straight line through equally spaced levels (the last axis), by least squares; NaN where a score is
    missing."""
    y = np.asarray(scores, float)
    x = np.arange(y.shape[-1]) - (y.shape[-1] - 1) / 2
    return np.asarray(y @ x / (x @ x))
