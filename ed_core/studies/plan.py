"""From a study to its items: which model on which prompts by which probes, and under which name the result is written.
Torch-free.

An item is one model × a chunk of prompts × all probes. Its name is made of two digests, of the model's identity and of
the chunk's prompts and probes with their parameters, so every process that computes it writes the same file, and a
study that was stopped or changed goes on with the items it has."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from .. import disk, untrusted
from ..errors import EffectiveDepthError, StudyError
from ..models import controls, tokens
from ..models.ref import ModelRef
from ..models.sizes import PRECISIONS
from ..probes import Probe
from ..prompts import max_tokens
from ..types import ENGINE_VERSION, ModelSpec, Prompt, canonical_json
from ..work.resolve import resolve
from .sets import Example, PromptSet, load, published, ranks
from .study import ModelEntry, ProbeEntry, Study, read, write

FORMAT = 1  # raise when an item's file is written otherwise: older ones are then computed again
PLAN, ITEMS, FAILURES, STUDY = "plan.json", "items", "failures.json", "study.toml"
DIGITS = 16  # of a digest, in hex


class StudyModel(BaseModel, frozen=True):
    """A model of a study, as `plan.json` has it. `trouble`: why it cannot be used, "" where it can, and only then it
    has a `spec`. `series`, `step`: the training and the number of the step, of a model that is a step of a training."""

    label: str = Field(max_length=400)
    digest: str = Field(pattern="^[0-9a-f]{16}$")
    trouble: str = ""
    name: str = ""
    precision: str = ""
    control: str = ""
    seed: int = 0
    parameters: int | None = Field(None, ge=0)
    n_layers: int | None = Field(None, ge=1, le=untrusted.LAYERS)
    series: str = Field("", max_length=400)
    step: int | None = Field(None, ge=0, lt=10**12)
    spec: ModelSpec | None = Field(None, exclude=True)

    @property
    def known(self) -> ModelRef:
        """The reference of a usable model (`trouble` is empty)."""
        assert self.spec is not None, self.trouble
        return ModelRef.of(self.spec)


@dataclass(frozen=True)
class Chunk:
    """Consecutive prompts of the set `of`, and the probes they go through. `takes[p]`: the indices within the chunk of
    the prompts that probe p takes."""

    examples: tuple[Example, ...]
    takes: tuple[tuple[int, ...], ...]
    digest: str
    of: str = ""

    def probes(self, study: Study, model: str, at: int | None = None) -> list[ProbeEntry]:
        """Return the probes that a model (its label) runs on the prompt at index `at`, or on any prompt for None."""
        every = zip(study.probes, self.takes)
        return [e for e, places in every if e.takes(model, self.of) and (bool(places) if at is None else at in places)]


@dataclass(frozen=True)
class Item:
    """One model on one chunk of prompts: the smallest piece of a study that is computed and stored."""

    model: StudyModel
    chunk: Chunk

    @property
    def key(self) -> str:
        """`<model digest>/<chunk digest>`, under which the item is stored."""
        return f"{self.model.digest}/{self.chunk.digest}"


@dataclass(frozen=True)
class Plan:
    """A study with its models resolved and its prompts read."""

    study: Study
    models: tuple[StudyModel, ...]
    sets: tuple[PromptSet, ...]
    chunks: tuple[tuple[Chunk, ...], ...]  # of each set

    @property
    def usable(self) -> tuple[StudyModel, ...]:
        """The models without trouble."""
        return tuple(m for m in self.models if not m.trouble)

    @property
    def n_prompts(self) -> int:
        """The number of prompts in all sets."""
        return sum(len(s.examples) for s in self.sets)

    @property
    def n_items(self) -> int:
        """The number of items, computed or not."""
        return sum(1 for _ in self.items())

    def items(self) -> Iterator[Item]:
        """Yield all items, model by model."""
        for model in self.usable:
            yield from self.items_of(model)

    def items_of(self, model: StudyModel) -> Iterator[Item]:
        """Return a model's items: one for each chunk that some probe takes."""
        every = (chunk for chunks in self.chunks for chunk in chunks)
        return (Item(model, chunk) for chunk in every if chunk.probes(self.study, model.label))


# ---------------------------------------------------------------- made


