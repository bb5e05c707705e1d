"""A fitted lens read from its file, and its figures on prompts that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from ..errors import FitRefused
from ..models.language_model import LanguageModel
from ..statistics import mean, units
from ..sweeps import metrics
from ..types import Prompt
from .driver import Fitting, M, S, Tick
from .file import REFIT, Fit, weights_of, write
from .streams import Streams, prompts_entry

KL_TOKENS = 1000  # held-out tokens whose predictions are compared, at least: those of a large vocabulary cost more
KL_LOGITS = 10**8  # of one lens at one depth, where the vocabulary is small enough for more than KL_TOKENS
SEED = 0
ROWS = 64  # tokens unembedded at once

Lens = Callable[[int, Float[Tensor, "pos d_model"]], Float[Tensor, "pos d_model"]]
"""Maps the stream at a depth to an estimate of `h[L]`."""


def drawn(lengths: Sequence[int], budget: int, seed: int = SEED) -> list[np.ndarray]:
    """The tokens of each prompt that are compared, in order: all where there are no more than `budget`, else the same
    share of each prompt, rounded up, so that every prompt set has its share. `lengths`: the tokens of each prompt."""
    total = sum(lengths)

    def some(i: int, n: int) -> np.ndarray:
        few = -(-n * min(budget, total) // max(total, 1))
        return np.sort(np.random.default_rng([seed, i]).choice(n, few, replace=False)) if n else np.arange(0)

    return [some(i, n) for i, n in enumerate(lengths)]


def compared(streams: Streams, budget: int | None = None) -> list[np.ndarray]:
    """The `drawn` tokens of held-out prompts: about `budget`, or as many as make `KL_LOGITS` logits."""
    most = max(KL_TOKENS, KL_LOGITS // streams.model.d_vocab) if budget is None else budget
    return drawn(streams.lengths(), most)


def shapes(n_prompts: int, *controls: str) -> dict[str, tuple[tuple[int, ...], type]]:
    """Shape and type of `evaluate`'s rows."""
    names = ("lens", "logit", *controls, "constant")
    return {"relative_error": ((), float), "r2": ((), float)} | {f"kl.{n}": ((n_prompts,), float) for n in names}


def evaluate(
    streams: Streams,
    depths: Sequence[int],
    lens: Lens,
    controls: Mapping[str, Lens],
    constant: Tensor,
    tick: Tick,
    budget: int | None = None,
) -> dict[str, np.ndarray]:
    """On held-out prompts, for each of these depths of a lens `f`, with `y = h[L]`:

    - `relative_error`: `mean_t |y - f| / |y|`
    - `r2`: `1 - sum_t |y - f|^2 / sum_t |y - mean y|^2`
    - `kl.<name>` `[depth, prompt]`, nats: sums over the `compared` tokens of the divergence from the output, of the
      lens, of the logit lens (f = h[l]), of each of the `controls`, and of the constant prediction `unembed(constant)`
    """
    model = streams.model
    zeros = partial(torch.zeros, dtype=torch.float64, device=model.device)
    error, miss = zeros(len(depths)), zeros(len(depths))
    y_sum, y_square, n = zeros(model.d_model), zeros(()), 0
    lenses: dict[str, Lens] = {"lens": lens, "logit": lambda depth, h: h, **controls}
    sums = {name: np.zeros((len(depths), len(streams.prompts))) for name in (*lenses, "constant")}
    some = compared(streams, budget)
    for i, resid in streams.each():
        y = resid[-1].to(model.device, torch.float64)
        n += len(y)
        y_sum += y.sum(0)
        y_square += (y * y).sum()
        for k, depth in enumerate(depths):
            distance = (y - lens(depth, resid[depth]).to(model.device, torch.float64)).norm(dim=-1)
            error[k] += (distance / y.norm(dim=-1).clamp_min(metrics.NORM_FLOOR)).sum()
            miss[k] += (distance * distance).sum()
        for tokens in torch.split(torch.from_numpy(some[i]).to(model.device), ROWS):
            read = {depth: resid[depth][tokens] for depth in depths}
            for name, values in _divergence(model, read, resid[-1][tokens], lenses, constant).items():
                sums[name][:, i] += values
        tick((i + 1) / len(streams.prompts))
    spread = y_square - (y_sum * y_sum).sum() / max(n, 1)
    rows = {"relative_error": (error / max(n, 1)).cpu().numpy(), "r2": (1 - miss / spread).cpu().numpy()}
    return rows | {f"kl.{name}": values for name, values in sums.items()}


