"""The way in: a model is loaded, its identities are checked, and only then is it handed out."""

from __future__ import annotations

from collections.abc import Callable

from ..architectures import Architecture
from ..errors import (
    DeviceFailed,
    EffectiveDepthError,
    IdentityFailed,
    NotFinite,
    TooLarge,
    lost_device,
    one_line,
    ran_out,
)
from ..machine import free_cache
from ..types import ModelSpec
from . import kept, sanity
from .adoption import adopt
from .language_model import LanguageModel
from .loading import load
from .modules import shuffle
from .verify import verify


def open_model(spec: ModelSpec, architecture: Architecture | None = None, trust_kept: bool = False) -> LanguageModel:
    """Load, check the identities, and return; refuses with a `ModelError` otherwise.

    `architecture` overrides the family's own description (for trying out a new family). `trust_kept`: identities that
    held when these weights were opened so before are not measured now; whoever asks for this measures them later
    (`recheck`), and `to_recheck` of the model says so.
    """
    return told(spec, lambda: _checked(_loaded(spec, architecture), trust_kept and architecture is None))


def recheck(model: LanguageModel) -> None:
    """Measure the identities of a model that was opened with kept ones. Raises as `open_model` does where they do not
    hold, and nothing is kept of them any more."""
    try:
        told(model.spec, lambda: _measured(model))
    except (IdentityFailed, NotFinite):
        kept.forget(model)
        raise
    model.to_recheck = False


def _checked(model: LanguageModel, trust_kept: bool) -> LanguageModel:
    if trust_kept and model.identities is None and (before := kept.find(model)):
        model.identities, model.to_recheck = before, True
    else:
        _measured(model)
        if trust_kept:
            kept.keep(model)
    if found := sanity.check(model):
        found.require(str(model.device))
    return model


def _measured(model: LanguageModel) -> LanguageModel:
    found = model.identities if model.identities and not model.to_recheck else verify(model)
    found.require(model.architecture)
    return model


def load_model(spec: ModelSpec, architecture: Architecture | None = None) -> LanguageModel:
    """Load without asking whether the sums hold; a family that nobody described is tried under the known layouts
    (`adoption`)."""
    return told(spec, lambda: _loaded(spec, architecture))


def told(spec: ModelSpec, work: Callable[[], LanguageModel]) -> LanguageModel:
    """What opens a model. Memory that runs out meanwhile is `TooLarge`, and a device that fails `DeviceFailed`: neither
    the weights nor the family are at fault."""
    try:
        return work()
    except EffectiveDepthError:
        raise
    except Exception as error:
        if not (ran_out(error) or lost_device(error)):
            raise
        why, lost = one_line(error), lost_device(error)
    if lost:  # here nothing holds what filled the memory
        raise DeviceFailed(
            f"The device {spec.device} failed while {spec.name} was opened ({why}); a new process is needed to use it "
            "again. If this happens again, take --device cpu."
        )
    free_cache()
    raise TooLarge(
        f"Memory ran out on {spec.device} while {spec.name} was opened in {spec.precision} ({why}); end what else "
        "uses that device, or choose a narrower precision or a smaller model."
    )


def _loaded(spec: ModelSpec, architecture: Architecture | None) -> LanguageModel:
    hf, tokenizer, architecture, spec = load(spec, architecture)
    if architecture:
        return LanguageModel(hf, tokenizer, architecture, spec)
    adopted = adopt(hf, tokenizer, spec)
    if spec.control != "shuffled":
        return adopted
    shuffle(hf, adopted.architecture, spec.control_seed)
    return LanguageModel(hf, tokenizer, adopted.architecture, spec)