def make(study: Study, folder: Path, device: str = "cpu") -> Plan:
    """Return the plan of a study: resolve its models, and read its sets with file paths relative to `folder`. A model
    that cannot be used is noted in its `trouble`; a set that is unavailable raises `StudyError`."""
    _once([entry.series for entry in study.models if entry.steps], "trainings")
    steps = [(one, entry.series, step) for entry in study.models for one, step in entry.each()]
    specs = [_spec(one, device) for one, _, _ in steps]
    models = []
    for label, spec, (_, series, step) in zip(_labels(study.entries, specs), specs, steps):
        if isinstance(spec, EffectiveDepthError):
            digest, facts = _digest(["no model", label]), {"trouble": str(spec)}
        else:
            digest, facts = _of_spec(spec), _facts(spec)
        if without := [e.column for e in study.probes if e.models and label not in e.models]:
            digest = _digest([digest, without])
        place = {} if step is None else {"series": series, "step": step}
        models.append(StudyModel(label=label, digest=digest, **facts, **place))
    sources = zip(models, (entry.source for entry in study.entries))
    first = next((source for model, source in sources if not model.trouble), study.entries[0].source)
    return _plan(study, models, [_measured(study, load(entry, folder, first)) for entry in study.sets])


def of_models(study: Study, models: Sequence[StudyModel], prompts: Sequence[Prompt]) -> Plan:
    """Return the plan of a study of models in memory, with `prompts` as its only set."""
    return _plan(study, models, [PromptSet(study.sets[0].name, tuple(map(Example, prompts)))])


def _plan(study: Study, models: Iterable[StudyModel], sets: Sequence[PromptSet]) -> Plan:
    """Return the plan of these models and sets, each set divided into chunks."""
    probes = [_identity(entry) for entry in study.probes]
    return Plan(study, tuple(models), tuple(sets), tuple(tuple(_chunks(study, probes, s)) for s in sets))


def in_memory(step: int, spec: ModelSpec, n_layers: int) -> StudyModel:
    """Return the plan's entry for a model in memory at training step `step`; `spec` identifies its weights."""
    facts = _facts(ModelRef.of(spec)) | {"n_layers": n_layers}
    return StudyModel(label=f"step {step}", digest=_of_spec(spec), step=step, **facts)


def _facts(spec: ModelRef) -> dict[str, Any]:
    """Return the fields of a `StudyModel` that follow from its reference."""
    size = spec.size_or_none()
    named = {"name": spec.name, "precision": spec.precision, "control": spec.control, "seed": spec.control_seed}
    return named | {"n_layers": spec.n_layers, "parameters": size.parameters if size else None, "spec": spec}


def _spec(entry: ModelEntry, device: str) -> ModelRef | EffectiveDepthError:
    """Return the resolved reference of a model, or the error where it cannot be resolved."""
    try:
        return resolve(entry.source, entry.precision, device, entry.adapter, entry.control, entry.seed)
    except EffectiveDepthError as error:
        return error


def _labels(entries: Sequence[ModelEntry], specs: Sequence[ModelRef | EffectiveDepthError]) -> list[str]:
    """Return a label for each model: the given one, else name and control, with the precision where names are equal.
    Raises `StudyError` where two labels remain equal."""
    labels = []
    for entry, spec in zip(entries, specs):
        if isinstance(spec, EffectiveDepthError):
            twin = f", {controls.KINDS[entry.control]}, seed {entry.seed}" if entry.control else ""
            name = entry.source.rstrip("/").rsplit("/", 1)[-1] + twin
        else:
            name = ", ".join(filter(None, (spec.name, controls.label(spec))))
        labels.append(entry.label or name)
    labels = [
        f"{label} ({spec.precision})"
        if labels.count(label) > 1 and not entry.label and isinstance(spec, ModelSpec)
        else label
        for label, entry, spec in zip(labels, entries, specs)
    ]
    _once(labels, "models")
    return labels


def _once(labels: Sequence[str], what: str) -> None:
    """Raise `StudyError` where two labels are equal; `what` they label, in the plural."""
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise StudyError(f"Two {what} of the study would be called {twice!r}; give each another label.")


def _identity(entry: ProbeEntry) -> list[Any]:
    """Return everything about a probe that can change a number."""
    request = Probe.request(entry.make(), ModelSpec(""), Prompt("."))  # no model's, so none that refuses another's lens
    parameters = {name: list(v) if isinstance(v, tuple) else v for name, v in request.parameters}
    label = [entry.label] if entry.label else []
    files = sorted((parameters | dict(request.files)).items())
    return [request.probe, request.probe_version, files, entry.split_points, *label]


def _measured(study: Study, one: PromptSet) -> PromptSet:
    """Return a set without the prompts that no probe takes."""
    limits = [entry.limit for entry in study.probes if not entry.sets or one.name in entry.sets]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        return one
    ranked = zip(one.examples, ranks(e.level for e in one.examples))
    return replace(one, examples=tuple(example for example, rank in ranked if rank < max(known, default=0)))


