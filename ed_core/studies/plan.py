"""From a study to its items: which model on which prompts by which probes, and under which name the result is written.
Torch-free.

An item is one model × a chunk of prompts × all probes. Its name is made of two digests, of the model's identity and of
the chunk's prompts and probes with their parameters, so whoever computes it writes the same file, and a study that was
stopped or changed goes on with what is there. Plans of a million items are walked, not kept in memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import bounds, disk, outside
from ..errors import EffectiveDepthError, StudyError
from ..models import controls, tokens
from ..models.ref import ModelRef
from ..models.sizes import PRECISIONS
from ..probes import Probe
from ..prompts import max_tokens
from ..types import ENGINE_VERSION, ModelSpec, Prompt, canonical_json
from ..work.resolve import settle
from .sets import Example, PromptSet, load, published
from .study import ModelEntry, ProbeEntry, Study, read, write

FORMAT = 1  # raise when an item's file is written otherwise: older ones are then computed again
PLAN, ITEMS, FAILURES, STUDY = "plan.json", "items", "failures", "study.toml"
DIGITS = 16  # of a digest, in hex


@dataclass(frozen=True)
class StudyModel:
    """A model of a study. `trouble`: why it cannot be used, "" where it can; then `spec` is None. `n_layers`: of a
    model that no folder holds; of others their config tells. `step`: of one that is a step of a training, the
    `series`."""

    label: str
    spec: ModelSpec | None
    digest: str
    trouble: str = ""
    n_layers: int | None = None
    series: str = ""
    step: int | None = None

    @property
    def known(self) -> ModelRef:
        """The model, where it can be used."""
        assert self.spec is not None, self.trouble
        return ModelRef.of(self.spec)


@dataclass(frozen=True)
class Chunk:
    """Consecutive prompts of a set and the probes they go through. `takes[p]`: of probe p, which of the prompts, by
    their place in the chunk."""

    examples: tuple[Example, ...]
    takes: tuple[tuple[int, ...], ...]
    digest: str
    of: str = ""

    def probes(self, study: Study, model: str, at: int | None = None) -> list[ProbeEntry]:
        """The probes that a model goes through on the prompt at a place, or on any of them."""
        every = zip(study.probes, self.takes)
        return [e for e, places in every if e.takes(model, self.of) and (bool(places) if at is None else at in places)]


@dataclass(frozen=True)
class Item:
    model: StudyModel
    chunk: Chunk

    @property
    def key(self) -> str:
        return f"{self.model.digest}/{self.chunk.digest}"


@dataclass(frozen=True)
class Plan:
    """A study whose models and prompts are known."""

    study: Study
    models: tuple[StudyModel, ...]
    sets: tuple[PromptSet, ...]
    chunks: tuple[tuple[Chunk, ...], ...]  # of each set

    @property
    def usable(self) -> tuple[StudyModel, ...]:
        return tuple(m for m in self.models if not m.trouble)

    @property
    def n_prompts(self) -> int:
        return sum(len(s.examples) for s in self.sets)

    @property
    def n_items(self) -> int:
        return sum(1 for _ in self.items())

    def items(self) -> Iterator[Item]:
        """All items, model by model."""
        for model in self.usable:
            yield from self.items_of(model)

    def items_of(self, model: StudyModel) -> Iterator[Item]:
        """A model's items: the chunks that some probe takes."""
        for chunks in self.chunks:
            for chunk in chunks:
                if chunk.probes(self.study, model.label):
                    yield Item(model, chunk)


def of_file(file: str | Path, device: str = "cpu", fetch: Callable[[str, str], object] | None = None) -> Plan:
    """The plan of a study's file. `fetch`: what brings a model that is not here, by its source and its control; where
    it cannot, the plan says so."""
    study = read(file)
    if fetch is not None:
        for entry in study.entries:
            with contextlib.suppress(EffectiveDepthError):
                fetch(entry.source, entry.control)
    return make(study, Path(file).parent, device)


def make(study: Study, folder: Path, device: str = "cpu") -> Plan:
    """The plan of a study with its file in `folder`. A model that cannot be found is noted, a set that is unavailable
    is refused."""
    trainings = [entry.series for entry in study.models if entry.steps]
    if twice := next((name for name in trainings if trainings.count(name) > 1), ""):
        raise StudyError(f"Two trainings of the study would be called {twice!r}; give each a label of its own.")
    steps = [(one, entry.series, step) for entry in study.models for one, step in entry.each()]
    labelled = _labelled(study.entries, [_spec(one, device) for one, _, _ in steps])
    models = tuple(
        model if step is None else replace(model, series=series, step=step)
        for model, (_, series, step) in zip(labelled, steps)
    )
    models = tuple(replace(model, digest=_restricted(study, model)) for model in models)
    named = [entry.source for entry in study.entries]
    first = next((source for source, model in zip(named, models) if not model.trouble), named[0])
    sets = tuple(_measured(study, load(entry, folder, first)) for entry in study.sets)
    probes = [_identity(entry) for entry in study.probes]
    return Plan(study, models, sets, tuple(tuple(_chunks(study, probes, s)) for s in sets))


