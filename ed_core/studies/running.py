"""A study computed: what is there stays, what is missing is computed, item by item, in this process or by an executor
(`work/executors.py`). What one model cannot do is noted, and the others go on.

Several runs may also share one folder: an item's file is the same from every process, whole or missing, and is not
computed twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import Cancelled, EffectiveDepthError, JobError, StoreError, StudyError
from ..work.executors import FULL, own
from ..work.turn import Turn
from . import items
from .plan import FAILURES, Item, Plan, StudyModel, writing

COMPUTED, THERE, FAILED = "computed", "there", "failed"  # what became of an item
Todo = dict[StudyModel, list[Item]]
Done = Callable[[StudyModel, int], None]
"""Gets the model, and how many more prompts are done."""
Status = tuple[Item, str, str]
"""An item, what became of it, and what its model cannot do, "" where it can."""


@dataclass
class Outcome:
    """How a run ended: how many items were computed, there already, or failed; `failed`: why, by the model's label."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((COMPUTED, THERE, FAILED), 0))
    failed: dict[str, str] = field(default_factory=dict)


def run(plan: Plan, out: Path, turn: Turn | None = None, tell: Callable[[float, str], None] | None = None) -> Outcome:
    """Compute the missing items of a plan into the folder `out`, and return how that ended. `tell`: gets the share that
    is done (0 to 1) and the model's label, in place of `turn.tell`."""
    turn = turn or Turn()
    tell, outcome, todo = tell or turn.tell, Outcome(), missing(plan, out)
    left = {model: len(of_model) for model, of_model in todo.items()}
    outcome.counts[THERE] = plan.n_items - sum(left.values())
    outcome.failed = {model.label: model.trouble for model in plan.models if model.trouble}
    _note(out, outcome.failed)
    done, total = 0, sum(len(item.chunk.examples) for of_model in todo.values() for item in of_model)

    def more(model: StudyModel, n: int) -> None:
        nonlocal done
        done += n
        tell(done / max(total, 1), model.label)

    compute = _here if turn.executor is None else _spread
    for item, what, why in compute(turn, plan, out, todo, more):
        if why:
            outcome.failed[item.model.label] = why
            _note(out, outcome.failed)
        else:
            outcome.counts[what] += 1
            left[item.model] -= 1
    outcome.counts[FAILED] = sum(left.values())
    return outcome


def missing(plan: Plan, out: Path) -> Todo:
    """Return the items of a plan that the folder `out` lacks, by model."""
    todo_by_model: Todo = {}
    for model in plan.usable:
        computed = items.computed_chunks(out, model.digest)
        if todo := [item for item in plan.items_of(model) if item.chunk.digest not in computed]:
            todo_by_model[model] = todo
    return todo_by_model


def _here(turn: Turn, plan: Plan, out: Path, todo: Todo, done: Done) -> Iterator[Status]:
    """Compute items in this process and yield their status; a model that fails ends there."""
    for model, of_model in todo.items():
        for item in of_model:
            what, why = _status(turn.models, plan, out, item, partial(done, model), turn.cancelled)
            yield item, what, why
            turn.item()
            if why:
                break


def _spread(turn: Turn, plan: Plan, out: Path, todo: Todo, done: Done) -> Iterator[Status]:
    """Compute items in the processes of the turn's executor and yield their status. Of a model that fails nothing more
    is begun; `JobError` where a process died."""
    assert turn.executor is not None
    bare, every = replace(plan, sets=(), chunks=()), [item for of_model in todo.values() for item in of_model]
    pending = {turn.executor.submit(_elsewhere, bare, out.absolute(), item): item for item in every}
    try:
        for future in as_completed(pending):
            if future.cancelled():
                continue
            item, (what, why) = pending[future], future.result()
            if why:
                for other in (one for one, of in pending.items() if of.model == item.model):
                    other.cancel()
            else:
                done(item.model, len(item.chunk.examples))
            yield item, what, why
    except BrokenProcessPool:
        raise JobError(FULL) from None
    finally:
        for future in pending:
            future.cancel()


def _elsewhere(plan: Plan, out: Path, item: Item) -> tuple[str, str]:
    """Compute one item in an executor's process, as `_status` does."""
    return _status(own.models, plan, out, item, lambda n: None, own.stopped)


def _status(
    opened: Any, plan: Plan, out: Path, item: Item, done: Callable[[int], None], cancelled: Callable[[], bool]
) -> tuple[str, str]:
    """Compute one item, unless another process has written it. Returns what became of it, and what its model cannot do,
    "" where it can."""
    if items.path(out, item.key).is_file():
        done(len(item.chunk.examples))
        return THERE, ""
    try:
        items.write(out, item, items.compute(opened.get(item.model.spec), plan, item, partial(done, 1), cancelled))
    except (Cancelled, StudyError, StoreError):  # no model's failure: they end the run
        raise
    except EffectiveDepthError as error:
        return FAILED, str(error)
    return COMPUTED, ""


def _note(out: Path, failed: dict[str, str]) -> None:
    """Record in the folder why models failed."""
    with writing(out):
        if failed:
            out.mkdir(parents=True, exist_ok=True)
            disk.write(out / FAILURES, json.dumps(failed, ensure_ascii=False).encode())
        else:
            (out / FAILURES).unlink(missing_ok=True)
