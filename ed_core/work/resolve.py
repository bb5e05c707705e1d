"""From what a person names to what may be computed: a model's full identity (which weights, in which precision, on
which device), and whether a request may enter the queue. Torch-free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .. import settings
from ..errors import ModelNotFound, ParameterError
from ..models import controls, hub, permits, remote, sizes, weights
from ..models.specs import config_of, content_of, location, named
from ..probes import find
from ..types import ModelSpec, Request, command_line
from . import estimate


def resolve(
    source: str,
    precision: str = "fp32",
    device: str = "cpu",
    adapter: str = "",
    offload: str = "",
    free: int | None = None,
    n_tokens: int = estimate.TOKENS,
    control: str = "",
    control_seed: int = 0,
) -> ModelSpec:
    """The full identity of a model given by bundled name, folder or hub id (`org/name`, or `org/name@revision`); a
    `ModelError` says what is wrong with the name.

    `precision` may be "auto": what it comes to, with the reason, is in the spec. `adapter`: a LoRA adapter's folder.
    `free`: bytes free on the device, where it is not this process's memory. `control`, `control_seed`: a twin of the
    model in its place (see `controls`)."""
    if remote.is_remote(source):
        spec = named(source)
        if precision not in ("auto", "fp32", remote.SERVED) or adapter or offload or control or control_seed:
            raise _as_served(spec)
        return spec if spec.revision else replace(spec, content_hash=content_of(spec, weights=False))
    if precision != "auto" and precision not in sizes.PRECISIONS:
        raise ParameterError(f"The precision is {precision!r}; expected auto or one of {', '.join(sizes.PRECISIONS)}.")
    spec = named(source)
    if not spec.revision and not spec.content_hash:
        spec = replace(spec, content_hash=content_of(spec, weights=control != "untrained"))
    spec = replace(spec, device=device, offload=offload)
    if adapter:
        permits.adapter(adapter)
        spec = _adapted(spec, named(adapter))
    return twin(settle(spec, precision, free, n_tokens), control, control_seed)


def twin(spec: ModelSpec, control: str, seed: int = 0) -> ModelSpec:
    """The control of a model that stands for it; the model itself where `control` is "". An untrained twin's identity
    is that of config and tokenizer: what was learned is no part of it."""
    spec = replace(spec, control=control, control_seed=seed)
    controls.check(spec)
    if spec.content_hash and not controls.needs_weights(spec):
        spec = replace(spec, content_hash=content_of(spec, weights=False))
    return spec


def settle(spec: ModelSpec, precision: str, free: int | None = None, n_tokens: int = estimate.TOKENS) -> ModelSpec:
    """The spec with the precision that `precision` comes to on its device, and why: a checkpoint that is quantized
    already stays as it is, "auto" takes the widest that fits."""
    if remote.is_remote(spec.source):
        raise _as_served(spec)
    config = config_of(spec)
    held = sizes.stored_precision(config)
    if held and sizes.PRECISIONS.get(precision, precision) not in ("auto", held):
        raise ParameterError(
            f"The checkpoint {spec.name} is stored in {held}; it cannot be opened in {precision}: give --precision "
            "auto."
        )
    if held:
        return replace(spec, precision=held, why=f"{held}: the checkpoint is stored so.")
    if precision != "auto":
        return replace(spec, precision=sizes.PRECISIONS[precision])
    if not config:
        raise ParameterError(
            f"How large {spec.name} is can only be told once its config.json is here; download it, or give a precision."
        )
    if spec.device.startswith("cuda") and free is None:
        raise ParameterError("What is free on a GPU only the process that uses it can tell; give a precision.")
    try:
        size = sizes.read(config)
    except ParameterError as error:
        raise ParameterError(f"{error} So auto cannot choose one: give a precision.") from None
    chosen, why = estimate.choose(size, n_tokens, spec.device, free)
    return replace(spec, precision=chosen, why=why)


def _as_served(spec: ModelSpec) -> ParameterError:
    return ParameterError(
        f"{spec.source} is measured as the service runs it: precision, adapter, offload and control are for models "
        "that are here; leave them out."
    )


def _adapted(spec: ModelSpec, adapter: ModelSpec) -> ModelSpec:
    folder = Path(location(adapter))
    if not folder.is_dir():
        raise ModelNotFound(
            f"The adapter {adapter.source} is not here; `{command_line('fetch', adapter.source)}` downloads it."
        )
    weights.check_base(folder, spec.source)
    return replace(spec, adapter=str(folder), adapter_hash=weights.adapter_hash(folder))


def admit(asked: Request) -> None:
    """Whether a request may enter the queue: what a visitor may name (`permits`)."""
    for spec in asked.models:
        permits.model(spec.source, spec.revision)
        if spec.adapter:
            permits.adapter(spec.adapter)
        if settings.current().hosted and not hub.is_here(spec):
            permits.download(spec.source)
    permits.files(find(asked.probe).make(dict(asked.parameters)))
