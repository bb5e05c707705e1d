"""Who computes a study besides this process: several processes of this machine, or Ray's."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import machine
from ..errors import EffectiveDepthError, JobError, ParameterError, StudyError
from ..settings import ROOT
from ..sources import permits
from ..studies import running
from ..studies.plan import Chunk, Item, Plan, StudyModel
from ..studies.running import Group, Status, Todo
from . import leftovers

# ---------------------------------------------------------------- several processes of this machine

# On a CPU two processes of one thread do more than one process of two threads: what torch does in a single thread, and
# what Python does between, is done twice at once. The models stand in memory once for each process.

MOST = 64  # processes; more than any machine's memory has room for models


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

    def __init__(self, plan: Plan, out: Path, *, pool: Pool):
        self._plan, self._out, self._pool = _bare(plan), out.absolute(), pool
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
            for future in wait(self._pending, return_when=FIRST_COMPLETED).done:
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


# ---------------------------------------------------------------- Ray

# One actor a GPU, or a core where the study runs on CPUs. Ray is no requirement of this program.
#
# The driver hands out one item at a time and is told its outcome, never sent a tensor; actors write items into the
# study's folder, which all machines share. Ray's own repeating is off: an item whose process ends is tried again
# `RETRIES` times, then its model has failed. A cluster that this program starts on this machine is its own to the last
# process (see `leftovers`); one at an address stays as it is.

WHEEL = "ray==2.60.*"
RETRIES = 2  # how often an item is tried again whose process ended
IN_FLIGHT = 2  # items an actor has at a time: one it computes, one that waits
TRIED_AT_ONCE = 256  # items whose prompts an actor tries in one call
STOPS = "stops"  # what an actor answers when the run cannot go on, for instance where the disk is full
ANSWER_SECONDS = 5  # for an address to answer at all
OBJECT_STORE = 80 << 20  # bytes, about the least Ray takes: nothing large goes through it
# Read by Ray when it is imported or starts: no statistics are sent, and `uv run` does not remake the environment.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


class OnRay:
    """An engine of `running.run`; `address` of a cluster that runs, "" for one on this machine and for this run."""

    def __init__(self, plan: Plan, out: Path, address: str = ""):
        self._cluster = _Cluster(address)
        try:
            self._actors = _Actors(self._cluster.ray, plan, out.absolute())
        except BaseException:
            self._cluster.close()
            raise

    def try_out(self, todo: Todo) -> Iterator[tuple[StudyModel, str]]:
        calls = (
            _Call(model, "try_out", tuple(item.chunk for item in of_model[at : at + TRIED_AT_ONCE]))
            for model, of_model in todo.items()
            for at in range(0, len(of_model), TRIED_AT_ONCE)
        )
        failed: set[str] = set()
        for call, (_, why) in self._actors.answers(calls, failed):
            if why and call.model.label not in failed:
                failed.add(call.model.label)
                yield call.model, why

    def compute(self, todo: Todo, done: Callable[[StudyModel, int], None]) -> Iterator[Status]:
        calls = (_Call(model, "compute", item) for model, of_model in todo.items() for item in of_model)
        failed: set[str] = set()
        for call, (what, why) in self._actors.answers(calls, failed):
            if why:
                failed.add(call.model.label)
            else:
                done(call.model, len(call.load.chunk.examples))
            yield Status(call.load, what, why)

    def ahead(self, groups: Sequence[Group], done: Callable[[Item], None]) -> None:
        """Nothing: an actor has one study's plan."""

    def close(self) -> None:
        self._actors.close()
        self._cluster.close()


