"""A study's folder, read: the sums of its prompts by model and set. Numpy and pyarrow; no torch, no model, no prompt's
text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow
from pydantic import BaseModel, Field, model_validator

from .. import bounds, outside, settings
from ..errors import StudyError
from ..probes import Probe, find
from ..sources.bundled import STUDIES
from ..types import from_json
from . import items
from .plan import FORMAT, PLAN
from .study import LEVEL_MARK, NAME


@dataclass(frozen=True)
class Sums:
    """What is there of one model on one set: per column the prompts' values `[prompt, …]`, NaN where a prompt has none.
    `index`: which prompts of the set these are."""

    columns: Mapping[str, np.ndarray]
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def of(self, chosen: np.ndarray) -> Sums:
        """Some of the prompts, by their place in the set."""
        keep = np.isin(self.index, chosen)
        return Sums({name: values[keep] for name, values in self.columns.items()}, self.index[keep])

    def probe(self, name: str) -> dict[str, np.ndarray]:
        """A probe's columns under the names of its summary, of the prompts that went through it."""
        own = {n.partition(".")[2]: v for n, v in self.columns.items() if n.startswith(f"{name}.")}
        if "n_tokens" not in own:
            return {}
        ran = np.isfinite(own["n_tokens"])
        return {n: v[ran] for n, v in own.items()} if ran.any() else {}


class _Model(BaseModel):
    label: str = Field(max_length=400)
    digest: str = Field(pattern="^[0-9a-f]{16}$")
    n_layers: int | None = Field(None, ge=1, le=bounds.LAYERS)
    series: str = Field("", max_length=400)
    step: int | None = Field(None, ge=0, lt=10**12)


class _Probe(BaseModel):
    name: str
    parameters: dict[str, Any]


class _Set(BaseModel):
    name: str = Field(pattern=f"^{NAME}$")
    left_out: int
    ids: list[str]
    levels: list[str]
    pairs: list[str]
    forms: list[str] = []
    chunks: list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]]


