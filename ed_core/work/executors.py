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
RETRIES = 2  # how often Ray makes a call again whose process ended
LOST = "A process that computed ended ({}); what is computed stays. Run the same command again, with fewer processes."
FULL = LOST.format("for instance because the memory was full")

own = SimpleNamespace(models=None, stopped=bool)
"""Of a process that computes: its models, and whether it is to stop; for functions that were submitted."""


@contextlib.contextmanager
def executor(processes: int = 1, ray: str = "", device: str = "cpu") -> Iterator[Executor | None]:
    """Yield the executor that computes: so many processes of this machine, or Ray's at an address ("local": a cluster
    on this machine, for this run); None where this process computes itself."""
    if ray and processes != 1:
        raise ParameterError("--processes is of this machine alone; leave it or --ray out.")
    if processes == 1 and not ray:
        yield None
    else:
        with OnRay(ray, device) if ray else Processes(processes, device) as made:
            yield made


class Processes(ProcessPoolExecutor):
    """An executor of `n` processes of this machine; on GPUs one each."""

    def __init__(self, n: int, device: str):
        n_most = MOST if device == "cpu" else len(machine.gpus()) if device == "cuda" else 1
        if not 1 <= n <= n_most:
            raise ParameterError(f"--processes is {n}; expected 1 to {n_most}, at most one for each core or GPU.")
        context = multiprocessing.get_context("spawn")
        self._stopped, shares = context.Event(), [machine.share(i, n) for i in range(n)]
        super().__init__(n, context, _begin, (self._stopped, shares, context.Value("i", 0)))

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        """Return the future of a call in one of the processes; raise a `JobError` where one has died."""
        try:
            return super().submit(function, *arguments)
        except BrokenProcessPool:
            raise JobError(FULL) from None

    def __exit__(self, *_: object) -> None:
        """End the processes; what one of them computes ends at its next block."""
        self._stopped.set()
        self.shutdown(cancel_futures=True)


def _begin(stopped: Any, shares: list[dict[str, str]], begun: Any) -> None:
    """Prepare a process before its first call. Ctrl-C is its parent's to answer, and it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    with begun.get_lock():
        number, begun.value = begun.value, begun.value + 1
    os.environ.update(shares[number % len(shares)])  # before torch is imported
    _open(len(shares), stopped.is_set)


def _end_with(parent: Any) -> None:
    """End this process when its parent has ended."""
    parent.join()
    os._exit(1)


def _open(share: int, stopped: Callable[[], bool] = lambda: False) -> None:
    """Prepare this process for calls: `own` gets the models, of which `share` processes share the memory."""
    from .compute import Models

    permits.as_owner()  # who started it has a shell
    own.models, own.stopped = Models(share=share), stopped


class OnRay(ThreadPoolExecutor):
    """An executor of actors of a Ray cluster: one for each GPU, or without any one for each core; a thread here asks
    each. All machines share the study's folder. Ray starts an actor that ends again, and repeats its call."""

    def __init__(self, address: str, device: str):
        machine.require_package("ray", "Computing on Ray")
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")  # read when it is imported
        import ray

        try:
            local: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except Exception as error:  # whatever Ray makes of an address, a full disk or a missing program
            raise JobError(f"Ray at {address} could not be reached ({one_line(error)}).") from error
        self._ray, self._thread = ray, threading.local()
        kind = "GPU" if device.startswith("cuda") else "CPU"
        nodes = [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]
        if not sum(nodes):
            ray.shutdown()
            raise ParameterError(f"The Ray cluster has no {kind}; start it with some, or leave --ray out.")
        options = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "max_restarts": -1, "max_task_retries": RETRIES}
        self._actor, self._share = ray.remote(Actor).options(**options), max(nodes)
        super().__init__(sum(nodes))

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        """Return the future of a call in one of the actors."""
        return super().submit(self._call, function, arguments)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the result of a call in this thread's actor; a call that keeps failing on Ray is a `JobError`."""
        if not hasattr(self._thread, "actor"):
            self._thread.actor = self._actor.remote(self._share)
        try:
            return self._ray.get(self._thread.actor.call.remote(function, arguments))
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, EffectiveDepthError) else error) from None
        except self._ray.exceptions.RayError as error:
            raise JobError(LOST.format(f"{RETRIES + 1} times on the same part, on Ray: {one_line(error)}")) from None

    def __exit__(self, *_: object) -> None:
        """Leave the cluster; calls that wait are cancelled."""
        self.shutdown(wait=False, cancel_futures=True)
        self._ray.shutdown()


class Actor:
    """A process of Ray's that computes."""

    def __init__(self, share: int):
        _open(share)

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the result of a function in this process."""
        return function(*arguments)
