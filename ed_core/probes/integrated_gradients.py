"""Which tokens the answer's probability rests on, at every depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..types import Encoding, MeasureSpec, ProbeResult
from .base import ANSWER_TOKENS, PARTS, Curve, Picture, Probe, Score, Shape, depth_score, parameter

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder

UNSETTLED = "The integral did not settle"  # how the sweep's note of failed layers begins
TOLERANCE = 0.005  # share of the scale that the completeness error may reach; the engine integrates until it holds
TYPICAL_NODES = 130  # of trained models: what an estimate counts with
LIMIT = TOLERANCE * (1 + 1e-4)  # the engine decides before rounding to float32


def completeness(result: ProbeResult | Mapping[str, np.ndarray]) -> np.ndarray:
    """Return each layer's completeness error as a share of `max(|F(x) - F(baseline)|, max_t |attribution|)`, `[layer]`.

    `result`: the result, or its arrays by name. 0 where error and scale are 0, NaN where not computed."""
    scale = np.fmax(np.abs(result["f_x"] - result["f_baseline"]), np.abs(result["attribution"]).max(-1))
    share: np.ndarray = result["completeness_error"] / np.where(scale == 0, 1.0, scale)
    return share


def incomplete(result: ProbeResult) -> list[int]:
    """Return the layers, from 0, with unreliable attributions: their sum misses by more than `TOLERANCE` of the
    scale."""
    return [int(layer) for layer in np.flatnonzero(completeness(result) > LIMIT)]


@dataclass(frozen=True)
class IntegratedGradients(Probe):
    """How much each token's activation contributes to the probability of the answer: the gradient, integrated along the
    straight path from a baseline (the activation's mean over the sequence, at every position) to the activation itself,
    all positions together. By construction the contributions of a layer add up to `F(x) - F(baseline)`; by how much
    they fail to is the completeness error, shown for every layer.

    The path is divided where the integrand is sharp (Gauss-Kronrod, 7 and 15 nodes) until the completeness error
    and the change of the map are below 0.5 %; a layer that does not get there within the cap is reported. `F` is
    the sum of the answer tokens' probabilities. part: the residual after the layer, or what attention or the MLP
    adds to the stream.

    Source: Csordás et al. 2025 §4 (256 left Riemann steps there); Sundararajan et al. 2017.
    """

    part: str = parameter(
        "layer",
        "the activation: the residual after the layer, or what attention or the MLP adds",
        choices=PARTS,
        label="Activation",
    )
    nodes: int = parameter(512, "most nodes per layer", low=17, high=4096, label="Nodes per layer, at most")

    name: ClassVar[str] = "integrated_gradients"
    title: ClassVar[str] = "Integrated gradients"
    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("attribution", "Attribution, magnitudes summed over tokens", "probability"),
    )
    score: ClassVar[Score] = Score("the centre of the attributions", "center", of_layers=True)
    thumbnail: ClassVar[tuple[int, str]] = (4, "attribution")
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "Integrated gradients",
            ("attribution",),
            "what this token adds to the answer's probability, against the baseline",
            "Blue takes probability from the answer, orange gives it. Every row adds up to F(activation) - "
            "F(baseline), up to the completeness error below.",
        ),
    )
    version: ClassVar[int] = 4  # 3 doubled evenly spread nodes
    min_tokens: ClassVar[int] = 2
    derives_stacked: ClassVar[bool] = True
    needs_answer: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = True
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec(
            "attribution",
            ("layer", "pos"),
            "probability",
            "what this token adds to the answer's probability here, against the baseline",
            "pos_abs_sum",
            limits=(None, None),
        ),
        MeasureSpec(
            "completeness_error",
            ("layer",),
            "probability",
            "|sum of attributions - (F(x) - F(baseline))|",
            limits=(0.0, None),
        ),
        MeasureSpec("f_x", ("layer",), "probability", "summed probability of the answer's tokens", limits=(0.0, None)),
        MeasureSpec("f_baseline", ("layer",), "probability", "the same at the baseline", limits=(0.0, None)),
        MeasureSpec("nodes_used", ("layer",), "nodes", "nodes the integral took", dtype="int32"),
        MeasureSpec(
            "completeness",
            ("layer",),
            "share of the scale",
            "completeness error over the larger of |F(x) - F(baseline)| and the largest attribution",
            "max",
            aggregate_only=True,
        ),
    )

    def per_token(self, values: Mapping[str, np.ndarray], left_out: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """Return each layer's completeness error as a share."""
        return {"completeness": completeness(values)}

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        nodes = min(self.nodes, TYPICAL_NODES)
        return n_layers + 3 * nodes * n_layers * (n_layers - 1) / 2, nodes * n_layers * ANSWER_TOKENS

    def holds(self, shape: Shape) -> int:
        return int(min(shape.rows * shape.graph, max(shape.graph, shape.half)))

    @classmethod
    def sound(cls, summary: Mapping[str, np.ndarray]) -> bool:
        """Return whether all completeness errors are within the tolerance."""
        return bool((summary["completeness"] <= LIMIT).all())

    @classmethod
    def derive(cls, curves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the layer, from 0, where the attributions' magnitudes (summed over positions) are centred: `center`,
        and `center_mean` for their means over prompts."""
        pairs = {"center": "attribution", "center_mean": "attribution_mean"}
        found = {name: depth_score(curves[curve]) for name, curve in pairs.items() if curve in curves}
        return {name: np.asarray(value, np.float32) for name, value in found.items()}

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps.gradients import integrate

        integrate(model, encoding, record, self.part, self.nodes, TOLERANCE)
