"""Whether a request may enter the queue: what a visitor may name (`permits`), and how large it may be. Torch-free.

Held by `Jobs.submit`, and by the worker once the tokens are counted."""

from __future__ import annotations

from .. import settings
from ..errors import NotAllowed
from ..probes import Probe, find
from ..sources import hub, permits, specs, tokens
from ..types import Request
from . import estimate


def size(probe: Probe, n_tokens: int, n_layers: int, precision: str) -> None:
    """Whether a probe may run over so many tokens and layers."""
    allowed, product = settings.current(), n_tokens * n_layers
    work = estimate.work(probe, n_layers, n_tokens, precision)

    def shorter(limit: int) -> int:
        return max(1, limit // n_layers)

    if not permits.is_owner() and 0 < allowed.max_tokens_layers < product:
        raise NotAllowed(
            f"{n_tokens} tokens × {n_layers} layers are {product}, and this installation allows "
            f"{allowed.max_tokens_layers} a request "
            f"(max_tokens_layers); shorten the prompt to {shorter(allowed.max_tokens_layers)} tokens, or take a "
            "smaller model."
        )
    if not permits.is_owner() and 0 < allowed.max_work < work:
        raise NotAllowed(
            f"{probe.name} on {n_tokens} tokens and {n_layers} layers carries {work} tokens × layers × rows, and this "
            f"installation allows {allowed.max_work} "
            "(max_work); shorten the prompt, or take a smaller model."
        )


def request(asked: Request, n_tokens: int | None = None) -> None:
    """Whether a request may enter the queue. Its size is judged where the tokens can be counted here; where only the
    model can tell (a chat template), the worker does. `n_tokens` where they are counted already."""
    if permits.is_owner():
        return
    for spec in asked.models:
        permits.model(spec.source, spec.revision)
        if spec.adapter:
            permits.adapter(spec.adapter)
        if not settings.current().downloads and not hub.is_here(spec):
            permits.download(spec.source)
    permits.files(probe := find(asked.probe).make(dict(asked.parameters)))
    allowed = settings.current()
    if allowed.max_tokens_layers or allowed.max_work:
        for spec, prompt in zip(asked.models, asked.prompts):
            counted = tokens.preview(spec, prompt) if n_tokens is None else range(n_tokens)
            n_layers = specs.n_layers(spec)
            if counted is not None and n_layers:
                size(probe, len(counted), n_layers, spec.precision)
