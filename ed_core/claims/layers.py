"""What a layer is worth: how alike layers are, whether a linear map does in their place, and what breaks where one
layer, or a stretch of them, is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .. import statistics
from ..depth.matching import RAISED
from ..depth.surgery import best_stretch
from ..depth.wording import past, printed
from ..probes.base import layer_effect
from ..statistics import all_above, permuted_correlation, rank_correlations, some_below
from ..studies.reproduce import second_half, second_over_first
from .claim import (
    RELIABLE,
    Claim,
    Errors,
    Estimate,
    Evidence,
    Measured,
    Quantity,
    Range,
    added,
    by_draws,
    enough,
    fisher,
    over_layers,
    per_token,
    read_off,
    reliability,
    sums_of,
)
from .record import Curve

EVEN = "variation of the turns of the middle layers, standard deviation over mean"
SMALL = "mean turn of the middle layers"
UNCORRELATED = "mean angle between what neighbouring middle layers add"
SHARE = "share of layers that a linear map cannot replace"
FALLING = "rank correlation of what the replacement costs with depth"
NONE = "no layer is needed by this measure, so whether the need falls with depth is not applicable"


def turns(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["turns"], evidence.seed
    enough(part)
    quarter = evidence.n_layers // 4
    middle = slice(quarter, evidence.n_layers - quarter)
    between = slice(quarter, evidence.n_layers - quarter - 1)
    angles = {name: per_token(part, name, seed) for name in ("stream_angle", "update_angle")}

    def variation(angles: np.ndarray) -> np.ndarray:
        if angles.shape[-1] < 2:  # one layer has none
            return np.full(angles.shape[:-1], np.nan)
        return np.asarray(angles.std(-1) / angles.mean(-1))

    def mean(angles: np.ndarray) -> np.ndarray:
        return np.asarray(angles.mean(-1)) if angles.size else np.full(angles.shape[:-1], np.nan)

    def of(measure: str, where: slice, read: Callable[[np.ndarray], np.ndarray]) -> Estimate:
        found = read_off(part, lambda curves: read(curves[measure][:, where]), [measure], seed)
        layers = over_layers(lambda at, own: float(read(own)), angles[measure].value[where])
        return Estimate.of(found.value, found.draws, np.maximum(layers, 0.0))  # none of the three can be negative

    estimates = {
        EVEN: of("stream_angle", middle, variation),
        SMALL: of("stream_angle", middle, mean),
        UNCORRELATED: of("update_angle", between, mean),
    }
    drawn = Curve.of("layer", "degrees by which a layer turns the stream", angles["stream_angle"])
    said = f"Middle layers: {middle.start} to {middle.stop - 1}."
    return Measured(estimates, len(part), drawn, said, part.units.words)


def replaced(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["replacement"], evidence.seed
    enough(part, "held-out prompts")
    cost = statistics.mean(part["loss"], part["whole"][:, None], part.units, seed)  # a share of the whole model's loss
    layers = np.arange(len(cost.value), dtype=float)
    needed = ~(cost.value <= 1 + RAISED)  # not finite too: the model is broken without the layer
    broken = ~np.isfinite(cost.value)

    def share(curves: dict[str, np.ndarray]) -> np.ndarray:
        needed: np.ndarray = (~(curves["loss"] <= 1 + RAISED)).mean(1)
        return needed

    def falls(curves: dict[str, np.ndarray]) -> np.ndarray:
        return fisher(rank_correlations(curves["loss"], np.broadcast_to(layers, curves["loss"].shape)))

    def judge(holds: tuple[float, float]) -> tuple[float, float]:
        """Below 1 where at least one layer is not needed; not below it where every one is."""
        value = np.where(broken, np.finfo(float).max, cost.value)
        sure = replace(cost, value=value, error=np.where(broken, 0.0, cost.error))
        return some_below(sure, 1 + RAISED, part.units), all_above(sure, 1 + RAISED, part.units)

    drawn_share = statistics.percentile(share, {"loss": part["loss"]}, part["whole"], part.units, seed)
    found = statistics.read_off(falls, {"loss": part["loss"]}, part["whole"], part.units, seed)
    estimates = {
        SHARE: Estimate.of(needed.mean(), drawn_share, judge=judge),
        FALLING: Estimate.of(
            np.tanh(found.value),
            np.tanh(found.draws),
            permuted_correlation(cost.value, layers, seed),
            "" if needed.any() else NONE,
        ),
    }
    curve = Curve.of("layer replaced", "loss, share of the whole model's", cost)
    n = int(needed.sum())
    each = "is needed: replacing it" if n == 1 else "are needed: replacing any of them"
    said = [f"{n} of {len(needed)} layers {each} raises the loss by more than 10 %."]
    if not needed.any():
        said = [f"{NONE[0].upper()}{NONE[1:]}."]
    said.append(evidence.of_loss(float(part["whole"].sum() / part["tokens"].sum())))
    return Measured(estimates, len(part), curve, " ".join(filter(None, said)), part.units.words)


EVEN_TURNS = Claim(
    "even-turns",
    "Middle layers turn the stream by small, even angles, each its own way",
    "the middle layers turn the stream by small angles of much the same size, each in a direction that has little in "
    "common with the next one's",
    "arXiv 2602.05970",
    "arccos cos(h[l], h[l+1]) and arccos cos(D[l], D[l+1]), means over all tokens; middle: without the first and last "
    "quarter",
    "Up to about 30 prompts, all tokens; intervals over prompts and, by the jackknife, over the middle layers.",
    "turns of unlike size, large ones, or neighbours that push one way",
    (
        Quantity(EVEN, "ratio", (-np.inf, 0.5), "below 0.5", "turns of even size (no figure given)", chosen=True),
        Quantity(SMALL, "degrees", (-np.inf, 30.0), "below 30 degrees", "small turns (no figure given)", 1, True),
        Quantity(
            UNCORRELATED, "degrees", (75.0, 105.0), "within 15 degrees of 90", "updates nearly uncorrelated", 1, True
        ),
    ),
    ("turns",),
    turns,
)
USEFULNESS = Claim(
    "usefulness",
    "A linear map can replace some layers, deep ones above all",
    "a linear map can replace some layers, and deep ones at less cost",
    "arXiv 2603.15389",
    "share of layers whose least-squares map h[s] → h[s+1] in their place raises the loss by more than 10 %, and the "
    "rank correlation of that rise with s",
    "Up to about 100 prompts, four fifths of them to fit on and the rest to judge; the correlation's interval over "
    "prompts and a permutation over layers have to agree. The paper fits and judges on the same text.",
    "every layer needed, or deeper layers costing more",
    (
        Quantity(SHARE, "share", (-np.inf, 1.0), "below 1", "a share below 1"),
        Quantity(
            FALLING, "rank correlation", (-np.inf, 0.0), "below 0", "costs that fall with depth (no figure given)"
        ),
    ),
    ("replacement",),
    replaced,
)


RATIO = "effect of skips of the second half over the first half"
WORST = "best guesses kept without the worst inner layer"
KEPT, BELOW = "mean over the inner layers", "share of the inner layers below 0.72"
INFLUENCE = "rank correlation of 1 − cos(layer's input, output) with the loss"
UPDATE = "rank correlation of cos(update, stream) with the loss, ours"
PLACE = "middle of the stretch that the angle at the last token chooses"
COST = "loss of that stretch minus that of the median stretch"
OURS, COST_OURS = (
    "middle of the stretch by all tokens without sinks, ours",
    "loss of that stretch minus the median's, ours",
)
LEAST_KEPT = 0.72
SMALLEST, LARGEST = 1e-12, 30.0  # ratio of effects, for its logarithm; of the logarithm


def _nats(added: float) -> str:
    """A change of the loss, in words."""
    return f"{printed(added, '+.3g')} nats"


def _places(start: int, n: int) -> str:
    """The layers of a stretch, by its first and last; of one by its number."""
    return f"{start}–{start + n - 1}" if n > 1 else f"{start}"


def halves(evidence: Evidence) -> Measured:
    part = evidence.parts["future"]
    effects = layer_effect(part["effect"])[:, :-1]
    there = np.isfinite(effects).all(1)
    part, effects = part.keep(there), effects[there]
    enough(part, "prompts with tokens behind a split point")
    half = second_half(evidence.n_layers)

    def log_ratio(curves: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.log(np.maximum(second_over_first(curves, half), SMALLEST))
        return found

    def of_layers(at: np.ndarray, curve: np.ndarray) -> float:
        first, second = curve[at < half], curve[at >= half]  # of five layers one of the second half has a later one
        return float(np.log(max(second.mean() / first.mean(), SMALLEST))) if len(second) else np.nan

    ones = np.ones(len(part))
    found = statistics.read_off(lambda c: log_ratio(c[""]), {"": effects}, ones, part.units, evidence.seed)
    curve = statistics.mean(effects, None, part.units, evidence.seed)
    layers = np.exp(over_layers(of_layers, curve.value).clip(-LARGEST, LARGEST))
    estimate = Estimate.of(np.exp(found.value), np.exp(found.draws.clip(-LARGEST, LARGEST)), layers)
    drawn = Curve.of("skipped layer", "mean effect on a later layer, later tokens", curve)
    return Measured({RATIO: estimate}, len(part), drawn, "", part.units.words)


def robust(evidence: Evidence) -> Measured:
    part = evidence.parts["one"]
    enough(part)
    every = per_token(part, "top1_kept", evidence.seed)
    inner = statistics.Resampled(
        every.value[1:-1], every.error[1:-1], every.again[:, 1:-1], every.errors[:, 1:-1], 0.0, 1.0
    )
    worst = int(inner.value.argmin())

    def judge(holds: Range) -> Errors:
        """It holds where every inner layer keeps enough, and does not where one does not."""
        return all_above(inner, holds[0], part.units), some_below(inner, holds[0], part.units)

    mean = read_off(part, lambda c: c["top1_kept"][:, 1:-1].mean(1), ["top1_kept"], evidence.seed)
    below = inner.value < LEAST_KEPT
    estimates = {
        WORST: Estimate.of(inner.value[worst], inner.draws[:, worst], judge=judge),
        KEPT: Estimate.of(mean.value, mean.draws),
        BELOW: Estimate.of(below.mean(), (inner.again < LEAST_KEPT).mean(1)),
    }
    keep = "keeps" if below.sum() == 1 else "keep"
    beside = f"The worst is layer {worst + 1}; {int(below.sum())} of {len(below)} inner layers {keep} less than 72 %."
    curve = Curve.of("layer left out", "share of best guesses kept", every)
    return Measured(estimates, len(part), curve, beside, part.units.words)


def proxy(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["one"], evidence.seed
    enough(part)
    score, cosine, loss, whole = (
        per_token(part, name, seed) for name in ("block_influence", "update_cosine", "nll", "nll_whole")
    )
    sure = {name: reliability(part, name) for name in ("nll", "block_influence", "update_cosine")}

    def correlation(name: str, curve: statistics.Resampled) -> Estimate:
        found = read_off(part, lambda c: fisher(rank_correlations(c[name], c["nll"])), [name, "nll"], seed)
        layers = permuted_correlation(curve.value, loss.value, seed)
        return Estimate.of(np.tanh(found.value), np.tanh(found.draws), layers, why(name))

    def why(name: str) -> str:
        for of, called in (("nll", "loss"), (name, "cosine")):
            if not sure[of] >= RELIABLE:
                known = "none" if not np.isfinite(sure[of]) else f"{past(100 * sure[of], 100 * RELIABLE)} %"
                return f"{known} of the differences in {called} between layers are more than noise; an order needs 80 %"
        return ""

    estimates = {INFLUENCE: correlation("block_influence", score), UPDATE: correlation("update_cosine", cosine)}
    drawn = Curve.of("layer left out", "loss added, nats", added(part, seed))
    loss_whole = float(whole.value[0])
    beside = evidence.of_loss(loss_whole) or f"The whole model's loss is {loss_whole:.2f} nats per token."
    return Measured(estimates, len(part), drawn, beside, part.units.words)


def stretches(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["stretch"], evidence.seed
    enough(part)
    loss, n = per_token(part, "nll", seed), evidence.n_layers
    length = n - len(loss.value) + 1
    calm, counts = sums_of(part, "angular_distance_no_sinks")
    angles = {"last": (part["angular_distance_last"], np.ones(len(part))), "ours": (calm, counts)}

    def place(curves: dict[str, np.ndarray]) -> np.ndarray:
        there = np.isfinite(curves[""]).all(1)
        return np.where(there, (curves[""].argmin(1) + length / 2) / n, np.nan)

    def chosen(name: str) -> tuple[Estimate, Estimate, int]:
        sums, tokens = angles[name]
        curve = sums.sum(0) / tokens.sum()
        if not np.isfinite(curve).all():
            undefined = Estimate.undefined_because("an angle is not defined")
            return undefined, undefined, -1
        start = int(curve.argmin())
        drawn = statistics.percentile(place, {"": sums}, tokens, part.units, seed)
        price = read_off(part, lambda c: c["nll"][:, start] - np.median(c["nll"], 1), ["nll"], seed)
        again = statistics.mean(sums, tokens, part.units, seed).again.argmin(1)  # another draw may choose another one
        anew = loss.again[np.arange(len(again)), again] - np.median(loss.again, 1)
        return (
            Estimate.of(place({"": curve[None]})[0], drawn),
            Estimate.of(price.value, price.draws, judge=by_draws(price.draws, anew)),
            start,
        )

    (at, cost, start), (ours, cost_ours, other) = chosen("last"), chosen("ours")
    cost_of, which = added(part, seed), f"stretches of {length} layers" if length > 1 else "single layers"
    said = [
        f"Of {which} {by} chooses {_places(s, length)}: {_nats(cost_of.value[s])}."
        for by, s in (("the angle at the last token", start), ("the angle over tokens without sinks", other))
        if s >= 0
    ]
    cheapest = best_stretch(cost_of.value, length)[0]
    said.append(f"The loss is least without {_places(cheapest, length)}: {_nats(cost_of.value[cheapest])}.")
    said.append(evidence.of_loss(float(per_token(part, "nll_whole", seed).value[0])))
    x_title = f"first of {length} layers left out" if length > 1 else "layer left out"
    drawn = Curve.of(x_title, "loss added, nats", cost_of)
    estimates = {PLACE: at, COST: cost, OURS: ours, COST_OURS: cost_ours}
    return Measured(estimates, len(part), drawn, " ".join(filter(None, said)), part.units.words)


SECOND_HALF_WEAK = Claim(
    "second-half-weak",
    "Second-half skips change later layers at later tokens less than half as much as first-half skips",
    "skipping a layer of the second half changes later layers at later tokens, on average, less than half as much as "
    "skipping one of the first",
    "Csordás et al. 2025 §3.2 (2505.13898)",
    "mean of e[s] over s ≥ L/2, over the mean over s < L/2; e[s] is the mean over later layers l of max over tokens "
    "|D[l] - D'[l]| / |D[l]| where layer s is skipped before a split point and read behind it; the last layer, which "
    "has none after it, is left out",
    "Up to about 40 prompts, split where the answer begins, or (without answers) at up to four sampled places; "
    "intervals over prompts and, by the jackknife, over layers have to agree. The paper takes 10 prompts of GSM8K at "
    "sampled places.",
    "a ratio of 0.5 or more",
    (
        Quantity(
            RATIO,
            "ratio",
            (-np.inf, 0.5),
            "below 0.5",
            "almost no effect of the second half (no figure given)",
            chosen=True,
        ),
    ),
    ("future",),
    halves,
)
ONE_LAYER_ROBUST = Claim(
    "one-layer-robust",
    "At least 72 % of the best guesses stay, whichever inner layer is left out",
    "at least 72 % of the best guesses stay, whichever inner layer is left out",
    "Lad et al. 2024 (2406.19384)",
    "share of tokens whose best guess stays without layer s, 0 < s < L - 1: the smallest; beside it their mean, and "
    "the share of layers below 0.72",
    "Up to about 30 prompts, all tokens. It holds where every inner layer keeps enough and does not where one does "
    "not, that many were looked at being paid for. The paper takes the Pile, on GPT-2, Pythia, Phi and Llama 2, and "
    "drops and swaps.",
    "an inner layer without which less than 72 % is kept",
    (
        Quantity(
            WORST,
            "share",
            (LEAST_KEPT, np.inf),
            "above 0.72, the paper's lower end",
            "0.72 to 0.95 of the best guesses kept without a layer",
        ),
        Quantity(KEPT, "share", (LEAST_KEPT, np.inf), "above 0.72", "0.72 to 0.95", beside=True),
        Quantity(BELOW, "share", (-np.inf, 0.0), "0", "0", beside=True),
    ),
    ("one",),
    robust,
)
COSINE_WEAK_PROXY = Claim(
    "cosine-weak-proxy",
    "How far a layer turns the stream predicts its worth at most moderately",
    "the cosine between a layer's input and output predicts at most moderately what leaving the layer out costs",
    "Hinostroza et al. 2026 (2605.14075)",
    "Spearman's rank correlation over layers of 1 - cos(h[l], h[l+1]), the paper's score, with the loss without the "
    "layer; beside it that of cos(D, h), which is ours",
    "Up to about 30 prompts, loss on the prompt's own text. Both orders of layers need a reliability of 0.8 over "
    "prompts (chosen here); the interval over prompts and a permutation over layers have to agree. The paper measures "
    "accuracy on tasks.",
    "a correlation beyond ±0.5 (a good score would be near 1)",
    (
        Quantity(
            INFLUENCE, "rank correlation", (-0.5, 0.5), "within ±0.5", "a weak to moderate correlation", chosen=True
        ),
        Quantity(UPDATE, "rank correlation", (-0.5, 0.5), "within ±0.5", "not measured", chosen=True, beside=True),
    ),
    ("one",),
    proxy,
)
DEEP_SKIPS_LATE = Claim(
    "deep-skips-late",
    "The angle at the last token finds a deep, cheap stretch",
    "the stretch of layers that the angle at the last token chooses to leave out has its middle in the second half and "
    "costs less than the median stretch",
    "Gromov et al. 2024 (2403.17887)",
    "of all stretches of n = L/4 layers the one of smallest arccos(cos(h[s], h[s+n])) / π at the last token; its "
    "middle (s + n/2) / L, and its loss less the median stretch's; beside it the same by the angle over all tokens but "
    "sinks",
    "Up to about 30 prompts, loss on the prompt's own text. The paper takes C4 and heals the model afterwards; here "
    "nothing is trained.",
    "a stretch in the first half, or one that costs more than the median stretch",
    (
        Quantity(PLACE, "share of the depth", (0.5, np.inf), "above 0.5", "deep stretches can go", chosen=True),
        Quantity(COST, "nats", (-np.inf, 0.0), "below 0", "little loss without up to a third or half of the layers"),
        Quantity(OURS, "share of the depth", (0.5, np.inf), "above 0.5", "not measured", chosen=True, beside=True),
        Quantity(COST_OURS, "nats", (-np.inf, 0.0), "below 0", "not measured", beside=True),
    ),
    ("stretch",),
    stretches,
    stretches=True,
)