def _divergence(
    model: LanguageModel, resid: Mapping[int, Tensor], last: Tensor, lenses: Mapping[str, Lens], constant: Tensor
) -> dict[str, np.ndarray]:
    """The sums over these tokens of every lens's divergence from the output, `[depth]`."""
    with torch.no_grad():
        out = metrics.AgainstOutput(model.unembed(last), 1)

        def divergence(h: Tensor) -> float:
            return float(out.measure(model.unembed(h.to(last.dtype)))["kl"].double().sum())

        sums = {name: np.array([divergence(f(l, h)) for l, h in resid.items()]) for name, f in lenses.items()}
        return sums | {"constant": np.full(len(resid), divergence(constant.to(last).expand(len(last), -1)))}


def certificate(streams: Streams, rows: Mapping[str, np.ndarray], budget: int | None = None) -> dict[str, Any]:
    """The certificate's figures on held-out prompts, of `evaluate`'s rows for all depths:

    - `relative_error`, `r2`, and by lens and control `kl`, the mean divergence, each prompt weighted by its tokens
    - `kl_low`, `kl_high`: 5–95 % over prompts, by bootstrap-t over `kl_over` (`statistics`)
    - `kl_minus`: `low` and `high` of the lens's divergence less each other's, over the same prompts in pairs
    - `says`: the share of depths at which the whole interval of lens less constant is below 0
    - `tokens`, `kl_tokens`, `kl_drawn`: how many tokens were read and compared, and how those were drawn

    Intervals are left out where there are too few prompts."""
    lengths, some = streams.lengths(), compared(streams, budget)
    places = [i for i, tokens in enumerate(lengths) if tokens]
    counts, over = [lengths[i] for i in places], units(len(places), [streams.prompts[i].form for i in places])
    weights = np.array([lengths[i] / len(some[i]) for i in places])[:, None]
    names = [name.removeprefix("kl.") for name in rows if name.startswith("kl.")]
    sums = {name: np.ascontiguousarray(rows[f"kl.{name}"].T)[places] * weights for name in names}
    figures: dict[str, Any] = {
        "tokens": sum(lengths),
        "kl_tokens": sum(map(len, some)),
        "kl_drawn": {"of": "all held-out prompts", "prompts": len(places), "seed": SEED},
        "relative_error": _rounded(rows["relative_error"]),
        "r2": _rounded(rows["r2"]),
        "kl": {name: _rounded(values.sum(0) / max(sum(counts), 1)) for name, values in sums.items()},
        "kl_over": over.words,
    }
    if not over.enough:
        return figures
    ends = {name: mean(values, counts, over).bounded(low=0.0).ends for name, values in sums.items()}
    minus = {name: mean(sums["lens"] - sums[name], counts, over).ends for name in sums if name != "lens"}
    return figures | {
        "kl_low": {name: _rounded(low) for name, (low, _) in ends.items()},
        "kl_high": {name: _rounded(high) for name, (_, high) in ends.items()},
        "kl_minus": {name: {"low": _rounded(low), "high": _rounded(high)} for name, (low, high) in minus.items()},
        "says": round(float(np.mean(minus["constant"][1] < 0)), 9),
    }


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(v), 9) for v in values]


class LensFitting(Fitting[S, M, dict[str, Any]]):
    """A fit of a lens: its certificate and its file."""

    kind: ClassVar[str]

    def __init__(self, model: LanguageModel, *, prompts: Sequence[Prompt], test: Sequence[Prompt] | None, first: Any):
        super().__init__(model, prompts=prompts, test=test, first=first)
        spec = model.spec
        self.about = {
            "kind": self.kind,
            "n_layers": model.n_layers,
            "d_model": model.d_model,
            "model": {"name": spec.name, "precision": spec.precision, "identity": weights_of(spec)},
            "prompts": prompts_entry(self.on[0].prompts) | ({"max_tokens": first} if first else {}),
            "held_out": prompts_entry(self.test[0].prompts),
        }

    def counts(self) -> dict[str, Any]:
        """How many tokens and prompts it was fitted on."""
        raise NotImplementedError

    def more(self, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The certificate's other fields."""
        raise NotImplementedError

    def tensors(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The file's tensors but for `mean`."""
        raise NotImplementedError

    def result(self, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        figures = {"held_out": self.about["held_out"] | certificate(self.test[0], rows)}
        return self.about | {"prompts": self.about["prompts"] | self.counts()} | figures | self.more(rows)

    def write(self, out: Path, rows: Mapping[str, np.ndarray], result: dict[str, Any]) -> None:
        write(out, self.tensors(rows) | {"mean": rows["mean"][0]}, result)


class Reader:
    """Estimates `h[L]` from the stream at a depth with a fitted lens, float32: `A h + b`, or `J h`. Each matrix is read
    from the file when it is needed, so one at a time is in memory."""

    def __init__(self, fit: Fit, model: LanguageModel):
        if (fit.n_layers, fit.d_model) != (model.n_layers, model.d_model):
            raise FitRefused(
                f"{fit.path.name} is of {fit.n_layers} layers × {fit.d_model}, {model.spec.name} has {model.n_layers} "
                f"× {model.d_model}; {REFIT}."
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
