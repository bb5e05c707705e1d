"""A study computed in this process: what is there stays, what is missing is computed, item by item. What one model
cannot do is noted, and the others go on.

Several processes may run one study into one folder, each with a shard of its own or all with everything: whoever
computes an item writes the same file, whole or not at all, and what lies there already is not computed again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import Cancelled, EffectiveDepthError, StoreError, StudyError
from . import items
from .plan import FAILURES, Item, Plan, StudyModel

COMPUTED, THERE, FAILED = "computed", "there", "failed"  # what became of an item


@dataclass
class Outcome:
    """How a run ended. `failed`: why, by the label of the model."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((COMPUTED, THERE, FAILED), 0))
    failed: dict[str, str] = field(default_factory=dict)


def run(
    plan: Plan,
    out: Path,
    shard: tuple[int, int] = (1, 1),
    report: Callable[[StudyModel, int, int], None] = lambda model, done, total: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Compute what is missing of a shard. Every model that has something to do is opened and every prompt tried on it
    before the first is computed. `report`: the model, prompts done, prompts in all."""
    outcome = Outcome()
    for model in plan.models:
        if model.trouble:
            note_failure(out, outcome, model, model.trouble)
    todo = _todo(plan, out, shard, outcome)
    opened = _models()
    for model, of_model in todo.items():
        with _noted(out, outcome, model, len(of_model)):
            items.check(opened.get(model.spec), plan, [item.chunk for item in of_model])
    total = sum(
        len(i.chunk.examples) for m, of_model in todo.items() if m.label not in outcome.failed for i in of_model
    )
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        report(model, done, total)

    for model, of_model in todo.items():
        if model.label in outcome.failed:
            continue
        for i, item in enumerate(of_model):
            with _noted(out, outcome, model, len(of_model) - i):
                outcome.counts[compute(opened, plan, out, item, one_more, cancelled)] += 1
            if model.label in outcome.failed:
                break
        else:
            forget_failure(out, model)
    return outcome


def compute(
    opened: Any,
    plan: Plan,
    out: Path,
    item: Item,
    done: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> str:
    """One item, unless somebody wrote it meanwhile; what became of it. `opened`: this process's models."""
    if items.path(out, item.key).is_file():
        for _ in item.chunk.examples:
            done()
        return THERE
    items.write(out, item, items.compute(opened.get(item.model.spec), plan, item, done, cancelled))
    return COMPUTED


def failures(out: Path) -> dict[str, str]:
    """What went wrong in the runs of a study, by the label of the model."""
    found = {}
    for file in sorted((out / FAILURES).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            told = json.loads(file.read_text(encoding="utf-8"))
            found[told["model"]] = told["why"]
    return found


def note_failure(out: Path, outcome: Outcome, model: StudyModel, why: str, n_items: int = 0) -> None:
    """Write down that a model failed, for whoever reads the folder."""
    outcome.failed[model.label] = why
    outcome.counts[FAILED] += n_items
    try:
        (out / FAILURES).mkdir(parents=True, exist_ok=True)
        told = json.dumps({"model": model.label, "why": why}, ensure_ascii=False)
        disk.write(out / FAILURES / f"{model.digest}.json", told.encode())
    except OSError as error:
        raise StudyError(f"The study's folder {out} cannot be written: {disk.why(error)}") from error


def forget_failure(out: Path, model: StudyModel) -> None:
    """A model that went through has not failed."""
    (out / FAILURES / f"{model.digest}.json").unlink(missing_ok=True)


@contextlib.contextmanager
def _noted(out: Path, outcome: Outcome, model: StudyModel, n_items: int) -> Iterator[None]:
    """What a model cannot do is its failure; what the disk or a cancel says ends the run."""
    try:
        yield
    except (Cancelled, StudyError, StoreError):
        raise
    except EffectiveDepthError as error:
        note_failure(out, outcome, model, str(error), n_items)


def _todo(plan: Plan, out: Path, shard: tuple[int, int], outcome: Outcome) -> Mapping[StudyModel, list[Item]]:
    """What is missing, by model; the rest is counted."""
    there = {model.digest: items.there(out, model.digest) for model in plan.usable}
    found: dict[StudyModel, list[Item]] = {}
    for item in plan.items(shard):
        if item.chunk.digest in there[item.model.digest]:
            outcome.counts[THERE] += 1
        else:
            found.setdefault(item.model, []).append(item)
    for model in plan.usable:
        if model not in found and shard == (1, 1):
            forget_failure(out, model)
    return found


def _models() -> Any:
    from ..service.compute import Models

    return Models()
