"""How alike layers are, and whether a linear map does in their place."""

from __future__ import annotations

import numpy as np

from ..depth.matching import RAISED, raised
from .claim import Claim, Curve, Estimate, Measured, Quantity, enough
from .evidence import Evidence
from .means import correlations, of_both, over_prompts, per_token

EVEN = "variation of the turn over the middle layers, standard deviation over mean"
SMALL = "mean turn of the middle layers"
UNCORRELATED = "mean angle between what neighbouring middle layers add"
SHARE = "share of layers that a linear map cannot replace"
FALLING = "rank correlation of what the replacement costs with depth"


def turns(evidence: Evidence) -> Measured:
    part = evidence.parts["turns"]
    enough(part)
    quarter = evidence.n_layers // 4
    middle = slice(quarter, evidence.n_layers - quarter)
    stream, update = (per_token(part, name, evidence.seed) for name in ("stream_angle", "update_angle"))
    between = slice(quarter, evidence.n_layers - quarter - 1)
    reads = {
        EVEN: (stream, lambda curves: curves[:, middle].std(1) / curves[:, middle].mean(1)),
        SMALL: (stream, lambda curves: curves[:, middle].mean(1)),
        UNCORRELATED: (update, lambda curves: curves[:, between].mean(1)),
    }
    estimates = {name: Estimate.of(*of_both(curve, read)) for name, (curve, read) in reads.items()}
    drawn = Curve.of("layer", "degrees by which a layer turns the stream", *stream)
    return Measured(estimates, len(part), drawn, f"Middle layers: {middle.start} to {middle.stop - 1}.")


def replaced(evidence: Evidence) -> Measured:
    part = evidence.parts["replacement"]
    enough(part, "held-out prompts")
    loss = over_prompts(part["loss"], part["tokens"], evidence.seed)
    whole = over_prompts(part["whole"][:, None], part["tokens"], evidence.seed)
    costs = raised(loss[0], whole[0]), raised(loss[1], whole[1])
    share = of_both(costs, lambda curves: (curves > RAISED).mean(1))
    layers = np.arange(part["loss"].shape[1], dtype=float)
    falls = of_both(costs, lambda curves: correlations(curves, np.broadcast_to(layers, curves.shape)))
    drawn = Curve.of("layer replaced", "loss added, share of the whole model's", *costs)
    return Measured({SHARE: Estimate.of(*share), FALLING: Estimate.of(*falls)}, len(part), drawn)


EVEN_TURNS = Claim(
    "even-turns",
    "Middle layers turn the stream by small, even angles",
    "the middle layers turn the stream by small angles of much the same size, in directions that have little in common",
    "arXiv 2602.05970",
    "arccos cos(h[l], h[l+1]) and arccos cos(D[l], D[l+1]), means over all tokens; middle: without the first and last "
    "quarter",
    "Up to 30 prompts, all tokens.",
    "turns of unlike size, large ones, or neighbours that push one way",
    (
        Quantity(EVEN, "ratio", (-np.inf, 0.5), "below 0.5, chosen here", "even, in words"),
        Quantity(SMALL, "degrees", (-np.inf, 30.0), "below 30 degrees, chosen here", "small, in words", 1),
        Quantity(
            UNCORRELATED, "degrees", (75.0, 105.0), "within 15 degrees of 90, chosen here", "nearly uncorrelated", 1
        ),
    ),
    ("turns",),
    turns,
)
USEFULNESS = Claim(
    "usefulness",
    "Some layers do no more than a linear map, deep ones above all",
    "some layers do no more than a linear map would, and deep ones more often",
    "arXiv 2603.15389",
    "share of layers whose least-squares map h[s] → h[s+1] in their place raises the loss by more than 10 %, and the "
    "rank correlation of that rise with s",
    "Up to 100 prompts, four fifths of them to fit on and the rest to judge. The paper fits and judges on the same "
    "text.",
    "every layer needed, or deeper layers costing more",
    (
        Quantity(SHARE, "share", (-np.inf, 1.0), "below 1", "below 1, falling with depth"),
        Quantity(FALLING, "rank correlation", (-np.inf, 0.0), "below 0", "falling with depth, in words"),
    ),
    ("replacement",),
    replaced,
)