def of_models(study: Study, models: Sequence[StudyModel], prompts: Sequence[Prompt]) -> Plan:
    """The plan of a study whose models are in memory; the prompts are its only set."""
    one, probes = study.sets[0], [_identity(entry) for entry in study.probes]
    prompt_set = PromptSet(one.name, tuple(Example(prompt) for prompt in prompts))
    return Plan(study, tuple(models), (prompt_set,), (tuple(_chunks(study, probes, prompt_set)),))


def in_memory(step: int, spec: ModelSpec, n_layers: int) -> StudyModel:
    """A model that no folder holds, in the state that its spec names: at a step of a training."""
    return StudyModel(label_of(step), spec, _of_spec(spec), n_layers=n_layers, step=step)


def label_of(step: int) -> str:
    """What a step of a training is called that was measured while it ran."""
    return f"step {step}"


def _says(file: Path, study: Study) -> bool:
    """Whether a study's file says this already, in words of its own: it may be the one that was read."""
    try:
        return read(file) == study
    except StudyError:
        return False


def write_plan(plan: Plan, out: Path) -> None:
    """What a reader of the folder needs to know of the plan: no text of any prompt, no path of any model. Of a model
    that is not here, what an earlier run of this very study wrote stays. A study's file that somebody put there is not
    replaced by another: `StudyError`."""
    said = _says(out / STUDY, plan.study)
    models = [_model_fields(model) for model in plan.models]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        before = outside.json_of(out / PLAN, bounds.PLAN)["models"] if said else models
        models = [b if "trouble" in m and "trouble" not in b else m for b, m in zip(before, models, strict=True)]
    fields = {
        "format": FORMAT,
        "name": plan.study.name,
        "note": plan.study.note,
        "seed": plan.study.seed,
        "chunk": plan.study.chunk,
        "models": models,
        "probes": [_probe_fields(entry) for entry in plan.study.probes],
        "sets": [
            {
                "name": s.name,
                **({"of": of} if (of := published(entry)) else {}),
                "left_out": s.left_out,
                "ids": [e.prompt.id for e in s.examples],
                "levels": [e.level for e in s.examples] if s.levels else [],
                "pairs": [e.pair for e in s.examples] if any(e.pair for e in s.examples) else [],
                **({"forms": [e.form for e in s.examples]} if any(e.form for e in s.examples) else {}),
                "chunks": [chunk.digest for chunk in chunks],
            }
            for entry, s, chunks in zip(plan.study.sets, plan.sets, plan.chunks)
        ],
    }
    if not said and os.path.lexists(out / STUDY) and not (out / PLAN).exists():
        raise StudyError(f"{out / STUDY} is another study's file and would be replaced; give --out another folder.")
    try:
        (out / ITEMS).mkdir(parents=True, exist_ok=True)
        disk.write(out / PLAN, json.dumps(fields, ensure_ascii=False).encode())
        if not said:
            disk.write(out / STUDY, write(plan.study).encode())
    except OSError as error:
        raise StudyError(f"The study's folder {out} cannot be written: {disk.why(error, disk.moves(out))}") from error


def seconds_of(plan: Plan, device: str = "cpu") -> tuple[float, bool] | None:
    """About how long the whole study takes, and whether that rests on a measurement of this device; None where a
    model's size is not known, or how it is computed is not ours to say."""
    from ..work.estimate import estimate

    total, measured = 0.0, True
    for model in plan.usable:
        if model.known.precision not in PRECISIONS:
            return None
        if (size := model.known.size_or_none()) is None:
            return None
        probes = [entry.make() for entry in plan.study.probes]
        found = estimate(size, model.known.precision, _tokens(plan, model.known), device, 0, probes)
        total += sum(n * need.seconds for need, n in zip(found.needs, _taken(plan)))
        measured &= found.calibrated
    return total, measured


def _taken(plan: Plan) -> list[int]:
    """Of each probe how many prompts it takes, over all sets."""
    every = [chunk.takes for chunks in plan.chunks for chunk in chunks]
    return [sum(len(takes[p]) for takes in every) for p in range(len(plan.study.probes))]


