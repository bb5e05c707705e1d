"""The verdict on depth: what a `Sample` comes to, in numbers only. `say` puts them into words.

The same function serves one prompt, many, a twin, or some of a prompt's tokens. Over prompts each number has an
interval over what is independent (`statistics.units`); a single prompt has none, and the threshold band shows how far a
rule's layer moves when its threshold does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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

# Doubts: why a rule's layer is not robust
THRESHOLDS, LASTING, DEPTH_0, SINKS, FEW, INTERVAL, UNDEFINED, TWINS = (
    "thresholds",  # other thresholds give another place, or no layer
    "lasting",  # the rule does not hold from there to the end
    "depth 0",  # without depth 0 it gives another place, or none
    "sinks",  # without the sinks it gives another place, or none
    "few",  # too few prompts for an interval
    "interval",  # the interval over prompts reaches another place
    "undefined",  # no layer in more than `OFTEN` of the resamples
    "twins",  # half or more of five untrained twins have it there
)


@dataclass(frozen=True)
class RuleVerdict:
    """What a rule of Hu et al. gives on a sample, and how far that can be trusted.

    `criterion`: on the mean curve, `[layer]`, which is None where no token counts. `without_sinks`: the same without
    the sinks, None where these are unknown. `intervals`: by variant over prompts, None where there are too few.
    `band`: smallest and largest layer over the rule's thresholds, `gaps`: whether some of them give none. `range`:
    smallest and largest layer of rule, variants, thresholds and interval. `twins`: the layer of each twin, `near`: how
    many are within a tenth of the depth. `doubts`: why it is not robust; those of twins only where there are five."""

    criterion: Criterion
    without_sinks: Criterion | None
    curve: np.ndarray | None
    intervals: Mapping[str, Interval | None]
    band: tuple[int, int] | None
    gaps: bool
    range: tuple[int, int] | None
    twins: tuple[int | None, ...]
    near: int
    best: int
    doubts: tuple[str, ...]
    control: str = UNTRAINED

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
    def tested(self) -> bool:
        """Whether five untrained twins were compared."""
        return self.control == UNTRAINED and len(self.twins) >= FIVE

    @property
    def shared(self) -> bool:
        """Whether half or more of the untrained twins have it there."""
        return self.control == UNTRAINED and 0 < len(self.twins) <= 2 * self.near

    @property
    def clear(self) -> bool:
        """Whether the layer is robust: nothing speaks against it, five untrained twins included."""
        return self.depth is not None and self.tested and not self.doubts

    @property
    def so_far(self) -> bool:
        """Whether nothing speaks against it but that five untrained twins were not compared."""
        return self.depth is not None and not (self.tested or self.shared or self.doubts)

    @property
    def undecided(self) -> bool:
        """Whether nothing speaks against it but half or more of fewer than five untrained twins."""
        return self.depth is not None and self.shared and not (self.tested or self.doubts)


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
    curves = sample.curves[rule.probe]
    n_layers, without = sample.n_layers, curves.without_sinks
    curve = rule.curve(curves.means) if curves.means else None
    own = (
        rule.of_curve(curve, threshold)
        if curve is not None
        else Criterion(rule.name, None, None, n_layers, threshold, "no token")
    )
    sinkless = rule.of_curve(rule.curve(without.means), threshold) if without is not None else None
    at = np.array([] if curve is None else [depths(rule.name, curve[None], PAPER, one)[0] for one in rule.band])
    used = np.isfinite(at)
    found = RuleVerdict(
        own,
        sinkless,
        curve,
        {name: _interval(rule, sample, name, threshold) for name in rule.variants},
        (int(at[used].min()), int(at[used].max())) if used.any() else None,
        not used.all(),
        None,
        tuple(twin.rules[rule.name].depth for twin in twins if rule.name in twin.rules),
        0,
        sample.best if rule.name == "overlap" else BEST,
        (),
        sample.control,
    )
    found = replace(found, range=_range(found))
    if own.depth is None:
        return found
    close = sum(one is not None and near(one, own.depth, n_layers) for one in found.twins)
    found = replace(found, near=close)
    return replace(found, doubts=tuple(_doubts(rule, found, sample.n_prompts > 1)))


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


def _range(found: RuleVerdict) -> tuple[int, int] | None:
    """Smallest and largest of every layer that the rule, its variants, thresholds and interval give."""
    criteria = (found.criterion, found.criterion.from_depth_1, found.without_sinks)
    every = [float(d) for c in criteria if c is not None for d in (c.depth, c.stable) if d is not None]
    every += [*map(float, found.band or ()), *((found.interval and found.interval.ends) or ())]
    return (math.floor(min(every)), math.ceil(max(every))) if every else None


def _doubts(rule: Rule, found: RuleVerdict, several: bool) -> Iterator[str]:
    """Why a layer is not robust."""
    own, n = found.criterion, found.n_layers
    assert own.depth is not None and found.curve is not None

    def far(depth: float | None) -> bool:
        return depth is None or not near(depth, own.depth, n)  # type: ignore[arg-type]

    others = [depths(rule.name, found.curve[None], PAPER, at)[0] for at in rule.others(own.threshold)]
    if any(far(depth) for depth in others):  # NaN is near nothing
        yield THRESHOLDS
    if far(own.stable):
        yield LASTING
    later = own.from_depth_1
    if later is not None and (far(later.depth) or (later.stable != own.stable and far(later.stable))):
        yield DEPTH_0
    if found.without_sinks is not None and far(found.without_sinks.depth):
        yield SINKS
    if several:
        if (interval := found.interval) is None:
            yield FEW
        else:
            if interval.ends is None or any(map(far, interval.ends)):
                yield INTERVAL
            if interval.undefined > OFTEN:
                yield UNDEFINED
    if found.tested and found.shared:
        yield TWINS
