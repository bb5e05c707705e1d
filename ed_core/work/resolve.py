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
    """Return the model with "auto" replaced by the widest precision that fits its device, and why in `why`; any other
    precision stays. `free`: bytes free on the device, None for this process's memory. Raises a `ParameterError` where
    the model's size is not known."""
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


def resolve(name: str, precision: str, device: str, adapter: str, control: str = "", control_seed: int = 0) -> ModelRef:
    """Return the model that a name in a file means, with its whole identity; "auto" is settled."""
    return settle(ModelRef.parse(name, precision, device, adapter, control=control, control_seed=control_seed))


def admit(asked: Request) -> None:
    """Raise `NotAllowed` (or another `InputError`) where a request may not enter the queue: what a visitor may name
    (`permits`), and the files that its parameters name."""
    for spec in asked.models:
        permits.model(spec.source, spec.revision)
        if spec.adapter:
            permits.adapter(spec.adapter)
        if settings.current().hosted and not ModelRef.of(spec).is_here:
            permits.download(spec.source)
    find(asked.probe).of(asked).check_files()
