"""A study as a person writes it down: models × prompt sets × probes, in one small TOML file. Torch-free.

    name = "mine"
    models = ["ed-demo-8", {source = "ed-demo-16", control = "untrained"}]
    probes = ["contributions", "logit_lens", {name = "layer_skip", limit = 20, mode = "future"}]
    [[sets]]
    name = "local"
    file = "prompts.jsonl"

An unknown key is refused with the nearest known one."""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .. import untrusted
from ..errors import ParameterError, StudyError
from ..files import expect
from ..models.ref import step_name
from ..probes import PROBES, Probe, find
from ..types import Prompt

NAME = r"\w([\w.,+ -]{0,78}[\w.+-])?"  # of studies and sets: they become names of files and values in tables
LEVEL_MARK = "/"  # between a set and one of its levels, where results are of that level alone
SPLIT_POINTS = (
    "answer",  # the answer's first token [C25 §5]
    "within_answer",  # four tokens of the answer, as C25 draws them for MATH
)


class _Strict(BaseModel):
    """Base of the entries of a study's file: unknown keys are refused, values immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def step_of(name: str) -> int | None:
    """Return the training step in the name of a revision or checkpoint: 1000 of "step1000", 500 of "checkpoint-500", 5
    of "stage1-step5-tokens9B"; of any other name its only number. None where it has none."""
    named = re.findall(r"(?:step|checkpoint)[-_ ]?(\d{1,12})(?!\d)", name, re.IGNORECASE)
    numbers = named or re.findall(r"\d+", name)
    return int(numbers[0]) if len(numbers) == 1 and len(numbers[0]) <= 12 else None


def _names(value: Any) -> Any:
    """Return a list as a tuple of texts, as levels and steps may be numbers; anything else as it is."""
    return tuple(map(str, value)) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class ModelEntry(_Strict):
    """A model of a study. `label`: what tables call it; its name, and what else tells it from the others, unless
    given. `steps` of one training, a model each: revisions of a hub model, or folders in a folder, by name."""

    source: str = Field(min_length=1)
    precision: str = "fp32"
    adapter: str = ""
    control: Literal["", "untrained", "shuffled"] = ""
    seed: int = Field(0, ge=0)
    label: str = Field("", max_length=120)
    steps: Names = ()

    @model_validator(mode="after")
    def _checked(self) -> ModelEntry:
        """Refuse steps of a control, adapter or revision, and steps without a number of their own."""
        if self.steps and (self.control or self.adapter or "@" in self.source):
            raise ValueError("steps of a plain model; a control, an adapter or one revision needs another entry")
        numbers = [step_of(name) for name in self.steps]
        for name, number in zip(self.steps, numbers):
            if number is None or not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(f"steps with names like step1000 or checkpoint-5; found {name!r}")
            if numbers.count(number) > 1:
                raise ValueError(f"steps with different numbers; another one has that of {name!r}")
        return self

    @property
    def series(self) -> str:
        """The name of the training that the steps belong to: the label, or the last part of the source."""
        return self.label or self.source.rstrip("/").rsplit("/", 1)[-1]

    def each(self) -> tuple[tuple[ModelEntry, int | None], ...]:
        """Return each step as an entry of its own with its number; the entry itself and None where it has no steps."""
        if not self.steps:
            return ((self, None),)
        each = []
        for step, name in sorted((step_of(name) or 0, name) for name in self.steps):
            own = {"steps": (), "source": step_name(self.source, name), "label": f"{self.series}, {name}"}
            each.append((self.model_copy(update=own), step))
        return tuple(each)


class ProbeEntry(BaseModel):
    """A probe of a study with its parameters. `limit`: how many prompts of each set (of each of its levels) it takes,
    the first ones; `models`, `sets`: which it takes, by label and name; all unless given. `label`: what its columns
    are called, so that a study can have a probe twice; its name unless given."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    label: str = Field("", pattern="^[a-z_]{0,40}$")
    limit: int | None = Field(None, ge=1)
    models: Names = ()
    sets: Names = ()

    @property
    def column(self) -> str:
        """The prefix of the probe's columns: its label, else its name."""
        return self.label or self.name

    def takes(self, model: str, name: str) -> bool:
        """Return whether the probe runs on the model with this label and the set with this name."""
        return (not self.models or model in self.models) and (not self.sets or name in self.sets)

    @property
    def parameters(self) -> dict[str, Any]:
        """The probe's parameters by name, as the file gives them."""
        return {name: tuple(v) if isinstance(v, list) else v for name, v in (self.model_extra or {}).items()}

    @property
    def split_points(self) -> str:
        """The name, in `SPLIT_POINTS`, of how split points follow from each prompt's answer; "" where they do not."""
        given = self.parameters.get("boundaries")
        return given if given in SPLIT_POINTS else ""

    @property
    def carries(self) -> bool:
        """Whether the probe reads each prompt together with the next one of its form."""
        return bool(set(find(self.name).further_prompts()) - set(self.parameters))

    def make(self, boundaries: tuple[int, ...] = (), other: Prompt | None = None) -> Probe:
        """Return the probe; a `ParameterError` names a parameter that it does not know. `boundaries`: one prompt's own
        split points; `other`: the prompt that goes with it."""
        own: dict[str, Any] = {"boundaries": boundaries} if self.split_points else {}
        own |= dict.fromkeys(find(self.name).further_prompts(), other) if self.carries else {}
        return find(self.name).make(self.parameters | own)


class Columns(_Strict):
    """The names of a table's columns for each part of a prompt, "" where it has none."""

    text: str = "text"
    answer: str = ""
    id: str = ""
    level: str = ""
    pair: str = ""
    form: str = ""


