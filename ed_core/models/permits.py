"""What the settings let a visitor do. Torch-free.

Names are checked before the disk is read, so that a forbidden path does not even show whether it exists: where a name
is read and wherever its folder is needed (`ref`), in `Probe.request`, and when a request enters the queue. The command
line is the owner's: it calls `as_owner` first, and nothing here refuses it anything."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from .. import settings
from ..errors import NotAllowed
from . import catalogue, remote
from .bundled import MODELS as BUNDLED

HUB_NAME = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?")
_owner = False


def as_owner() -> None:
    """Lift every limit of this module for the process: a user of the machine's shell may do what the shell may."""
    global _owner
    _owner = True


def why_not(check: Callable[..., None], *arguments: object) -> str:
    """Return the sentence with which `check(*arguments)` refuses, or "": for widgets, which say why they are off."""
    try:
        check(*arguments)
    except NotAllowed as error:
        return str(error)
    return ""


def model(source: str, revision: str = "") -> None:
    """Raise `NotAllowed` unless a bundled name, hub id or folder may be used, at that revision."""
    if source.startswith(remote.PREFIX):
        elsewhere(source)
        source = source.removeprefix(remote.PREFIX)
    if not _hosted():
        return
    known = source in BUNDLED or catalogue.find(source) is not None
    if not known and (not HUB_NAME.fullmatch(source) or os.path.exists(source)):
        file(source)
    allowed = settings.current().models
    if not known if allowed == ("*",) else not any(fnmatchcase(source, pattern) for pattern in allowed):
        raise NotAllowed(
            f"The model {source[:80]!r} is not among those this installation offers ({', '.join(allowed)}); choose "
            "another."
        )
    if revision and revision not in ("main", catalogue.cached_commit(source)):
        raise NotAllowed(
            f"This installation offers the main branch of {source} only, not {revision[:40]!r}; leave the revision "
            "empty."
        )


def _hosted() -> bool:
    """Return whether the limits for visitors of a hosted installation apply."""
    return not _owner and settings.current().hosted


def elsewhere(source: str) -> None:
    """Raise `NotAllowed` unless a model may be measured by a service, to which the prompt is sent."""
    if not _owner and not settings.current().ndif:
        raise NotAllowed(
            f"{source[:80]!r} is measured by a service that the prompt is sent to, and this installation sends none "
            "(ndif = false); choose a model that is here."
        )


def file(path: str) -> None:
    """Raise `NotAllowed` unless a path of this machine may be named."""
    if _hosted():
        raise NotAllowed(
            f"{path[:80]!r} would be a path on the server, which this installation does not open (hosted = true); "
            "choose one of its models, and bundled prompts."
        )


def adapter(source: str) -> None:
    """Raise `NotAllowed` unless a LoRA adapter may be used."""
    if _hosted():
        raise NotAllowed("This installation uses no LoRA adapters (hosted = true); leave the adapter empty.")


def download(hub_id: str) -> None:
    """Raise `NotAllowed` unless a model may be fetched, from the hub or the package registry."""
    if _hosted():
        raise NotAllowed(
            f"{hub_id[:80]} is not on this server, and this installation downloads nothing (hosted = true); choose "
            "another model."
        )
