"""A lane's worker: `python -m ed_core.work.worker LANE`, and how the queue speaks to it.

A process of its own, because a crash or an out-of-memory in native code must not take the pages down, and because the
app must not import torch. Frames both ways: lengths, a JSON header, bytes. To the worker these are pickled (a job's
function and its arguments, from its own parent), from it never. It ends when its input ends.

It works on one job at a time, each in a thread of its own: the queue says which one goes on (`step`), and that one
works until it has done an item (`Turn.item`), waits for memory, or ends."""

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
from ..errors import DeviceFailed, EffectiveDepthError, StoreError, lost_device
from .turn import Turn, Work

if TYPE_CHECKING:
    from ..types import ModelSpec
    from .compute import Models

LENGTHS = struct.Struct(">IQ")
IDLE = 2.0  # seconds without a job after which trusted identities are measured; chosen
DEVICE_LOST = 75  # the exit code of a worker whose device failed
Stream = BufferedIOBase | IO[bytes]
_sending = threading.Lock()


def send(stream: Stream, header: dict[str, Any], body: bytes = b"") -> None:
    """Write one frame; of several threads one at a time."""
    head = json.dumps(header).encode()
    with _sending:
        stream.write(LENGTHS.pack(len(head), len(body)) + head + body)
        stream.flush()


