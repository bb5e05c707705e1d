"""Models that are measured where their weights are: `ndif:org/name`, by the service NDIF. Torch-free.

Of such a model config and tokenizer are here, and nothing else. Its identity says so: precision `served`, and a device
that is none of this machine's, so no result of it can be taken for one that was computed here."""

from __future__ import annotations

import os
from dataclasses import replace
from urllib.parse import urlsplit

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


def is_remote(source: str) -> bool:
    return source.startswith(PREFIX)


def require_here(source: str) -> None:
    """Refuse a model whose weights are elsewhere."""
    if is_remote(source):
        raise ParameterError(
            f"The weights of {source} are elsewhere, and this needs them here; open a model that is here. Its "
            "identities are measured with every prompt."
        )


def here(spec: ModelSpec) -> ModelSpec:
    """What of the model is on this machine: config and tokenizer, with the weights where they are not elsewhere after
    all. Any other model as it is."""
    if not is_remote(spec.source):
        return spec
    control = "" if host() == settings.LOCAL else "untrained"  # which needs no weights
    return ModelSpec(spec.source.removeprefix(PREFIX), revision=spec.revision, control=control)


def asked(spec: ModelSpec) -> ModelSpec:
    """The model that stands elsewhere, given what its name without the prefix refers to."""
    return replace(spec, source=PREFIX + spec.source, precision=SERVED, device=device(), control="")


def host() -> str:
    """The service's address, or "local"."""
    return settings.current().ndif_address


def device() -> str:
    """What stands for the service in a model's identity."""
    found = host()
    return f"ndif at {settings.LOCAL if found == settings.LOCAL else urlsplit(found).netloc.replace(':', ' port ')}"


def key() -> str:
    """The key that the service asks for."""
    found = os.environ.get(KEY, "").strip()
    if not found and host() != settings.LOCAL:
        raise ParameterError(
            f"NDIF asks for a key, and {KEY} is not set; get one at https://ndif.us and set it in the environment."
        )
    return found


def measures(spec: ModelSpec, probe: str) -> bool:
    """Whether a probe can be measured on this model, wherever that is."""
    return not is_remote(spec.source) or probe in MEASURED


def check(spec: ModelSpec, probe: str) -> None:
    """Refuse with a `ParameterError` a probe that cannot be measured where the weights are."""
    if not measures(spec, probe):
        why = WHY_NOT.get(probe, "it needs the weights or the streams here")
        raise ParameterError(
            f"{probe} is not measured on a model that is elsewhere ({spec.source}): {why}; open a model that is here, "
            f"or take {', '.join(MEASURED[:-1])} or {MEASURED[-1]}."
        )
