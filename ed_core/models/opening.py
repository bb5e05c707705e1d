"""The way in: a model is loaded, its identities are checked, and only then is it handed out."""

from __future__ import annotations

from ..architectures import Architecture
from ..types import ModelSpec
from . import sanity
from .adoption import adopt
from .language_model import LanguageModel
from .loading import load
from .twins import shuffle
from .verify import verify


def open_model(spec: ModelSpec, architecture: Architecture | None = None) -> LanguageModel:
    """Load, check the identities, and return; refuses with a `ModelError` otherwise.

    `architecture` overrides the family's own description (for trying out a new family).
    """
    model = load_model(spec, architecture)
    (model.identities or verify(model)).require(model.architecture)
    if found := sanity.check(model):
        found.require(str(model.device))
    return model


def load_model(spec: ModelSpec, architecture: Architecture | None = None) -> LanguageModel:
    """Load without asking whether the sums hold; a family that nobody described is tried under the known layouts
    (`adoption`)."""
    hf, tokenizer, architecture, spec = load(spec, architecture)
    if architecture:
        return LanguageModel(hf, tokenizer, architecture, spec)
    adopted = adopt(hf, tokenizer, spec)
    if spec.control != "shuffled":
        return adopted
    shuffle(hf, adopted.architecture, spec.control_seed)
    return LanguageModel(hf, tokenizer, adopted.architecture, spec)