class Worker:
    """An actor's side: this process's models, and one call at a time. What it answers is (what became of it, why it
    failed)."""

    def __init__(self, plan: Plan, out: str, threads: int, share: int, owner: bool):
        os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is imported
        if owner:
            permits.as_owner()
        self._plan, self._out, self._opened = plan, Path(out), running.opened_models(share)

    def try_out(self, model: StudyModel, chunks: tuple[Chunk, ...]) -> tuple[str, str]:
        try:
            return "", running.try_out(self._opened, self._plan, model, chunks)
        except EffectiveDepthError as error:
            return STOPS, str(error)

    def compute(self, model: StudyModel, item: Item) -> tuple[str, str]:
        try:
            found = running.status(self._opened, self._plan, self._out, item)
            return found.what, found.why
        except EffectiveDepthError as error:
            return STOPS, str(error)


@dataclass
class _Call:
    """What an actor is asked: a chunk of prompts to try, or an item to compute."""

    model: StudyModel
    method: str
    load: Any
    tries: int = 0


class _Actors:
    """The actors of a run, made as they are needed, and what they are asked."""

    def __init__(self, ray: Any, plan: Plan, out: Path):
        self._ray = ray
        for model in plan.usable:
            if ":" in model.known.device:
                raise ParameterError(
                    f"Ray gives each actor a GPU of its choosing, and {model.label} is asked for on "
                    f"{model.known.device}; give --device cuda."
                )
        self._busy: dict[Any, int] = {}  # actor: how many calls it has
        self._pending: dict[Any, tuple[Any, _Call]] = {}  # in the order of asking
        gpu = any(model.known.device.startswith("cuda") for model in plan.usable)
        told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one for each level, as OpenMP takes it
        self._most, threads, share = _places(
            [node["Resources"] for node in ray.nodes() if node["Alive"]],
            gpu,
            max(int(told) if told.isdecimal() else 1, 1),
        )
        remote = ray.remote(Worker).options(num_cpus=threads, num_gpus=int(gpu), max_restarts=0, max_task_retries=0)
        self._new: Callable[[], Any] = lambda: remote.remote(_bare(plan), str(out), threads, share, permits.is_owner())

    def answers(self, calls: Iterable[_Call], failed: set[str]) -> Iterator[tuple[_Call, tuple[str, str]]]:
        """Every call with what became of it and why it failed, as they come; calls of models in `failed` are left out
        from then on. A call whose actor ends is made again, `RETRIES` times."""
        waiting: Iterator[_Call] = iter(calls)
        again: deque[_Call] = deque()

        def following() -> _Call | None:
            while (call := again.popleft() if again else next(waiting, None)) and call.model.label in failed:
                pass
            return call

        while True:
            while (actor := self._free()) is not None and (call := following()):
                self._ask(actor, call)
            if not self._pending:
                return
            for ref in self._ray.wait(list(self._pending), num_returns=1, timeout=0.5)[0]:
                actor, call = self._pending[ref]
                try:
                    yield call, self._answer(ref)
                except _Lost as lost:
                    for of_it, answer in self._bury(actor, str(lost)):
                        if answer is not None:
                            yield of_it, answer
                        else:
                            again.append(of_it)

    def close(self) -> None:
        for actor in self._busy:
            self._ray.kill(actor)

    def _free(self) -> Any:
        """The actor with the least to do, a new one where all are busy; None where there is room for none."""
        best = min(self._busy, key=lambda actor: self._busy[actor], default=None)
        if (best is None or self._busy[best]) and len(self._busy) < self._most:
            best = self._new()
            self._busy[best] = 0
        return best if self._busy[best] < IN_FLIGHT else None

    def _ask(self, actor: Any, call: _Call) -> None:
        self._pending[getattr(actor, call.method).remote(call.model, call.load)] = actor, call
        self._busy[actor] += 1

    def _answer(self, ref: Any) -> tuple[str, str]:
        """What became of a call; `_Lost` where its actor ended."""
        gone = self._ray.exceptions
        actor, _ = self._pending[ref]
        try:
            what, why = self._ray.get(ref)
        except gone.RayTaskError as error:
            raise JobError(f"An item failed on Ray with a defect; please report it: {_short(error.cause)}") from error
        except gone.RayError as error:
            raise _Lost(_short(error)) from None
        del self._pending[ref]
        self._busy[actor] -= 1
        if what == STOPS:
            raise StudyError(why)
        return what, why

    def _bury(self, actor: Any, why: str) -> Iterator[tuple[_Call, tuple[str, str] | None]]:
        """All calls of an actor that ended, each with its answer, or None where it is to be made again. The first one
        that it left without an answer is the one it died of."""
        first = True
        for ref in [ref for ref, (of, _) in self._pending.items() if of is actor]:
            _, call = self._pending[ref]
            try:
                yield call, self._answer(ref)
                continue
            except _Lost:
                del self._pending[ref]
            call.tries += first
            first = False
            told = f"its process on Ray ended {call.tries} times on the same part ({why})"
            yield call, (running.FAILED, told) if call.tries > RETRIES else None
        del self._busy[actor]
        self._ray.kill(actor)


