"""Processes that save case studies in a loop are killed at random moments: what was reported as saved must be there,
whole.

Writers run two at a time on one folder, forked from this process. Each announces what it is about to do, does it, and
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
from ed_core.cases.kept import Kept, SafeFolder
from ed_core.errors import CaseError

LONGEST = 0.12  # seconds that a writer may live after its first report
GONE = "gone"


@pytest.mark.parametrize("kills", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_killed_writers_lose_nothing(folder, kills):
    counts = run(folder, kills, random.Random(kills))
    assert counts["kills"] >= kills and counts["reported"] > 0 and counts["lost"] == counts["torn"] == 0, counts


def caught(kept: Kept, what: str) -> bool:
    """Whether some round counts it: which one depends on the machine."""
    return any(run(kept, 10, random.Random(seed))[what] for seed in range(20))


def test_a_writer_that_writes_in_place_is_caught(folder, monkeypatch):
    def write(self, file, data):
        with file.open("wb") as handle:
            handle.write(data[:1000])
            handle.flush()
            time.sleep(0.05)
            handle.write(data[1000:])

    monkeypatch.setattr(SafeFolder, "write", write)
    assert caught(folder, "torn")


def test_a_writer_that_reports_too_early_is_caught(folder, monkeypatch):
    monkeypatch.setattr(Kept, "save", lambda self, case, opened: "")
    assert caught(folder, "lost")


def run(kept: Kept, kills: int, rng: random.Random) -> dict[str, int]:
    """What happened, as counts: `reported` as done, of them `lost`, `torn` files under a name that is read."""
    counts = dict.fromkeys(("kills", "reported", "lost", "torn"), 0)
    expected: dict[str, set[str]] = {}  # per case study the states it may be in
    while counts["kills"] < kills or not counts["reported"]:
        writers = [_start(kept, small("Template"), rng.random()) for _ in range(2)]
        for pid, pipe in writers:
            lines = _kill_later(pid, pipe, rng.uniform(0, LONGEST))
            counts["kills"] += 1
            counts["reported"] += sum(line.startswith("done") for line in lines)
            _note(lines, expected)
        lost, torn = verify(kept, expected)
        counts["lost"] += lost
        counts["torn"] += torn
        _tidy(kept, expected, keep=40)
    return counts


def _start(kept: Kept, case: case_study.Case, seed: float) -> tuple[int, int]:
    """Fork a writer; its process id and the end of the pipe it reports on."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    try:
        for line in _work(Kept(kept.root, shipped=None), case, random.Random(seed)):
            os.write(write, line.encode() + b"\n")
    finally:
        os._exit(1)


def _work(kept: Kept, template: case_study.Case, rng: random.Random) -> Iterator[str]:
    """Add, edit, delete and restore for ever; before each step what will be, after it that it is. Only own case studies
    are changed."""
    own: dict[str, case_study.Case] = {}
    deleted: list[str] = []
    while True:
        act = rng.choice(["add", "edit", "edit", "delete", "restore"])
        if act == "add" or not own:
            case = case_study.edited(template, title=f"Number {rng.random()}", notes="x" * rng.randrange(20_000))
            case = replace(case, id=case_study.new_id())
            yield f"begin {case.id} {_hash(bundle.encode(case))}"
            kept.add(case, owner_of(case.id))
            own[case.id] = case
        elif act == "edit":
            case = case_study.edited(rng.choice(list(own.values())), notes="y" * rng.randrange(20_000))
            yield f"begin {case.id} {_hash(bundle.encode(case))}"
            kept.save(case, kept.open(case.id)[1])
            own[case.id] = case
        elif act == "delete":
            case = own.pop(rng.choice(list(own)))
            yield f"begin {case.id} {GONE}"
            kept.delete(case.id)
            deleted.append(case.id)
        elif deleted:
            id = deleted.pop()
            yield f"begin {id} restored"
            kept.restore(id)
            case = own[id] = kept.open(id)[0]
        else:
            continue
        yield f"done {case.id} {GONE if case.id not in own else _hash(bundle.encode(case))}"


def _kill_later(pid: int, pipe: int, seconds: float) -> list[str]:
    """Let a writer work, kill it, and read all it had said; a line cut short by the kill was not said."""
    with os.fdopen(pipe, "rb", buffering=0) as reports:
        said = reports.read(1)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        while more := reports.read(1 << 16):
            said += more
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("a writer ended by itself: " + said.decode()[-300:])
    return said.decode().splitlines() if said.endswith(b"\n") else said.decode().splitlines()[:-1]


def _note(lines: list[str], expected: dict[str, set[str]]) -> None:
    """The states that each case study may be in after these reports."""
    before: dict[str, set[str]] = {}
    for line in lines:
        kind, id, state = line.split()
        if kind == "begin":
            before[id] = expected.get(id, {GONE})
            expected[id] = before[id] | {state}
        else:
            expected[id] = {state}


def verify(kept: Kept, expected: dict[str, set[str]]) -> tuple[int, int]:
    """How many case studies are not in a state they may be in, or not their owner's; and how many files are damaged.
    Reads every file anew."""
    lost = torn = 0
    listed = {card.id for card in kept.cards()}
    for id, states in expected.items():
        try:
            found = _hash(bundle.encode(kept.open(id)[0])) if id in listed else GONE
        except CaseError:
            found = "damaged"
        restored = "restored" in states and found != GONE
        lost += (found not in states and not restored) or (found != GONE and kept.owner(id) != owner_of(id))
        expected[id] = {found}
    torn = len(kept.damaged()) + len(kept.problems)
    strangers = listed - set(expected)
    return lost, torn + len(strangers)


def _tidy(kept: Kept, expected: dict[str, set[str]], keep: int) -> None:
    """Keep the folder small, so that every round can look at all of it."""
    for id in [id for id, states in expected.items() if states != {GONE}][:-keep]:
        kept.delete(id)
        expected[id] = {GONE}
    for id in [id for id, states in expected.items() if states == {GONE}]:
        del expected[id]
    kept.empty_trash()


def owner_of(id: str) -> str:
    """Every case study's owner is another: a mix-up shows."""
    return f"{id}@lab.org"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
