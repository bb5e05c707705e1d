"""A lane's worker: `python -m ed_core.work.worker LANE`, and how the queue speaks to it.

A separate process, because a crash or an out-of-memory in native code must not take the pages down, and because the app
must not import torch. Frames both ways: lengths, a JSON header, bytes. To the worker the bytes are pickled (a job's
function and its arguments, from its own parent), from it never. It ends when its input ends.

Each job has a thread, and one of them works at a time: `step` says which, and that one works until it has done an item
(`Turn.item`), lacks memory, or ends."""

from __future__ import annotations

import json
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from io import BufferedIOBase
from typing import IO, TYPE_CHECKING, Any

from .. import disk, machine
from ..errors import Cancelled, DeviceFailed, EffectiveDepthError, lost_device
from .turn import Turn, Work

if TYPE_CHECKING:
    from ..types import ModelSpec
    from .compute import Models

LENGTHS = struct.Struct(">IQ")
DEVICE_LOST = 75  # the exit code of a worker whose device failed
Stream = BufferedIOBase | IO[bytes]
_sending = threading.Lock()


def send(stream: Stream, header: dict[str, Any], body: bytes = b"") -> None:
    """Write one frame, a JSON header and bytes, into a stream."""
    head = json.dumps(header).encode()
    with _sending:
        stream.write(LENGTHS.pack(len(head), len(body)) + head + body)
        stream.flush()


def receive(stream: Stream) -> tuple[dict[str, Any], bytes] | None:
    """Return the next frame of a stream, header and bytes; None at its end."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    n_head, n_body = LENGTHS.unpack(lengths)
    head, body = stream.read(n_head), stream.read(n_body)
    return (json.loads(head), body) if len(body) == n_body and len(head) == n_head else None


class Process:
    """A lane's worker process as the queue sees it. A thread calls `on_message` with each message, and `on_exit` with
    the exit code. Raises an `OSError` where the process cannot be started."""

    def __init__(
        self,
        lane: str,
        on_message: Callable[[Any, dict[str, Any], bytes], None],
        on_exit: Callable[[Any, int], None],
        module: str = __name__,
    ):
        command = [sys.executable, "-m", module, lane]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | machine.PASSIVE)
        threading.Thread(target=self._read, args=(on_message, on_exit), daemon=True).start()

    def send(self, header: dict[str, Any], *payload: Any) -> None:
        """Send the worker a message, with a pickled payload; nothing happens where it has just died."""
        assert self.process.stdin is not None  # a pipe
        with suppress(OSError):  # it just died: its reader reports that
            send(self.process.stdin, header, pickle.dumps(payload) if payload else b"")

    def kill(self) -> None:
        """Kill the worker."""
        self.process.kill()

    def _read(self, on_message: Callable[..., None], on_exit: Callable[..., None]) -> None:
        """Pass on the worker's messages until it ends, then its exit code."""
        assert self.process.stdout is not None
        while (frame := receive(self.process.stdout)) is not None:
            on_message(self, *frame)
        on_exit(self, self.process.wait())


# ---------------------------------------------------------------- in the process


