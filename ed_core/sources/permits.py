"""What the settings let a visitor do: the one place that says no. Torch-free.

Names are held against the settings before the disk is looked at, so that a path nobody may use does not even tell
whether it exists. The functions stand where every page's way leads through: `specs.named`, `specs.of_gguf` (with which
`specs.location` and `hub.is_here` begin), `hub.plan`, `Probe.request`, `Jobs.submit`, and in the worker before a probe
runs; a link, a stored run or an imported case study comes that way as well as what somebody types. The command line is
the owner's: it calls `as_owner` first, and nothing here refuses it anything."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import Field, fields
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Protocol, runtime_checkable

from .. import settings
from ..errors import NotAllowed
from . import catalogue, remote
from .bundled import MODELS as BUNDLED

HUB_NAME = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?")
_owner = False


def as_owner() -> None:
    """Lift all of this for the process: whoever has a shell on the machine may do what the shell may."""
    global _owner
    _owner = True


def is_owner() -> bool:
    """Whether everything is lifted for this process."""
    return _owner


def why_not(check: Callable[..., None], *arguments: object) -> str:
    """The sentence with which a check refuses, or "": for widgets, which say beforehand why they are off."""
    try:
        check(*arguments)
    except NotAllowed as error:
        return str(error)
    return ""


def model(source: str, revision: str = "") -> None:
    """Whether a bundled name, hub id or folder may be used, at that revision."""
    allowed = settings.current()
    if remote.is_remote(source):
        elsewhere(source)
        source = source.removeprefix(remote.PREFIX)
    if _owner or (allowed.models == ("*",) and allowed.hub_ids and allowed.local_folders):
        return
    folder = source not in BUNDLED and (
        not HUB_NAME.fullmatch(source) or (catalogue.find(source) is None and os.path.exists(source))
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
    if revision and revision not in ("main", catalogue.cached_commit(source)):
        raise NotAllowed(
            f"This installation takes the main branch of {source} only (hub_ids = false), not {revision[:40]!r}; leave "
            "the revision empty."
        )


def elsewhere(source: str) -> None:
    """Whether a model may be measured by a service, to which the prompt is sent."""
    if not _owner and not settings.current().ndif:
        raise NotAllowed(
            f"{source[:80]!r} is measured by a service that the prompt is sent to, and this installation sends none "
            "(ndif = false); choose a model that is here."
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
    """Whether a model may be fetched, from the hub or the package registry."""
    if not _owner and not settings.current().downloads:
        raise NotAllowed(
            f"{hub_id[:80]} is not on this machine, and this installation downloads nothing (downloads = false); "
            "choose a model that is here."
        )
    model(hub_id)


@runtime_checkable
class Parameters(Protocol):
    """A dataclass of parameters, some of which name files."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def paths(self, parameter: str) -> list[str]: ...


def files(probe: Parameters) -> None:
    """Whether a probe may read the files they name; bundled and kept ones it may."""
    for f in fields(probe):
        if f.metadata["file"]:
            for named in probe.paths(f.name):
                file(named)


def _downloaded(path: str) -> str:
    """The hub id whose download lies at a path of the hub's cache, or ""."""
    from huggingface_hub import constants

    inside = (
        os.path.relpath(os.path.abspath(path), os.path.abspath(constants.HF_HUB_CACHE)) if os.path.isabs(path) else ""
    )
    first = inside.split(os.sep)[0]
    return first.removeprefix("models--").replace("--", "/", 1) if first.startswith("models--") else ""