def _tokens(plan: Plan, spec: ModelRef) -> int:
    """The mean length of a prompt, of a few of each set."""
    lengths = []
    for s in plan.sets:
        for example in s.examples[:: max(1, len(s.examples) // 20)]:
            found = tokens.preview(spec, example.prompt)
            lengths.append(len(found) if found is not None else 64)
    return max(1, round(sum(lengths) / len(lengths)))


def _spec(entry: ModelEntry, device: str) -> ModelRef | EffectiveDepthError:
    try:
        return settle(
            ModelRef.parse(
                entry.source, entry.precision, device, entry.adapter, control=entry.control, control_seed=entry.seed
            )
        )
    except EffectiveDepthError as error:
        return error


def _labelled(entries: Sequence[ModelEntry], specs: Sequence[ModelRef | EffectiveDepthError]) -> tuple[StudyModel, ...]:
    """The models with labels that tell them apart."""
    labels = []
    for entry, spec in zip(entries, specs):
        if entry.label or isinstance(spec, EffectiveDepthError):
            twin = f", {controls.KINDS[entry.control]}, seed {entry.seed}" if entry.control else ""
            labels.append(entry.label or entry.source.rstrip("/").rsplit("/", 1)[-1] + twin)
        else:
            labels.append(", ".join(filter(None, (spec.name, controls.label(spec)))))
    plain = list(labels)
    for i, (entry, spec) in enumerate(zip(entries, specs)):
        if plain.count(plain[i]) > 1 and not entry.label and isinstance(spec, ModelSpec):
            labels[i] = f"{plain[i]} ({spec.precision})"
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise StudyError(f"Two models of the study would be called {twice!r}; give each a label of its own.")
    return tuple(
        StudyModel(label, None, _digest(["no model", label]), str(spec))
        if isinstance(spec, EffectiveDepthError)
        else StudyModel(label, spec, _of_spec(spec))
        for label, spec in zip(labels, specs)
    )


def _of_spec(spec: ModelSpec) -> str:
    return _digest([FORMAT, ENGINE_VERSION, spec.identity()])


def _model_fields(model: StudyModel) -> dict[str, Any]:
    if model.spec is None:
        return {"label": model.label, "digest": model.digest, "trouble": model.trouble, **_step(model)}
    spec = model.known
    return {
        "label": model.label,
        "digest": model.digest,
        "name": spec.name,
        "precision": spec.precision,
        "control": spec.control,
        "seed": spec.control_seed,
        "n_layers": model.n_layers or spec.n_layers,
        "parameters": parameters(spec),
        **_step(model),
    }


def _probe_fields(entry: ProbeEntry) -> dict[str, Any]:
    more = {"label": entry.label, "models": list(entry.models), "sets": list(entry.sets)}
    fields = {"name": entry.name, "limit": entry.limit, "parameters": entry.parameters}
    return fields | {name: value for name, value in more.items() if value}


def _restricted(study: Study, model: StudyModel) -> str:
    """The digest of a model, and of the probes that leave it out."""
    without = [entry.column for entry in study.probes if entry.models and model.label not in entry.models]
    return _digest([model.digest, without]) if without else model.digest


def _step(model: StudyModel) -> dict[str, Any]:
    return {} if model.step is None else {"series": model.series, "step": model.step}


def parameters(spec: ModelRef) -> int | None:
    """How many parameters a model has, by its config; None where that does not tell."""
    size = spec.size_or_none()
    return size.parameters if size else None


def _identity(entry: ProbeEntry) -> list[Any]:
    """What of a probe can change a number."""
    request = Probe.request(entry.make(), ModelSpec(""), Prompt("."))  # no model's, so none that refuses another's lens
    parameters = {name: list(v) if isinstance(v, tuple) else v for name, v in request.parameters}
    return [
        request.probe,
        request.probe_version,
        sorted((parameters | dict(request.files)).items()),
        entry.split_points,
        *([entry.label] if entry.label else []),
    ]


def _measured(study: Study, one: PromptSet) -> PromptSet:
    """A set without the prompts that no probe takes."""
    taking = [entry for entry in study.probes if not entry.sets or one.name in entry.sets]
    limits = [entry.limit for entry in taking if entry.limit is not None]
    if len(limits) < len(taking):
        return one
    ranked = zip(one.examples, _ranks(one.examples))
    return replace(one, examples=tuple(example for example, rank in ranked if rank < max(limits, default=0)))


def _ranks(examples: Sequence[Example]) -> list[int]:
    """The place of each prompt within its level."""
    seen: Counter[str] = Counter()
    ranks = []
    for example in examples:
        ranks.append(seen[example.level])
        seen[example.level] += 1
    return ranks


def _chunks(study: Study, probes: Sequence[list[Any]], one: PromptSet) -> Iterator[Chunk]:
    examples, rank = one.examples, _ranks(one.examples)
    for at in range(0, len(examples), study.chunk):
        some = tuple(examples[at : at + study.chunk])
        takes = tuple(
            tuple(
                i
                for i, example in enumerate(some)
                if (entry.limit is None or rank[at + i] < entry.limit) and (example.other or not entry.carries)
            )
            * (not entry.sets or one.name in entry.sets)
            for entry in study.probes
        )
        used = [[identity, list(places)] for identity, places in zip(probes, takes) if places]
        said = [[e.prompt.identity() for e in some], used, max_tokens()]
        if any(entry.carries and places for entry, places in zip(study.probes, takes)):
            said.append([e.other.identity() if e.other else None for e in some])
        yield Chunk(some, takes, _digest(said), one.name)


def _digest(value: list[Any]) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:DIGITS]
