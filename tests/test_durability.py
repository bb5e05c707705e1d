"""Processes that save case studies in a loop are killed at random moments: what was reported as saved must be there,
whole.

Two writers at a time work on one folder, forked from this process. Each announces what it is about to do, does it, and
reports it done; then comes SIGKILL. Afterwards every case study is in the state last reported, or in the one announced
and under way. A kill tells nothing of a power cut: for that there are only the fsyncs."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kept_cases import small

from ed_core.cases import bundle, case_study
from ed_core.cases.kept import Kept

pytestmark = pytest.mark.process
GONE = "gone"


def test_killed_writers_lose_nothing(folder):
    rng, template = random.Random(10), small("Template")
    expected: dict[str, set[str]] = {}  # per case study the states it may be in
    reported = 0
    for _ in range(10):
        for pid, pipe in [start(folder, template, rng.random()) for _ in range(2)]:
            lines = killed(pid, pipe, rng.uniform(0, 0.12))
            reported += sum(line.startswith("done") for line in lines)
            for kind, id, state in map(str.split, lines):  # what each may be in after these reports
                expected[id] = {state} if kind == "done" else expected.get(id, {GONE}) | {state}
        listed = {card.id for card in folder.cards()}
        assert listed <= set(expected) and not folder.problems
        for id, states in expected.items():
            found = digest(folder.open(id)[0]) if id in listed else GONE
            assert found in states
            expected[id] = {found}
    assert reported > 0


def start(kept: Kept, template: case_study.Case, seed: float) -> tuple[int, int]:
    """Fork a writer; its process id and the end of the pipe it reports on."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    try:
        for line in work(Kept(kept.path.parent, shipped=None), template, random.Random(seed)):
            os.write(write, line.encode() + b"\n")
    finally:
        os._exit(1)


def work(kept: Kept, template: case_study.Case, rng: random.Random) -> Iterator[str]:
    """Add, edit and delete for ever; before each step what will be, after it that it is. Only own case studies are
    changed."""
    own: dict[str, case_study.Case] = {}
    while True:
        act = rng.choice(["add", "edit", "edit", "delete"])
        if act == "delete" and own:
            id, state = own.pop(rng.choice(list(own))).id, GONE
            yield f"begin {id} {state}"
            kept.delete(id)
        else:
            is_new = act == "add" or not own
            case = replace(template, id=case_study.new_id()) if is_new else rng.choice(list(own.values()))
            case = case_study.edited(case, title=f"Number {rng.random()}", notes="x" * rng.randrange(20_000))
            id, state = case.id, digest(case)
            yield f"begin {id} {state}"
            if is_new:
                kept.add(case)
            else:
                kept.save(case, kept.open(id)[1])
            own[id] = case
        yield f"done {id} {state}"


def killed(pid: int, pipe: int, seconds: float) -> list[str]:
    """Let a writer work, kill it, and read all it had said; a line cut short by the kill was not said."""
    with os.fdopen(pipe, "rb", buffering=0) as reports:
        said = reports.read(1)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        while more := reports.read(1 << 16):
            said += more
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "a writer ended by itself: " + said.decode()[-300:]
    return said.decode().split("\n")[:-1]


def digest(case: case_study.Case) -> str:
    return hashlib.sha256(bundle.encode(case)).hexdigest()
