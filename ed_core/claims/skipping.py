"""What breaks where one layer, or a stretch of them, is left out."""

from __future__ import annotations

import numpy as np

from ..errors import ClaimRefused
from ..probes.scores import layer_effect
from ..studies.reproduce import second_over_first
from .claim import Claim, Curve, Estimate, Measured, Quantity, enough
from .evidence import Evidence
from .means import correlations, of_both, over_prompts, per_token

RATIO = "effect of skips of the second half over the first half"
KEPT = "mean over the inner layers of the share of best guesses kept"
CORRELATION = "rank correlation of cosine and measured loss"
PLACE = "middle of the stretch that angular distance chooses"
COST = "its loss less that of the median stretch"


def second_half(evidence: Evidence) -> Measured:
    effects = layer_effect(evidence.parts["future"]["effect"])[:, :-1]
    effects = effects[np.isfinite(effects).all(1)]
    enough(len(effects), "prompts with tokens behind a split point")
    curve = over_prompts(effects, None, evidence.seed)
    half = evidence.n_layers // 2
    value, again = of_both(curve, lambda curves: second_over_first(curves, half))
    drawn = Curve.of("skipped layer", "mean effect on a later layer, later tokens", *curve)
    return Measured({RATIO: Estimate.of(value, again)}, len(effects), drawn)


def robust(evidence: Evidence) -> Measured:
    part = evidence.parts["one"]
    enough(part)
    curve = per_token(part, "top1_kept", evidence.seed)
    value, again = of_both(curve, lambda curves: curves[:, 1:-1].mean(1))
    least = 1 + int(np.argmin(curve[0][1:-1]))
    drawn = Curve.of("layer left out", "share of best guesses kept", *curve)
    beside = f"Least is kept without layer {least}: {curve[0][least]:.0%}."
    return Measured({KEPT: Estimate.of(value, again)}, len(part), drawn, beside)


def proxy(evidence: Evidence) -> Measured:
    part = evidence.parts["one"]
    enough(part)
    cosine, loss = (per_token(part, name, evidence.seed) for name in ("update_cosine", "nll"))
    whole = per_token(part, "nll_whole", evidence.seed)
    value = correlations(cosine[0][None], loss[0][None])[0]
    if not np.isfinite(value):
        raise ClaimRefused("Cosine or loss is the same for all layers, so they have no rank correlation.")
    drawn = Curve.of("layer left out", "loss added, nats", loss[0] - whole[0], loss[1] - whole[1])
    return Measured({CORRELATION: Estimate.of(value, correlations(cosine[1], loss[1]))}, len(part), drawn)


def stretches(evidence: Evidence) -> Measured:
    part = evidence.parts["stretch"]
    enough(part)
    angle, loss, whole = (per_token(part, name, evidence.seed) for name in ("angular_distance", "nll", "nll_whole"))
    n_layers = evidence.n_layers
    length = n_layers - angle[0].shape[0] + 1

    def place(angles: np.ndarray) -> np.ndarray:
        return (angles.argmin(1) + length / 2) / n_layers

    def cost(angles: np.ndarray, losses: np.ndarray) -> np.ndarray:
        return losses[np.arange(len(losses)), angles.argmin(1)] - np.median(losses, 1)

    value, again = of_both(angle, place)
    price = Estimate.of(cost(angle[0][None], loss[0][None])[0], cost(angle[1], loss[1]))
    start = int(angle[0].argmin())
    added = float(loss[0][start] - whole[0][0])
    beside = f"Of stretches of {length} layers it chooses {start}–{start + length - 1}, which adds {added:.3g} nats."
    drawn = Curve.of(f"first of {length} layers left out", "loss added, nats", loss[0] - whole[0], loss[1] - whole[1])
    return Measured({PLACE: Estimate.of(value, again), COST: price}, len(part), drawn, beside)


SECOND_HALF_WEAK = Claim(
    "second-half-weak",
    "Later tokens hardly use the second half",
    "layers of the second half make little that later tokens use",
    "Csordás et al. 2025 §3.2 (2505.13898)",
    "mean of e[s] over s ≥ L/2, over the mean over s < L/2; e[s] is the mean over later layers l of max over tokens "
    "|D[l] - D'[l]| / |D[l]| where layer s is skipped before a split point and read behind it; the last layer, which "
    "has none after it, is left out",
    "Up to 40 prompts, split where the answer begins, or (without answers) at up to four sampled places. The paper "
    "takes 10 prompts of GSM8K at sampled places.",
    "a ratio near 1 or above",
    (Quantity(RATIO, "ratio", (-np.inf, 0.5), "below 0.5, chosen here", "almost none in the second half, in words"),),
    ("future",),
    second_half,
)
ONE_LAYER_ROBUST = Claim(
    "one-layer-robust",
    "One layer less changes few predictions",
    "most of the model's best guesses stay without any one of the inner layers",
    "Lad et al. 2024 (2406.19384)",
    "share of tokens whose best guess stays without layer s, mean over 0 < s < L - 1",
    "Up to 30 prompts, all tokens. The paper takes the Pile, on GPT-2, Pythia, Phi and Llama 2.",
    "less than 72 % kept",
    (Quantity(KEPT, "share", (0.72, np.inf), "above 0.72, the paper's lower end", "0.72 to 0.95"),),
    ("one",),
    robust,
)
COSINE_WEAK_PROXY = Claim(
    "cosine-weak-proxy",
    "A layer's cosine says little about what it is worth",
    "a layer's cosine with the stream hardly tells what leaving the layer out costs",
    "Hinostroza et al. 2026 (2605.14075)",
    "Spearman's rank correlation over layers of cos(D, h) with the loss without the layer",
    "Up to 30 prompts, loss on the prompt's own text. The paper measures accuracy on tasks.",
    "a correlation beyond ±0.5 (a proxy that is good would be near -1: the higher the cosine, the cheaper)",
    (Quantity(CORRELATION, "rank correlation", (-0.5, 0.5), "within ±0.5, chosen here", "weak to moderate, in words"),),
    ("one",),
    proxy,
)
DEEP_SKIPS_LATE = Claim(
    "deep-skips-late",
    "The stretch that can go lies deep",
    "the stretch of layers that angular distance chooses to leave out lies in the second half and costs little",
    "Gromov et al. 2024 (2403.17887)",
    "of all stretches of n = L/4 layers the one of smallest arccos(cos(h[s], h[s+n])) / π; its middle (s + n/2) / L, "
    "and its loss less the median stretch's",
    "Up to 30 prompts, angle at every token, loss on the prompt's own text. The paper takes the angle at the last "
    "token, on C4, and heals the model afterwards; here nothing is trained.",
    "a stretch in the first half, or one that costs more than the median stretch",
    (
        Quantity(
            PLACE, "share of the depth", (0.5, np.inf), "above 0.5, chosen here", "deep stretches, not the last layer"
        ),
        Quantity(
            COST, "nats", (-np.inf, 0.0), "below 0, chosen here", "little loss up to a third or half of the layers"
        ),
    ),
    ("stretch",),
    stretches,
)
