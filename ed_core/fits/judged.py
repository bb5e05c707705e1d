"""A fitted lens, applied and judged on prompts that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from ..errors import FitRefused
from ..models.language_model import LanguageModel
from ..statistics import mean, units
from ..sweeps import metrics
from .file import AGAIN, Fit
from .streams import Streams, Tick

KL_TOKENS = 1000  # held-out tokens whose predictions are compared, at least: those of a whole vocabulary cost more
KL_LOGITS = 10**8  # of one lens at one depth, where the vocabulary is small enough for more than KL_TOKENS
SEED = 0
FOR_R2 = 2  # held-out tokens that it takes: it compares with their mean
ROWS = 64  # tokens unembedded at once

Lens = Callable[[int, Float[Tensor, "pos d_model"]], Float[Tensor, "pos d_model"]]
"""What a lens takes the stream at a depth for: what would be `h[L]`."""


def drawn(lengths: Sequence[int], budget: int, seed: int = SEED) -> list[np.ndarray]:
    """Which tokens of each prompt are compared, in order: all where there are no more than `budget`, else the
    same share of each prompt, rounded up: each prompt is a stratum, so each set has its share too.

    `lengths`: how many tokens each prompt has."""
    total = sum(lengths)

    def some(i: int, n: int) -> np.ndarray:
        few = -(-n * min(budget, total) // max(total, 1))
        return np.sort(np.random.default_rng([seed, i]).choice(n, few, replace=False)) if n else np.arange(0)

    return [some(i, n) for i, n in enumerate(lengths)]


def judge(
    model: LanguageModel,
    streams: Streams,
    lens: Lens,
    controls: Mapping[str, Lens],
    constant: Tensor,
    tick: Tick,
    budget: int | None = None,
) -> dict[str, Any]:
    """On held-out prompts, for each depth l < L of a lens that takes `h[l]` for `f(h[l])`, `y = h[L]`:

    - `relative_error`: `mean_t |y - f| / |y|`
    - `r2`: `1 - sum_t |y - f|^2 / sum_t |y - mean y|^2`
    - `kl`, nats: mean divergence of `unembed(f)` from the output, of the lens, of the logit lens (f = h[l]), of each
      of the `controls`, and of the constant prediction `unembed(constant)`; over tokens `drawn` from all prompts, each
      prompt weighted by its number of tokens
    - `kl_low`, `kl_high`, `kl_minus`, `says`: see `told`
    - `tokens`, `kl_tokens`: how many were looked at; `kl_drawn`: how those of the divergence were drawn

    `budget`: tokens to draw, about; without one, as many as make `KL_LOGITS` logits, `KL_TOKENS` at least."""
    n_layers = model.n_layers
    zeros = partial(torch.zeros, dtype=torch.float64, device=model.device)
    error, miss = zeros(n_layers), zeros(n_layers)
    y_sum, y_square = zeros(model.d_model), zeros(())
    lenses: dict[str, Lens] = {"lens": lens, "logit": lambda depth, h: h, **controls}
    lengths = [max(len(streams.ids(prompt)) - 1, 0) for prompt in streams.prompts]
    some = drawn(lengths, max(KL_TOKENS, KL_LOGITS // model.d_vocab) if budget is None else budget)
    sums = {name: np.zeros((len(lengths), n_layers)) for name in (*lenses, "constant")}
    n = 0
    for i, resid in streams.each():
        y = resid[-1].to(model.device, torch.float64)
        n += len(y)
        y_sum += y.sum(0)
        y_square += (y * y).sum()
        for depth, h in enumerate(resid[:-1]):
            apart = (y - lens(depth, h).to(model.device, torch.float64)).norm(dim=-1)
            error[depth] += (apart / y.norm(dim=-1).clamp_min(metrics.NORM_FLOOR)).sum()
            miss[depth] += (apart * apart).sum()
        for at in torch.split(torch.from_numpy(some[i]).to(model.device), ROWS):
            for name, values in _divergence(model, [h[at] for h in resid], lenses, constant).items():
                sums[name][i] += values
        tick((i + 1) / len(streams.prompts))
    spread = y_square - (y_sum * y_sum).sum() / max(n, 1)
    there = [i for i, tokens in enumerate(lengths) if tokens]
    weights = np.array([lengths[i] / len(some[i]) for i in there])[:, None]
    return {
        "tokens": n,
        "kl_tokens": sum(map(len, some)),
        "kl_drawn": {"of": "all held-out prompts", "prompts": len(there), "seed": SEED},
        "relative_error": _rounded(error / max(n, 1)),
        "r2": _rounded(1 - miss / spread),
    } | told(
        {name: values[there] * weights for name, values in sums.items()},
        [lengths[i] for i in there],
        [streams.prompts[i].form for i in there],
    )


def _divergence(
    model: LanguageModel, resid: Sequence[Tensor], lenses: Mapping[str, Lens], constant: Tensor
) -> dict[str, np.ndarray]:
    """The sums over these tokens of every lens's divergence from the output, `[depth]`, and of the constant's."""
    with torch.no_grad():
        out = metrics.AgainstOutput(model.unembed(resid[-1]), 1)

        def apart(h: Tensor) -> float:
            return float(out.measure(model.unembed(h.to(resid[-1].dtype)))["kl"].double().sum())

        found = {name: np.array([apart(one(l, h)) for l, h in enumerate(resid[:-1])]) for name, one in lenses.items()}
        return found | {"constant": np.full(len(resid) - 1, apart(constant.to(resid[-1]).expand(len(resid[-1]), -1)))}


def told(sums: Mapping[str, np.ndarray], counts: Sequence[int], forms: Sequence[str] = ()) -> dict[str, Any]:
    """What prompts' sums say: `sums[name]` is `[prompt, depth]` over `counts[prompt]` tokens, `forms` the templates the
    prompts were written in; "lens" and "constant" are among the names. By name and `[depth]`:

    - `kl`: the means over tokens
    - `kl_low`, `kl_high`: 5–95 % over prompts, by bootstrap-t over `kl_over` (`statistics`)
    - `kl_minus`: `low` and `high` of the lens's divergence less that of each other, over the same prompts in pairs
    - `says`: the share of depths at which the whole interval of the lens less the constant lies below 0

    All but `kl` and `kl_over` are left out where the prompts are too few for an interval."""
    over = units(len(counts), forms)
    found: dict[str, Any] = {
        "kl": {name: _rounded(values.sum(0) / max(sum(counts), 1)) for name, values in sums.items()}
    }
    found["kl_over"] = over.words
    if not over.enough:
        return found
    ends = {name: mean(values, counts, over).bounded(low=0.0).ends for name, values in sums.items()}
    apart = {name: mean(sums["lens"] - sums[name], counts, over).ends for name in sums if name != "lens"}
    return found | {
        "kl_low": {name: _rounded(low) for name, (low, _) in ends.items()},
        "kl_high": {name: _rounded(high) for name, (_, high) in ends.items()},
        "kl_minus": {name: {"low": _rounded(low), "high": _rounded(high)} for name, (low, high) in apart.items()},
        "says": round(float(np.mean(apart["constant"][1] < 0)), 9),
    }


def _rounded(values: Tensor | np.ndarray) -> list[float]:
    return [round(float(v), 9) for v in values]


class Reader:
    """Takes the stream at a depth for what `h[L]` would be: `A h + b`, or `J h`, float32. A matrix is read when
    it is needed, so one at a time is held."""

    def __init__(self, fit: Fit, model: LanguageModel):
        if (fit.n_layers, fit.d_model) != (model.n_layers, model.d_model):
            raise FitRefused(
                f"{fit.path.name} is of {fit.n_layers} layers x {fit.d_model}, {model.spec.name} has {model.n_layers} "
                f"x {model.d_model}; {AGAIN}."
            )
        self.fit, self.device = fit, model.device
        self._scale = self._tensor("scale") if fit.certificate.get("rank") else None

    @property
    def mean(self) -> Tensor:
        """The mean of `h[L]` over the tokens it was fitted on."""
        return self._tensor("mean")

    def _tensor(self, name: str) -> Tensor:
        with safe_open(self.fit.path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name).to(self.device, torch.float32)
        return tensor

    def __call__(self, depth: int, h: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos d_model"]:
        if self.fit.kind == "jacobian":
            return h.float() @ self._tensor(f"J.{depth}").T
        if self._scale is not None:
            low = (h.float() @ self._tensor(f"V.{depth}").T) @ self._tensor(f"U.{depth}").T
            return self._scale[depth] * h.float() + low + self._tensor(f"b.{depth}")
        return h.float() @ self._tensor(f"A.{depth}").T + self._tensor(f"b.{depth}")
