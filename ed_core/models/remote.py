"""What the service NDIF measures on models of `ndif:org/name`; see `ref.Remote`. Torch-free."""

from __future__ import annotations

import os

from .. import settings
from ..errors import ParameterError
from ..types import ModelSpec

PREFIX = "ndif:"
KEY = "NDIF_API_KEY"
SERVED = "served"  # the precision: whatever the service computes in
MEASURED = ("contributions", "logit_lens", "layer_skip", "residual_erasure")
ORDERS = "it runs layers in another order than the model's own, and there the model runs as it is"
WRITES = "it goes on from what the model has just written, and a prompt is sent there once"
WHY_NOT = {
    "integrated_gradients": "it needs gradients, and only forward passes are asked for there",
    "surgery": ORDERS,
    "prune": ORDERS,
    "loops": ORDERS,
    "lenses": "a lens is fitted to streams, which do not leave the service",
    "early_exit": "it reads through fitted lenses, and the streams do not leave the service",
    "generation": WRITES,
    "continuation": WRITES,
    "numerics": "it compares precisions, and there the model has one",
}


def key() -> str:
    """Return the service's API key from the environment ("" for a local service); `ParameterError` without one."""
    value = os.environ.get(KEY, "").strip()
    if not value and settings.current().ndif_address != settings.LOCAL:
        raise ParameterError(
            f"NDIF asks for a key, and {KEY} is not set; get one at https://ndif.us and set it in the environment."
        )
    return value


def measures(spec: ModelSpec, probe: str) -> bool:
    """Return whether a probe, by its name, can be measured on this model: on a remote one only those of `MEASURED`."""
    return spec.precision != SERVED or probe in MEASURED


def check(spec: ModelSpec, probe: str) -> None:
    """Raise `ParameterError` for a probe that cannot be measured where the model's weights are."""
    if not measures(spec, probe):
        why = WHY_NOT.get(probe, "it needs the weights or the streams here")
        raise ParameterError(
            f"{probe} is not measured on a model that is elsewhere ({spec.source}): {why}; open a model that is here, "
            f"or take {', '.join(MEASURED[:-1])} or {MEASURED[-1]}."
        )