def receive(stream: Stream) -> tuple[dict[str, Any], bytes] | None:
    """Read one frame; None at the end of the stream."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    n_head, n_body = LENGTHS.unpack(lengths)
    head, body = stream.read(n_head), stream.read(n_body)
    return (json.loads(head), body) if len(body) == n_body and len(head) == n_head else None


class Process:
    """A worker as the queue sees it. `heard` is called with each message, `died` with the exit code, from a thread."""

    def __init__(
        self,
        lane: str,
        heard: Callable[[Any, dict[str, Any], bytes], None],
        died: Callable[[Any, int], None],
        module: str = __name__,
    ):
        command = [sys.executable, "-m", module, lane]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | machine.PASSIVE
        )
        threading.Thread(target=self._read, args=(heard, died), daemon=True).start()

    def send(self, header: dict[str, Any], *payload: Any) -> None:
        assert self.process.stdin is not None  # a pipe
        with suppress(OSError):  # it just died: its reader reports that
            send(self.process.stdin, header, pickle.dumps(payload) if payload else b"")

    def kill(self) -> None:
        self.process.kill()

    def _read(self, heard: Callable[..., None], died: Callable[..., None]) -> None:
        assert self.process.stdout is not None
        while (frame := receive(self.process.stdout)) is not None:
            heard(self, *frame)
        died(self, self.process.wait())


# ---------------------------------------------------------------- in the process


class Run(Turn):
    """A job, in a thread that works while `step` waits for it."""

    def __init__(self, server: Server, job: str, work: Work, arguments: tuple[Any, ...]):
        self.models = server.models
        self._server, self._job, self._work, self._arguments = server, job, work, arguments
        self._go, self._rests = threading.Semaphore(0), threading.Semaphore(0)
        self._room, self._told = True, ("", -1)
        self.over = False
        threading.Thread(target=self._all, daemon=True).start()

    def step(self, room: bool) -> None:
        """Let it work until its next rest. `room`: memory may have become free."""
        self._room = room
        self._go.release()
        self._rests.acquire()

    def say(self, text: str) -> None:
        self._server.tell({"type": "stage", "job": self._job, "text": text})

    def progress(self, share: float, what: str = "", data: bytes = b"") -> None:
        if data or self._told != (what, int(100 * share)):
            self._told = what, int(100 * share)
            self._server.tell({"type": "progress", "job": self._job, "share": share, "what": what}, data)

    def publish(self, data: bytes, share: float) -> None:
        self.progress(share, "", data)

    def cancelled(self) -> bool:
        return self._job in self._server.cancelled

    def item(self) -> None:
        self.check()
        self._rest({"type": "item"})

    def room(self, spec: ModelSpec) -> bool:
        """A model does not fit the free memory; whether to try again, once there may be more."""
        from . import estimate

        self._rest({"type": "full", "needs": estimate.weights(spec), "free": self._server.free(spec.device)})
        return self._room

    def _rest(self, header: dict[str, Any]) -> None:
        self._server.tell({**header, "job": self._job, "models": self._server.open_models()})
        self._rests.release()
        self._go.acquire()
        self.check()

    def _all(self) -> None:
        self._go.acquire()
        end: dict[str, Any] = {"type": "done"}
        data, fatal = b"", False
        try:
            self.check()
            data = self._work(self, *self._arguments)
        except BaseException as error:
            known = isinstance(error, EffectiveDepthError)
            defect = f"{type(error).__name__}: {error}. This is a defect; please report it."
            why = str(error) if known else disk.lacks(error) or defect
            end = {"type": "failed", "error": type(error).__name__ if known else "JobError", "message": why}
            fatal = isinstance(error, DeviceFailed) or lost_device(error)
        self.over = True
        self._server.tell({**end, "job": self._job, "models": self._server.open_models()}, data)
        if fatal:
            self._server.end()
        self._rests.release()


class Server:
    """The process: what it holds, and what it does with each message."""

    def __init__(self, models: Models, out: Stream):
        self.models, self._out = models, out
        self.cancelled: set[str] = set()
        self._runs: dict[str, Run] = {}

    def tell(self, header: dict[str, Any], body: bytes = b"") -> None:
        send(self._out, header, body)

    def end(self) -> None:
        """End this process: its device answers nothing any more, and a new one can use it again."""
        self._out.flush()
        os._exit(DEVICE_LOST)

    def open_models(self) -> dict[str, int]:
        """The bytes of the open models, by their keys."""
        return self.models.sizes()

    @staticmethod
    def free(device: str) -> int:
        from ..models import devices

        return devices.free_bytes(device)

    def step(self, job: str, room: bool, payload: bytes) -> None:
        """Work on one job until its next rest."""
        if payload:
            try:
                self._runs[job] = Run(self, job, *pickle.loads(payload))
            except Exception as error:  # a function that cannot be imported here
                self.tell({"type": "failed", "job": job, "error": "JobError", "message": f"{error}"})
                return
        run = self._runs[job]
        self.models.room = run.room
        run.step(room)
        self.models.touch()
        if run.over:
            del self._runs[job]
            self.cancelled.discard(job)

    def give(self, idle: float) -> None:
        """Close what has been idle for so long, for the other lane."""
        self.models.close_idle(idle)
        self.tell({"type": "gave", "models": self.open_models()})

    def recheck(self) -> None:
        """Measure identities that were trusted, while nobody waits. Where they do not hold, what was computed on them
        is withdrawn: from the store, and from the pages."""
        from ..results.store import Store

        try:
            withdrawn, error = self.models.recheck()
        except Exception as failed:
            if isinstance(failed, DeviceFailed) or lost_device(failed):
                self.end()
            raise
        if error is None:
            return
        with suppress(StoreError):
            Store().forget(withdrawn)
        self.tell({"type": "withdrawn", "keys": withdrawn, "error": type(error).__name__, "message": str(error)})


def main(lane: str) -> None:
    """Serve a lane until the input ends."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(machine.WORKER if lane == "interactive" else machine.RUN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the frames
    todo: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
    cancelled: set[str] = set()

    def listen() -> None:
        while (frame := receive(sys.stdin.buffer)) is not None:
            if frame[0]["type"] == "cancel":
                cancelled.add(frame[0]["job"])
            else:
                todo.put(frame)
        os._exit(0)  # the app is gone: nobody waits for what is running

    threading.Thread(target=listen, daemon=True).start()
    with machine.uncollected(for_good=True):
        from ..models import devices
        from . import compute

    # Nobody looks for two seconds at a model of the batch lane: it is measured at each opening.
    server = Server(compute.Models(share=2, trust_kept=lane == "interactive"), out)
    server.cancelled = cancelled
    server.tell({"type": "ready", "devices": devices.overview(), "totals": devices.totals()})
    while True:
        try:
            header, body = todo.get(timeout=IDLE if server.models.to_recheck else None)
        except queue.Empty:
            server.recheck()
            continue
        if header["type"] == "step":
            server.step(header["job"], header.get("room", True), body)
        elif header["type"] == "give":
            server.give(header["idle"])


if __name__ == "__main__":
    main(sys.argv[1])
