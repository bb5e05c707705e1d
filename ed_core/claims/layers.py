"""How alike layers are, and whether a linear map does in their place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import statistics
from ..depth.matching import RAISED
from ..statistics import all_above, permuted_correlation, rank_correlations, some_below
from .claim import Claim, Estimate, Evidence, Measured, Quantity, enough, fisher, over_layers, per_token, read_off
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
    stream, update = (per_token(part, name, seed) for name in ("stream_angle", "update_angle"))

    def variation(at: np.ndarray, angles: np.ndarray) -> float:
        return float(angles.std() / angles.mean())

    def mean(at: np.ndarray, angles: np.ndarray) -> float:
        return float(angles.mean())

    def of(name: str, where: slice, read: Callable[[np.ndarray, np.ndarray], float]) -> Estimate:
        measure = "stream_angle" if name != UNCORRELATED else "update_angle"
        whole = stream if name != UNCORRELATED else update

        def rows(curves: dict[str, np.ndarray]) -> np.ndarray:
            own = curves[measure][:, where]
            row: np.ndarray = own.std(1) / own.mean(1) if read is variation else own.mean(1)
            return row

        found = read_off(part, rows, [measure], seed)
        layers = np.maximum(over_layers(read, whole.value[where]), 0.0)  # none of the three can be negative
        return Estimate.of(found.value, found.draws, layers)

    estimates = {
        EVEN: of(EVEN, middle, variation),
        SMALL: of(SMALL, middle, mean),
        UNCORRELATED: of(UNCORRELATED, between, mean),
    }
    drawn = Curve.of("layer", "degrees by which a layer turns the stream", stream)
    said = f"Middle layers: {middle.start} to {middle.stop - 1}."
    return Measured(estimates, len(part), drawn, said, part.units.words)


def replaced(evidence: Evidence) -> Measured:
    part, seed = evidence.parts["replacement"], evidence.seed
    enough(part, "held-out prompts")
    cost = statistics.mean(part["loss"], part["whole"][:, None], part.units, seed)  # a share of the whole model's loss
    layers = np.arange(len(cost.value), dtype=float)
    needed = cost.value > 1 + RAISED

    def share(curves: dict[str, np.ndarray]) -> np.ndarray:
        needed: np.ndarray = (curves["loss"] > 1 + RAISED).mean(1)
        return needed

    def falls(curves: dict[str, np.ndarray]) -> np.ndarray:
        return fisher(rank_correlations(curves["loss"], np.broadcast_to(layers, curves["loss"].shape)))

    def judge(holds: tuple[float, float]) -> tuple[float, float]:
        """Below 1 where at least one layer is not needed; not below it where every one is."""
        return some_below(cost, 1 + RAISED, part.units), all_above(cost, 1 + RAISED, part.units)

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
