"""Figures of identities that held before: of the same weights, run by the same code on the same device. A worker opens
a model with them at once, and measures them again when it has nothing else to do (`service.worker`); so does
the shell's `run`, once its file is written."""

from __future__ import annotations

import platform
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from .. import bounds, disk, outside, settings
from ..errors import EffectiveDepthError
from ..types import ENGINE_VERSION, canonical_json
from . import devices
from .identities import Identities
from .language_model import LanguageModel

CODE = ("models", "architectures")  # folders of the engine that open a model and run it
LIBRARIES = ("torch", "transformers", "tokenizers")
SAVED = TypeAdapter(Identities)


def find(model: LanguageModel) -> Identities | None:
    """The figures that were kept for this opened model; None where there are none, or none that hold."""
    if (file := _file(model)) is None:
        return None
    try:
        found = SAVED.validate_json(outside.text(file, bounds.CONFIG, outside.Unreadable))
    except (OSError, ValueError, ValidationError):
        return None
    same = len(found.miss) == model.n_layers and found.dtype == str(model.dtype).removeprefix("torch.")
    return found if same and not found.failures() else None


def keep(model: LanguageModel) -> None:
    """Keep the figures of a model whose identities hold. Where they cannot be written, they are measured next time."""
    if model.identities is None or model.identities.failures() or (file := _file(model)) is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        disk.write(file, SAVED.dump_json(model.identities))
    except (OSError, EffectiveDepthError):
        pass


def forget(model: LanguageModel) -> None:
    """Remove what was kept for it."""
    if (file := _file(model)) is not None:
        file.unlink(missing_ok=True)


def _file(model: LanguageModel) -> Path | None:
    """Where its figures lie, named by all that can change them; None for weights that nothing identifies."""
    spec = model.spec
    if not (spec.content_hash or spec.revision):
        return None
    cpu = (platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    told = {
        "model": spec.identity(),
        "engine": (ENGINE_VERSION, code()),
        "libraries": [version(name) for name in LIBRARIES],
        "device": (str(model.device), *cpu, devices.certificate(model.device)),
    }
    return settings.current().cache / "identities" / f"{sha256(canonical_json(told).encode()).hexdigest()[:32]}.json"


@cache
def code() -> str:
    """A SHA-256 over the code that opens and runs a model: who changes it measures anew."""
    root, found = Path(__file__).parent.parent, sha256()
    for file in sorted(file for folder in CODE for file in (root / folder).rglob("*.py")):
        found.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return found.hexdigest()