class _Plan(BaseModel):
    """What is read of a plan; a bundle's is held to more (`bundle`)."""

    name: str
    note: str = ""
    seed: int = Field(ge=0)
    chunk: int = Field(ge=1, le=bounds.CHUNK)
    models: list[_Model]
    probes: list[_Probe]
    sets: list[_Set]
    pairs: list[list[str]] = []

    @model_validator(mode="after")
    def _whole(self) -> _Plan:
        for one in self.sets:
            n = len(one.ids)
            marks = (one.levels, one.pairs, one.forms)
            if len(one.chunks) != -(-n // self.chunk) or any(len(of_all) not in (0, n) for of_all in marks):
                raise ValueError(one.name)
        return self


@dataclass(frozen=True)
class Folder:
    """A study's folder as far as it is computed."""

    out: Path
    plan: Mapping[str, Any]
    tables: dict[str, tuple[str, pyarrow.Table]] = field(default_factory=dict)  # of which state (`tables.stored`)
    _read: dict[str, Any] = field(default_factory=dict)
    _sums: dict[tuple[str, str], tuple[list[int], Sums]] = field(default_factory=dict)

    @cached_property
    def models(self) -> dict[str, Mapping[str, Any]]:
        return {model["label"]: model for model in self.plan["models"]}

    @cached_property
    def sets(self) -> dict[str, Mapping[str, Any]]:
        return {one["name"]: one for one in self.plan["sets"]}

    def probe(self, name: str) -> Probe:
        """A probe of the study with its parameters, split points apart (which are each prompt's own)."""
        parameters = next((p["parameters"] for p in self.plan["probes"] if p["name"] == name), None)
        if parameters is None:
            planned = ", ".join(repr(str(p["name"])[:40]) for p in self.plan["probes"])  # a stranger's words
            raise StudyError(
                f"{self.out.name} holds results of {name[:40]!r}, and its plan names {planned or 'no probe'}; run the "
                "study again in another folder."
            )
        return find(name).make({n: v for n, v in parameters.items() if n != "boundaries"})

    def groups(self, name: str) -> dict[str, np.ndarray]:
        """A set as a whole and each of its levels, as places in the set."""
        one = self.sets[name]
        found = {name: np.arange(len(one["ids"]))}
        levels = np.asarray(one["levels"], str)
        return found | {
            f"{name}{LEVEL_MARK}{level}": np.flatnonzero(levels == level) for level in dict.fromkeys(one["levels"])
        }

    def forms(self, name: str) -> np.ndarray:
        """Of each prompt of a set, by its place, the form it was written in: a string, "" where it has none or the plan
        is older than forms. A published set's way of writing its prompts is one form."""
        one = self.sets[name]
        return np.asarray(one.get("forms") or [one.get("of") or ""] * len(one["ids"]), str)

    def progress(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Per model and set: items there, items in all."""
        found = {}
        for label, model in self.models.items():
            there = items.there(self.out, model["digest"])
            for name, one in self.sets.items():
                found[label, name] = sum(chunk in there for chunk in one["chunks"]), len(one["chunks"])
        return found

    def keys(self) -> Iterator[str]:
        """The items that are there, in the plan's order."""
        for model in self.models.values():
            there = items.there(self.out, model["digest"])
            yield from (f"{model['digest']}/{c}" for s in self.sets.values() for c in s["chunks"] if c in there)

    def sums(self, label: str, name: str) -> Sums:
        """What is there of a model on a set; of an item that was read already, what was read."""
        digest, chunks, size = self.models[label]["digest"], self.sets[name]["chunks"], self.plan["chunk"]
        there = items.there(self.out, digest)
        at = [i for i, chunk in enumerate(chunks) if chunk in there]
        if (before := self._sums.get((label, name))) is not None and before[0] == at:
            return before[1]
        parts, index = [], []
        for i in at:
            key = f"{digest}/{chunks[i]}"
            if key not in self._read:
                self._read[key] = self._item(key, min(size, len(self.sets[name]["ids"]) - i * size))
            parts.append(self._read[key])
            index.append(np.arange(i * size, i * size + len(parts[-1][0])))
        try:
            found = _joined(parts, np.concatenate(index) if index else np.empty(0, int))
        except (ValueError, pyarrow.ArrowException):
            raise StudyError(
                f"The study's files of {label!r} on {name} in {self.out} have other columns than each other; delete "
                f"{items.path(self.out, digest).with_suffix('')} and run the study again."
            ) from None
        self._sums[label, name] = at, found
        return found

    def _item(self, key: str, rows: int) -> tuple[pyarrow.Table, dict[str, tuple[int, ...]]]:
        file = items.path(self.out, key)
        table, shapes = items.read(file)
        if len(table) != rows:
            raise StudyError(
                f"The study's file {file.name} in {file.parent} has {len(table)} rows, expected {rows}; delete it and "
                "run the study again."
            )
        return table, shapes


def home() -> Path:
    """Where the studies of this installation lie, each in a folder of its own."""
    return settings.current().cache / "studies"


def made_here() -> list[Path]:
    """The folders of this installation's studies, latest first."""
    return [file.parent for file in sorted(home().glob(f"*/{PLAN}"), key=lambda file: -file.stat().st_mtime)]


def shipped() -> list[Path]:
    """The folders of the studies that come with the product."""
    return [file.parent for file in sorted(STUDIES.glob(f"*/{PLAN}"))]


def open_folder(out: str | Path) -> Folder:
    """A study's folder. `StudyError` where there is none, or one of a later version."""
    file = Path(out) / PLAN
    try:
        plan = from_json(outside.content(file, bounds.PLAN, outside.Unreadable))
        if plan["format"] != FORMAT:
            raise StudyError(
                f"The study in {out} is of format {plan['format']}; expected {FORMAT}. Run it again with this program."
            )
        _Plan.model_validate(plan, strict=True)
        return Folder(Path(out), plan)
    except outside.Unreadable:
        raise StudyError(
            f"There is no study in {out}: it has no {PLAN} that can be read; run one into it first."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise StudyError(f"{file} is damaged; run the study again: what is computed stays.") from None


def _joined(parts: Sequence[tuple[pyarrow.Table, Mapping[str, tuple[int, ...]]]], index: np.ndarray) -> Sums:
    if not parts:
        return Sums({}, index)
    shapes: dict[str, tuple[int, ...]] = {}
    for _, found in parts:
        if any(shapes.setdefault(column, shape) != shape for column, shape in found.items()):
            raise ValueError("shapes")
    table = pyarrow.concat_tables([t.replace_schema_metadata(None) for t, _ in parts], promote_options="default")
    return Sums({name: _values(table[name], shapes[name]) for name in table.column_names}, index)


def _values(column: pyarrow.ChunkedArray, shape: tuple[int, ...]) -> np.ndarray:
    """A column as `[prompt, …]`, NaN for null."""
    there = np.asarray(column.is_valid())
    flat = column.combine_chunks()
    if pyarrow.types.is_list(flat.type):
        given = np.asarray(flat.flatten(), np.float64).reshape(int(there.sum()), *shape)
    else:
        given = np.asarray(flat.drop_null(), np.float64)
    if there.all():
        return given
    values = np.full((len(there), *shape), np.nan)
    values[there] = given
    return values
