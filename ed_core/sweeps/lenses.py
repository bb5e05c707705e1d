"""The stream of one prompt at every depth, read through one or several lenses in one walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from . import metrics
from .budget import LENS_BYTES

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..types import Encoding
    from .recorder import Recorder

Lens = Callable[[int, Float[Tensor, "pos d_model"]], Float[Tensor, "pos d_model"]]
ROW_BYTES = 6 * 4  # float32 tensors of [pos, vocab] alive at once while one depth is measured

MEASURES = (
    *("kl", "jsd", "entropy", "overlap", "top1_match", "agreement", "rank", "confidence"),
    *("top_ids", "top_probs", "settle_depth"),
)


def read(
    model: LanguageModel,
    encoding: Encoding,
    record: Recorder,
    lenses: Mapping[str, Lens | None],
    k: int,
    follow: int = -1,
    constant: Tensor | None = None,
) -> None:
    """Fill the measures that the probe declares for each lens.

    `lenses`: prefix of a lens' measures to the map from the stream at a depth to `h[L]`; None is the logit lens.
    `follow`: a token id whose rank is written, -1 for none. `constant`: a mean of `h[L]`; `constant_kl` is the
    divergence of its prediction."""
    n_depths, n_tokens, k = model.n_layers + 1, len(encoding), min(k, model.d_vocab)
    sizes = {"depth": n_depths, "pos": n_tokens, "rank": k}
    written = [*MEASURES, *["token_rank"] * (follow >= 0)]
    names = [prefix + name for prefix in lenses for name in written if prefix + name in record.specs]
    for name in (*names, *["constant_kl"] * (constant is not None)):
        record.allocate(name, tuple(sizes[dim] for dim in record.specs[name].dims))
    trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
    chunk = max(1, min(LENS_BYTES, record.budget.bytes) // (ROW_BYTES * model.d_vocab))
    chunks = [slice(i, min(i + chunk, n_tokens)) for i in range(0, n_tokens, chunk)]
    for done, at in enumerate(chunks):
        out = model.unembed(trace.resid[-1][0, at])
        against = metrics.Against(out, k)
        final = against.best[1]
        if constant is not None:
            same = model.unembed(constant.to(model.dtype).expand(len(out), -1))
            record.write("constant_kl", at, against.measure(same)["kl"])
        for number, (prefix, lens) in enumerate(lenses.items()):
            top1 = []
            for depth in range(n_depths):
                if depth == model.n_layers:
                    logits = out
                else:
                    h = trace.resid[depth][0, at]
                    logits = model.unembed(h if lens is None else lens(depth, h).to(model.dtype))
                row = against.measure(logits)
                ids = row["ids"]
                top1.append(ids[:, 0])
                row["top_ids"], row["top_probs"] = ids, row["best"].exp()
                row["confidence"] = row["top_probs"][:, 0]
                row["overlap"] = metrics.overlap(ids, final)
                row["top1_match"] = row["agreement"] = (ids[:, 0] == final[:, 0]).float()
                if follow >= 0:
                    row["token_rank"] = metrics.rank(logits, torch.full_like(ids[:, 0], follow))
                for name, values in row.items():
                    if prefix + name in record.arrays:
                        record.write(prefix + name, (depth, at), values)
                if prefix + "top_ids" in record.arrays:
                    record.name_tokens(model, ids)
                record.step((done + (number + (depth + 1) / n_depths) / len(lenses)) / len(chunks))
            if prefix + "settle_depth" in record.arrays:
                record.write(prefix + "settle_depth", at, metrics.settle_depth(torch.stack(top1)))
