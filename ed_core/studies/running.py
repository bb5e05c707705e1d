"""A study computed: what is there stays, what is missing is computed, item by item. What one model cannot do is
noted, and the others go on.

Who computes is an `Engine`: this process (`Here`), several of this machine or Ray's (`work/runs/engine.py`).
Several runs may also share one folder: an item's file is the same from every process, whole or missing, and is not
computed twice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from .. import disk
from ..errors import Cancelled, EffectiveDepthError, StoreError, StudyError
from ..work.turn import Turn
from . import items
from .plan import FAILURES, Chunk, Item, Plan, StudyModel, writing

COMPUTED, THERE, FAILED = "computed", "there", "failed"  # what became of an item
RAISED = (Cancelled, StudyError, StoreError)  # no model's failure: they end the run
Todo = Mapping[StudyModel, Sequence[Item]]


@dataclass
class Outcome:
    """How a run ended. `failed`: why, by the label of the model."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((COMPUTED, THERE, FAILED), 0))
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """What became of an item; where it failed, its model has failed, and `why`."""

    item: Item
    what: str
    why: str = ""


class Engine(Protocol):
    """Where items are computed. What a model cannot do is a status; what the disk says is raised."""

    def try_out(self, todo: Todo) -> Iterator[tuple[StudyModel, str]]:
        """Open every model and try its prompts on it: which of them cannot do it, and why."""

    def compute(self, todo: Todo, done: Callable[[StudyModel, int], None]) -> Iterator[Status]:
        """Compute the items, and write them. `done`: the model, how many more prompts. After a failure nothing more of
        that model is begun."""

    def close(self) -> None:
        """Give back what it holds."""


MakesEngine = Callable[[Plan, Path], Engine]
"""From the plan and the study's folder."""


class Here:
    """This process. `opened`: its models, where several studies follow each other; `turn`: after each item another job
    may have its turn, and a cancelled one ends."""

    def __init__(self, plan: Plan, out: Path, opened: Any = None, turn: Turn | None = None):
        self._plan, self._out, self._turn = plan, out, turn or Turn()
        self._opened = self._turn.models if opened is None else opened  # one that is still empty is false

    def try_out(self, todo: Todo) -> Iterator[tuple[StudyModel, str]]:
        for model, of_model in todo.items():
            if why := try_out(self._opened, self._plan, model, [item.chunk for item in of_model]):
                yield model, why
            self._turn.item()

    def compute(self, todo: Todo, done: Callable[[StudyModel, int], None]) -> Iterator[Status]:
        for model, of_model in todo.items():
            for item in of_model:
                tell, cancelled = partial(done, model, 1), self._turn.cancelled
                yield (outcome := status(self._opened, self._plan, self._out, item, tell, cancelled))
                self._turn.item()
                if outcome.why:
                    break

    def close(self) -> None:
        pass


def run(
    plan: Plan,
    out: Path,
    report: Callable[[StudyModel, int, int], None] = lambda model, done, total: None,
    engine: MakesEngine = Here,
) -> Outcome:
    """Compute what is missing. Every model that has something to do is opened and every prompt tried on it
    before the first is computed. `report`: the model, prompts done, prompts in all."""
    outcome, todo = Outcome(), missing(plan, out)
    left = {model: len(of_model) for model, of_model in todo.items()}
    outcome.counts[THERE] = plan.n_items - sum(left.values())
    for model in plan.models:
        if model.trouble:
            note_failure(out, outcome, model, model.trouble)
        elif model not in todo:
            forget_failure(out, model)
    if not todo:
        return outcome
    done = 0
    with contextlib.closing(engine(plan, out)) as at_work:
        for model, why in at_work.try_out(todo):
            note_failure(out, outcome, model, why)
        able = {model: of_model for model, of_model in todo.items() if model.label not in outcome.failed}
        total = sum(len(item.chunk.examples) for of_model in able.values() for item in of_model)

        def more(model: StudyModel, n: int) -> None:
            nonlocal done
            done += n
            report(model, done, total)

        for one in at_work.compute(able, more):
            model = one.item.model
            if one.why:
                note_failure(out, outcome, model, one.why)
                continue
            outcome.counts[one.what] += 1
            left[model] -= 1
            if not left[model]:  # a model that went through has not failed
                forget_failure(out, model)
    outcome.counts[FAILED] += sum(left.values())
    return outcome


def try_out(opened: Any, plan: Plan, model: StudyModel, chunks: Sequence[Chunk]) -> str:
    """Why a model cannot be opened, or has no answer for one of the prompts; "" where it can. `opened`: this process's
    models."""
    try:
        items.check(opened.get(model.spec), plan, model.label, chunks)
    except RAISED:
        raise
    except EffectiveDepthError as error:
        return str(error)
    return ""


def status(
    opened: Any,
    plan: Plan,
    out: Path,
    item: Item,
    done: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Status:
    """Compute one item, unless another process has written it; `why` is what the model cannot do. `opened`: this
    process's models."""
    if items.path(out, item.key).is_file():
        for _ in item.chunk.examples:
            done()
        return Status(item, THERE)
    try:
        items.write(out, item, items.compute(opened.get(item.model.spec), plan, item, done, cancelled))
    except RAISED:
        raise
    except EffectiveDepthError as error:
        return Status(item, FAILED, str(error))
    return Status(item, COMPUTED)


def note_failure(out: Path, outcome: Outcome, model: StudyModel, why: str) -> None:
    """Record in the folder that a model failed."""
    outcome.failed[model.label] = why
    text = json.dumps({"model": model.label, "why": why}, ensure_ascii=False)
    with writing(out):
        (out / FAILURES).mkdir(parents=True, exist_ok=True)
        disk.write(out / FAILURES / f"{model.digest}.json", text.encode())


def forget_failure(out: Path, model: StudyModel) -> None:
    """Delete what an earlier run noted of a model that went through."""
    (out / FAILURES / f"{model.digest}.json").unlink(missing_ok=True)


def missing(plan: Plan, out: Path) -> dict[StudyModel, list[Item]]:
    """What is not computed yet, by model."""
    todo_by_model: dict[StudyModel, list[Item]] = {}
    for model in plan.usable:
        computed = items.computed_chunks(out, model.digest)
        if todo := [item for item in plan.items_of(model) if item.chunk.digest not in computed]:
            todo_by_model[model] = todo
    return todo_by_model
