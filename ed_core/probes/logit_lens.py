"""What the stream would predict if the model ended here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..types import MeasureSpec
from .base import Probe, parameter
from .description import Curve, Picture, Score

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..sweeps.recorder import Recorder
    from ..types import Encoding

ROW_BYTES = 6 * 4  # float32 tensors of [pos, vocab] alive at once while one depth is measured
LOGIT_BYTES = (
    150 << 20
)  # and what they may take together: the tensor [depth, pos, vocab] never exists; more costs page faults


def _per_depth(
    name: str, title: str, unit: str, meaning: str, low: float | None = 0.0, high: float | None = None
) -> MeasureSpec:
    return MeasureSpec(name, ("depth", "pos"), unit, meaning, low, high, reduce="token_mean", title=title)


@dataclass(frozen=True)
class LogitLens(Probe):
    """The **logit lens** applies the model's own final norm and head to the residual stream at every depth: row l has l
    layers behind it, row L is the model's output. Where its distribution becomes the final one, the output has settled.

    **KL** falls to 0 as the lens approaches the output, the **overlap** of the best k tokens rises to 1. `settle_depth`
    is the first depth from which the best token stays the final one. The deep-thinking ratio is the share of tokens
    whose Jensen–Shannon divergence first falls below g only in the late part, from ceil(rho L) on.

    Source: nostalgebraist 2020; Csordás et al. 2025 §3.3; deep-thinking ratio: Chen et al. 2026, arXiv 2602.13517.
    """

    k: int = parameter(5, "best tokens compared and listed", low=1, high=50, label="Best tokens compared")
    g: float = parameter(
        0.5,
        "divergence below which a token counts as settled, for the deep-thinking ratio",
        low=0.0,
        high=1.0,
        label="Divergence limit",
    )
    rho: float = parameter(
        0.85,
        "where the late part begins, as a share of the depth",
        low=0.0,
        high=1.0,
        label="“late” starts at (share of depth)",
    )

    name: ClassVar[str] = "logit_lens"
    title: ClassVar[str] = "Logit lens"
    first_page: ClassVar[bool] = True
    curves: ClassVar[tuple[Curve, ...]] = (
        Curve("kl", "Divergence from the output", "nats", "depth"),
        Curve("overlap", "Best tokens shared with the output", "share", "depth"),
    )
    score: ClassVar[Score] = Score("The mean depth", mean_depth="kl")
    audited: ClassVar[tuple[str, ...]] = ("kl", "jsd", "entropy", "overlap", "top1_match", "mrr")
    audit_curves: ClassVar[tuple[Curve, ...]] = (*curves, Curve("entropy", "Uncertainty of the lens", "nats", "depth"))
    thumbnail: ClassVar[tuple[int, str]] = (3, "kl")
    pictures: ClassVar[tuple[Picture, ...]] = (
        Picture(
            "Logit lens",
            "lens_map",
            ("{shade}", "top_ids"),
            "columns are input tokens, cells predict the next token",
            "Row 0 is the embedding, the top row the model's own output, which stands over the map too; a token is "
            "written where it is\nanother than in the row below. The best token settles at some depth; KL falls and "
            "top-5 overlap rises from there.",
            "What the model would predict if it ended at each depth.",
        ),
    )
    measures: ClassVar[tuple[MeasureSpec, ...]] = (
        _per_depth(
            "kl",
            "KL to the output",
            "nats",
            "divergence of the lens from the output: sum_v p_lens (log p_lens - log p_out)",
        ),
        _per_depth(
            "jsd",
            "Jensen–Shannon divergence",
            "bits",
            "Jensen–Shannon divergence between lens and output, base 2",
            0.0,
            1.0,
        ),
        _per_depth("entropy", "Uncertainty of the lens", "nats", "uncertainty of the lens' distribution"),
        _per_depth(
            "overlap",
            "Best tokens shared",
            "share",
            "share of the lens' best k tokens that are among the output's",
            0.0,
            1.0,
        ),
        _per_depth(
            "top1_match",
            "Best token as the output's",
            "0 or 1",
            "whether the lens' best token is the output's",
            0.0,
            1.0,
        ),
        MeasureSpec(
            "rank", ("depth", "pos"), "rank", "rank of the output's best token in the lens", 1.0, dtype="int32"
        ),
        MeasureSpec("top_ids", ("depth", "pos", "rank"), "token id", "the lens' best tokens", dtype="int32"),
        MeasureSpec("top_probs", ("depth", "pos", "rank"), "probability", "their probabilities", 0.0, 1.0),
        MeasureSpec(
            "mrr",
            ("depth",),
            "1 / rank",
            "mean reciprocal rank of the output's best token",
            0.0,
            1.0,
            "token_mean",
            True,
            title="Rank of the output's best token, 1 / rank",
        ),
        MeasureSpec(
            "settle_depth",
            ("pos",),
            "depth",
            "first depth from which the best token stays the final one",
            0.0,
            None,
            "token_mean",
        ),
        MeasureSpec(
            "deep_thinking_ratio",
            (),
            "share",
            "share of tokens that settle only in the late part",
            0.0,
            1.0,
            "token_mean",
            True,
        ),
    )

    def work(self, n_layers: int, n_tokens: int) -> tuple[int | float, int | float]:
        return n_layers, (n_layers + 2) * n_tokens

    def per_token(self, values: Mapping[str, np.ndarray], left_out: Sequence[int] = ()) -> dict[str, np.ndarray]:
        jsd = values["jsd"]
        settled = np.minimum.accumulate(jsd, axis=0) <= self.g
        deep = math.ceil(self.rho * (jsd.shape[0] - 1))
        return {"mrr": 1.0 / values["rank"], "deep_thinking_ratio": (settled.argmax(0) >= deep).astype(np.float32)}

    def compute(self, model: LanguageModel, encoding: Encoding, record: Recorder) -> None:
        import torch

        from ..sweeps import metrics

        n_depths, n_tokens, k = model.n_layers + 1, len(encoding), min(self.k, model.d_vocab)
        for spec in self.measures:
            if spec.dims == ("depth", "pos"):
                record.allocate(spec.name, (n_depths, n_tokens))
        record.allocate("top_ids", (n_depths, n_tokens, k))
        record.allocate("top_probs", (n_depths, n_tokens, k))
        record.allocate("settle_depth", (n_tokens,))
        trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
        chunk = max(1, min(LOGIT_BYTES, record.budget.bytes) // (ROW_BYTES * model.d_vocab))
        chunks = [slice(i, min(i + chunk, n_tokens)) for i in range(0, n_tokens, chunk)]
        for done, at in enumerate(chunks):
            out = model.unembed(trace.resid[-1][0, at])
            against, top1 = metrics.Against(out, k), []
            for depth in range(n_depths):
                lens = against.measure(out if depth == model.n_layers else model.unembed(trace.resid[depth][0, at]))
                ids, final = lens["ids"], against.best[1]
                top1.append(ids[:, 0])
                row = {
                    "kl": lens["kl"],
                    "jsd": lens["jsd"],
                    "entropy": lens["entropy"],
                    "overlap": metrics.overlap(ids, final),
                    "top1_match": (ids[:, 0] == final[:, 0]).float(),
                    "rank": lens["rank"],
                    "top_ids": ids,
                    "top_probs": lens["best"].exp(),
                }
                for name, values in row.items():
                    record.write(name, (depth, at), values)
                record.name_tokens(model, ids)
                record.step((done + (depth + 1) / n_depths) / len(chunks))
            record.write("settle_depth", at, metrics.settle_depth(torch.stack(top1)))
