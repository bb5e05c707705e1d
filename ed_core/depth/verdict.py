"""The verdict on depth: a `Sample` in, numbers out; `say` puts them into words.

One function serves one prompt, many, an untrained copy, or some of a prompt's tokens. Over prompts each number has an
interval, drawn over independent units (`statistics.units`). A single prompt has none; there the threshold band shows
how far a rule's layer moves with its threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .. import statistics
from ..statistics import Interval
from . import mean_depth, turn
from .mean_depth import MEAN_DEPTH, MeanDepth
from .rules import BEST, FROM_DEPTH_1, PAPER, RULES, STABLE, WITHOUT_SINKS, Rule, depths, near, reason
from .sample import CONTRIBUTIONS, LENS, UNTRAINED, Curves, Sample
from .turn import Turn

OFTEN = 0.05  # of the resamples: a rule that gives no layer in more of them is not robust
FIVE = 5  # untrained copies that a verdict needs

# Why a rule's layer may not be robust
THRESHOLDS = "nearby thresholds"  # they give another place, or no layer
LASTING = "later layers"  # the rule does not hold from there to the end
DEPTH_0, SINKS = "the embedding", "attention sinks"  # without them it gives another place
FEW, INTERVAL = "too few prompts", "its range over prompts"  # none for an interval; the interval reaches another place
UNDEFINED = "resamples without a layer"  # more than `OFTEN` of them
TWINS = "untrained copies"  # half or more of them have it there


@dataclass(frozen=True)
class RuleVerdict:
    """The layer, from 0, that a rule of Hu et al. gives on a sample, and how far it can be trusted.

    `curve`: the mean curve `[layer]` that it reads, None where no token counts. `layers`: by variant that layer and the
    one from which the rule is true to the end; without sinks only where these are known. `intervals`: by variant over
    prompts, None for too few. `bands`: the layer at each threshold of the band, NaN for none. `twins`: the layer of
    each copy of this kind of `control`. `several`: several prompts."""

    name: str
    n_layers: int
    threshold: float
    curve: np.ndarray | None
    layers: Mapping[str, tuple[int | None, int | None]]
    intervals: Mapping[str, Interval | None]
    bands: np.ndarray
    twins: tuple[int | None, ...]
    best: int = BEST
    control: str = UNTRAINED
    several: bool = False

    @property
    def depth(self) -> int | None:
        """The layer that the paper's rule gives, from 0; None where it gives none."""
        return self.layers[PAPER][0]

    @property
    def stable(self) -> int | None:
        """The layer from which the rule is true to the end."""
        return self.layers[PAPER][1]

    @property
    def ratio(self) -> float | None:
        """`(ED + 1) / L`, ED the rule's layer, in (0, 1]; None without a layer."""
        return None if self.depth is None else (self.depth + 1) / self.n_layers

    @property
    def reason(self) -> str:
        """Why the rule gives no layer; "" where it gives one."""
        return "" if self.depth is not None else reason(self.name, self.curve, self.threshold)

    @property
    def interval(self) -> Interval | None:
        """The interval of the paper's rule over prompts."""
        return self.intervals.get(PAPER)

    @property
    def ends(self) -> tuple[float, float] | None:
        """5 and 95 % of the paper's rule over prompts; None where unknown."""
        return self.interval.ends if self.interval is not None else None

    @property
    def variants(self) -> dict[str, int | None]:
        """The layer of every variant that is known, the paper's rule first."""
        layers = {variant: depth for variant, (depth, _) in self.layers.items()}
        return {PAPER: self.depth, STABLE: self.stable} | layers

    @property
    def band(self) -> tuple[int, int] | None:
        """The smallest and largest layer over the rule's thresholds."""
        finite = self.bands[np.isfinite(self.bands)]
        return (int(finite.min()), int(finite.max())) if len(finite) else None

    @property
    def range(self) -> tuple[int, int] | None:
        """The smallest and largest layer that rule, variants, thresholds and interval give."""
        depths = [float(layer) for both in self.layers.values() for layer in both if layer is not None]
        depths += [*map(float, self.band or ()), *(self.ends or ())]
        return (math.floor(min(depths)), math.ceil(max(depths))) if depths else None

    def far(self, depth: float | None) -> bool:
        """Return whether a depth is more than a tenth of the layers from the rule's, or either is None."""
        return depth is None or self.depth is None or not near(depth, self.depth, self.n_layers)

    @property
    def near(self) -> int:
        """How many copies of the model give a layer within a tenth of the depth from it."""
        return sum(not self.far(depth) for depth in self.twins)

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """The reasons why the rule's layer is not robust."""
        if self.depth is None or self.curve is None:
            return ()
        interval, (later, lasting) = self.interval, self.layers.get(FROM_DEPTH_1, (self.depth, self.stable))
        without_sinks = self.layers.get(WITHOUT_SINKS, (self.depth,))[0]
        cuts = (cut for cut in RULES[self.name].band if not math.isclose(cut, self.threshold, abs_tol=1e-9))
        others = [depths(self.name, self.curve[None], PAPER, cut)[0] for cut in cuts]
        doubts = {
            THRESHOLDS: any(map(self.far, others)),  # NaN is near nothing
            LASTING: self.far(self.stable),
            DEPTH_0: self.far(later) or (lasting != self.stable and self.far(lasting)),
            SINKS: self.far(without_sinks),
            FEW: self.several and interval is None,
            INTERVAL: interval is not None and (self.ends is None or any(map(self.far, self.ends))),
            UNDEFINED: interval is not None and interval.undefined > OFTEN,
            TWINS: self.tested and self.shared,
        }
        return tuple(doubt for doubt, so in doubts.items() if so)

    @property
    def tested(self) -> bool:
        """Whether five untrained copies were compared."""
        return self.control == UNTRAINED and len(self.twins) >= FIVE

    @property
    def shared(self) -> bool:
        """Whether half or more of the untrained copies give a layer near this one."""
        return self.control == UNTRAINED and 0 < len(self.twins) <= 2 * self.near

    @property
    def clear(self) -> bool:
        """Whether the layer is robust: no doubt, with five untrained copies compared."""
        return self.depth is not None and self.tested and not self.doubts

    @property
    def so_far(self) -> bool:
        """Whether there is no doubt yet, with fewer than five untrained copies compared."""
        return self.depth is not None and not (self.tested or self.shared or self.doubts)


