"""A fitted lens, applied."""

from __future__ import annotations

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from ..errors import FitRefused
from ..models.language_model import LanguageModel
from .file import AGAIN, Fit


class Reader:
    """Takes the stream at a depth for what `h[L]` would be: `A h + b`, or `J h`, float32. A matrix is read when
    it is needed, so one at a time is held. `mean`: that of `h[L]` where the fit was made, or None."""

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
        if not self.fit.has_mean:
            raise FitRefused(f"{self.fit.path.name} has no mean of the last depth to be judged against; {AGAIN}.")
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
