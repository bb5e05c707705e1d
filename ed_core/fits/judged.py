"""How well a fitted lens holds, on prompts it was not fitted on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.language_model import LanguageModel
from ..sweeps import metrics
from .streams import Streams, Tick

KL_TOKENS = 1000  # of the held-out ones whose predictions are looked at: those of the whole vocabulary cost more
ROWS = 64  # tokens unembedded at once

Lens = Callable[[int, Float[Tensor, "pos d_model"]], Float[Tensor, "pos d_model"]]
"""What a lens takes the stream at a depth for: what would be `h[L]`."""


def judge(
    model: LanguageModel, streams: Streams, lens: Lens, controls: Mapping[str, Lens], mean: Tensor, tick: Tick
) -> dict:
    """On held-out prompts, for each depth l < L of a lens that takes `h[l]` for `f(h[l])`, `y = h[L]`:

    - `relative_error`: `mean_t |y - f| / |y|`
    - `r2`: `1 - sum_t |y - f|^2 / sum_t |y - mean y|^2`
    - `kl`, nats: mean divergence of `unembed(f)` from the output, of the lens, of the logit lens (f = h[l]), of each
      of the `controls`, and of the constant prediction `unembed(mean)`; over the first `KL_TOKENS` tokens
    - `tokens`, `kl_tokens`: how many were looked at
    """
    n_layers = model.n_layers
    wide = {"dtype": torch.float64, "device": model.device}
    error, miss = torch.zeros(n_layers, **wide), torch.zeros(n_layers, **wide)
    y_sum, y_square = torch.zeros(model.d_model, **wide), torch.zeros((), **wide)
    lenses = {"lens": lens, "logit": lambda depth, h: h, **controls}
    kl = {name: torch.zeros(n_layers, **wide) for name in lenses}
    constant = torch.zeros((), **wide)
    n = n_kl = 0
    for i, resid in streams.each():
        y = resid[-1].to(**wide)
        n += len(y)
        y_sum += y.sum(0)
        y_square += (y * y).sum()
        for depth, h in enumerate(resid[:-1]):
            apart = (y - lens(depth, h).to(**wide)).norm(dim=-1)
            error[depth] += (apart / y.norm(dim=-1).clamp_min(metrics.NORM_FLOOR)).sum()
            miss[depth] += (apart * apart).sum()
        read = min(len(y), KL_TOKENS - n_kl)
        for begin in range(0, read, ROWS):
            at = slice(begin, min(begin + ROWS, read))
            with torch.no_grad():
                out = metrics.Against(model.unembed(resid[-1][at]), 1)
                for depth, h in enumerate(resid[:-1]):
                    for name, one in lenses.items():
                        logits = model.unembed(one(depth, h[at]).to(h.dtype))
                        kl[name][depth] += out.measure(logits)["kl"].double().sum()
                same = model.unembed(mean.to(resid[-1]).expand(at.stop - at.start, -1))
                constant += out.measure(same)["kl"].double().sum()
            n_kl += at.stop - at.start
        tick((i + 1) / len(streams.prompts))
    spread = y_square - (y_sum * y_sum).sum() / max(n, 1)

    def per_depth(values: Tensor) -> list[float]:
        return [round(float(v), 9) for v in values]

    return {
        "tokens": n,
        "kl_tokens": n_kl,
        "relative_error": per_depth(error / max(n, 1)),
        "r2": per_depth(1 - miss / spread),
        "kl": {name: per_depth(values / max(n_kl, 1)) for name, values in kl.items()}
        | {"constant": [round(float(constant / max(n_kl, 1)), 9)] * n_layers},
    }