@dataclass(frozen=True)
class Verdict:
    """The numbers on depth of a `sample`. `rules`: by name, never averaged. `means`: the average depth by "kl" and
    "overlap". `turn`: where the cosine turns positive, None where it cannot be fitted. `twins`: the verdict of each
    copy."""

    sample: Sample
    rules: Mapping[str, RuleVerdict]
    means: Mapping[str, MeanDepth]
    turn: Turn | None
    twins: tuple[Verdict, ...]

    @property
    def n_layers(self) -> int:
        """The model's number of layers."""
        return self.sample.n_layers

    @property
    def layers(self) -> dict[str, int | None]:
        """The layer that each rule gives, from 0."""
        return {name: rule.depth for name, rule in self.rules.items()}

    def twin_means(self, name: str) -> list[float]:
        """Return the average depths of the model's copies, where defined."""
        depths = (twin.means[name].depth for twin in self.twins if name in twin.means)
        return [depth for depth in depths if depth is not None]


def verdict(sample: Sample, kl: float = RULES["kl"].threshold, overlap: float = RULES["overlap"].threshold) -> Verdict:
    """Return the verdict on a sample, with these thresholds of the KL and overlap rules."""
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
    return Verdict(sample, rules, means, turned, twins)


def _of_rule(rule: Rule, sample: Sample, threshold: float, twins: tuple[Verdict, ...]) -> RuleVerdict:
    """Return the verdict of one rule; `twins`: of the model's copies."""
    curves = sample.curves[rule.probe]
    without, curve = curves.without_sinks, rule.curve(curves.means) if curves.means else None
    layers: dict[str, tuple[int | None, int | None]] = {PAPER: (None, None)}
    if curve is not None:
        own = (variant for variant in rule.variants if variant not in (STABLE, WITHOUT_SINKS))
        layers = {variant: rule.layers(curve, variant, threshold) for variant in own}
    if without is not None:
        layers[WITHOUT_SINKS] = rule.layers(rule.curve(without.means), PAPER, threshold)
    return RuleVerdict(
        rule.name,
        sample.n_layers,
        threshold,
        curve,
        layers,
        {variant: _interval(rule, sample, variant, threshold) for variant in rule.variants},
        np.array([] if curve is None else [depths(rule.name, curve[None], PAPER, cut)[0] for cut in rule.band]),
        tuple(twin.rules[rule.name].depth for twin in twins if rule.name in twin.rules),
        sample.best if rule.name == "overlap" else BEST,
        sample.control,
        sample.n_prompts > 1,
    )


def _interval(rule: Rule, sample: Sample, variant: str, threshold: float) -> Interval | None:
    """Return a variant's 5 to 95 % of layers over prompts; None where these are too few."""
    drawn = resampled(rule, sample, variant, threshold)
    return None if drawn is None else statistics.interval(drawn)


def resampled(rule: Rule, sample: Sample, variant: str, threshold: float) -> np.ndarray | None:
    """Return the layer, from 0, that a `variant` of a rule gives in every resample of the prompts, `[resample]`; NaN
    where it gives none.

    A resample draws templates, or prompts where the templates are few or unknown; samples with equally many of them
    draw the same. None where there are too few for an interval."""
    curves: Curves | None = sample.curves[rule.probe]
    if variant == WITHOUT_SINKS and curves is not None:
        curves = curves.without_sinks
    if curves is None or not curves.units.enough or not curves.tokens.sum() or sample.n_layers < 2:
        return None

    def read(means: Mapping[str, np.ndarray]) -> np.ndarray:
        curves = np.mean(list(means.values()), 0)
        return depths(rule.name, curves[:, :-1] if rule.of_lens else curves, variant, threshold)

    sums = {name: curves.sums[name] for name in rule.measures}
    return statistics.percentile(read, sums, curves.tokens, curves.units, sample.seed)
