"""Several processes that compute the items of a study: of this machine, or Ray's on several.

Both are `submit(function, *arguments)` to a `Future`, as `concurrent.futures` has it; functions and arguments are
pickled, and a function finds its process' models in `own`. On a CPU two processes of one thread do more than one
process of two threads. Each has the models in its own memory."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace
from typing import Any

from .. import machine
from ..errors import EffectiveDepthError, JobError, ParameterError, one_line
from ..models import permits

MOST = 64  # processes; more than any machine's memory has room for models
RETRIES = 2  # how often a call is made again whose process on Ray ended
LOST = "A process that computed ended ({}); what is computed stays. Run the same command again, with fewer processes."
FULL = LOST.format("for instance because the memory was full")


own = SimpleNamespace(models=None, stopped=bool)
"""Of a process that computes: its models, and whether it is to stop; for functions that were submitted."""


@contextlib.contextmanager
def executor(processes: int = 1, ray: str = "", device: str = "cpu") -> Iterator[Executor | None]:
    """Who computes: so many processes of this machine, or Ray's at an address ("local": a cluster on this machine, for
    this run); None within where it is this process."""
    if ray and processes != 1:
        raise ParameterError("--processes is of this machine alone; leave it or --ray out.")
    if processes == 1 and not ray:
        yield None
    else:
        with OnRay(ray, device) if ray else Processes(processes, device) as made:
            yield made


class Processes(ProcessPoolExecutor):
    """So many processes of this machine; on GPUs one each."""

    def __init__(self, n: int, device: str):
        if not 1 <= n <= MOST:
            raise ParameterError(f"--processes is {n}; expected 1 to {MOST}, at most one for each core.")
        if device != "cpu" and n > (n_gpus := len(machine.gpus()) if device == "cuda" else 0):
            raise ParameterError(
                f"--processes is {n}, and {n_gpus} of {device} are here, one for each; give --device cpu."
            )
        context = multiprocessing.get_context("spawn")
        self._stopped, shares = context.Event(), [machine.share(i, n) for i in range(n)]
        told = self._stopped, shares, permits.is_owner(), context.Value("i", 0)
        super().__init__(n, context, _begin, told)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        try:
            return super().submit(function, *arguments)
        except BrokenProcessPool:
            raise JobError(FULL) from None

    def __exit__(self, *_: object) -> None:
        """End the processes; what one of them computes ends at its next block."""
        self._stopped.set()
        self.shutdown(cancel_futures=True)


def _begin(stopped: Any, shares: list[dict[str, str]], owner: bool, begun: Any) -> None:
    """Before a process' first call. Ctrl-C is its parent's to answer, and it does not outlive its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    with begun.get_lock():
        number, begun.value = begun.value, begun.value + 1
    os.environ.update(shares[number % len(shares)])  # before torch is imported
    _open(len(shares), owner, stopped.is_set)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _open(share: int, owner: bool, stopped: Callable[[], bool]) -> None:
    if owner:
        permits.as_owner()
    from .compute import Models

    own.models, own.stopped = Models(share=share), stopped


class OnRay(ThreadPoolExecutor):
    """Actors of a Ray cluster, one a GPU where there are any, else one a core; each is asked by a thread here. All
    machines share the study's folder. A call whose actor ends is made again, by a new one."""

    def __init__(self, address: str, device: str):
        machine.require_package("ray", "Computing on Ray")
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")  # read when it is imported
        import ray

        try:
            own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except Exception as error:  # whatever Ray makes of an address, a full disk or a missing program
            raise JobError(f"Ray at {address} could not be reached ({one_line(error)}).") from error
        self._ray = ray
        self._mine: Any = threading.local()
        kind = "GPU" if device.startswith("cuda") else "CPU"
        nodes = [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]
        if not sum(nodes):
            ray.shutdown()
            raise ParameterError(f"The Ray cluster has no {kind}; start it with some, or leave --ray out.")
        actor = ray.remote(Actor).options(num_cpus=1, num_gpus=int(kind == "GPU"), max_restarts=0, max_task_retries=0)
        new: Callable[..., Any] = actor.remote
        self._new: Callable[[], Any] = lambda: new(max(nodes), permits.is_owner())
        super().__init__(sum(nodes))

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        return super().submit(self._call, function, arguments)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        why = ""
        for _ in range(RETRIES + 1):
            if getattr(self._mine, "actor", None) is None:
                self._mine.actor = self._new()
            try:
                return self._ray.get(self._mine.actor.call.remote(function, arguments))
            except self._ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, EffectiveDepthError) else error) from None
            except self._ray.exceptions.RayError as error:
                self._mine.actor, why = None, one_line(error)
        raise JobError(LOST.format(f"{RETRIES + 1} times on the same part, on Ray: {why}"))

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        self._ray.shutdown()


class Actor:
    """A process of Ray's."""

    def __init__(self, share: int, owner: bool):
        _open(share, owner, lambda: False)

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return function(*arguments)
