"""How far each layer turns the stream, and whether neighbouring layers push the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..types import MeasureSpec
from .base import Probe

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.language_model import LanguageModel
    from ..models.trace import Trace
    from ..sweeps.recorder import Recorder
    from ..types import Encoding


@dataclass(frozen=True)
class Turns(Probe):
    """Every layer turns the residual stream by an angle, `arccos cos(h[l], h[l+1])`. Small angles of much the same size
    from layer to layer are what many layers doing nearly the same thing look like; whether neighbouring updates then
    point the same way is told by the angle between them, `arccos cos(D[l], D[l+1])`, which is 90 degrees where they
    have nothing in common.

    Source: *Inverse Depth Scaling From Most Layers Being Similar*, arXiv 2602.05970."""

    name: ClassVar[str] = "turns"
    title: ClassVar[str] = "Turns"
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        MeasureSpec(
            "stream_angle",
            ("layer", "pos"),
            "degrees",
            "angle by which a layer turns the stream: arccos cos(h, h_next)",
            0.0,
            180.0,
            "token_mean",
        ),
        MeasureSpec(
            "update_angle",
            ("start", "pos"),
            "degrees",
            "angle between what a layer adds and what the next one adds: arccos cos(D, D_next)",
            0.0,
            180.0,
            "token_mean",
        ),
    )

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps import metrics

        record.allocate("stream_angle", (model.n_layers, len(encoding)))
        record.allocate("update_angle", (model.n_layers - 1, len(encoding)))
        before: Tensor | None = None

        def measure(layer: int, trace: Trace) -> None:
            nonlocal before
            h, update = trace.resid[layer][0].float(), trace.update(layer)[0].float()
            record.write("stream_angle", layer, metrics.cosine(h, h + update).arccos().rad2deg())
            if before is not None:
                record.write("update_angle", layer - 1, metrics.cosine(before, update).arccos().rad2deg())
            before = update
            record.step((layer + 1) / model.n_layers)

        model.trace(model.tensor(encoding), on_block=measure, keep=1)