def _chunks(study: Study, probes: Sequence[list[Any]], one: PromptSet) -> Iterator[Chunk]:
    """Yield the chunks of a set, `study.chunk` prompts each; `probes`: the identity of each of the study's probes."""
    examples, rank = one.examples, ranks(e.level for e in one.examples)
    for start in range(0, len(examples), study.chunk):
        some = tuple(examples[start : start + study.chunk])
        takes = tuple(
            tuple(
                i
                for i, example in enumerate(some)
                if (entry.limit is None or rank[start + i] < entry.limit) and (example.other or not entry.carries)
            )
            * (not entry.sets or one.name in entry.sets)
            for entry in study.probes
        )
        used = [[identity, list(places)] for identity, places in zip(probes, takes) if places]
        parts = [[e.prompt.identity() for e in some], used, max_tokens()]
        if any(entry.carries and places for entry, places in zip(study.probes, takes)):
            parts.append([e.other.identity() if e.other else None for e in some])
        yield Chunk(some, takes, _digest(parts), one.name)


def _of_spec(spec: ModelSpec) -> str:
    """Return the digest of a model's identity, the engine's version and the format of stored items."""
    return _digest([FORMAT, ENGINE_VERSION, spec.identity()])


def _digest(value: list[Any]) -> str:
    """Return the first 16 hex digits of the SHA-256 of a value as canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:DIGITS]


# ---------------------------------------------------------------- written


def write_plan(plan: Plan, out: Path) -> None:
    """Write `study.toml` and `plan.json` (without texts of prompts and paths of models) into the folder `out`. A model
    that is now missing keeps what an earlier run of this study wrote of it. Raises `StudyError` where `out` has another
    study's file but no plan."""
    study = plan.study
    same = _same(out / STUDY, study)
    models = [model.model_dump(exclude_defaults=True) for model in plan.models]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        before = untrusted.json_of(out / PLAN, untrusted.PLAN)["models"] if same else models
        models = [b if "trouble" in m and "trouble" not in b else m for b, m in zip(before, models, strict=True)]
    fields = {
        "format": FORMAT,
        **study.model_dump(include={"name", "note", "seed", "chunk"}),
        "models": models,
        "probes": [
            {"name": e.name, "limit": e.limit, "parameters": e.parameters}
            | e.model_dump(include={"label", "models", "sets"}, exclude_defaults=True)
            for e in study.probes
        ],
        "sets": [
            {
                "name": s.name,
                "of": published(entry),
                "left_out": s.left_out,
                "ids": [e.prompt.id for e in s.examples],
                **{name: _marks(s, name[:-1]) for name in ("levels", "pairs", "forms")},
                "chunks": [chunk.digest for chunk in chunks],
            }
            for entry, s, chunks in zip(study.sets, plan.sets, plan.chunks)
        ],
    }
    if not same and os.path.lexists(out / STUDY) and not (out / PLAN).exists():
        raise StudyError(f"{out / STUDY} is another study's file and would be replaced; give --out another folder.")
    with writing(out):
        (out / ITEMS).mkdir(parents=True, exist_ok=True)
        disk.write(out / PLAN, json.dumps(fields, ensure_ascii=False).encode())
        if not same:
            disk.write(out / STUDY, write(study).encode())


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn errors of the disk within the block into a `StudyError` about the folder `out`."""
    try:
        yield
    except OSError as error:
        raise StudyError(f"The folder {out} cannot be written: {disk.why(error, disk.moves(out))}") from error


def _marks(one: PromptSet, name: str) -> list[str]:
    """Return each prompt's mark called `name` ("level", "pair" or "form"); [] where no prompt has one."""
    marks = [getattr(example, name) for example in one.examples]
    return marks if any(marks) else []


def _same(file: Path, study: Study) -> bool:
    """Return whether a file already has this study, however it is written."""
    try:
        return read(file) == study
    except StudyError:
        return False


# ---------------------------------------------------------------- estimated


def seconds_of(plan: Plan, device: str = "cpu") -> float | None:
    """Return about how many seconds the whole study takes; None where a model's size is unknown."""
    from ..work.estimate import estimate

    total = 0.0
    probes = [entry.make() for entry in plan.study.probes]
    taken = [sum(len(c.takes[p]) for chunks in plan.chunks for c in chunks) for p in range(len(probes))]
    for model in plan.usable:
        ref = model.known
        if ref.precision not in PRECISIONS or (size := ref.size_or_none()) is None:
            return None
        some = [e.prompt for s in plan.sets for e in s.examples[:: max(1, len(s.examples) // 20)]]
        lengths = [64 if (ids := tokens.preview(ref, prompt)) is None else len(ids) for prompt in some]
        length = max(1, round(sum(lengths) / len(lengths)))
        cost = estimate(size, ref.precision, length, device, 0, probes)
        total += sum(n * need.seconds for need, n in zip(cost.needs, taken))
    return total
