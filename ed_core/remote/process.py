"""The client's process from the outside: how it is started, what it may say, and the arrays that are taken from it.
Torch-free.

Nothing it says is believed: lines and bytes are bounded, and an array counts only where name, type and shape are those
that were asked for."""

from __future__ import annotations

import json
import math
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import machine, settings
from ..errors import ServiceFailed
from ..models import remote
from ..settings import ROOT

LINE = 1 << 16  # bytes of one line of the client's
MOST = 64 << 20  # bytes of all arrays of one answer
ITEM = {"float32": 4, "int64": 8, "uint8": 1}  # of the types that may come
IDLE_SECONDS = 60.0  # after which a process that is not asked ends: it holds some 400 MB
LOOKS_SECONDS = 0.2  # between two looks at whether somebody cancelled
THREADS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ed_core.remote import client; client.main()"
COMMAND = (sys.executable, "-I", "-c", START)
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Answer:
    """What came back of one plan. `versions`: by package, the one here and the one there ("" where it is not said)."""

    arrays: Mapping[str, np.ndarray]
    texts: Mapping[str, str]
    versions: Mapping[str, tuple[str, str]]
    bytes: int


def environment(home: str) -> dict[str, str]:
    """All that the client's process knows: the service's key and address, an empty folder as its home, and how many
    threads it may take."""
    threads = {name: os.environ[name] for name in THREADS if name in os.environ}
    known = {"HOME": home, "HF_HUB_OFFLINE": "1", remote.KEY: remote.key()}
    host = settings.current().ndif_address
    return known | threads | ({} if host == settings.LOCAL else {"NDIF_HOST": host})


