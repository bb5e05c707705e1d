"""A study in several processes of this machine, each with models and threads of its own.

On a CPU two processes of one thread do more than one process of two threads: what torch does in a single thread, and
what Python does between, is done twice at once. The models stand in memory once for each process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import machine
from ..errors import Cancelled, JobError, ParameterError
from ..sources import permits
from ..studies import running
from ..studies.plan import Chunk, Item, Plan, StudyModel
from ..studies.running import Group, Status, Todo

MOST = 64  # processes; more than any machine's memory has room for models
POLL = 0.5  # seconds between two looks at whether the run was stopped


class Pool:
    """So many processes, begun when they are first needed, which keep their models from one study to the next:
    `with Pool(2) as engine`, an engine for `running.run`."""

    def __init__(self, n: int):
        if not 1 <= n <= MOST:
            raise ParameterError(f"--processes is {n}; expected 1 to {MOST}, at most one for each core.")
        context = multiprocessing.get_context("spawn")
        self.stopped = context.Event()
        told = self.stopped, [machine.share(i, n) for i in range(n)], permits.is_owner(), context.Value("i", 0)
        self.executor = ProcessPoolExecutor(n, context, _begin, told)

    def __enter__(self) -> Callable[..., InProcesses]:
        return partial(InProcesses, pool=self)

    def __exit__(self, *_: object) -> None:
        """End the processes; what one of them computes ends at its next block."""
        self.stopped.set()
        self.executor.shutdown(cancel_futures=True)


class InProcesses:
    """A pool as an engine of `running.run`; the pool outlives it."""

    def __init__(self, plan: Plan, out: Path, cancelled: Callable[[], bool] = lambda: False, *, pool: Pool):
        self._plan = _bare(plan)
        self._out, self._cancelled, self._pool = out.absolute(), cancelled, pool
        self._pending: dict[Future[Any], Any] = {}

    def try_out(self, todo: Todo) -> Iterator[tuple[StudyModel, str]]:
        for model, of_model in todo.items():
            self._ask(model, _try_out, self._plan, model, [item.chunk for item in of_model])
        for model, why in self._answers():
            if why:
                yield model, why

    def compute(self, todo: Todo, done: Callable[[StudyModel, int], None]) -> Iterator[Status]:
        for of_model in todo.values():
            for item in of_model:
                self._ask(item, _compute, self._plan, self._out, item)
        failed = set()
        for item, (what, why) in self._answers():
            if why and item.model not in failed:
                failed.add(item.model)
                for future in [future for future, other in self._pending.items() if other.model == item.model]:
                    if future.cancel():
                        del self._pending[future]
            elif not why:
                done(item.model, len(item.chunk.examples))
            yield Status(item, what, why)

    def ahead(self, groups: Sequence[Group], done: Callable[[Item], None]) -> None:
        for group in groups:
            alone = [(_bare(plan), out.absolute(), item) for plan, out, item in group]
            self._ask(group, _together, alone)
        for group, computed in self._answers():
            for (_, _, item), there in zip(group, computed, strict=True):
                if there:
                    done(item)

    def close(self) -> None:
        for future in self._pending:
            future.cancel()

    def _ask(self, about: Any, work: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._pending[self._pool.executor.submit(work, *arguments)] = about
        except BrokenProcessPool:
            raise _lost() from None

    def _answers(self) -> Iterator[tuple[Any, Any]]:
        """What every call was about, with its answer, as they come."""
        while self._pending:
            if self._cancelled():
                self._pool.stopped.set()
                raise Cancelled("The study was stopped; what is computed stays.")
            for future in wait(self._pending, POLL, FIRST_COMPLETED).done:
                about = self._pending.pop(future)
                try:
                    answer = future.result()
                except BrokenProcessPool:
                    raise _lost() from None
                yield about, answer


def _bare(plan: Plan) -> Plan:
    """A plan without prompts: items bring theirs."""
    return replace(plan, sets=(), chunks=())


def _lost() -> JobError:
    return JobError(
        "A process that computed ended, for instance because the memory was full; what is computed stays. Run the same "
        "command again, with fewer --processes."
    )


# ---------------------------------------------------------------- in the processes

_opened: Any = None
_stopped: Any = None


def _begin(stopped: Any, shares: Sequence[Mapping[str, str]], owner: bool, begun: Any) -> None:
    """Before a process's first call. Ctrl-C is its parent's to answer, and it does not outlive its parent."""
    global _opened, _stopped
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    with begun.get_lock():
        number, begun.value = begun.value, begun.value + 1
    os.environ.update(shares[number % len(shares)])  # before torch is imported
    if owner:
        permits.as_owner()
    _opened, _stopped = running.opened_models(len(shares)), stopped


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _try_out(plan: Plan, model: StudyModel, chunks: list[Chunk]) -> str:
    return running.try_out(_opened, plan, model, chunks)


def _compute(plan: Plan, out: Path, item: Item) -> tuple[str, str]:
    found = running.status(_opened, plan, out, item, cancelled=_stopped.is_set)
    return found.what, found.why


def _together(group: Group) -> list[bool]:
    """Of each item of a group whether it is there."""
    return list(running.together(_opened, group, set(), _stopped.is_set))
