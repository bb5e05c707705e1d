"""The verdict on depth: what a `Sample` comes to, in numbers only. `say` puts them into words.

The same function serves one prompt, many, a twin, or some of a prompt's tokens. Over prompts each number has an
interval over what is independent (`statistics.units`); a single prompt has none, and the threshold band shows how far a
rule's layer moves when its threshold does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .. import statistics
from ..statistics import Interval, Units
from . import mean_depth, turn
from .answer import Seen
from .mean_depth import MEAN_DEPTH, MeanDepth
from .rules import (
    BEST,
    FROM_DEPTH_1,
    KL_THRESHOLD,
    OVERLAP_THRESHOLD,
    PAPER,
    RULES,
    STABLE,
    WITHOUT_SINKS,
    Criterion,
    Rule,
    depths,
    near,
)
from .sample import ALL, CONTRIBUTIONS, LENS, UNTRAINED, Curves, Sample, Tokens
from .sinks import Sink
from .turn import Turn

OFTEN = 0.05  # of the resamples: a rule that gives no layer in more of them is not robust
FIVE = 5  # untrained twins that a verdict needs

# Doubts: other thresholds give another place or no layer; the rule does not hold from there to the end; without depth 0
# or without the sinks it gives another place or none; too few prompts for an interval; the interval reaches another
# place; no layer in more than `OFTEN` of the resamples; half or more of five untrained copies have it there
THRESHOLDS, LASTING, DEPTH_0, SINKS = "thresholds", "lasting", "depth 0", "sinks"
FEW, INTERVAL, UNDEFINED, TWINS = "few", "interval", "undefined", "twins"


@dataclass(frozen=True)
class RuleVerdict:
    """What a rule of Hu et al. gives on a sample, and how far that can be trusted.

    `criterion`: on the mean curve, `[layer]`, which is None where no token counts. `without_sinks`: the same without
    the sinks, None where these are unknown. `intervals`: by variant over prompts, None where there are too few.
    `bands`: the layer at each threshold of the rule's band, NaN where it gives none. `twins`: the layer of each copy of
    this kind of `control`. `several`: whether the sample has several prompts."""

    criterion: Criterion
    without_sinks: Criterion | None
    curve: np.ndarray | None
    intervals: Mapping[str, Interval | None]
    bands: np.ndarray
    twins: tuple[int | None, ...]
    best: int = BEST
    control: str = UNTRAINED
    several: bool = False

    @property
    def name(self) -> str:
        return self.criterion.name

    @property
    def depth(self) -> int | None:
        return self.criterion.depth

    @property
    def stable(self) -> int | None:
        return self.criterion.stable

    @property
    def ratio(self) -> float | None:
        return self.criterion.ratio

    @property
    def n_layers(self) -> int:
        return self.criterion.n_layers

    @property
    def interval(self) -> Interval | None:
        """Of the paper's rule."""
        return self.intervals.get(PAPER)

    @property
    def variants(self) -> dict[str, int | None]:
        """The layer of every variant, the paper's rule first; without those that are unknown."""
        found = {PAPER: self.depth, STABLE: self.stable}
        if (later := self.criterion.from_depth_1) is not None:
            found[FROM_DEPTH_1] = later.depth
        if self.without_sinks is not None:
            found[WITHOUT_SINKS] = self.without_sinks.depth
        return found

    @property
    def band(self) -> tuple[int, int] | None:
        """Smallest and largest layer over the rule's thresholds."""
        found = self.bands[np.isfinite(self.bands)]
        return (int(found.min()), int(found.max())) if len(found) else None

    @property
    def range(self) -> tuple[int, int] | None:
        """Smallest and largest layer that rule, variants, thresholds and interval give."""
        criteria = (self.criterion, self.criterion.from_depth_1, self.without_sinks)
        found = [float(d) for c in criteria if c is not None for d in (c.depth, c.stable) if d is not None]
        found += [*map(float, self.band or ()), *((self.interval and self.interval.ends) or ())]
        return (math.floor(min(found)), math.ceil(max(found))) if found else None

    def far(self, depth: float | None) -> bool:
        """Whether a depth is more than a tenth of the layers from the rule's, or not defined."""
        return depth is None or self.depth is None or not near(depth, self.depth, self.n_layers)

    @property
    def near(self) -> int:
        """How many copies have it within a tenth of the depth."""
        return sum(not self.far(depth) for depth in self.twins)

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """Why the layer is not robust; the copies only where five untrained ones were compared."""
        if self.depth is None or self.curve is None:
            return ()
        rule, later, interval = RULES[self.name], self.criterion.from_depth_1, self.interval
        others = [depths(self.name, self.curve[None], PAPER, at)[0] for at in rule.others(self.criterion.threshold)]
        found = {
            THRESHOLDS: any(map(self.far, others)),  # NaN is near nothing
            LASTING: self.far(self.stable),
            DEPTH_0: later is not None
            and (self.far(later.depth) or (later.stable != self.stable and self.far(later.stable))),
            SINKS: self.without_sinks is not None and self.far(self.without_sinks.depth),
            FEW: self.several and interval is None,
            INTERVAL: interval is not None and (interval.ends is None or any(map(self.far, interval.ends))),
            UNDEFINED: interval is not None and interval.undefined > OFTEN,
            TWINS: self.tested and self.shared,
        }
        return tuple(doubt for doubt, so in found.items() if so)

    @property
    def tested(self) -> bool:
        """Whether five untrained copies were compared."""
        return self.control == UNTRAINED and len(self.twins) >= FIVE

    @property
    def shared(self) -> bool:
        """Whether half or more of the untrained copies have it there."""
        return self.control == UNTRAINED and 0 < len(self.twins) <= 2 * self.near

    @property
    def clear(self) -> bool:
        """Whether the layer is robust: nothing speaks against it, five untrained copies included."""
        return self.depth is not None and self.tested and not self.doubts

    @property
    def so_far(self) -> bool:
        """Whether nothing speaks against it but that five untrained copies were not compared."""
        return self.depth is not None and not (self.tested or self.shared or self.doubts)