class _Lost(Exception):
    """An actor ended with a call."""


def _places(nodes: list[dict[str, Any]], gpu: bool, threads: int) -> tuple[int, int, int]:
    """How many actors a cluster takes, with how many threads each, and how many share one machine's memory."""
    if gpu:
        nodes = [node for node in nodes if node.get("GPU", 0) >= 1]
        threads = min((int(node.get("CPU", 0) // node["GPU"]) for node in nodes), default=1) or 1
    of_node = [int(node.get("GPU", 0) if gpu else node.get("CPU", 0) // threads) for node in nodes]
    if not sum(of_node):
        raise ParameterError(
            f"The Ray cluster has no {'GPU' if gpu else f'machine with {threads} free cores (OMP_NUM_THREADS)'}; start "
            "it with some, or leave --engine ray out."
        )
    return sum(of_node), threads, max(of_node)


class _Cluster:
    """Ray as the driver sees it, until it is closed."""

    def __init__(self, address: str):
        self._before = dict(os.environ)
        self._guard: leftovers.Guard | None = None
        own = (
            {} if address else {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
        )
        if not address and not os.environ.get("RAY_AUTH_TOKEN_PATH"):
            # without it Ray writes one into the home folder; a cluster that listens needs one
            own |= {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
            }
        os.environ.update(QUIET | own)
        try:
            import ray
        except ImportError:
            self._restore()
            raise ParameterError(
                f"The study is to run on Ray, which is not installed here; python -m pip install '{WHEEL}', or leave "
                "--engine ray out."
            ) from None
        self.ray = ray
        try:
            told: dict[str, Any] = dict(log_to_driver=False, configure_logging=False, logging_level="error")
            if address:
                _answers(address)
                ray.init(address=address, **told)
            else:
                self._guard = leftovers.Guard()
                with self._guard.marked():
                    ray.init(
                        address="local",
                        include_dashboard=False,
                        object_store_memory=OBJECT_STORE,
                        _temp_dir=str(self._guard.folder),
                        **told,
                    )
        except Exception as error:  # whatever Ray makes of an address, a full disk or a missing program
            self.close()
            where, hint = (
                (f"at {address} ", "start it, or mend --address") if address else ("", "try again, or run it here")
            )
            raise JobError(f"Ray {where}could not be reached ({_short(error)}); {hint}.") from error

    def close(self) -> None:
        """Let go of the cluster; one of our own is ended to the last process."""
        try:
            self.ray.shutdown()
        finally:
            if self._guard is not None:
                self._guard.close()
            self._restore()

    def _restore(self) -> None:
        for name in os.environ.keys() - self._before.keys():
            if name.startswith(("RAY_", "PYTHONPATH")):
                del os.environ[name]
        if "PYTHONPATH" in self._before:
            os.environ["PYTHONPATH"] = self._before["PYTHONPATH"]


def _answers(address: str) -> None:
    """Refuse an address that nobody listens at: Ray waits for more than eight minutes there."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()


def _short(error: object) -> str:
    """The last line of what Ray says, which is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
