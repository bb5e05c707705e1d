"""Claims about layers: where they turn, how alike they are, and what breaks where one or several are left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .. import statistics
from ..depth import turn as turns_of
from ..depth.matching import RAISED
from ..errors import ClaimRefused
from ..probes.base import layer_effect
from ..statistics import beyond, over_layers, rank_correlations, stretch_mean
from .claim import Claim
from .evidence import (
    Evidence,
    Measured,
    Part,
    added,
    correlation,
    cosine,
    enough,
    fisher,
    per_token,
    rank_order,
    read_off,
    sums_of,
)
from .judging import ALONE, Estimate, Every, Quantity, Range
from .record import Curve

NO_LIMIT = math.inf
MIDDLE = (0.35, 0.75)


def _stretch(start: int, n: int) -> str:
    return f"layers {start}–{start + n - 1}" if n > 1 else f"layer {start}"


# ---------------------------------------------------------------- turn


def turning(evidence: Evidence) -> Measured:
    part, seed, n = evidence.parts["contributions"], evidence.seed, evidence.n_layers
    enough(part)
    found = _two_levels(part, seed)
    if found is None:
        raise ClaimRefused("The mean cosine is undefined at some layer.")
    judged = turns_of.against_twins(found, [_two_levels(twin, seed) for twin in evidence.twins])
    (sums, tokens), k = cosine(part), found.split
    curve = statistics.mean(sums, tokens, part.units, seed)
    before, after = (
        statistics.mean(sums[:, at].mean(1), tokens, part.units, seed) for at in (slice(k + 1), slice(k + 1, None))
    )
    places = statistics.percentile(lambda c: (turns_of.best_split(c[""]) + 1) / n, {"": sums}, tokens, part.units, seed)
    signs = max(beyond(before.draws, 0.0, False), beyond(after.draws, 0.0, True))
    order = found.p * ALONE / turns_of.LEVEL  # the permutation is exact: its 5 % need no reserve

    def one_sign(at: slice, above: bool) -> float:
        """The error of saying that these layers lie on one side of 0."""
        over_prompts = statistics.mean(sums[:, at].mean(1), tokens, part.units, seed).draws
        of_layers = stretch_mean(curve.value, at)
        return max(beyond(over_prompts, 0.0, above), beyond(of_layers, 0.0, above))

    def contrary(limits: Range) -> tuple[float, float]:
        """The errors of saying that the layers before the lower limit strengthen, and those after the upper erase."""
        first, last = slice(math.ceil(limits[0] * n)), slice(math.ceil(limits[1] * n) - 1, None)
        return one_sign(first, True), one_sign(last, False)

    share = math.nan if judged.failed else (k + 1) / n
    unclear = 1.0 if judged.failed == "twins" else max(signs, order)
    estimates = {
        TURN.quantities[0].name: Estimate(share, (places,), unclear=unclear, contrary=contrary, nothing="no turn"),
        BEFORE: Estimate(float(before.value), (before.draws,)),
        AFTER: Estimate(float(after.value), (after.draws,)),
    }
    note = f"{100 * found.p:.1f} % of random orders of the layers split at least as well."
    if judged.failed == "twins":
        note += " At least half of five untrained twins turn there too."
    return Measured(estimates, len(part), Curve.of("layer", "cosine with the stream", curve), part.units.words, note)


def _two_levels(part: Part, seed: int) -> turns_of.Turn | None:
    sums, tokens = cosine(part)
    return turns_of.fit_over_prompts({"": sums}, tokens, part.units, seed) if np.isfinite(sums).all() else None


BEFORE, AFTER = "mean cosine up to the split", "mean cosine after the split"
TURN = Claim(
    "turn",
    "Layers turn from erasing to strengthening near the middle",
    "Csordás et al. 2025 §3.1 (2505.13898); Hu et al. 2025 (2512.14064)",
    "c = mean of attention's, the MLP's and the layer's cosine with the stream over all tokens; (k + 1) / L, k the "
    "split into two levels that explains most of c's variance",
    "A turn needs a first level below 0 and a second above it, at most 5 % of random orders of the layers that split "
    "as well, and fewer than half of five untrained twins turning there too. It fails with a turn elsewhere, or where "
    "the first third of the layers lies above 0 or the last quarter below.",
    (
        Quantity(
            "share of the layers up to the turn",
            "of the depth",
            MIDDLE,
            "a turn in the middle (2505.13898, Llama 3.1); at 0.43 to 0.75 of the layers, 15 of 24 at 0.6 to 0.7 "
            "(2512.14064, Qwen 2.5)",
            chosen=True,
        ),
        Quantity(BEFORE, "", (-NO_LIMIT, 0.0), "below 0", shown=True),
        Quantity(AFTER, "", (0.0, NO_LIMIT), "above 0", shown=True),
    ),
    ("contributions",),
    turning,
)

# ---------------------------------------------------------------- second-half-weak

SMALLEST, LARGEST = 1e-12, 30.0  # ratio of effects, for its logarithm; of the logarithm


def second_half(evidence: Evidence) -> Measured:
    part = evidence.parts["future"]
    effects = layer_effect(part["effect"])[:, :-1]
    there = np.isfinite(effects).all(1)
    part, effects = part.keep(there), effects[there]
    enough(part, "prompts with tokens after a split point")
    half = (evidence.n_layers + 1) // 2

    def log_ratio(at: np.ndarray, curves: np.ndarray) -> np.ndarray:
        if not (at >= half).any():
            return np.full(curves.shape[:-1], np.nan)
        ratio = curves[..., at >= half].mean(-1) / curves[..., at < half].mean(-1)
        return np.asarray(np.log(np.maximum(ratio, SMALLEST)))

    every = np.arange(evidence.n_layers - 1)
    found = statistics.read_off(
        lambda c: log_ratio(every, c[""]), {"": effects}, np.ones(len(part)), part.units, evidence.seed
    )
    curve = statistics.mean(effects, None, part.units, evidence.seed)
    layers = over_layers(lambda at, c: float(log_ratio(at, c)), evidence.n_layers, curve.value, mean=True)
    draws, layers = (np.exp(one.clip(-LARGEST, LARGEST)) for one in (found.draws, layers))
    estimate = Estimate(float(np.exp(found.value)), (draws,), layers)
    drawn = Curve.of("skipped layer", "mean effect on a later layer, later tokens", curve)
    return Measured({SECOND_HALF_WEAK.quantities[0].name: estimate}, len(part), drawn, part.units.words)


SECOND_HALF_WEAK = Claim(
    "second-half-weak",
    "Second-half skips change later layers at later tokens less than half as much as first-half skips",
    "Csordás et al. 2025 §3.2 (2505.13898)",
    "mean of e[s] over s ≥ L/2, over the mean over s < L/2; e[s]: mean over later layers l of the largest "
    "|D[l] - D'[l]| / |D[l]| over later tokens where layer s is skipped before a split point",
    "Up to about 40 prompts, split where the answer begins, or at up to four sampled places.",
    (
        Quantity(
            "effect of second-half skips over first-half skips",
            "",
            (-NO_LIMIT, 0.5),
            "almost no effect of the second half (no figure given)",
            chosen=True,
        ),
    ),
    ("future",),
    second_half,
)

# ---------------------------------------------------------------- one-layer-robust


def robust(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["one"], evidence.seed
    enough(part)
    kept = per_token(part, "top1_kept", seed)
    value, error, again, errors = (x[..., 1:-1] for x in (kept.value, kept.error, kept.again, kept.errors))
    inner = statistics.Resampled(value, error, again, errors, 0.0, 1.0)
    worst, bound = int(inner.value.argmin()), ROBUST.quantities[0].limits[0]
    mean = read_off(part, lambda c: c["top1_kept"][:, 1:-1].mean(1), ["top1_kept"], seed)
    below = inner.value < bound
    estimates = {
        WORST: Estimate(float(inner.value[worst]), (inner.draws[:, worst],), every=Every(inner, bound, part.units)),
        KEPT: Estimate(float(mean.value), (mean.draws,)),
        BELOW: Estimate(float(below.mean()), ((inner.again < bound).mean(1),)),
    }
    drawn = Curve.of("layer left out", "share of best guesses kept", kept)
    note = f"The worst inner layer is layer {worst + 1}."
    return Measured(estimates, len(part), drawn, part.units.words, note)


WORST = "best guesses kept without the worst inner layer"
KEPT, BELOW = "mean over the inner layers", "share of the inner layers below 0.72"
ROBUST = Claim(
    "one-layer-robust",
    "At least 72 % of the best guesses stay, whichever inner layer is left out",
    "Lad et al. 2024 (2406.19384)",
    "share of tokens with the same best guess without layer s, 0 < s < L - 1: the smallest",
    "Up to about 30 prompts, all tokens. It holds where every inner layer keeps enough, and fails where one does not.",
    (
        Quantity(WORST, "", (0.72, NO_LIMIT), "0.72 to 0.95 of the best guesses kept without a layer"),
        Quantity(KEPT, "", (0.72, NO_LIMIT), "0.72 to 0.95", shown=True),
        Quantity(BELOW, "", (-NO_LIMIT, 0.0), "0", shown=True),
    ),
    ("one",),
    robust,
)

# ---------------------------------------------------------------- cosine-weak-proxy


def proxy(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["one"], evidence.seed
    enough(part)
    loss, of_loss = per_token(part, "nll", seed).value, rank_order(part, "nll", seed)

    def against_loss(name: str) -> Estimate:
        found = read_off(part, lambda c: fisher(rank_correlations(c[name], c["nll"])), [name, "nll"], seed)
        curves = per_token(part, name, seed).value, loss
        return correlation(found, curves, evidence.n_layers, loss=of_loss, cosine=rank_order(part, name, seed))

    estimates = {INFLUENCE: against_loss("block_influence"), UPDATE: against_loss("update_cosine")}
    drawn = Curve.of("layer left out", "loss added, nats", added(part, seed))
    return Measured(estimates, len(part), drawn, part.units.words)


INFLUENCE = "rank correlation of 1 − cos(layer's input, output) with the loss"
UPDATE = "rank correlation of cos(update, stream) with the loss, ours"
COSINE_WEAK_PROXY = Claim(
    "cosine-weak-proxy",
    "How far a layer turns the stream predicts its worth at most moderately",
    "Hinostroza et al. 2026 (2605.14075)",
    "Spearman's rank correlation over layers of 1 - cos(h[l], h[l+1]), the paper's score, with the loss without the "
    "layer",
    "Up to about 30 prompts, loss on the prompt's own text. Both orders of layers need a reliability of 0.8 between "
    "halves of the prompts.",
    (
        Quantity(INFLUENCE, "", (-0.5, 0.5), "a weak to moderate correlation", chosen=True),
        Quantity(UPDATE, "", (-0.5, 0.5), "not measured", chosen=True, shown=True),
    ),
    ("one",),
    proxy,
)

# ---------------------------------------------------------------- even-turns


def turns(evidence: Evidence) -> Measured:
    part, seed, n = evidence.parts["turns"], evidence.seed, evidence.n_layers
    enough(part)
    quarter = n // 4
    middle, between = slice(quarter, n - quarter), slice(quarter, n - quarter - 1)

    def variation(angles: np.ndarray) -> np.ndarray:
        several = angles.shape[-1] > 1  # one layer has none
        return np.asarray(angles.std(-1) / angles.mean(-1)) if several else np.full(angles.shape[:-1], np.nan)

    def of(measure: str, at: slice, read: Callable[[np.ndarray], np.ndarray]) -> Estimate:
        found = read_off(part, lambda curves: read(curves[measure][:, at]), [measure], seed)
        curve = per_token(part, measure, seed).value[at]
        layers = over_layers(lambda _, own: float(read(own)), n, curve, mean=True)
        return Estimate(float(found.value), (found.draws,), np.maximum(layers, 0.0))  # none can be negative

    estimates = {
        EVEN: of("stream_angle", middle, variation),
        SMALL: of("stream_angle", middle, lambda angles: np.asarray(angles.mean(-1))),
        UNCORRELATED: of("update_angle", between, lambda angles: np.asarray(angles.mean(-1))),
    }
    drawn = Curve.of("layer", "degrees by which a layer turns the stream", per_token(part, "stream_angle", seed))
    note = f"Middle layers: {middle.start} to {middle.stop - 1}."
    return Measured(estimates, len(part), drawn, part.units.words, note)


EVEN = "variation of the turns of the middle layers, standard deviation over mean"
SMALL = "mean turn of the middle layers"
UNCORRELATED = "mean angle between what neighbouring middle layers add"
EVEN_TURNS = Claim(
    "even-turns",
    "Middle layers turn the stream by small, even angles, each its own way",
    "arXiv 2602.05970",
    "arccos cos(h[l], h[l+1]) and arccos cos(D[l], D[l+1]), means over all tokens; middle: without the first and last "
    "quarter",
    "Up to about 30 prompts, all tokens.",
    (
        Quantity(EVEN, "", (-NO_LIMIT, 0.5), "turns of even size (no figure given)", chosen=True),
        Quantity(SMALL, "degrees", (-NO_LIMIT, 30.0), "small turns (no figure given)", 1, True),
        Quantity(UNCORRELATED, "degrees", (75.0, 105.0), "updates nearly uncorrelated", 1, True),
    ),
    ("turns",),
    turns,
)

# ---------------------------------------------------------------- usefulness


def usefulness(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["replacement"], evidence.seed
    enough(part)
    cost = statistics.mean(part["loss"], part["whole"][:, None], part.units, seed)  # a share of the whole model's loss
    depths = np.arange(len(cost.value), dtype=float)
    broken = ~np.isfinite(cost.value)  # the model is broken without the layer, which is then needed
    needed = broken | (cost.value > 1 + RAISED)
    finite = replace(
        cost,
        value=np.where(broken, np.finfo(float).max, cost.value),
        error=np.where(broken, 0.0, cost.error),
    )

    def share(curves: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray((~(curves[""] <= 1 + RAISED)).mean(1))

    def falls(curves: dict[str, np.ndarray]) -> np.ndarray:
        return fisher(rank_correlations(curves[""], np.broadcast_to(depths, curves[""].shape)))

    drawn_share = statistics.percentile(share, {"": part["loss"]}, part["whole"], part.units, seed)
    found = statistics.read_off(falls, {"": part["loss"]}, part["whole"], part.units, seed)
    order = statistics.rank_order(part["loss"], part["whole"], part.units, seed)
    falling = correlation(found, (cost.value, depths), evidence.n_layers, cost=order)
    every = Every(finite, 1 + RAISED, part.units, holds=False)
    forms = part.units.forms or part.units.n  # without known forms each prompt is one
    estimates = {
        SHARE: Estimate(float(needed.mean()), (drawn_share,), every=every, forms=forms),
        FALLING: replace(falling, forms=forms, why="" if needed.any() else "no layer is needed by this measure"),
    }
    drawn = Curve.of("layer replaced", "loss, share of the whole model's", cost)
    note = f"{needed.sum()} of {len(needed)} layers raise the loss by more than 10 % where a map replaces them."
    return Measured(estimates, len(part), drawn, part.units.words, note)


SHARE = "share of layers that a linear map cannot replace"
FALLING = "rank correlation of what the replacement costs with depth"
USEFULNESS = Claim(
    "usefulness",
    "A linear map can replace some layers, deep ones above all",
    "arXiv 2603.15389",
    "share of layers whose least-squares map h[s] → h[s+1] in their place raises the loss by more than 10 %, and the "
    "rank correlation of that rise with s",
    "Up to about 100 prompts of at least five forms in five folds of whole forms: each is judged by maps fitted on the "
    "other four. The paper fits and judges on the same text.",
    (
        Quantity(SHARE, "", (-NO_LIMIT, 1.0), "a share below 1"),
        Quantity(FALLING, "", (-NO_LIMIT, 0.0), "costs that fall with depth (no figure given)"),
    ),
    ("replacement",),
    usefulness,
)

# ---------------------------------------------------------------- deep-skips-late


def late_skips(evidence: Evidence) -> Measured:
    part, seed, n = evidence.parts["stretch"], evidence.seed, evidence.n_layers
    enough(part)
    loss = per_token(part, "nll", seed)
    length = n - len(loss.value) + 1
    angles = {
        "last": (part["angular_distance_last"], np.ones(len(part))),
        "calm": sums_of(part, "angular_distance_no_sinks"),
    }
    chosen: dict[str, int] = {}

    def place(curves: dict[str, np.ndarray]) -> np.ndarray:
        there = np.isfinite(curves[""]).all(1)
        return np.where(there, (curves[""].argmin(1) + length / 2) / n, np.nan)

    def of(name: str) -> tuple[Estimate, Estimate]:
        sums, tokens = angles[name]
        curve = sums.sum(0) / tokens.sum()
        if not np.isfinite(curve).all():
            return (Estimate.undefined("an angle is undefined"),) * 2
        start = chosen[name] = int(curve.argmin())
        places = statistics.percentile(place, {"": sums}, tokens, part.units, seed)
        cost = read_off(part, lambda c: c["nll"][:, start] - np.median(c["nll"], 1), ["nll"], seed)
        another = statistics.mean(sums, tokens, part.units, seed).again.argmin(1)  # a resample may choose another one
        chosen_anew = loss.again[np.arange(len(another)), another] - np.median(loss.again, 1)
        return (
            Estimate(float(place({"": curve[None]})[0]), (places,)),
            Estimate(float(cost.value), (cost.draws, chosen_anew)),
        )

    estimates = dict(zip((PLACE, COST, PLACE_OURS, COST_OURS), (*of("last"), *of("calm"))))
    cost, cheapest = added(part, seed), int(np.nanargmin(added(part, seed).value))
    starts = [_stretch(start, length) for start in (*chosen.values(), cheapest)]
    note = f"Chosen by the angle at the last token: {starts[0]}; the loss is least without {starts[-1]}."
    title = f"first of {length} layers left out" if length > 1 else "layer left out"
    drawn = Curve.of(title, "loss added, nats", cost)
    return Measured(estimates, len(part), drawn, part.units.words, note if chosen else "")


PLACE, COST = (
    "middle of the stretch that the angle at the last token chooses",
    "loss of that stretch minus that of the median stretch",
)
PLACE_OURS = "middle of the stretch by all tokens without sinks, ours"
COST_OURS = "loss of that stretch minus the median's, ours"
DEEP_SKIPS_LATE = Claim(
    "deep-skips-late",
    "The angle at the last token finds a deep, cheap stretch",
    "Gromov et al. 2024 (2403.17887)",
    "of all stretches of n = L/4 layers the one of smallest arccos(cos(h[s], h[s+n])) / π at the last token: its "
    "middle (s + n/2) / L, and its loss less the median stretch's",
    "Up to about 30 prompts, loss on the prompt's own text. The paper heals the model afterwards; here nothing is "
    "trained.",
    (
        Quantity(PLACE, "of the depth", (0.5, NO_LIMIT), "deep stretches can go", chosen=True),
        Quantity(COST, "nats", (-NO_LIMIT, 0.0), "little loss without up to a third or half of the layers"),
        Quantity(PLACE_OURS, "of the depth", (0.5, NO_LIMIT), "not measured", chosen=True, shown=True),
        Quantity(COST_OURS, "nats", (-NO_LIMIT, 0.0), "not measured", shown=True),
    ),
    ("stretch",),
    late_skips,
    stretches=True,
)
