"""The client's process from the outside: how it is started, and what is taken from it. Torch-free.

Nothing it says is trusted: lines, bytes and arrays are bounded, and nothing is unpickled here."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import machine, settings
from ..errors import ServiceFailed
from ..files import Bounds, Head, Kind, open_sealed
from ..models import remote
from ..settings import ROOT

LINE = 1 << 16  # bytes of one line of the client's
MOST = 64 << 20  # bytes of one answer
LOOK_SECONDS = 0.2  # between two looks at whether somebody cancelled
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ed_core.remote import client; client.main()"
COMMAND = (sys.executable, "-I", "-c", START)
Versions = Mapping[str, tuple[str, str]]


class AnswerHead(Head):
    dtype: str
    torch: str


ANSWER = Kind(
    "answer",
    "an answer",
    1,
    AnswerHead,
    "nothing was kept: try again",
    members=r"[\w.]+\.npy",
    bounds=Bounds(file=MOST, unpacked=MOST, member=MOST),
    refuses=ServiceFailed,
)


@dataclass(frozen=True)
class Answer:
    """Arrays by name, the type and torch version of the model there, and its size in bytes. `versions`: by package,
    the one here and the one there ("" where it is unknown)."""

    arrays: Mapping[str, np.ndarray]
    dtype: str
    torch: str
    versions: Versions
    bytes: int


class Client:
    """A client's process, started by the first question. `name`: the model's at the service; `folder`: of its config
    and tokenizer."""

    def __init__(self, name: str, folder: str, command: tuple[str, ...] = ()):
        self.name, self._host, self._command = name, settings.current().ndif_address, command
        self._argument = json.dumps({"name": name, "folder": folder, "host": self._host})
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def ask(
        self,
        plan: dict[str, Any],
        say: Callable[[str], None] = lambda text: None,
        check: Callable[[], None] = lambda: None,
    ) -> Answer:
        """The answer to a plan, for which it waits as long as the settings say (`ndif_wait`). `check` raises where
        somebody cancelled. `ServiceFailed` says what the service did instead of answering."""
        try:
            return self._ask(plan, say, check)
        except BaseException:
            self.close()  # a late answer must not be taken for another plan's
            raise

    def _ask(self, plan: dict[str, Any], say: Callable[[str], None], check: Callable[[], None]) -> Answer:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(plan).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended: the next message says so
        versions: Versions = {}
        wait, state = settings.current().ndif_wait, "not yet received"
        end = time.monotonic() + wait
        while True:
            check()
            if time.monotonic() > end:
                raise ServiceFailed(
                    f"{self.name} did not answer within {wait} s, and the service says it is {state}; try again later, "
                    "or raise ndif_wait."
                )
            try:
                message, body = self._messages.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if message.get("event") == "versions":
                versions = _versions(message.get("versions"))
            elif message.get("event") == "status":
                state = plain(message.get("text"))[:120]
                say(f"{self.name}: {state}")
            elif message.get("event") == "done":
                with open_sealed(body, ANSWER, f"The service's answer for {self.name}") as answer:
                    head = answer.head
                    return Answer(answer.arrays(), plain(head.dtype), plain(head.torch)[:40], versions, len(body))
            else:
                raise self._failure(message)

    def _failure(self, message: Mapping[str, Any]) -> ServiceFailed:
        why, host = plain(message.get("text"))[:200].rstrip("."), self._host
        sentences = {
            "absent": f"The service at {host} does not answer ({why}); try again later, or open a model here.",
            "key": f"The service at {host} refused the key ({why}); check {remote.KEY}, or get a new one at "
            "https://ndif.us.",
            "model": f"{self.name} is not among the models at {host} now ({why or 'there are none'}); take one of "
            "these, or try again later.",
            "ended": f"The process that speaks to {host} ended ({why or 'it said nothing'}); nothing was kept: try "
            "again.",
        }
        other = f"{self.name} was not measured at {host}: {why or 'no reason given'}; nothing was kept."
        return ServiceFailed(sentences.get(str(message.get("kind")), other))

    def _start(self) -> None:
        """Start the process in an empty folder. It gets the service's key and address, and how many threads to use."""
        self.close()
        if not self._command:
            machine.require_package("nnsight", "A model that is elsewhere")
        known = {"HF_HUB_OFFLINE": "1", remote.KEY: remote.key()}
        known |= {name: os.environ[name] for name in (machine.THREADS, machine.WAITING) if name in os.environ}
        known |= {} if self._host == settings.LOCAL else {"NDIF_HOST": self._host}
        home = tempfile.mkdtemp(prefix="ed-remote-")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [*(self._command or COMMAND), self._argument]
        self._process = subprocess.Popen(command, cwd=home, env=known | {"HOME": home}, **pipes)  # type: ignore[call-overload]
        # also where Python ends, and where the model is closed
        self._end = weakref.finalize(self, _end, self._process, home)
        self._messages: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(self._process.stdout, self._messages), daemon=True).start()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process = None
        self._end()


def _end(process: subprocess.Popen[bytes], home: str) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(home, ignore_errors=True)


def _listen(stream: Any, messages: queue.SimpleQueue[tuple[dict[str, Any], bytes]]) -> None:
    """Queue the process's messages until it ends, or sends something else."""
    why = ""
    try:
        while line := stream.readline(LINE):
            message = json.loads(line)
            if not 0 <= (size := int(message.get("bytes", 0))) <= MOST:
                raise ValueError("too many bytes")
            body = stream.read(size)
            if len(body) < size:
                break
            messages.put((message, body))
    except (ValueError, AttributeError, TypeError, OSError):
        why = "it sent what is no answer"
    messages.put(({"event": "failed", "kind": "ended", "text": why}, b""))


def _versions(pairs: object) -> Versions:
    """The versions here and there; `ServiceFailed` where the two nnsights do not understand each other."""
    both = pairs.items() if isinstance(pairs, dict) else ()
    known = {
        plain(k)[:40]: (plain(v[0])[:40], plain(v[1])[:40]) for k, v in both if isinstance(v, list) and len(v) == 2
    }
    own, theirs = known.get("nnsight", ("", ""))
    if theirs and own.split(".")[:2] != theirs.split(".")[:2]:
        raise ServiceFailed(
            f"The service runs nnsight {theirs}, and {own} is installed here, which does not read the other's "
            f"programs; install nnsight=={'.'.join(theirs.split('.')[:2])}.*."
        )
    return known


def plain(text: object) -> str:
    """A stranger's text on one line, printable."""
    return "".join(c if c.isprintable() else " " for c in " ".join(str(text or "").split()))
