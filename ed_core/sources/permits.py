"""What the settings let a visitor do: the one place that says no. Torch-free.

Names are held against the settings before the disk is looked at, so that a path nobody may use does not even tell
whether it exists. The functions stand where every page's way leads through: `sources.named`, `sources.location`,
`hub.plan`, `Probe.request`, `Jobs.submit`, and in the worker before a probe runs; a link, a stored run or an imported
case study comes that way as well as what somebody types. The command line is the owner's: it calls `as_owner` first,
and nothing here refuses it anything."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from .. import settings
from ..demo import MODELS as BUNDLED
from ..errors import NotAllowed
from ..types import Request
from . import catalogue

if TYPE_CHECKING:
    from ..probes import Probe

HUB_NAME = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?")
_owner = False


def as_owner() -> None:
    """Lift all of this for the process: whoever has a shell on the machine may do what the shell may."""
    global _owner
    _owner = True


def why_not(check: Callable[..., None], *arguments) -> str:
    """The sentence with which a check refuses, or "": for widgets, which say beforehand why they are off."""
    try:
        check(*arguments)
    except NotAllowed as error:
        return str(error)
    return ""


def model(source: str, revision: str = "") -> None:
    """Whether a bundled name, hub id or folder may be used, at that revision."""
    allowed = settings.current()
    if _owner or (allowed.models == ("*",) and allowed.hub_ids and allowed.local_folders):
        return
    folder = source not in BUNDLED and (
        not HUB_NAME.fullmatch(source) or (catalogue.find(source) is None and os.path.isdir(source))
    )
    if folder:
        file(source)
    name = os.path.abspath(os.path.expanduser(source)) if folder else source
    if not any(fnmatchcase(name, pattern) for pattern in allowed.models):
        raise NotAllowed(
            f"The model {source[:80]!r} is not among those this installation allows (models = "
            f"{', '.join(allowed.models)}); choose another in the catalogue."
        )
    if folder or source in BUNDLED or allowed.hub_ids:
        return
    if catalogue.find(source) is None:
        raise NotAllowed(
            f"{source[:80]!r} is not in the catalogue, and this installation takes no other hub ids (hub_ids = false); "
            "choose one of the catalogue."
        )
    from .specs import cached_commit

    if revision and revision not in ("main", cached_commit(source)):
        raise NotAllowed(
            f"This installation takes the main branch of {source} only (hub_ids = false), not {revision[:40]!r}; leave "
            "the revision empty."
        )


def file(path: str) -> None:
    """Whether a path of this machine may be named."""
    if not _owner and not settings.current().local_folders:
        raise NotAllowed(
            f"{path[:80]!r} would be a path of the machine this runs on, which this installation does not open "
            "(local_folders = false); choose a "
            "model of the catalogue, and bundled prompts."
        )


def adapter(source: str) -> None:
    """Whether a LoRA adapter may be used; its folder or hub id is judged as a model's. What was downloaded goes by its
    hub id."""
    if _owner:
        return
    if not settings.current().adapters:
        raise NotAllowed("This installation uses no LoRA adapters (adapters = false); leave the adapter empty.")
    model(_downloaded(source) or source)


def download(hub_id: str) -> None:
    """Whether a model may be fetched from the hub."""
    if not _owner and not settings.current().downloads:
        raise NotAllowed(
            f"{hub_id[:80]} is not on this machine, and this installation downloads nothing (downloads = false); "
            "choose a model that is here."
        )
    model(hub_id)


def files(probe: Probe) -> None:
    """Whether a probe may read the files its parameters name; bundled ones it may."""
    for f in fields(probe):
        if f.metadata["file"] and getattr(probe, f.name) != f.default:
            file(str(getattr(probe, f.name)))


def size(probe: str, n_tokens: int, n_layers: int) -> None:
    """Whether a probe may run over so many tokens and layers."""
    from ..service import estimate

    allowed, product, work = settings.current(), n_tokens * n_layers, estimate.work(probe, n_layers, n_tokens)
    shorter = lambda limit: max(1, limit // n_layers)  # noqa: E731
    if not _owner and 0 < allowed.max_tokens_layers < product:
        raise NotAllowed(
            f"{n_tokens} tokens × {n_layers} layers are {product}, and this installation allows "
            f"{allowed.max_tokens_layers} a request "
            f"(max_tokens_layers); shorten the prompt to {shorter(allowed.max_tokens_layers)} tokens, or take a "
            "smaller model."
        )
    if not _owner and 0 < allowed.max_work < work:
        raise NotAllowed(
            f"{probe} on {n_tokens} tokens and {n_layers} layers carries {work} tokens × layers × rows, and this "
            f"installation allows {allowed.max_work} "
            "(max_work); shorten the prompt, or take a smaller model."
        )


def request(asked: Request, n_tokens: int | None = None) -> None:
    """Whether a request may enter the queue. Its size is judged where the tokens can be counted here; where only the
    model can tell (a chat template), the worker does. `n_tokens` where they are counted already."""
    if _owner:
        return
    from ..probes import find
    from . import hub, specs, tokens

    for spec in asked.models:
        model(spec.source, spec.revision)
        if spec.adapter:
            adapter(spec.adapter)
        if not settings.current().downloads and not hub.is_here(spec):
            download(spec.source)
    files(find(asked.probe).make(dict(asked.parameters)))
    allowed = settings.current()
    if allowed.max_tokens_layers or allowed.max_work:
        for spec, prompt in zip(asked.models, asked.prompts):
            counted = tokens.preview(spec, prompt) if n_tokens is None else range(n_tokens)
            n_layers = specs.n_layers(spec)
            if counted is not None and n_layers:
                size(asked.probe, len(counted), n_layers)


def _downloaded(path: str) -> str:
    """The hub id whose download lies at a path of the hub's cache, or ""."""
    from huggingface_hub import constants

    inside = (
        os.path.relpath(os.path.abspath(path), os.path.abspath(constants.HF_HUB_CACHE)) if os.path.isabs(path) else ""
    )
    first = inside.split(os.sep)[0]
    return first.removeprefix("models--").replace("--", "/", 1) if first.startswith("models--") else ""