@dataclass(frozen=True)
class Verdict:
    """What a sample comes to. `rules`: by name, never averaged. `means`: the depth without a threshold, by "kl" and
    "overlap". `turn`: of the cosine, None where there is nothing to fit. `twins`: the verdict of each. `units`: what
    intervals are over. `sinks`, `answers`, `read_for`, `answered`: as in the sample."""

    n_layers: int
    n_prompts: int
    n_tokens: int
    rules: Mapping[str, RuleVerdict]
    means: Mapping[str, MeanDepth]
    turn: Turn | None
    twins: tuple[Verdict, ...]
    control: str
    units: Units
    sinks: tuple[tuple[Sink, ...] | None, ...] = ()
    answers: tuple[tuple[Seen, ...], ...] = ()
    read_for: Tokens = ALL
    answered: bool = False

    @property
    def layers(self) -> dict[str, int | None]:
        """The layer that each rule gives."""
        return {name: rule.depth for name, rule in self.rules.items()}

    @property
    def tested(self) -> bool:
        """Whether five untrained twins were compared."""
        return self.control == UNTRAINED and len(self.twins) >= FIVE

    @property
    def turning(self) -> int:
        """How many twins turn within a tenth of the depth."""
        return 0 if self.turn is None else turn.turning_there(self.turn, [twin.turn for twin in self.twins])

    def twin_means(self, name: str) -> list[float]:
        """The twins' depths without a threshold, where defined."""
        found = (twin.means[name].depth for twin in self.twins if name in twin.means)
        return [depth for depth in found if depth is not None]


def verdict(sample: Sample, kl: float = KL_THRESHOLD, overlap: float = OVERLAP_THRESHOLD) -> Verdict:
    """The verdict on a sample, with these thresholds of the KL and overlap rules."""
    twins = tuple(verdict(twin, kl, overlap) for twin in sample.twins)
    thresholds = {"kl": kl, "overlap": overlap}
    rules = {
        name: _of_rule(rule, sample, thresholds.get(name, rule.threshold), twins)
        for name, rule in RULES.items()
        if (of_one := sample.curves.get(rule.probe)) is not None and set(rule.measures) <= of_one.sums.keys()
    }
    means, turned = {}, None
    if (lens := sample.curves.get(LENS)) is not None:
        for name in MEAN_DEPTH:
            if name in lens.sums:
                means[name] = mean_depth.of_prompts(name, lens.sums[name], lens.tokens, lens.units, sample.seed)
    if (written := sample.curves.get(CONTRIBUTIONS)) is not None:
        turned = turn.fit_over_prompts(written.sums, written.tokens, written.units, sample.seed)
    if turned is not None and sample.control == UNTRAINED and len(twins) >= FIVE:
        turned = turn.against_twins(turned, [twin.turn for twin in twins])
    return Verdict(
        sample.n_layers,
        sample.n_prompts,
        sample.n_tokens,
        rules,
        means,
        turned,
        twins,
        sample.control,
        (lens or written or Curves({}, np.empty(0))).units,
        sample.sinks,
        sample.answers,
        sample.read_for,
        sample.answered,
    )


def _of_rule(rule: Rule, sample: Sample, threshold: float, twins: tuple[Verdict, ...]) -> RuleVerdict:
    curves, n = sample.curves[rule.probe], sample.n_layers
    without, curve = curves.without_sinks, rule.curve(curves.means) if curves.means else None
    return RuleVerdict(
        Criterion(rule.name, None, None, n, threshold, "no token")
        if curve is None
        else rule.of_curve(curve, threshold),
        rule.of_curve(rule.curve(without.means), threshold) if without is not None else None,
        curve,
        {variant: _interval(rule, sample, variant, threshold) for variant in rule.variants},
        np.array([] if curve is None else [depths(rule.name, curve[None], PAPER, at)[0] for at in rule.band]),
        tuple(twin.rules[rule.name].depth for twin in twins if rule.name in twin.rules),
        sample.best if rule.name == "overlap" else BEST,
        sample.control,
        sample.n_prompts > 1,
    )


def _interval(rule: Rule, sample: Sample, variant: str, threshold: float) -> Interval | None:
    """A rule's 5 to 95 % over prompts, from resamples of their units; None where there are too few."""
    curves: Curves | None = sample.curves[rule.probe]
    if variant == WITHOUT_SINKS and curves is not None:
        curves = curves.without_sinks
    if curves is None or not curves.units.enough or not curves.tokens.sum() or sample.n_layers < 2:
        return None

    def read(means: Mapping[str, np.ndarray]) -> np.ndarray:
        found = np.mean(list(means.values()), 0)
        return depths(rule.name, found[:, :-1] if rule.of_lens else found, variant, threshold)

    sums = {name: curves.sums[name] for name in rule.measures}
    return statistics.interval(statistics.percentile(read, sums, curves.tokens, curves.units, sample.seed))
