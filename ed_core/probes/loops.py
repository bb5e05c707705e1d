"""What a model whose layers run several times does pass by pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..types import Encoding, MeasureSpec
from .base import Probe, Shape, parameter

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder

PASSES, TESTED = 4, 2  # of a typical model; at most so many times its own are tried


def _per_token(name: str, dim: str, unit: str, meaning: str) -> MeasureSpec:
    """Return a measure by `dim` and token, averaged over tokens in aggregates."""
    return MeasureSpec(name, (dim, "pos"), unit, meaning, "token_mean")


def _changed(name: str, dim: str, what: str) -> tuple[MeasureSpec, MeasureSpec]:
    """Return the measures of a changed model, by `dim`: divergence and best tokens kept. `what`: the change in
    words."""
    return (
        MeasureSpec(f"{name}_kl", (dim,), "nats", f"divergence from the whole model: {what}", "token_mean"),
        MeasureSpec(f"{name}_top1_kept", (dim,), "share", f"best tokens that stay the best: {what}", "token_mean"),
    )


@dataclass(frozen=True)
class Loops(Probe):
    """A **looped** model runs the same N layers R times. Does a later pass still do something? Everything here is over
    passes, or over the unrolled layers u = r·N + n.

    The **fixed point**: how far a layer's stream is from where it was one pass earlier, `|h[r, n] - h[r-1, n]| /
    |h[r, n]|` (arXiv 2604.11791), and from the last pass. The **update** of a pass is what it moves the stream by; its
    length, and its angle to the one before (arXiv 2509.23314). **between** is how much the modules between two passes
    (a norm, the embedding added once more) changes the stream; it belongs to no layer.

    The model is then changed: a layer left out in every pass; and 0 to 2R passes instead of R. All passes are the same
    layers, so leaving out any one of them is R - 1 passes, and exchanging two changes nothing. Stopped after r passes,
    final norm and head read what there is: the readout of pass r, which is the logit lens, and the coda lens too,
    because behind the last pass these models have nothing else. Where a model has an **exit gate**, its cumulative
    distribution over passes is shown; the model's own output here is always that of the last pass."""

    k: int = parameter(5, "best tokens compared", low=1, high=50)

    name: ClassVar[str] = "loops"
    title: ClassVar[str] = "Loops"
    version: ClassVar[int] = 2
    needs_passes: ClassVar[bool] = True
    min_tokens: ClassVar[int] = 2
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        _per_token(
            "fixed_point",
            "later",
            "ratio",
            "the stream entering a layer, from the second pass on, against one pass earlier: |h[r] - h[r-1]| / |h[r]|",
        ),
        _per_token("to_last", "layer", "ratio", "against the same layer in the last pass: |h[r] - h[R-1]| / |h[R-1]|"),
        _per_token("update_norm", "pass", "norm", "length of what a pass moves the stream by"),
        _per_token("update_angle", "later_pass", "degrees", "angle between the updates of a pass and the one before"),
        _per_token(
            "between",
            "later_pass",
            "ratio",
            "change of the stream by the modules before a pass, relative to the stream that left the pass before",
        ),
        *_changed("block_skip", "block", "without one layer in every pass"),
        *_changed("times", "times", "with 0, 1, …, 2R passes"),
        MeasureSpec(
            "times_loss",
            ("times",),
            "nats",
            "mean -log p of the answer's tokens (of all next tokens without an answer) with 0, 1, …, 2R passes",
            "mean",
        ),
        MeasureSpec(
            "times_rank", ("times",), "rank", "the worst rank of a token of the answer with 0, 1, …, 2R passes", "mean"
        ),
        MeasureSpec(
            "times_right",
            ("times",),
            "share",
            "1 where every token of the answer is the first choice with 0, 1, …, 2R passes",
            "mean",
        ),
        MeasureSpec(
            "readout_kl",
            ("times", "readout"),
            "nats",
            "divergence of the readout after so many passes from the output with so many passes in all",
            "token_mean",
        ),
        MeasureSpec(
            "readout_overlap", ("times", "readout"), "share", "best tokens that the two have in common", "token_mean"
        ),
        _per_token("exit", "pass", "probability", "probability that the exit gate has let go after a pass"),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        """Return estimated block passes and unembedded positions, assuming `PASSES` passes."""
        variants = n_layers / PASSES
        readouts = TESTED * PASSES + 1
        return n_layers * (1 + variants + 1), n_tokens * (variants + readouts)

    def holds(self, shape: Shape) -> int:
        return (TESTED * PASSES + 1 + shape.n_layers) * shape.stream

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        """Fill `record`; raise `ParameterError` for a model that runs its layers once."""
        from ..sweeps import loops

        loops.loop_sweep(model, encoding, record, self.k, TESTED)
