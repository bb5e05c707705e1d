"""Do harder prompts use more of the depth? Depth by level, with intervals over what is independent. Numpy only.

Two kinds of depth. *Average depth* (`depth.mean_depth`, in 0..L): where the lens' distribution settles. *Depth scores*
(`probes.base.depth_score`, Csordás et al. 2025 §5, layers from 0): where the effects of skipped layers are centred. A
level's depth is read off the mean curve of its prompts, a prompt's off its own curve, by which pairs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from .. import statistics
from ..depth import mean_depth, say
from ..depth.mean_depth import MEAN_DEPTH
from ..depth.rules import OF_LENS
from ..errors import StudyError
from ..probes.base import depth_score, layer_effect
from ..statistics import Resampled
from . import words
from .items import Folder
from .part import Part, in_pairs
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
    """The depth of a model on the prompts of one level of difficulty. `mean`: read off their mean curve, an average
    depth in 0..L or a depth score in layers from 0; `low`, `high`: its 5 to 95 % interval (NaN where prompts are too
    few), cut where the prompts' own depths end; `own`: the depth of each prompt of `part`, which has the probe's sums;
    `drawn`: `mean` with its bootstrap resamples."""

    name: str
    mean: float
    low: float
    high: float
    own: np.ndarray
    part: Part
    drawn: Resampled


@dataclass(frozen=True)
class Trend:
    """The straight line through the levels of a set. `slope`: change of depth per level, with its interval `low`,
    `high` (NaN without) over `over`, in words what is independent; `first`, `last`: depth on the first and the last
    level; `paired`: how many groups have a prompt on each level, 0 where prompts are unpaired."""

    first: float
    last: float
    slope: float
    low: float
    high: float
    paired: int
    over: str = "prompts"


@dataclass(frozen=True)
class Difficulty:
    """How deep the model `label` goes on each level of the set `name`, by one kind of depth: a key of `DEPTHS` or
    `KINDS`."""

    label: str
    name: str
    kind: str
    n_layers: int
    levels: tuple[Level, ...]
    trend: Trend

    @property
    def finding(self) -> str:
        """What the slope's interval supports: deeper, less deep, same (within ±`MARGIN` of the layers) or unclear."""
        if self.trend.low > NOTHING or self.trend.high < -NOTHING:
            return "deeper" if self.trend.low > 0 else "less deep"
        return "same" if self._within_margin else "unclear"

    @property
    def little(self) -> bool:
        """Whether depth changes with the level, but by less than `MARGIN` of the layers per level."""
        return self.finding in ("deeper", "less deep") and self._within_margin

    @property
    def _within_margin(self) -> bool:
        """Whether the slope's whole interval is within ±`MARGIN` of the layers per level."""
        return max(abs(self.trend.low), abs(self.trend.high)) < MARGIN * self.n_layers

    @property
    def sentence(self) -> str:
        """The finding as a sentence, with its numbers."""
        return words.sentence("difficulty", one=self, depth=CALLED[self.kind], margin=100 * MARGIN)


def kinds(folder: Folder) -> list[str]:
    """Return the kinds of depth (keys of `DEPTHS` and `KINDS`) that the probes of a study allow."""
    probes = {probe["name"] for probe in folder.plan["probes"]}
    return [kind for kind, probe in READS.items() if probe in probes]


def look(folder: Folder, label: str, name: str, kind: str = "kl") -> Difficulty:
    """Return the depth of the model `label` on each level of the set `name`, and the trend. `kind`: a key of `DEPTHS`
    or `KINDS`. Raises `StudyError` below two levels, or where a level has no computed prompt."""
    levels = in_order(group.partition(LEVEL_MARK)[2] for group in folder.groups(name) if group != name)
    if len(levels) < 2:
        raise StudyError(f"The set {name} has no levels to compare; give it two or more.")
    if not len(folder.read(label, name, READS[kind])):
        raise StudyError(f"The study has no {READS[kind]} of {label} on {name}, which this depth is read off.")
    graded = []
    for i, level in enumerate(levels):
        part = folder.read(label, f"{name}{LEVEL_MARK}{level}", READS[kind])
        if not len(part):
            raise StudyError(f"Level {level} of {name} has no prompt that is computed on {label} yet.")
        part = replace(part, seed=part.seed + i)  # levels share no prompts: each has its own seed
        graded.append(level_of(level, kind, part))
    n_layers = part["kl.sum"].shape[1] - 1 if kind in DEPTHS else part["output"].shape[1]
    return Difficulty(label, name, kind, n_layers, tuple(graded), trend(graded))


