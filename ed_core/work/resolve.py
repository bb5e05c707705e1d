"""What depends on the memory of this machine: the precision "auto"; and whether a request may enter the queue.
Torch-free."""

from __future__ import annotations

from dataclasses import replace

from .. import settings
from ..errors import ParameterError
from ..models import controls, permits
from ..models.ref import ModelRef
from ..probes import find
from ..types import Request
from . import estimate


def settle(ref: ModelRef, free: int | None = None, n_tokens: int = estimate.TOKENS) -> ModelRef:
    """The model in the widest precision that fits its device, and why, where its precision is "auto". `free`: bytes
    free there, where it is not this process's memory."""
    if ref.precision != "auto":
        return ref
    if not ref.config():
        raise ParameterError(
            f"The size of {ref.name} is known once its config.json is here; download it, or give a precision."
        )
    if ref.device.startswith("cuda") and free is None:
        raise ParameterError("What is free on a GPU only the process that uses it can tell; give a precision.")
    try:
        size = ref.size()
    except ParameterError as error:
        raise ParameterError(f"{error} So auto cannot choose one: give a precision.") from None
    precision, why = estimate.choose(size, n_tokens, ref.device, free)
    controls.check(chosen := replace(ref, precision=precision, why=why))
    return chosen


def admit(asked: Request) -> None:
    """Whether a request may enter the queue: what a visitor may name (`permits`)."""
    for spec in asked.models:
        permits.model(spec.source, spec.revision)
        if spec.adapter:
            permits.adapter(spec.adapter)
        if settings.current().hosted and not ModelRef.of(spec).is_here:
            permits.download(spec.source)
    find(asked.probe).of(asked).check_files()
