"""Where the model could have stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..types import MeasureSpec
from .base import Probe, parameter

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder
    from ..types import Encoding


@dataclass(frozen=True)
class EarlyExit(Probe):
    """Early exit through the logit lens: a token leaves at the first depth where the lens' best token has at least the
    threshold's probability, at the latest at the output. Agreement is whether it then says what the whole model would
    have said. No exit is trained here: the figures are what the model's own head makes of its own stream."""

    threshold: float = parameter(
        0.9,
        "probability of the lens' best token at which a token leaves",
        low=0.0,
        high=1.0,
        label="Exit confidence",
    )

    name: ClassVar[str] = "early_exit"
    title: ClassVar[str] = "Early exit"
    over_several: ClassVar[str] = "exits"
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec(
            "confidence", ("depth", "pos"), "probability", "probability of the lens' best token", 0.0, 1.0, "token_mean"
        ),
        MeasureSpec(
            "agreement",
            ("depth", "pos"),
            "0 or 1",
            "whether the lens' best token is the output's",
            0.0,
            1.0,
            "token_mean",
        ),
        MeasureSpec(
            "exit_depth",
            ("pos",),
            "depth",
            "first depth whose confidence reaches the threshold",
            0.0,
            None,
            "token_mean",
        ),
        MeasureSpec(
            "exit_agrees",
            ("pos",),
            "0 or 1",
            "whether the token leaves with the output's best token",
            0.0,
            1.0,
            "token_mean",
        ),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, (n_layers + 2) * n_tokens

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        import torch

        n_depths, n_tokens = model.n_layers + 1, len(encoding)
        for spec in self.measures:
            record.allocate(spec.name, (n_depths, n_tokens)[-len(spec.dims) :])
        trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
        final = _best(model, trace.resid[-1][0])[1]
        confidences, agreements = [], []
        for depth in range(n_depths):
            confidence, best = _best(model, trace.resid[depth][0])
            confidences.append(confidence)
            agreements.append((best == final).float())
            record.write("confidence", depth, confidence)
            record.write("agreement", depth, agreements[-1])
            record.step((depth + 1) / n_depths)
        leaves = torch.stack(confidences) >= self.threshold
        leaves[-1] = True
        exit_depth = leaves.int().argmax(0)
        record.write("exit_depth", slice(None), exit_depth)
        record.write("exit_agrees", slice(None), torch.stack(agreements).gather(0, exit_depth[None])[0])


def _best(model: LanguageModel, resid: Tensor, positions: int = 32) -> tuple[Tensor, Tensor]:
    """Probability and id of the lens' best token, some positions at a time: the logits of all of them never exist
    together."""
    import torch

    found = [model.unembed(part).softmax(-1).max(-1) for part in resid.split(positions)]
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])
