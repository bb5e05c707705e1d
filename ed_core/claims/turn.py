"""Where the layers turn from writing to strengthening, and whether that place moves with size."""

from __future__ import annotations

import numpy as np

from ..depth.criteria import depths
from ..depth.verdict import COSINES
from ..errors import ClaimRefused, StudyError
from ..studies import trends
from .claim import Claim, Curve, Estimate, Measured, Quantity, enough
from .evidence import Evidence
from .means import Sampled, of_both, per_token

SHARE = "share of the layers up to the cosine turn"
MIDDLE = (0.35, 0.75)
STATIC = 0.1
SLOPES = {"cosine": "by the cosine rule", "kl": "by the KL rule", "overlap": "by the overlap rule"}


def turns(evidence: Evidence) -> Measured:
    part = evidence.parts["contributions"]
    enough(part)
    found = [per_token(part, name, evidence.seed) for name in COSINES]
    curve: Sampled = (np.mean([one[0] for one in found], 0), np.mean([one[1] for one in found], 0))
    value, again = of_both(curve, lambda curves: (depths("cosine", curves) + 1) / curves.shape[1])
    drawn = Curve.of("layer", "cosine with the stream", *curve)
    beside = "" if np.isfinite(value) else "The cosine rule gives no depth over all prompts."
    return Measured({SHARE: Estimate.of(value, again)}, len(part), drawn, beside)


def against_size(evidence: Evidence) -> Measured:
    estimates, drawn, over = {}, None, 0
    for criterion, name in SLOPES.items():
        own = [p for p in evidence.points if p.criterion == criterion]
        if len({p.parameters for p in own if p.parameters and np.isfinite(p.ratio)}) < 3:
            continue
        try:
            line = trends.slope(own, evidence.seed)
        except StudyError:
            continue
        enough(min(p.prompts for p in own))
        estimates[name] = Estimate(line.slope, line.low, line.high, line.undefined)
        over = own[0].prompts
        if drawn is None:
            sized = sorted((p for p in own if p.parameters), key=lambda p: p.parameters)
            values = [[getattr(p, of) for p in sized] for of in ("ratio", "low", "high")]
            x = [float(np.log10(p.parameters)) for p in sized]
            names = tuple(p.model for p in sized)
            unit = f"(depth + 1) / layers, {name}"
            drawn = Curve("parameters", unit, tuple(x), *(tuple(v) for v in values), names)
    if drawn is None:
        raise ClaimRefused("By none of the three rules do three models of different sizes have a depth.")
    return Measured(estimates, over, drawn)


TURN = Claim(
    "turn",
    "Layers turn from writing to strengthening near the middle",
    "the layers' additions turn from writing or erasing to strengthening near the middle of the model",
    "Csordás et al. 2025 §3.1 (2505.13898); Hu et al. 2025 (2512.14064)",
    "(ED + 1) / L; ED is the last layer l with c[l] < 0 ≤ c[l+1], c the mean of attention's, the MLP's and the layer's "
    "cosine with the stream, over all tokens of all prompts",
    "Up to 50 prompts, spread over the levels. The papers take 10 to 20 prompts of GSM8K, HellaSwag or AIME24.",
    "a turn in the first third or the last quarter, or none",
    (
        Quantity(
            SHARE,
            "share of the depth",
            MIDDLE,
            "above 0.35 and below 0.75, chosen here",
            "the middle (2505.13898, Llama 3.1); 0.6 to 0.7 (2512.14064, Qwen 2.5)",
        ),
    ),
    ("contributions",),
    turns,
)
STATIC_RATIO = Claim(
    "static-ratio",
    "The share of the depth in use does not move with size",
    "within a family the effective-depth ratio does not move with size",
    "Hu et al. 2025 (2512.14064)",
    "slope of (ED + 1) / L on log10(parameters) by least squares, by each rule; interval over prompts, which all "
    "models share",
    "At least three models of one family (--also), up to 50 prompts. The paper takes Qwen 2.5 of 1.5B to 32B.",
    "a slope of more than 0.1 of the depth per tenfold size, by any rule",
    tuple(
        Quantity(
            name, "per tenfold parameters", (-STATIC, STATIC), "within ±0.1, chosen here", "about the same ratio", 3
        )
        for name in SLOPES.values()
    ),
    ("contributions", "logit_lens"),
    against_size,
    models=3,
    control=False,
)
