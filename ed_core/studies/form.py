"""A study as a form shows it: fewer choices than its file has, and the way in both directions. Torch-free.

A choice of the form changes in the file what it names and nothing else: entries of the same model, set or probe stay
as they are written, and so does what no form shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from ..errors import StudyError
from ..models import controls
from ..models.ref import HUB_ID
from ..probes import PROBES
from .sets import FORMATS, bundled_names, load
from .study import ModelEntry, ProbeEntry, SetEntry, Study, has_steps, wrong

T = TypeVar("T", ModelEntry, SetEntry, ProbeEntry)
ALL = 0  # as a number of prompts
UNTRAINED: Literal["untrained"] = "untrained"


@dataclass(frozen=True)
class Form:
    """`models`: sources. `twins`: untrained copies of each. `sets`: bundled ones, and published ones of the hub by
    their format's name. `prompts`: of each set, divided evenly over its levels; `ALL` for no limit. `steps`: revisions
    or checkpoints of each model that can have any (`study.has_steps`). None for twins, prompts and steps where the file
    has not the same for all."""

    name: str
    models: tuple[str, ...]
    twins: int | None
    sets: tuple[str, ...]
    prompts: int | None
    probes: tuple[str, ...]
    steps: tuple[str, ...] | None = ()


def set_names() -> list[str]:
    """The prompt sets that the form offers: bundled, made here, and published ones of the hub."""
    return [*bundled_names(), *FORMATS]


def probe_names() -> list[str]:
    """The probes that the form offers: those whose measures can be averaged over prompts."""
    return [probe.name for probe in PROBES if any(spec.reduce for spec in probe.measures)]


def of(study: Study) -> Form:
    """What the form shows of a study."""
    sets = [entry for entry in study.sets if _option(entry)]
    counts = [0, *(len(_twins(study, source)) for source in _sources(study))]
    numbers = [ALL, *(_prompts(entry) for entry in sets)]
    prompts = (n for n in numbers if all(_limited(entry, n) == entry for entry in sets))
    twins = (n for n in counts if all(_twins(study, s) == set(range(n)) for s in _sources(study)))
    steps = {one.revisions or one.checkpoints for one in study.models if not one.control and has_steps(one.source)}
    return Form(
        study.name,
        _sources(study),
        next(twins, None),
        tuple(dict.fromkeys(map(_option, sets))),
        next(prompts, None),
        tuple(entry.name for entry in study.probes if entry.name in probe_names()),
        next(iter(steps), ()) if len(steps) < 2 else None,
    )


def study_of(form: Form, before: Study | None = None) -> Study:
    """The study of a form. `before`: the file as it was; of it stays what the form does not change. `StudyError` says
    what is wrong."""
    models, sets, probes = (before.models, before.sets, before.probes) if before else ((), (), ())
    chosen: list[SetEntry] = []
    for option in form.sets:
        bundled = option in bundled_names()
        new = SetEntry(name=option, bundled=option) if bundled else SetEntry(name=option, hub=option)
        own = [entry for entry in sets if _option(entry) == option] or [new]
        chosen += own if form.prompts is None else [_limited(entry, form.prompts) for entry in own]
    made: list[ProbeEntry] = []
    for name in form.probes:
        made += [entry for entry in probes if entry.name == name] or [ProbeEntry(name=name)]
    rest = before.model_dump(include={"note", "chunk", "seed"}) if before else {}
    try:
        return Study(
            name=form.name,
            models=_models(form, models),
            sets=_in_order([*chosen, *(s for s in sets if not _option(s))], sets, lambda one: one.name),
            probes=_in_order(
                [*made, *(p for p in probes if p.name not in probe_names())], probes, lambda one: one.name
            ),
            pairs=before.pairs if before else (),
            **rest,
        )
    except ValidationError as error:
        raise StudyError(wrong(error, "the form")) from None


def hidden(study: Study) -> list[str]:
    """What of a study its form does not show, a few words each."""
    form = of(study)
    found = [name for name in ("note", "chunk", "seed", "pairs") if getattr(study, name) != _default(name)]
    for model in study.models:
        steps = {"revisions", "checkpoints"} if form.steps is not None else set()
        rest = _keys(model, {"source", "control", "seed"} | steps)
        twin = f"{controls.KINDS[model.control]}, seed {model.seed}" if model.control else ""
        if twin and (model.control != UNTRAINED or form.twins is None or model.source not in form.models):
            found.append(f"{model.source}, {twin}")
        elif rest and not twin:
            found.append(f"{rest} of {model.source}")
    for entry in study.sets:
        limits = set() if form.prompts is None else {"limit", "per_level"}
        if rest := _keys(entry, {"name", "bundled", "hub", *limits}) if _option(entry) else "the prompts":
            found.append(f"{rest} of the set {entry.name}")
    for probe in study.probes:
        rest = _keys(probe, {"name"})
        if rest or probe.name not in probe_names():
            found.append(f"{rest} of {probe.name}" if rest else probe.name)
    return found


def _sources(study: Study) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.source for entry in study.models if not entry.control))


def _twins(study: Study, source: str) -> set[int]:
    """Seeds of a model's untrained copies."""
    return {entry.seed for entry in study.models if entry.source == source and entry.control == UNTRAINED}