class SetEntry(_Strict):
    """A prompt set of a study: exactly one of `file`, `bundled` and `hub`.

    `format`: a published set's way of writing a prompt (`sets.FORMATS`), for a file with that set's columns.
    `columns`: for any other table. `levels`: those that are taken, in this order. `limit`: prompts in all, the first
    ones; `per_level`: of each level. `seed`: shuffles before the limits are applied, each level separately, and a
    lone `limit` draws from all levels; the order of the set unless given. `max_tokens`: longer prompts are left out
    before the limits, counted with `tokenizer` (a model; the study's first unless given)."""

    name: str = Field(pattern=f"^{NAME}$")
    file: str = ""
    bundled: str = ""
    hub: str = ""
    format: str = ""
    config: str = ""
    split: str = ""
    columns: Columns | None = None
    template: Literal["raw", "chat"] = "raw"
    levels: Names = ()
    limit: int | None = Field(None, ge=1)
    per_level: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0)
    answered: bool = False
    max_tokens: int | None = Field(None, ge=2)
    tokenizer: str = ""

    @model_validator(mode="after")
    def _one_source(self) -> SetEntry:
        """Refuse none or several of file, bundled and hub, and format together with columns."""
        given = [name for name in ("file", "bundled", "hub") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"exactly one of file, bundled and hub (found {' and '.join(given) or 'none'})")
        if self.format and self.columns:
            raise ValueError("format or columns, not both")
        return self


def _entries(kind: str) -> BeforeValidator:
    """Return a validator of a list that turns an item which is just a name into a dict with the key `kind`."""

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        return tuple({kind: item} if isinstance(item, str) else item for item in value)

    return BeforeValidator(read)


class Study(_Strict):
    """A study as its file describes it. `chunk`: prompts of one item, which is what a run that was stopped may lose of
    its work. `seed`: of the bootstrap."""

    name: str = Field(pattern=f"^{NAME}$")
    note: str = Field("", max_length=4000)
    models: Annotated[tuple[ModelEntry, ...], _entries("source")] = Field(min_length=1)
    probes: Annotated[tuple[ProbeEntry, ...], _entries("name")] = Field(min_length=1)
    sets: Annotated[tuple[SetEntry, ...], _entries("name")] = Field(min_length=1)
    chunk: int = Field(8, ge=1, le=untrusted.CHUNK)
    seed: int = Field(0, ge=0)

    @property
    def entries(self) -> tuple[ModelEntry, ...]:
        """The entries of all models; every step of a training is one."""
        return tuple(one for entry in self.models for one, _ in entry.each())

    @model_validator(mode="after")
    def _nothing_twice(self) -> Study:
        """Refuse two sets or two probes of one name."""
        for what, names in (("sets", [s.name for s in self.sets]), ("probes", [p.column for p in self.probes])):
            if twice := next((name for name in names if names.count(name) > 1), ""):
                raise ValueError(f"{what} with names of their own; {twice!r} is there twice")
        return self


def read(file: str | Path) -> Study:
    """Return the study in a TOML file; `StudyError` says what is wrong with it, and where."""
    return parse(untrusted.text(file, untrusted.TOML, StudyError), Path(file).name)


def parse(text: str, name: str = "the study") -> Study:
    """Return the study in a TOML text; `StudyError` says what is wrong. `name`: what the error calls it."""
    try:
        study = Study.model_validate(untrusted.toml(text), strict=True)
    except ValidationError as error:
        raise StudyError(wrong(error, name)) from None
    except ValueError as error:
        raise StudyError(f"{name} is not TOML: {error}. Fix that place.") from None
    known = [probe.name for probe in PROBES]
    for i, entry in enumerate(study.probes):
        try:
            expect(entry.name in known, f"there is no probe {entry.name!r}; {nearest(entry.name, known)}")
            entry.make()
        except (ValueError, ParameterError) as error:
            raise StudyError(f"{name}: probes[{i}]: {error}") from None
    return study


def write(study: Study) -> str:
    """Return the TOML that `parse` reads as this study, what is at its default left out."""
    data = study.model_dump(exclude_defaults=True)
    lines = [f"{key} = {_toml(data[key])}" for key in ("name", "note", "chunk", "seed") if key in data]
    for key, short in (("models", "source"), ("probes", "name")):
        items = [item[short] if list(item) == [short] else item for item in data[key]]
        lines.append(f"{key} = {_toml(items)}")
    for entry in data["sets"]:
        lines += ["", "[[sets]]", *(f"{key} = {_toml(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint on an unknown name: "did you mean X?", or the known names."""
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}."


def wrong(error: ValidationError, name: str) -> str:
    """Return the first problem of a validation error in a sentence; `name`: of the file."""
    problems = error.errors(include_url=False)  # a misspelt key is missing under its right name as well
    first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if first["type"] == "extra_forbidden":
        parent, _, key = place.rpartition(".")
        kinds: dict[str, type[BaseModel]] = {"models": ModelEntry, "sets": SetEntry, "columns": Columns}
        kind = kinds.get(re.sub(r"\[\d+\]", "", parent).rpartition(".")[2], Study)
        return f"{name}: {parent or 'the study'} has no key {key!r}; {nearest(key, kind.model_fields.keys())}"
    if first["type"] == "missing":
        return f"{name}: {place} is missing; give it."
    value = "" if first["type"] == "value_error" else f" is {reprlib.repr(first['input'])}"
    expected = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if first["type"] == "string_pattern_mismatch":
        expected = "letters, digits, spaces and . , + - _ (80 at most, a letter or digit first)"
    return f"{name}: {place or 'the study'}{value}: expected {expected}."


def _toml(value: Any) -> str:
    """Return a value as TOML writes it; JSON's strings and numbers are TOML's."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
