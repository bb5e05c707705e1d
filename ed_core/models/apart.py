"""A stranger's program, a chat template, carried out in a fork of this process with limits of time and memory. Only
text comes back. The library's own sandbox keeps it from the disk; what it lacks is an end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path


class Unfinished(Exception):
    """It took too long, too much memory, or failed; says which."""


def limit_memory(more: int) -> None:
    """Let this process take `more` bytes beyond what it has; where the system does not tell what that is, no limit."""
    with contextlib.suppress(OSError, ValueError, StopIteration, ImportError):
        import resource

        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        taken = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (taken + more, taken + more))


def rendered(work: Callable[[], str], seconds: float, memory: int, most: int) -> str:
    """What `work` returns, at most `most` characters, within so many seconds and so much more memory. `Unfinished` says
    why not."""
    read, write = os.pipe()
    if not (child := os.fork()):
        _carry_out(work, write, memory, most)
    os.close(write)
    try:
        data = _all(read, time.monotonic() + seconds)
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if data is None:
        raise Unfinished(f"it takes more than {seconds:g} s")
    if not data.endswith(b"}"):
        raise Unfinished("it takes too much memory")
    found: dict[str, str] = json.loads(data)
    if "why" in found:
        raise Unfinished(found["why"])
    return found["text"]


def _carry_out(work: Callable[[], str], write: int, memory: int, most: int) -> None:
    """In the fork, which ends here."""
    try:
        limit_memory(memory)
        try:
            text = work()
            found = {"text": text} if len(text) <= most else {"why": f"it writes more than {most} characters"}
        except MemoryError:
            found = {"why": "it takes too much memory"}
        except BaseException as error:  # whatever a stranger's program provokes inside the library
            found = {"why": " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__}
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(found).encode())
    finally:
        os._exit(0)


def _all(pipe: int, until: float) -> bytes | None:
    """What comes through a pipe before its end; None where that is not reached in time."""
    pieces: list[bytes] = []
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while ready.select(max(0.0, until - time.monotonic())):
            if not (piece := os.read(pipe, 1 << 16)):
                return b"".join(pieces)
            pieces.append(piece)
    return None
