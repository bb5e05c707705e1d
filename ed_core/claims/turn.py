"""Where the layers turn from erasing to strengthening, and whether depth moves with size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import statistics
from ..depth import continuous
from ..depth.rules import RULES, depths
from ..depth.wording import Reading, Twins, near_to, past, random_orders, turned
from ..errors import ClaimRefused, StudyError
from ..statistics import beyond
from ..studies import trends
from ..studies.points import Point, combined
from .claim import (
    ALONE,
    Claim,
    Errors,
    Estimate,
    Evidence,
    Measured,
    Part,
    Quantity,
    Range,
    by_draws,
    cosine,
    enough,
    over_layers,
)
from .record import Curve

SHARE = "share of the layers up to the turn"
BEFORE, AFTER = "mean cosine up to the split", "mean cosine after the split"
PAPERS = "share of the layers up to the papers' cosine rule's layer"
MIDDLE = (0.35, 0.75)
STATIC = 0.1
SLOPES = {"mean_kl": "slope of mean depth by KL / L", "mean_overlap": "slope of mean depth by overlap / L"}
PAPERS_SLOPES = {name: f"slope of (layer + 1) / L by the papers' {rule.label} rule" for name, rule in RULES.items()}
AGAINST = (  # what contradicts a turn in the middle, in the order of its errors
    "The mean cosine of the first {first} layers lies above 0.",
    "The mean cosine of the last {last} layers lies below 0.",
    "Nor is it sure, over prompts and layers, that the mean cosine of the first {first} layers lies above 0 or that of "
    "the last {last} layers below.",
)


def turns(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["contributions"], evidence.seed
    enough(part)
    found = _fit(part, seed)
    if found is None:
        raise ClaimRefused("The mean cosine is not defined at every layer.")
    twins = [_fit(twin, seed) for twin in evidence.twins]
    held = continuous.against_twins(found, twins)
    sums, tokens = cosine(part)
    n, k = evidence.n_layers, found.split
    curve, before, after = (
        statistics.mean(values, tokens, part.units, seed)
        for values in (sums, sums[:, : k + 1].mean(1), sums[:, k + 1 :].mean(1))
    )

    def papers(curves: dict[str, np.ndarray]) -> np.ndarray:
        return (depths("cosine", curves[""]) + 1) / n

    def splits(curves: dict[str, np.ndarray]) -> np.ndarray:
        return (continuous.best_split(curves[""]) + 1) / n

    share, rule = (statistics.percentile(read, {"": sums}, tokens, part.units, seed) for read in (splits, papers))
    order = found.p * ALONE / continuous.LEVEL  # the permutation is exact: its 5 % need no reserve
    signs = max(beyond(before.draws, 0.0, False), beyond(after.draws, 0.0, True))

    def one_sign(layers: slice, above: bool) -> float:
        """The error of saying that these layers lie on the wrong side of 0: over prompts, and over the layers."""
        over_prompts = statistics.mean(sums[:, layers].mean(1), tokens, part.units, seed).draws
        of_layers = over_layers(lambda at, c: c.mean(), curve.value[layers])
        return max(beyond(over_prompts, 0.0, above), beyond(of_layers, 0.0, above))

    def ways(holds: Range) -> tuple[float, float]:
        """The errors of saying that the layers before the lower limit lie above 0, those behind the upper one below."""
        first, last = slice(None, math.ceil(holds[0] * n)), slice(math.ceil(holds[1] * n) - 1, None)
        return one_sign(first, True), one_sign(last, False)

    def judge(holds: Range) -> Errors:
        """It holds where there is a turn within the limits: both levels' signs, their order, and the place of the
        split. It does not where the layers before the lower limit lie above 0, those behind the upper one below, or
        the turn elsewhere."""
        inside, outside = by_draws(share)(holds)
        turn = max(signs, order)
        against = *ways(holds), max(turn, outside)
        return (1.0 if held.failed == "twins" else max(turn, inside)), min(1.0, len(against) * min(against))

    there = held.layer is not None
    whole = Estimate.of((k + 1) / n, share, judge=judge)
    if not there:
        whole = Estimate(math.nan, math.nan, math.nan, nothing="no turn found", judge=judge)
    rule_whole = papers({"": curve.value[None]})[0]
    estimates = {
        SHARE: whole,
        BEFORE: Estimate.of(before.value, before.draws),
        AFTER: Estimate.of(after.value, after.draws),
        PAPERS: Estimate.of(rule_whole, rule),
    }
    beside = Twins(readings=tuple(Reading({}, {}, twin) for twin in twins))
    contrary = [3 * p <= ALONE for p in ways(MIDDLE)] if held.failed == "sign" else []
    first, last = math.ceil(MIDDLE[0] * n), n - math.ceil(MIDDLE[1] * n) + 1
    against = AGAINST[contrary.index(True) if any(contrary) else -1].format(first=first, last=last)
    as_well = f"% of {random_orders(n)} split at least as well."
    if there:
        said = f"The turn is after layer {k}; {100 * found.p:.1f} {as_well}"
        if twins:
            near = beside.turning(found)
            turn = f"turn{'s' * (near == 1)} after layer {near_to(k, n)}"
            said += f" {near} of {len(twins)} untrained twins {turn}."
    else:
        said = turned(held, beside)
        if found.p > continuous.LEVEL:
            said = f"No cosine turn: {past(100 * found.p, 100 * continuous.LEVEL)} {as_well}"
        if held.failed == "sign":
            said += f" {against}"
    return Measured(estimates, len(part), Curve.of("layer", "cosine with the stream", curve), said, part.units.words)


def _fit(part: Part, seed: int) -> continuous.Turn | None:
    sums, tokens = cosine(part)
    if not np.isfinite(sums).all():
        return None
    return continuous.fit_over_prompts({"": sums}, tokens, part.units, seed)


def against_size(evidence: Evidence) -> Measured:
    of = {c: [p for p in evidence.points if p.criterion == c and p.parameters] for c in (*SLOPES, *RULES)}
    first = of["mean_kl"]
    sizes = {p.parameters for p in first}
    if len(sizes) < 3:
        raise ClaimRefused(f"It takes three models of different known sizes, and there are {len(sizes)}.")
    estimates = {}
    for criterion, name in SLOPES.items():
        x = _size(of[criterion])
        found = combined(of[criterion], (x - x.mean()) / ((x - x.mean()) @ (x - x.mean())), evidence.seed)
        if found is None:
            enough(min(p.prompts for p in first), "prompts that all models share")
            estimates[name] = Estimate.undefined_because("a model has no mean depth")
        else:
            estimates[name] = Estimate.of(found.value, found.draws)
    for criterion, name in PAPERS_SLOPES.items():
        try:
            by_rule = trends.slope(of[criterion], evidence.seed)
            estimates[name] = Estimate(by_rule.slope, by_rule.low, by_rule.high, by_rule.undefined)
        except StudyError:
            estimates[name] = Estimate.undefined_because("fewer than two models have a depth by this rule")
    drawn = sorted(first, key=lambda p: p.parameters or 0)
    values, low, high = (tuple(float(getattr(p, name)) for p in drawn) for name in ("ratio", "low", "high"))
    names = tuple(p.model for p in drawn)
    curve = Curve(
        x_title="parameters",
        unit="mean depth by KL / L",
        x=tuple(map(float, _size(drawn))),
        values=values,
        low=low,
        high=high,
        ticks=names,
    )
    beside = f"For these {len(first)} models; another model of the family may lie elsewhere."
    return Measured(estimates, first[0].prompts, curve, beside, first[0].over or f"{first[0].prompts} prompts")


def _size(points: Sequence[Point]) -> np.ndarray:
    return np.log10([float(p.parameters or 1) for p in points])


TURN = Claim(
    "turn",
    "Layers turn from erasing to strengthening near the middle",
    "the layers turn from erasing to strengthening near the middle of the model",
    "Csordás et al. 2025 §3.1 (2505.13898); Hu et al. 2025 (2512.14064)",
    "c = mean of attention's, the MLP's and the layer's cosine with the stream, over all tokens of all prompts; (k + "
    "1) / L, k the split into two levels that explains most of c's variance",
    "Up to about 50 prompts, as many of each level. A turn needs a first level below 0 and a second above it, at most "
    "5 % of random orders of the layers split at least as well (blocks of four layers from 24 layers on), and fewer "
    "than half of five untrained twins turning within a tenth of the depth. The papers take 10 to 20 prompts of "
    "GSM8K, HellaSwag or AIME24 and the last layer below 0.",
    "a turn in the first third or the last quarter, or first layers that strengthen, or last ones that erase",
    (
        Quantity(
            SHARE,
            "share of the depth",
            MIDDLE,
            "above 0.35 and below 0.75",
            "a turn in the middle (2505.13898, Llama 3.1); at 0.43 to 0.75 of the layers, 15 of 24 at 0.6 to 0.7 "
            "(2512.14064, Qwen 2.5)",
            chosen=True,
        ),
        Quantity(BEFORE, "cosine", (-np.inf, 0.0), "below 0", "below 0", beside=True),
        Quantity(AFTER, "cosine", (0.0, np.inf), "above 0", "above 0", beside=True),
        Quantity(PAPERS, "share of the depth", MIDDLE, "above 0.35 and below 0.75", "as above", beside=True),
    ),
    ("contributions",),
    turns,
)
STATIC_RATIO = Claim(
    "static-ratio",
    "Mean depth / L changes by less than 0.1 per tenfold increase in size",
    "over these models of one family mean depth / L changes by less than 0.1 per tenfold increase in size",
    "Hu et al. 2025 (2512.14064)",
    "slope of mean depth / L on log10(parameters) by least squares, by KL and by overlap; interval over prompts, which "
    "all models share; beside it that of (ED + 1) / L by the papers' rules",
    "At least three models of one family (--also), up to about 50 prompts. The paper takes Qwen 2.5 of 1.5B to 32B.",
    "a slope of more than 0.1 of the depth per tenfold increase in size",
    tuple(
        Quantity(
            name,
            "per tenfold parameters",
            (-STATIC, STATIC),
            "within ±0.1",
            "about the same ratio ED / L",
            3,
            True,
            beside,
        )
        for names, beside in ((SLOPES, False), (PAPERS_SLOPES, True))
        for name in names.values()
    ),
    ("contributions", "logit_lens"),
    against_size,
    models=3,
    control=False,
)