def level_of(name: str, kind: str, part: Part) -> Level:
    """Return the depth on the prompts of `part` as a level called `name`. `kind`: a key of `DEPTHS` or `KINDS`."""
    depth, own = _of_lens(kind, part) if kind in DEPTHS else _of_skips(kind, part)
    low, high, mean = np.nan, np.nan, float(depth.value)
    if part.units.enough:
        depths = [mean, *own[np.isfinite(own)]]
        low, high = depth.bounded(min(depths), max(depths)).interval[:2]
    return Level(name, mean, low, high, own, part, depth)


def _of_lens(kind: str, part: Part) -> tuple[Resampled, np.ndarray]:
    """Return the average depth of the prompts' mean lens curve, with resamples, and of each prompt's curve."""
    sums, tokens = part.sums(kind)
    return mean_depth.resampled(kind, sums, tokens, part.units, part.seed), MEAN_DEPTH[kind](sums / tokens[:, None])


def _of_skips(kind: str, part: Part) -> tuple[Resampled, np.ndarray]:
    """Return the depth score of the prompts' mean curve, with resamples, and of each prompt's curve `[prompt]`."""
    curves = layer_effect(part[kind]) if kind == "effect" else part[kind]
    finite = np.isfinite(curves)
    depth = part.read_curve(
        lambda c: np.asarray(depth_score(c)), np.where(finite, curves, 0.0), finite.astype(float)
    ).bounded(0.0, curves.shape[1] - 1.0)
    return depth, np.asarray(depth_score(curves))


def trend(levels: Sequence[Level]) -> Trend:
    """Return the straight line through the levels' depths. Its interval is over groups of one prompt per level where
    the prompts have such groups, else over each level's prompts."""
    finite, ends = [np.isfinite(level.own) for level in levels], (levels[0].mean, levels[-1].mean)
    parts = [level.part.keep(own) for level, own in zip(levels, finite)]
    scores, first, _ = in_pairs([level.own[own] for level, own in zip(levels, finite)], parts)
    if first.units.enough:
        slopes = first.mean(slope_of(scores))
        low, high = slopes.interval[:2]
        return Trend(*ends, float(slopes.value), float(low), float(high), len(first), first.units.groups)
    slope = float(slope_of([level.mean for level in levels]))
    units = [level.part.units for level in levels]
    if not all(one.enough for one in units) or not np.isfinite(slope):
        return Trend(*ends, slope, np.nan, np.nan, 0)
    x = np.arange(len(levels)) - (len(levels) - 1) / 2
    low, high = statistics.contrast(x / (x @ x), [level.drawn for level in levels]).interval[:2]
    numbers, templates = sorted({len(one.of) for one in units}), min(one.forms for one in units)
    prompts = f"{' to '.join(dict.fromkeys(map(str, (numbers[0], numbers[-1]))))} prompts per level"
    over_words = f"{prompts} of {say.count(templates, 'template')}" if templates else prompts
    return Trend(*ends, slope, float(low), float(high), 0, over_words)


def slope_of(scores: ArrayLike) -> np.ndarray:
    """Return the least-squares slope per level of `scores` `[…, level]`; NaN where a score is missing."""
    y = np.asarray(scores, float)
    x = np.arange(y.shape[-1]) - (y.shape[-1] - 1) / 2
    return np.asarray(y @ x / (x @ x))
