"""The process that holds the models: `python -m ed_core.service.worker`, spoken to by `ed_core.service.jobs` over its
standard streams.

A process of its own, because a crash or an out-of-memory in native code must not take the pages down, and because the
app must not import torch. Frames both ways: lengths, a JSON header, bytes of a packed result; nothing is pickled. It
ends when its input ends.

It serves one job after the other, in the order in which they come; one that comes while another is computed is served
inside that one, between two of its blocks. Who goes first is for the queue to say: after each that was served inside
it names the next, or says that the other one goes `on`."""

from __future__ import annotations

import json
import os
import queue
import struct
import sys
import threading
import time
from contextlib import suppress
from io import BufferedIOBase
from typing import IO, TYPE_CHECKING, Any

from .. import machine

if TYPE_CHECKING:
    from ..types import ProbeResult
    from .compute import Models

LENGTHS = struct.Struct(">IQ")
COMPUTING = "computing"  # the stage once the model is open
IDLE = 2.0  # seconds without a job after which trusted identities are measured; chosen
ANSWER_SECONDS = 0.25  # for which a job that gave way waits until the queue says who is next; then it goes on
DEVICE_LOST = 75  # the exit code of a worker whose device failed
Stream = BufferedIOBase | IO[bytes]
_sending = threading.Lock()  # the worker's listener answers a ping while a result is being sent


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


def main() -> None:
    """Serve jobs until the input ends."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(machine.WORKER)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the frames
    todo: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    cancelled: set[str] = set()

    def listen() -> None:
        while (frame := receive(sys.stdin.buffer)) is not None:
            header = frame[0]
            if header["type"] == "cancel":
                cancelled.add(header["job"])
            elif header["type"] == "ping":
                send(out, {"type": "pong"})
            else:
                todo.put(header)
        os._exit(0)  # the app is gone: nobody waits for what is running

    threading.Thread(target=listen, daemon=True).start()
    with machine.uncollected(for_good=True):
        from ..models import devices
        from . import compute

    models = compute.Models(trust_kept=True)
    has = {"devices": devices.overview(), "totals": devices.totals()}
    send(out, {"type": "ready", "pid": os.getpid(), **has})
    while True:
        try:
            header = todo.get(timeout=IDLE if models.to_recheck else None)
        except queue.Empty:
            rechecked(models, out)
            continue
        if header["type"] == "run":
            serve(header, models, out, cancelled, todo)
        elif header["type"] == "open":
            opened_ahead(header, models, out)


def rechecked(models: Models, out: Stream) -> None:
    """Measure identities that were trusted, while nobody waits. Where they do not hold, what was computed on them is
    withdrawn: from the store, and from the pages."""
    from ..errors import StoreError
    from ..results.store import Store

    try:
        withdrawn, error = models.recheck()
    except Exception as failed:
        if _fatal(failed):
            _end(out)
        raise
    if error is None:
        return
    with suppress(StoreError):
        Store().forget(withdrawn)
    send(out, {"type": "withdrawn", "keys": withdrawn, "error": type(error).__name__, "message": str(error)})


def opened_ahead(header: dict[str, Any], models: Models, out: Stream) -> None:
    """Open a model before anybody asks for it; why one cannot be opened, whatever it is, is told to whoever does. But a
    device that failed ends this process as it does in `serve`."""
    from ..types import ModelSpec

    begun, there = time.monotonic(), False
    try:
        there = models.open_ahead(ModelSpec(**header["model"]))
    except Exception as error:
        if _fatal(error):
            _end(out)
    took = {"open": there, "seconds": time.monotonic() - begun}
    send(out, {"type": "opened", **took, "models": [len(models), models.bytes]})


def _fatal(error: Exception) -> bool:
    """Whether this process can use its device no more."""
    from ..errors import DeviceFailed, lost_device

    return isinstance(error, DeviceFailed) or lost_device(error)


def _end(out: Stream) -> None:
    """End this process: its device answers nothing any more, and a new one can use it again."""
    out.flush()
    os._exit(DEVICE_LOST)


def serve(
    header: dict[str, Any],
    models: Models,
    out: Stream,
    cancelled: set[str],
    todo: queue.SimpleQueue[dict[str, Any]] | None = None,
) -> None:
    """Run one job and report it: partial results, then `done` or `failed`; or `later`, where it does not fit beside the
    job that it runs inside of. What comes into `todo` meanwhile is served between two blocks; None: this job runs
    inside another, and no third inside it."""
    from dataclasses import replace

    from ..errors import Cancelled, EffectiveDepthError, OutOfMemory, StoreError, TooLarge
    from ..models import conversion
    from ..results.store import Store
    from ..results.wire import pack, with_provenance
    from ..sources import hub
    from ..sources.specs import of_gguf
    from ..types import Request
    from . import compute

    job, request = header["job"], Request.from_json(header["request"])

    def tell(what: str, body: bytes = b"", **more: Any) -> None:
        send(out, {"type": what, "job": job, **more}, body)

    def say(stage: str) -> None:
        tell("stage", text=stage)

    opening = time.monotonic()
    tell("begun")
    try:
        if job in cancelled:
            raise Cancelled("The computation was cancelled before it began.")
        name = request.models[0].name

        def come(done: int, total: int) -> None:
            say(f"downloading {name}: {machine.gigabytes(done)} of {machine.gigabytes(total)}")

        spec = hub.ensure(request.models[0], come, lambda: job in cancelled)
        request = replace(request, models=(spec,))  # a downloaded model goes by its commit
        if packed := of_gguf(spec):
            if not packed.converted:
                say(f"converting {name}")
            conversion.ensure(packed)
        say(f"opening {name}")
        model = models.get(spec)
        opening = time.monotonic() - opening
        say(COMPUTING)
        model.say = say

        def publish(result: ProbeResult) -> None:
            tell("partial", pack(result), progress=result.progress)

        def give_way() -> None:
            assert todo is not None  # something waits in it
            with models.hold(model), suppress(queue.Empty):
                while (header := todo.get(timeout=ANSWER_SECONDS))["type"] == "run":
                    serve(header, models, out, cancelled)

        result = compute.run(
            model,
            request,
            publish,
            lambda: job in cancelled,
            waits=lambda: todo is not None and not todo.empty(),
            give_way=give_way,
        )
        try:
            Store().put(result)
        except StoreError as error:
            result = with_provenance(result, not_stored=str(error))
        models.computed(request)
        took = {"seconds": result.provenance["seconds"], "opening": opening, "tokens": result.n_tokens}
        tell("done", pack(result), **took, models=[len(models), models.bytes])
    except Exception as error:
        if todo is None and isinstance(error, (OutOfMemory, TooLarge)):
            tell("later")
            return
        if isinstance(error, EffectiveDepthError):
            tell("failed", error=type(error).__name__, message=str(error))
        else:
            tell("failed", error="JobError", message=f"{type(error).__name__}: {error}. This is a defect.")
        if _fatal(error):
            _end(out)
    finally:
        cancelled.discard(job)


if __name__ == "__main__":
    main()
