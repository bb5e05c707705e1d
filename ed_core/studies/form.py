"""A study as a form asks for it. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ..errors import StudyError
from ..models.bundled import MODELS as BUNDLED
from ..probes import PROBES
from .sets import FORMATS, bundled_names, load
from .study import ModelEntry, ProbeEntry, SetEntry, Study, wrong

ALL = 0  # as a number of prompts


@dataclass(frozen=True)
class Form:
    """`models`: sources. `twins`: untrained copies of each. `sets`: bundled ones, and published ones of the hub by
    their format's name. `prompts`: of each set, divided evenly over its levels; `ALL` for no limit. `steps`: of each
    model that is not bundled."""

    name: str
    models: tuple[str, ...]
    twins: int
    sets: tuple[str, ...]
    prompts: int
    probes: tuple[str, ...]
    steps: tuple[str, ...] = ()


def set_names() -> list[str]:
    """The prompt sets that the form offers: bundled, made here, and published ones of the hub."""
    return [*bundled_names(), *FORMATS]


def probe_names() -> list[str]:
    """The probes that the form offers: those whose measures can be averaged over prompts."""
    return [probe.name for probe in PROBES if any(spec.reduce for spec in probe.measures)]


def study_of(form: Form) -> Study:
    """The study of a form. `StudyError` says what is wrong."""
    models: list[ModelEntry] = []
    try:
        for source in form.models:
            models.append(ModelEntry(source=source, steps=() if source in BUNDLED else form.steps))
            models += (ModelEntry(source=source, control="untrained", seed=seed) for seed in range(form.twins))
        sets = tuple(_set(name, form.prompts) for name in form.sets)
        probes = tuple(ProbeEntry(name=name) for name in form.probes)
        return Study(name=form.name, models=tuple(models), sets=sets, probes=probes)
    except ValidationError as error:
        raise StudyError(wrong(error, "the form")) from None


def _set(name: str, prompts: int) -> SetEntry:
    if name not in bundled_names():
        return SetEntry(name=name, hub=name, limit=prompts or None)
    entry = SetEntry(name=name, bundled=name)
    n_levels = len(load(entry, Path(), "").levels) if prompts else 0
    limits = {"per_level": -(-prompts // n_levels)} if n_levels else {"limit": prompts or None}
    return entry.model_copy(update=limits)
