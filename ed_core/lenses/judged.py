"""A fitted lens read from its file, and its figures on prompts that it has not seen."""

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
from .driver import Fitting, Tick
from .file import REFIT, Fit, packed, weights_of
from .measured import JACOBIAN
from .streams import Streams

KL_TOKENS = 1000  # held-out tokens whose predictions are compared, at least: those of a large vocabulary cost more
KL_LOGITS = 10**8  # of one lens at one depth, where the vocabulary is small enough for more than KL_TOKENS
SEED = 0
ROWS = 64  # tokens unembedded at once

Lens = Callable[[int, Float[Tensor, "pos d_model"]], Float[Tensor, "pos d_model"]]
"""Maps the stream at a depth to an estimate of `h[L]`."""


def compared(streams: Streams) -> list[np.ndarray]:
    """Return which tokens of each held-out prompt are compared, as sorted indices: all where few, else the same share
    of each prompt, rounded up, for about `KL_LOGITS` logits in all. The draw is seeded."""
    lengths = streams.lengths()
    total, most = sum(lengths), max(KL_TOKENS, KL_LOGITS // streams.model.d_vocab)
    draws = [np.random.default_rng([SEED, i]) for i in range(len(lengths))]
    shares = [-(-n * min(most, total) // max(total, 1)) for n in lengths]
    return [np.sort(draw.choice(n, share, replace=False)) for draw, n, share in zip(draws, lengths, shares)]


def shapes(n_prompts: int, *controls: str) -> dict[str, tuple[tuple[int, ...], type]]:
    """Return shape and type of each array that `evaluate` returns, per depth. `controls`: the names of the controls."""
    names = ("lens", "logit", *controls, "constant")
    return {"relative_error": ((), float), "r2": ((), float)} | {f"kl.{n}": ((n_prompts,), float) for n in names}


def evaluate(
    streams: Streams,
    depths: Sequence[int],
    lens: Lens,
    controls: Mapping[str, Lens],
    constant: Tensor,
    tick: Tick,
) -> dict[str, np.ndarray]:
    """Return the figures of a lens `f` on held-out prompts by name, for each of these depths, with `y = h[L]`:

    - `relative_error`: `mean_t |y - f| / |y|`
    - `r2`: `1 - sum_t |y - f|^2 / sum_t |y - mean y|^2`
    - `kl.<name>` `[depth, prompt]`, nats: sums over the `compared` tokens of the divergence from the output, of the
      lens, of the logit lens (f = h[l]), of each of the `controls`, and of the constant prediction
      `unembed(constant)`"""
    model = streams.model
    zeros = partial(torch.zeros, dtype=torch.float64, device=model.device)
    error, miss = zeros(len(depths)), zeros(len(depths))
    y_sum, y_square, n = zeros(model.d_model), zeros(()), 0
    lenses: dict[str, Lens] = {"lens": lens, "logit": lambda depth, h: h, **controls}
    sums = {name: np.zeros((len(depths), len(streams.prompts))) for name in (*lenses, "constant")}
    some = compared(streams)
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
    """Return each lens's divergence from the output by name, `[depth]`, nats, summed over these tokens. `resid`: the
    stream at each depth; `last`: `h[L]`."""
    with torch.no_grad():
        out = metrics.AgainstOutput(model.unembed(last), 1)

        def divergence(h: Tensor) -> float:
            return float(out.measure(model.unembed(h.to(last.dtype)))["kl"].double().sum())

        sums = {name: np.array([divergence(f(l, h)) for l, h in resid.items()]) for name, f in lenses.items()}
        return sums | {"constant": np.full(len(resid), divergence(constant.to(last).expand(len(last), -1)))}


def certificate(streams: Streams, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return a certificate's figures on held-out prompts, from `evaluate`'s rows for all depths:

    - `relative_error`, `r2`, and by lens and control `kl`, the mean divergence, each prompt weighted by its tokens
    - `kl_low`, `kl_high`: 5–95 % over prompts, by bootstrap-t over `kl_over` (`statistics`)
    - `kl_minus`: `low` and `high` of the lens's divergence less each other's, over the same prompts in pairs
    - `says`: the share of depths at which the whole interval of lens less constant is below 0
    - `tokens`, `kl_tokens`, `kl_drawn`: how many tokens were read and compared, and how those were drawn

    Intervals are left out where there are too few prompts."""
    lengths, some = streams.lengths(), compared(streams)
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
    """Return the values as floats with nine decimals, for JSON."""
    return [round(float(v), 9) for v in values]


class LensFitting(Fitting):
    """A fit of one model's lens, with its certificate and file. `by_depth`: names of the arrays that the file has as
    one tensor per depth."""

    by_depth: tuple[str, ...]

    def __init__(self, model: LanguageModel, **how: Any):
        super().__init__(model, **how)
        spec = model.spec
        self.about |= {
            "n_layers": model.n_layers,
            "d_model": model.d_model,
            "model": {"name": spec.name, "precision": spec.precision, "identity": weights_of(spec)},
        }

    def described(self, rows: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the counts of tokens and prompts fitted on, and further fields of the certificate."""
        raise NotImplementedError

    def result(self, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the fit's certificate."""
        counts, more = self.described(rows)
        held_out = self.about["held_out"] | certificate(self.test[0], rows)
        return self.about | {"prompts": self.about["prompts"] | counts, "held_out": held_out} | more

    def packed(self, rows: Mapping[str, np.ndarray], result: dict[str, Any]) -> bytes:
        """Return the bytes of the lens's file."""
        tensors = {f"{name}.{depth}": x for name in self.by_depth for depth, x in enumerate(rows[name])}
        tensors |= {"scale": rows["scale"]} if "scale" in rows else {}
        return packed(tensors | {"mean": rows["mean"][0]}, result)


def lens_of(tensor: Callable[[str, int], Tensor], kind: str, rank: int | None = None) -> Lens:
    """Return a fitted lens as a function of depth and stream, float32: `J h`, `A h + b`, or with a `rank` `scale h + U
    V h + b`. `tensor(name, depth)` returns its tensors; `kind`: "affine" or "jacobian"."""

    def read(depth: int, h: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos d_model"]:
        if kind == JACOBIAN:
            return h.float() @ tensor("J", depth).T
        if rank:
            low = (h.float() @ tensor("V", depth).T) @ tensor("U", depth).T
            return tensor("scale", depth) * h.float() + low + tensor("b", depth)
        return h.float() @ tensor("A", depth).T + tensor("b", depth)

    return read


class Reader:
    """A fitted lens, read from its file: `lens(depth, h)` estimates `h[L]` from the stream. Matrices are loaded one at
    a time, when needed. Raises `FitRefused` for a model of another size."""

    def __init__(self, fit: Fit, model: LanguageModel):
        if (fit.n_layers, fit.d_model) != (model.n_layers, model.d_model):
            raise FitRefused(
                f"{fit.path.name} is of {fit.n_layers} layers × {fit.d_model}, {model.spec.name} has {model.n_layers} "
                f"× {model.d_model}; {REFIT}."
            )
        self.fit, self.device = fit, model.device
        self.lens = lens_of(self._tensor, fit.kind, fit.certificate.get("rank"))

    @property
    def mean(self) -> Tensor:
        """The mean of `h[L]` over the tokens that the lens was fitted on."""
        return self._tensor("mean")

    def _tensor(self, name: str, depth: int | None = None) -> Tensor:
        """Return a tensor of the file, or that of a depth, float32, on the device."""
        whole = depth is None or name == "scale"
        with safe_open(self.fit.path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name if whole else f"{name}.{depth}").to(self.device, torch.float32)
        return tensor[depth] if name == "scale" else tensor
