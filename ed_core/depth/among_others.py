"""One prompt among others: its curve over the layers next to those of other prompts on the same model. Numpy only.

The others are results of one `Request.series`: same model, precision, probe and parameters. Their summaries suffice;
only to leave sinks out of a spread (`without_sinks`) arrays are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..probes import Probe, find
from ..probes.base import Curve, Score, rank_correlation
from ..results import lookup
from ..results.aggregate import Summary, aggregate, summary_without
from ..types import ProbeResult
from . import sinks
from .mean_depth import MEAN_DEPTH
from .rules import RULES

FEWEST = 3  # other prompts that make a spread
QUANTILES = (0.1, 0.5, 0.9)
FOR_QUANTILES = 10  # other prompts; of fewer the whole range is shown
SAME, PARTLY = 0.9, 0.5  # Spearman from which a control's curve counts as the model's shape, or as part of it
APART = 0.2  # of their ranges: any two falling curves agree by rank, so the same shape must also take the same course


@dataclass(frozen=True)
class Spread:
    """This prompt's curve, and at every layer low end, median and high end (`ends`) over `n` other prompts (empty below
    `FEWEST`)."""

    curve: Curve
    values: np.ndarray
    quantiles: np.ndarray
    n: int


def curves_of(
    probe: Probe | type[Probe], summaries: Sequence[Summary], first_token: bool = True
) -> dict[str, np.ndarray]:
    """Return a probe's mean curves over these prompts by name, and those derived from them."""
    curves = aggregate(probe, summaries, first_token)
    return curves | probe.derive(curves)


def spreads(
    probe: Probe | type[Probe], this: Summary, others: Sequence[Summary], first_token: bool = True
) -> list[Spread]:
    """Return a `Spread` for each of a probe's curves: this prompt's and the others'. Other prompts that are not sound,
    or on which a curve is not defined, are left out."""
    mine = curves_of(probe, [this], first_token)
    theirs = [curves_of(probe, [s], first_token) for s in others if probe.sound(s)]
    return [Spread(curve, mine[curve.name], *quantiles_of([c[curve.name] for c in theirs])) for curve in probe.curves]


def quantiles_of(curves: Sequence[np.ndarray]) -> tuple[np.ndarray, int]:
    """Return the quantiles `ends` over the finite curves, `[3, layer]` (empty below `FEWEST`), and their number."""
    finite = [c for c in curves if np.isfinite(c).all()]
    if len(finite) < FEWEST:
        return np.empty((0, 0)), len(finite)
    return np.quantile(np.stack(finite), ends(len(finite)), axis=0), len(finite)


def ends(n: int) -> tuple[float, float, float]:
    """Return the three quantiles that a spread shows: `QUANTILES`, or the whole range below `FOR_QUANTILES`."""
    return QUANTILES if n >= FOR_QUANTILES else (0.0, 0.5, 1.0)


def over_tokens(probe: Probe | type[Probe]) -> bool:
    """Return whether each of a probe's curves is a mean over tokens, so that attention sinks can be left out of it."""
    means = {s.name for s in probe.measures if s.reduce == "token_mean" and s.dims[1:] == ("pos",)}
    return {curve.name for curve in probe.curves} <= means


def without_sinks(
    probe: Probe | type[Probe], results: Sequence[ProbeResult], first_token: bool = True
) -> list[Summary] | None:
    """Return the summaries of results over the tokens that are no attention sinks (nor the first, unless
    `first_token`). None where a prompt's sinks are unknown, as its `contributions` are not stored, or where a curve is
    no mean over tokens."""
    if not over_tokens(probe):
        return None
    summaries = []
    for result in results:
        request = result.request
        written: ProbeResult | None = result
        if request.probe != sinks.PROBE:
            written = lookup.find(find(sinks.PROBE)().request(request.models[0], request.prompts[0]))
        if written is None or (known := sinks.of_result(written)) is None:
            return None
        summaries.append(summary_without(result, {s.pos for s in known}, first_token))
    return summaries


@dataclass(frozen=True)
class Comparison:
    """One prompt's score next to those of other prompts. `value`: this prompt's, NaN where it is not defined;
    `quantiles`: of the others at `ends`, empty below `FEWEST`; `n`: how many of them are sound and have one."""

    score: Score
    value: float
    quantiles: np.ndarray
    n: int


def compared(
    probe: Probe | type[Probe], this: Summary, others: Sequence[Summary], first_token: bool = True
) -> Comparison:
    """Return this prompt's score on a probe next to the quantiles of the score over other prompts."""
    assert probe.score is not None  # every probe with curves has one
    mine, *scores = (
        _value(probe.score, curves_of(probe, [one], first_token)) for one in (this, *filter(probe.sound, others))
    )
    quantiles, n = quantiles_of([np.array([score]) for score in scores])
    return Comparison(probe.score, mine, quantiles.ravel(), n)


def _value(score: Score, curves: Mapping[str, np.ndarray]) -> float:
    """Return a score from a prompt's curves, NaN where not defined."""
    if score.mean_depth:
        return float(MEAN_DEPTH[score.mean_depth](curves[score.mean_depth][None])[0])
    depth = RULES[score.criterion].layer(curves) if score.criterion else curves[score.value]
    return float("nan") if depth is None else float(depth)


@dataclass(frozen=True)
class Likeness:
    """How alike a curve of the model and its control's are: rank correlation over layers, and the largest distance once
    each is scaled to its own range; both None where one is constant or too short."""

    curve: Curve
    spearman: float | None
    apart: float | None

    @property
    def shape(self) -> int | None:
        """The index in `say.SHAPES` (0 same, 1 partly, 2 another shape); None where shapes cannot be compared."""
        if self.spearman is None or self.apart is None:
            return None
        return 0 if self.spearman >= SAME and self.apart <= APART else 1 if self.spearman >= PARTLY else 2


def likeness(probe: Probe | type[Probe], this: Summary, control: Summary, first_token: bool = True) -> list[Likeness]:
    """Return how alike the model's curve and its control's are, for each of the probe's curves."""
    mine, theirs = (curves_of(probe, [one], first_token) for one in (this, control))
    return [likeness_of(curve, mine[curve.name], theirs[curve.name]) for curve in probe.curves]


def likeness_of(curve: Curve, mine: np.ndarray, theirs: np.ndarray) -> Likeness:
    """Return how alike two curves of one length are, ignoring entries where either is NaN."""
    a, b = (np.asarray(c, np.float64)[np.isfinite(mine) & np.isfinite(theirs)] for c in (mine, theirs))
    if (spearman := rank_correlation(a, b)) is None:
        return Likeness(curve, None, None)
    scaled = [(c - c.min()) / (c.max() - c.min()) for c in (a, b)]
    return Likeness(curve, spearman, float(np.abs(scaled[0] - scaled[1]).max()))
