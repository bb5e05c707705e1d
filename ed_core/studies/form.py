"""A study as a form asks for it. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from ..errors import StudyError
from ..models.bundled import MODELS as BUNDLED
from ..probes import PROBES
from .sets import FORMATS, bundled_names, load
from .study import ModelEntry, ProbeEntry, SetEntry, Study, wrong

ALL = 0  # as a number of prompts


def set_names() -> list[str]:
    """Return the names of the prompt sets that the form offers: bundled, made here, and published ones of the hub."""
    return [*bundled_names(), *FORMATS]


def probe_names() -> list[str]:
    """Return the names of the probes that the form offers: those with measures that can be averaged over prompts."""
    return [probe.name for probe in PROBES if any(spec.reduce for spec in probe.measures)]


def study_of(
    name: str,
    models: Sequence[str],
    twins: int,
    sets: Sequence[str],
    prompts: int,
    probes: Sequence[str],
    steps: tuple[str, ...] = (),
) -> Study:
    """Return the study that the inputs of a form describe; `StudyError` says what is wrong. `models`: names, folders or
    hub ids; `twins`: how many untrained copies of each; `sets`, `probes`: names that the form offers; `prompts`: how
    many of each set, divided evenly over its levels, `ALL` for no limit; `steps`: training steps of each model that is
    not bundled."""
    entries: list[ModelEntry] = []
    try:
        for source in models:
            entries.append(ModelEntry(source=source, steps=() if source in BUNDLED else steps))
            entries += (ModelEntry(source=source, control="untrained", seed=seed) for seed in range(twins))
        chosen = tuple(_set(one, prompts) for one in sets)
        measured = tuple(ProbeEntry(name=one) for one in probes)
        return Study(name=name, models=tuple(entries), sets=chosen, probes=measured)
    except ValidationError as error:
        raise StudyError(wrong(error, "the form")) from None


def _set(name: str, prompts: int) -> SetEntry:
    """Return the entry of the set `name` with about `prompts` prompts, divided evenly over its levels; 0 takes all."""
    if name not in bundled_names():
        return SetEntry(name=name, hub=name, limit=prompts or None)
    entry = SetEntry(name=name, bundled=name)
    n_levels = len(load(entry, Path(), "").levels) if prompts else 0
    limits = {"per_level": -(-prompts // n_levels)} if n_levels else {"limit": prompts or None}
    return entry.model_copy(update=limits)