class Client:
    """A client's process, started when it is first asked. `name`: the model's at the service; `folder`: where its
    config and tokenizer are."""

    def __init__(self, name: str, folder: str, command: tuple[str, ...] = ()):
        self.name, self._command = name, command or COMMAND
        self._head = {"name": name, "folder": folder, "host": settings.current().ndif_address}
        self._process: subprocess.Popen[bytes] | None = None
        self._asking, self._idle = threading.Lock(), threading.Timer(0, self._rest)
        self._end: weakref.finalize[..., Client] | None = None  # also where Python ends, and where nobody holds this

    def ask(
        self,
        plan: dict[str, Any],
        expected: Shapes,
        say: Callable[[str], None] = lambda told: None,
        check: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Send a plan and wait for its answer, for as long as the settings say (`ndif_wait`). `check` raises where
        somebody cancelled: the process is ended then, and no answer is waited for. `ServiceFailed` says what the
        service did instead of answering."""
        with self._asking:
            self._idle.cancel()
            try:
                found = self._asked(plan, expected, say, check)
            except BaseException:
                self.close()  # an answer of this plan must not be taken for another's
                raise
            self._idle = threading.Timer(IDLE_SECONDS, self._rest)
            self._idle.daemon = True
            self._idle.start()
            return found

    def _rest(self) -> None:
        """Nobody has asked for a while."""
        if self._asking.acquire(blocking=False):
            self.close()
            self._asking.release()

    def _asked(
        self, plan: dict[str, Any], expected: Shapes, say: Callable[[str], None], check: Callable[[], None]
    ) -> Answer:
        said = self._started()
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(plan).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            pass  # it has ended, which the first look tells
        versions: dict[str, tuple[str, str]] = {}
        begun = time.monotonic()
        state = "not yet received"
        while True:
            check()
            if time.monotonic() - begun > (waits := settings.current().ndif_wait):
                raise ServiceFailed(
                    f"{self.name} has been waited for over {waits} s, and the service says it is {state}; try again "
                    "later, or raise ndif_wait."
                )
            try:
                told, body = said.get(timeout=LOOKS_SECONDS)
            except queue.Empty:
                continue
            event = told.get("event")
            if event == "versions":
                versions = _versions(told.get("versions"))
            elif event == "status":
                state = plain(told.get("text"))[:120]
                say(f"{self.name}: {state}")
            elif event == "done":
                return Answer(_arrays(told, body, expected, self.name), _texts(told), versions, len(body))
            else:
                raise self._failure(told)

    def _failure(self, told: Mapping[str, Any]) -> ServiceFailed:
        why, host = plain(told.get("text"))[:200].rstrip("."), self._head["host"]
        sentences = {
            "absent": f"The service at {host} does not answer ({why}); try again later, or open a model here.",
            "key": f"The service at {host} refused the key ({why}); check {remote.KEY}, or get a new one at "
            "https://ndif.us.",
            "model": f"{self.name} is not among the models at {host} now ({why or 'there are none'}); take one of "
            "these, or try again later.",
            "client": f"{self.name} cannot be asked for at the service ({why}); check its config and tokenizer.",
            "ended": f"The process that speaks to {host} ended ({why or 'it said nothing'}); nothing was kept: try "
            "again.",
        }
        other = f"{self.name} was not measured at {host}: {why or 'no reason is told'}; nothing was kept."
        return ServiceFailed(sentences.get(str(told.get("kind")), other))

    # ---------------------------------------------------------------- the process

    def _started(self) -> queue.SimpleQueue[tuple[dict[str, Any], bytes]]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            if self._command is COMMAND:
                machine.require_package("nnsight", "A model that is elsewhere")
            known, home = environment(""), tempfile.mkdtemp(prefix="ed-remote-")
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=home,
                env=known | {"HOME": home},
            )
            self._end = weakref.finalize(self, _ended, self._process, home)
            self._said: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
            threading.Thread(target=_listen, args=(self._process, self._said), daemon=True).start()
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._head).encode() + b"\n")
        return self._said

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process = None
        if self._end is not None:
            self._end()


def _ended(process: subprocess.Popen[bytes], home: str) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(home, ignore_errors=True)


def _listen(process: subprocess.Popen[bytes], said: queue.SimpleQueue[tuple[dict[str, Any], bytes]]) -> None:
    """Put what the process says into the queue, until it ends or says what it should not."""
    stream = process.stdout
    assert stream is not None
    why = ""
    try:
        while line := stream.readline(LINE):
            told = json.loads(line)
            size = _size(told) if told.get("event") == "done" else 0
            body = stream.read(size) if size else b""
            if len(body) < size:
                break
            said.put((told, body))
    except (ValueError, AttributeError, KeyError, TypeError, OSError):
        why = "it said what is no answer"
    said.put(({"event": "failed", "kind": "ended", "text": why}, b""))


def _size(told: Mapping[str, Any]) -> int:
    """The bytes of the arrays that are announced; `ValueError` where there are too many."""
    total = 0
    for _, dtype, shape in told["arrays"]:
        if not (
            isinstance(shape, list) and len(shape) <= 4 and all(isinstance(n, int) and 0 <= n <= MOST for n in shape)
        ):
            raise ValueError("a shape")
        total += ITEM[dtype] * math.prod(shape)
    if total > MOST:
        raise ValueError("too much")
    return total


def _arrays(told: Mapping[str, Any], body: bytes, expected: Shapes, name: str) -> dict[str, np.ndarray]:
    """The arrays that were asked for, and no others."""
    found: dict[str, np.ndarray] = {}
    here = 0
    for one, dtype, shape in told["arrays"]:
        size = ITEM[dtype] * math.prod(shape)
        if one in expected and (dtype, tuple(shape)) == expected[one]:
            found[one] = np.frombuffer(body[here : here + size], dtype).reshape(shape).copy()
        elif one in expected:
            raise ServiceFailed(
                f"The service answered for {name} with {one} as {dtype} of {_sizes(shape)}, and {expected[one][0]} of "
                f"{_sizes(expected[one][1])} were asked for; nothing was kept: compare the versions."
            )
        here += size
    if found.get("finite") == 0:
        return found  # there is nothing more to say of such a pass
    if missing := [one for one in expected if one not in found]:
        raise ServiceFailed(
            f"The service answered for {name} without {missing[0]}; nothing was kept: compare the versions."
        )
    return found


def _sizes(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape)) or "one number"


def _texts(told: Mapping[str, Any]) -> dict[str, str]:
    texts = told.get("texts")
    return {plain(k)[:40]: plain(v)[:40] for k, v in texts.items()} if isinstance(texts, dict) else {}


def _versions(told: object) -> dict[str, tuple[str, str]]:
    """Held against each other: `ServiceFailed` where the two ends' nnsight would not understand each other."""
    pairs = told.items() if isinstance(told, dict) else ()
    both = {plain(k)[:40]: v for k, v in pairs if isinstance(v, list) and len(v) == 2}
    found = {name: (plain(ours)[:40], plain(theirs)[:40]) for name, (ours, theirs) in both.items()}
    ours, theirs = found.get("nnsight", ("", ""))
    if theirs and ours.split(".")[:2] != theirs.split(".")[:2]:
        raise ServiceFailed(
            f"The service runs nnsight {theirs}, and {ours} is installed here; programs of one are not read by the "
            f"other: install nnsight=={'.'.join(theirs.split('.')[:2])}.*."
        )
    return found


def plain(text: object) -> str:
    """What a stranger says, on one line and printable."""
    return "".join(c if c.isprintable() else " " for c in " ".join(str(text or "").split()))
