"""How much each sub-layer writes into the residual stream, in which direction, and how far a layer turns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..types import Encoding, MeasureSpec
from .base import Curve, Picture, Probe, Score, parameter

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.language_model import LanguageModel
    from ..models.trace import Trace
    from ..sweeps.recorder import Recorder


def _per_layer(name: str, title: str, unit: str, meaning: str) -> MeasureSpec:
    """Return a measure by layer and token, averaged over tokens in aggregates."""
    return MeasureSpec(name, ("layer", "pos"), unit, meaning, "token_mean", title)


@dataclass(frozen=True)
class Contributions(Probe):
    """Every layer reads the residual stream `h` and adds to it: attention adds `a`, the MLP adds `m`, together the
    update `D = a + m`.

    The **ratio** `|a| / |h|` tells how large an addition is against what is there already. The **cosine** between
    addition and stream tells its direction: below 0 it points against the stream (the papers: it erases), near 0 across
    it (writes a new feature), above 0 along it (strengthens). Deep models turn from the first kind to the last
    somewhere in the middle; the last such turn is the cosine criterion of effective depth.

    Where attention and MLP run in parallel the MLP reads `h` itself, so its ratio and cosine are taken against `h`
    instead of `h + a`. Source: Csordás et al. 2025 §3.1; Hu et al. 2025; block influence: ShortGPT, Men et al. 2024. A
    small cosine does not prove a layer useless: Hinostroza et al. 2026."""

    first_token: bool = parameter(
        True,
        "count the first token (often an attention sink of huge norm) in the means",
        view_only=True,
        label="Count the first token",
    )

    IN_PARALLEL: ClassVar[str] = (
        "Attention and MLP run in parallel here: the MLP's ratio and cosine are taken against h, which is what it "
        "reads."
    )
    name: ClassVar[str] = "contributions"
    version: ClassVar[int] = 2  # 1 formed the stream after a layer from its parts
    title: ClassVar[str] = "Contributions"
    first_page: ClassVar[bool] = True
    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("layer_ratio", "Mean contribution relative to the stream", "ratio", log=True),
        Curve("layer_cos", "Mean cosine with the stream", "cosine"),
    )
    score: ClassVar[Score] = Score("Hu et al.'s cosine rule, in the papers' count,", criterion="cosine")
    thumbnail: ClassVar[tuple[int, str]] = (1, "layer_ratio")
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "Contribution norms",
            ("{branch}_ratio",),
            "size of what is added relative to the stream",
            "In Llama 3.1 70B the ratio stays above 0.15 in the first half and falls below 0.05 in the second "
            "(Csordás et al. 2025).\nThe first token is often an attention sink of huge norm, so it is outside "
            "the colour range.",
            "size",
            kind="norms",
        ),
        Picture(
            "Cosine with the stream",
            ("{branch}_cos",),
            "below 0 against the stream, above 0 along it",
            "In Llama 3.1 70B on GSM8K the first half is zero or negative, then the sign turns (Csordás et al. 2025). "
            "A\nsmall cosine does not prove a layer useless (Hinostroza et al. "
            "2026).",
            "direction",
            kind="cosines",
        ),
    )
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        _per_layer(
            "attn_ratio",
            "Attention: size",
            "ratio",
            "what attention adds, relative to the stream it adds to: |a| / |h|",
        ),
        _per_layer(
            "mlp_ratio", "MLP: size", "ratio", "what the MLP adds, relative to the stream it adds to: |m| / |h + a|"
        ),
        _per_layer(
            "layer_ratio",
            "Whole layer: size",
            "ratio",
            "what the whole layer adds, relative to the stream: |a + m| / |h|",
        ),
        _per_layer("attn_cos", "Attention: direction", "cosine", "direction of attention's addition: cos(a, h)"),
        _per_layer("mlp_cos", "MLP: direction", "cosine", "direction of the MLP's addition: cos(m, h + a)"),
        _per_layer("layer_cos", "Whole layer: direction", "cosine", "direction of the layer's addition: cos(a + m, h)"),
        _per_layer(
            "io_cos",
            "Stream before and after: cosine",
            "cosine",
            "stream before against after the layer: cos(h, h_next)",
        ),
        _per_layer(
            "block_influence", "Block influence", "1 - cosine", "how far the layer turns the stream: 1 - cos(h, h_next)"
        ),
        MeasureSpec(
            "resid_norm",
            ("depth", "pos"),
            "norm",
            "length of the residual stream |h|",
            "token_mean",
            title="Stream: length",
        ),
        _per_layer("attn_norm", "Attention: length", "norm", "length of what attention adds |a|"),
        _per_layer("mlp_norm", "MLP: length", "norm", "length of what the MLP adds |m|"),
    )

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps import metrics

        n_layers = model.n_layers
        record.allocate(*record.specs)
        if model.parallel:
            record.note(self.IN_PARALLEL)

        def measure(layer: int, trace: Trace) -> None:
            h, a, m = (x[0].float() for x in (trace.resid[layer], trace.attn_out[layer], trace.mlp_out[layer]))
            d = trace.update(layer)[0]
            for name, values in metrics.contributions(h, a, m, d, model.parallel).items():
                record.write(name, layer, values)
            ended = [layer - 1] * (layer > 0) + [layer] * (layer == n_layers - 1)  # whose output is recorded by now
            for block in ended:
                io_cos = metrics.cosine(trace.resid[block][0], trace.after(block + 1)[0])
                record.write("io_cos", block, io_cos)
                record.write("block_influence", block, 1 - io_cos)
            if layer == n_layers - 1:
                record.write("resid_norm", n_layers, metrics.norm(trace.resid[-1][0]))
            record.step((layer + 1) / n_layers)

        model.trace(model.tensor(encoding), on_block=measure, keep=1)


@dataclass(frozen=True)
class Turns(Probe):
    """Every layer turns the residual stream by an angle, `arccos cos(h[l], h[l+1])`. Small angles of much the same size
    from layer to layer are what many layers doing nearly the same thing look like; whether neighbouring updates then
    point the same way is measured by the angle between them, `arccos cos(D[l], D[l+1])`, which is 90 degrees where they
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
            "token_mean",
        ),
        MeasureSpec(
            "update_angle",
            ("start", "pos"),
            "degrees",
            "angle between what a layer adds and what the next one adds: arccos cos(D, D_next)",
            "token_mean",
        ),
    )

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        from ..sweeps import metrics

        record.allocate("stream_angle")
        record.allocate("update_angle", start=model.n_layers - 1)
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