def _models(form: Form, before: Sequence[ModelEntry]) -> tuple[ModelEntry, ...]:
    found: list[ModelEntry] = []
    for source in form.models:
        own = [entry for entry in before if entry.source == source]
        plain = [_stepped(one, form.steps) for one in own if not one.control] or [
            _stepped(ModelEntry(source=source), form.steps)
        ]
        twins = [entry for entry in own if entry.control == UNTRAINED]
        found += [*plain, *(entry for entry in own if entry.control not in ("", UNTRAINED))]
        if form.twins is None:
            found += twins
            continue
        twin = plain[0].model_copy(update={"control": UNTRAINED, "label": "", "revisions": (), "checkpoints": ()})
        for seed in range(form.twins):
            found += [one for one in twins if one.seed == seed] or [twin.model_copy(update={"seed": seed})]
    shown = {entry.source for entry in before if not entry.control}
    found += [entry for entry in before if entry.source not in shown and entry.source not in form.models]
    return tuple(_in_order(found, before, repr))


def _stepped(entry: ModelEntry, steps: tuple[str, ...] | None) -> ModelEntry:
    """A model with these steps of its training: revisions where its name is one of the hub, else checkpoints."""
    if steps is None or not has_steps(entry.source) or (entry.revisions or entry.checkpoints) == steps:
        return entry
    kind = "revisions" if HUB_ID.fullmatch(entry.source) else "checkpoints"
    return ModelEntry(**entry.model_dump() | {"revisions": (), "checkpoints": ()} | {kind: steps})


def _in_order(entries: Sequence[T], before: Sequence[T], name: Callable[[T], str]) -> tuple[T, ...]:
    """Those that were there in their former order, new ones behind them."""
    places = {name(entry): i for i, entry in enumerate(before)}
    return tuple(sorted(entries, key=lambda entry: places.get(name(entry), len(places))))


def _option(entry: SetEntry) -> str:
    """Under which name the form offers a set; "" where it does not."""
    name = entry.bundled or entry.hub
    return name if name in set_names() else ""


def _prompts(entry: SetEntry) -> int:
    """How many prompts its limits come to, `ALL` without one."""
    return entry.per_level * max(1, _n_levels(entry)) if entry.per_level else entry.limit or ALL


def _limited(entry: SetEntry, n: int) -> SetEntry:
    """The set with `n` prompts, as many of each level."""
    levels = _n_levels(entry)
    limits = {"limit": n or None, "per_level": None}
    if levels and n:
        limits = {"limit": None, "per_level": -(-n // levels)}
    return entry.model_copy(update=limits)


def _n_levels(entry: SetEntry) -> int:
    return len(entry.levels) or (levels_of(entry.bundled) if entry.bundled in bundled_names() else 0)


@lru_cache
def levels_of(bundled: str) -> int:
    """How many levels a bundled set has, 0 for one without."""
    return len(load(SetEntry(name=bundled, bundled=bundled), Path(), "").levels)


def _keys(entry: ModelEntry | SetEntry | ProbeEntry, shown: set[str]) -> str:
    """The keys of an entry that are set, but for those that are `shown`."""
    return ", ".join(key for key in entry.model_dump(exclude_defaults=True) if key not in shown)


def _default(name: str) -> object:
    return Study.model_fields[name].default
