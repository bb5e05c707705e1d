"""Opening a model: it is loaded, its identities are checked, and figures of identities that hold are kept."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from .. import disk, settings, untrusted
from ..errors import DeviceFailed, EffectiveDepthError, TooLarge, lost_device, one_line, ran_out
from ..machine import free_cache
from ..types import ENGINE_VERSION, ModelSpec, canonical_json
from . import devices
from .adoption import adopt
from .architecture import Architecture
from .identities import Identities
from .language_model import LanguageModel
from .loading import load
from .modules import shuffle
from .ref import ModelRef
from .verify import check_device, verify


def open_model(spec: ModelRef, architecture: Architecture | None = None, trust_kept: bool = False) -> LanguageModel:
    """Return the loaded model once its residual identities are checked; raises a `ModelError` where they do not hold.

    `architecture` overrides the family's own description (for trying out a new family). `trust_kept`: identities that
    held at an earlier opening of these weights are not measured again; `identities_kept` of the model says so."""
    return explained(spec, lambda: _checked(_loaded(spec, architecture), trust_kept and architecture is None))


def _checked(model: LanguageModel, trust_kept: bool) -> LanguageModel:
    """Return the model once its identities hold and its device agrees with the CPU; else `IdentityFailed`."""
    kept = _kept_file(model) if trust_kept else None
    if kept and model.identities is None and (earlier := _held_before(kept)):
        model.identities, model.identities_kept = earlier, True
    else:
        figures = model.identities or verify(model)
        figures.require(model.architecture)
        if kept:
            with contextlib.suppress(OSError):  # then they are measured next time
                kept.parent.mkdir(parents=True, exist_ok=True)
                disk.write(kept, SAVED.dump_json(figures))
    if sanity := check_device(model):
        sanity.require(str(model.device))
    return model


def load_model(spec: ModelRef) -> LanguageModel:
    """Return the model, loaded without checking its identities; a family that is not described is tried under the known
    layouts (`adoption`)."""
    return explained(spec, lambda: _loaded(spec, None))


def explained(spec: ModelSpec, work: Callable[[], LanguageModel]) -> LanguageModel:
    """Return the model that `work` opens; `TooLarge` where memory runs out, `DeviceFailed` where the device fails."""
    try:
        return work()
    except EffectiveDepthError:
        raise
    except Exception as error:
        if not (ran_out(error) or lost_device(error)):
            raise
        why, lost = one_line(error), lost_device(error)
    if lost:  # outside of the except block, which keeps alive what filled the memory
        raise DeviceFailed(
            f"The device {spec.device} failed while {spec.name} was opened ({why}); a new process is needed to use it "
            "again. If this happens again, take --device cpu."
        )
    free_cache()
    raise TooLarge(
        f"Memory ran out on {spec.device} while {spec.name} was opened in {spec.precision} ({why}); end what else "
        "uses that device, or choose a narrower precision or a smaller model."
    )


def _loaded(ref: ModelRef, architecture: Architecture | None) -> LanguageModel:
    """Return the model, read as `architecture`, as its family is described, or under a known layout that fits."""
    hf, tokenizer, known, ref, encoder = load(ref, architecture)
    model = LanguageModel(hf, tokenizer, known, ref, encoder) if known else adopt(hf, tokenizer, ref, encoder)
    if known or ref.control != "shuffled":
        return model
    shuffle(hf, model.architecture, ref.control_seed)
    return LanguageModel(hf, tokenizer, model.architecture, ref, encoder)


# ---------------------------------------------------------------- identities that held before

# Of the same weights, run by the same code on the same device; used by the interactive worker and the shell's `run`.

LIBRARIES = ("torch", "transformers", "tokenizers")
SAVED = TypeAdapter(Identities)


def _held_before(file: Path) -> Identities | None:
    """Return the figures that an earlier opening has kept in a file; None where it has none that hold."""
    try:
        kept = SAVED.validate_json(untrusted.content(file, untrusted.CONFIG, untrusted.Unreadable))
    except (untrusted.Unreadable, ValidationError):
        return None
    return None if kept.failures() else kept


def _kept_file(model: LanguageModel) -> Path | None:
    """Return the file for a model's figures, named by all that can change them; None for weights without identity."""
    spec = model.spec
    if not (spec.content_hash or spec.revision):
        return None
    cpu = (platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    parts = {
        "model": spec.identity(),
        "engine": (ENGINE_VERSION, code_hash()),
        "libraries": [version(name) for name in LIBRARIES],
        "device": (str(model.device), *cpu, devices.certificate(model.device)),
    }
    return settings.current().cache / "identities" / f"{sha256(canonical_json(parts).encode()).hexdigest()[:32]}.json"


@cache
def code_hash() -> str:
    """Return a SHA-256 over the code that opens and runs a model; where it differs, identities are measured again."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(f"{file.name}\0".encode() + file.read_bytes() for file in files)).hexdigest()
