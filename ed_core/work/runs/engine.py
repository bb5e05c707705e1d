"""Who computes the items of a study: this process, item by item with other runs' turns between them, or the processes
of an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import JobError
from ...studies import running
from ...studies.plan import Chunk, Item, Plan, StudyModel
from ...studies.running import MakesEngine, Status, Todo
from ..executors import FULL, own
from ..turn import Turn


def engine(turn: Turn) -> MakesEngine:
    """What a run's items are computed by."""
    if turn.executor is not None:
        return partial(Spread, executor=turn.executor)
    return partial(running.Here, opened=turn.models, turn=turn)


class Spread:
    """The processes of an executor, which outlives it."""

    def __init__(self, plan: Plan, out: Path, executor: Executor):
        self._plan, self._out, self._executor = _bare(plan), out.absolute(), executor
        self._pending: dict[Future[Any], Any] = {}

    def try_out(self, todo: Todo) -> Iterator[tuple[StudyModel, str]]:
        for model, of_model in todo.items():
            self._ask(model, _try_out, self._plan, model, [item.chunk for item in of_model])
        yield from ((model, why) for model, why in self._answers() if why)

    def compute(self, todo: Todo, done: Callable[[StudyModel, int], None]) -> Iterator[Status]:
        for item in (item for of_model in todo.values() for item in of_model):
            self._ask(item, _compute, self._plan, self._out, item)
        for item, (what, why) in self._answers():
            if why:  # nothing more of this model is begun
                for future in [f for f, other in self._pending.items() if other.model == item.model and f.cancel()]:
                    del self._pending[future]
            else:
                done(item.model, len(item.chunk.examples))
            yield Status(item, what, why)

    def close(self) -> None:
        for future in self._pending:
            future.cancel()

    def _ask(self, about: Any, work: Callable[..., Any], *arguments: Any) -> None:
        self._pending[self._executor.submit(work, *arguments)] = about

    def _answers(self) -> Iterator[tuple[Any, Any]]:
        """What every call was about, with its answer, as they come."""
        while self._pending:
            for future in wait(self._pending, return_when=FIRST_COMPLETED).done:
                about = self._pending.pop(future)
                try:
                    answer = future.result()
                except BrokenProcessPool:
                    raise JobError(FULL) from None
                yield about, answer


def _bare(plan: Plan) -> Plan:
    """A plan without prompts: items bring theirs."""
    return replace(plan, sets=(), chunks=())


# ---------------------------------------------------------------- in its processes


def _try_out(plan: Plan, model: StudyModel, chunks: list[Chunk]) -> str:
    return running.try_out(own.models, plan, model, chunks)


def _compute(plan: Plan, out: Path, item: Item) -> tuple[str, str]:
    result = running.status(own.models, plan, out, item, cancelled=own.stopped)
    return result.what, result.why
