"""The process that speaks to the service, from the outside: one for each question. Torch-free.

It gets the service's key and address, and an empty folder, in which it leaves its status and its answer. Nothing it
says is trusted: sizes are bounded, and nothing is unpickled here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import machine, settings
from ..errors import ServiceFailed
from ..files import Bounds, Head, Kind, open_sealed
from ..models import remote
from ..settings import ROOT

QUESTION, STATUS, ANSWERED, FAILED = "question.json", "status.txt", "answer.npz", "failed.txt"
MOST = 64 << 20  # bytes of one answer
LINE = 600  # characters of a sentence
LOOK_SECONDS = 0.2  # between two looks at its status, and at whether somebody cancelled
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ed_core.remote import client; client.main()"
COMMAND: tuple[str, ...] = (sys.executable, "-I", "-c", START)


class AnswerHead(Head):
    """Header of an answer: type and torch version of the model at the service; by package, [version here, version
    there] ("": unknown)."""

    dtype: Literal["float32", "bfloat16", "float16"]
    torch: str
    versions: dict[str, list[str]]


ANSWER = Kind(
    "answer",
    "an answer",
    2,
    AnswerHead,
    "nothing was kept: try again",
    members=r"[\w.]+\.npy",
    bounds=Bounds(file=MOST, unpacked=MOST, member=MOST),
    refuses=ServiceFailed,
)


@dataclass(frozen=True)
class Answer:
    """An answer of the service: arrays by name, their head, and the size in bytes."""

    arrays: Mapping[str, np.ndarray]
    head: AnswerHead
    bytes: int


def ask(
    name: str,
    folder: str,
    plan: dict[str, Any],
    say: Callable[[str], None] = lambda text: None,
    check: Callable[[], None] = lambda: None,
) -> Answer:
    """Return the service's answer to a plan, awaited as long as the settings say (`ndif_wait`). `name`: the model's at
    the service; `folder`: of its config and tokenizer. `say` gets its status. `check` raises where somebody cancelled.
    `ServiceFailed` says what the service did instead of answering."""
    machine.require_package("nnsight", "A model that is elsewhere")
    host = settings.current().ndif_address
    given = {"HF_HUB_OFFLINE": "1", remote.KEY: remote.key()} | ({} if host == settings.LOCAL else {"NDIF_HOST": host})
    given |= {known: os.environ[known] for known in (machine.THREADS, machine.WAITING) if known in os.environ}
    with tempfile.TemporaryDirectory(prefix="ed-remote-", ignore_cleanup_errors=True) as home:
        place, nothing = Path(home), subprocess.DEVNULL
        question = {"name": name, "folder": folder, "host": host, "plan": plan}
        (place / QUESTION).write_text(json.dumps(question), encoding="utf-8")
        process = subprocess.Popen(
            COMMAND, cwd=home, env=given | {"HOME": home}, stdin=nothing, stdout=nothing, stderr=nothing
        )
        wait, state = settings.current().ndif_wait, ""
        end = time.monotonic() + wait
        try:
            while process.poll() is None:
                check()
                if (now := _line(place / STATUS)) and now != state:
                    state = now
                    say(f"{name}: {state}")
                if time.monotonic() > end:
                    raise ServiceFailed(
                        f"{name} did not answer within {wait} s, and the service says it is "
                        f"{state or 'not yet received'}; try again later, or raise ndif_wait."
                    )
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_SECONDS)
        finally:
            process.kill()
            process.wait()
        if not (place / ANSWERED).is_file():
            ended = f"The process that speaks to {host} ended and said nothing; nothing was kept: try again."
            raise ServiceFailed(_line(place / FAILED) or ended)
        with open_sealed(place / ANSWERED, ANSWER, f"The service's answer for {name}") as answer:
            return Answer(answer.arrays(), answer.head, (place / ANSWERED).stat().st_size)


def _line(file: Path) -> str:
    """Return the text of a stranger's file on one line, printable; "" where the file does not exist."""
    with suppress(OSError), file.open(encoding="utf-8", errors="replace") as text:
        return "".join(c if c.isprintable() else " " for c in " ".join(text.read(LINE).split()))
    return ""