class Run(Turn):
    """A job in a thread of the worker, which works while `step` waits for it."""

    def __init__(self, server: Server, job: str, work: Work, arguments: tuple[Any, ...]):
        self.models = server.models
        self._server, self._job, self._work, self._arguments = server, job, work, arguments
        self._go, self._rests = threading.Semaphore(0), threading.Semaphore(0)
        self._room, self._sent = True, ("", -1)
        self.over = False
        threading.Thread(target=self._run, daemon=True).start()

    def step(self, room: bool) -> None:
        """Work on one job until its next rest. `room`: memory may have become free; `payload`: the pickled function
        and arguments of a new job."""
        self._room = room
        self._go.release()
        self._rests.acquire()

    def say(self, text: str) -> None:
        """Report to the queue what is being done."""
        self._server.tell({"type": "progress", "job": self._job, "what": text})

    def progress(self, share: float, what: str = "", data: bytes = b"") -> None:
        """Report progress to the queue, once for each per cent, and any partial result."""
        if data or self._sent != (what, int(100 * share)):
            self._sent = what, int(100 * share)
            self._server.tell({"type": "progress", "job": self._job, "share": share, "what": what}, data)

    def publish(self, data: bytes, share: float) -> None:
        """Report a partial result to the queue."""
        self.progress(share, "", data)

    def cancelled(self) -> bool:
        """Return whether the queue has cancelled this job."""
        return self._job in self._server.cancelled

    def item(self) -> None:
        """Let other jobs have their turn, as an item is done."""
        self._rest(False)

    def room(self, spec: ModelSpec) -> bool:
        """Wait for memory, as a model does not fit; return whether to try again."""
        self._rest(True)
        return self._room

    def _rest(self, full: bool) -> None:
        """Stop until the next `step`; raise `Cancelled` if cancelled meanwhile. `full`: a model did not fit."""
        self._server.tell({"type": "item", "job": self._job, "full": full, "models": self.models.sizes()})
        self._rests.release()
        self._go.acquire()
        if self.cancelled():
            raise Cancelled("The computation was cancelled.")

    def _run(self) -> None:
        """Do the job in its own thread, from the first `step` on, and report "done" with its bytes or "failed" with
        a sentence. A lost device ends the process."""
        self._go.acquire()
        end, data, lost = {"type": "done"}, b"", False
        try:
            data = self._work(self, *self._arguments)
        except BaseException as error:
            known = isinstance(error, EffectiveDepthError)
            defect = f"{type(error).__name__}: {error}. This is a defect; please report it."
            why = str(error) if known else disk.lacks(error) or defect
            end = {"type": "failed", "error": type(error).__name__ if known else "JobError", "message": why}
            lost = isinstance(error, DeviceFailed) or lost_device(error)
        self.over = True
        self._server.tell({**end, "job": self._job, "models": self.models.sizes()}, data)
        if lost:
            self._server.end()
        self._rests.release()


class Server:
    """A worker process from within: its models and its jobs."""

    def __init__(self, models: Models, out: Stream):
        self.models, self._out = models, out
        self.cancelled: set[str] = set()
        self._runs: dict[str, Run] = {}

    def tell(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Send the queue a message, with bytes."""
        send(self._out, header, body)

    def end(self) -> None:
        """End this process: its device no longer answers, which only a new process cures."""
        os._exit(DEVICE_LOST)

    def step(self, job: str, room: bool, payload: bytes) -> None:
        """Work on one job until its next rest. `payload`: the pickled function and arguments of a new job."""
        if payload:
            self._runs[job] = Run(self, job, *pickle.loads(payload))
        run = self._runs[job]
        self.models.room = run.room
        run.step(room)
        self.models.touch()
        if run.over:
            del self._runs[job]
            self.cancelled.discard(job)


def main(lane: str) -> None:
    """Serve as the worker of a lane ("interactive", "batch") until the input ends."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(machine.WORKER if lane == "interactive" else machine.RUN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get among the frames
    todo: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
    cancelled: set[str] = set()

    def listen() -> None:
        while (frame := receive(sys.stdin.buffer)) is not None:
            if frame[0]["type"] == "cancel":
                cancelled.add(frame[0]["job"])
            else:
                todo.put(frame)
        os._exit(0)  # the app has ended

    threading.Thread(target=listen, daemon=True).start()
    with machine.uncollected(for_good=True):
        from ..models import devices
        from . import compute

    # The interactive lane skips the two seconds in which a model's identities are measured, where they held before.
    server = Server(compute.Models(share=2, trust_kept=lane == "interactive"), out)
    server.cancelled = cancelled
    server.tell({"type": "ready", "devices": devices.overview(), "totals": devices.totals()})
    while True:
        header, body = todo.get()
        if header["type"] == "step":
            server.step(header["job"], header["room"], body)
        else:  # memory for the other lane
            server.models.close_idle(header["idle"])
            server.tell({"type": "models", "models": server.models.sizes()})


if __name__ == "__main__":
    main(sys.argv[1])
