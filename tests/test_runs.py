"""Runs: specs, statuses, the process beside the browser, and whose turn it is."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from unittest.mock import Mock

import psutil
import pytest
from hosted_app import until

from ed_core import machine, settings
from ed_core.claims import running
from ed_core.claims.running import Asked
from ed_core.commands import long_work, main
from ed_core.errors import FitRefused, NotAllowed, QueueFull, StudyError
from ed_core.runs import execute, launch
from ed_core.runs.__main__ import main as process_of_a_run
from ed_core.runs.launch import Run
from ed_core.runs.run import (
    CANCELLED,
    DONE,
    FAILED,
    RUNNING,
    SPEC,
    STATUS_FILE,
    WAITING,
    CardRun,
    ClaimsRun,
    FitRun,
    Opened,
    ReproduceRun,
    Status,
    Statuses,
    StudyRun,
    read_statuses,
    seconds_left,
)
from ed_core.sources.bundled import MODELS
from ed_core.studies import items

PATIENCE = 120
FULL = "The output cannot be written: the disk is full."
CLAIM = ClaimsRun(asked=Asked("ed-demo-8", "copy", ("turn",), most=5))
STUDY = (
    'name = "s"\nmodels = ["ed-demo-8"]\nprobes = ["contributions"]\nchunk = 1\n'
    '[[sets]]\nname = "sums"\nbundled = "sum_mod10"\nper_level = 4\n'
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    yield tmp_path
    for ticket in launch.line():
        process = launch.alive(ticket.pid, ticket.created)
        if process and process.pid != os.getpid():
            process.kill()


def states(folder) -> list[str]:
    found = [one.state for one in read_statuses(folder)]
    return [state for before, state in zip([""] + found, found) if state != before]


def computed(folder) -> int:
    return len(list(folder.glob("items/*/*.parquet")))


def begin_study(folder, study=STUDY, **more) -> None:
    launch.begin(StudyRun(file=str(folder / "s.toml")), folder, files={"s.toml": study.encode()}, **more)


# ---------------------------------------------------------------- specs and statuses


@pytest.mark.parametrize(
    "spec",
    [
        StudyRun(file="s.toml", engine="ray", address="a:1"),
        CLAIM,
        FitRun(
            fit="maps", model=Opened(source="a"), other=Opened(source="b", control="untrained"), prompts="p", out="o"
        ),
        ReproduceRun(paper="hu2025", models=("a", "b=c"), limit=3),
    ],
    ids=lambda spec: spec.kind,
)
def test_a_spec_comes_back_from_its_file_as_it_was(tmp_path, spec):
    launch.note(tmp_path, spec, psutil.Process())
    assert Run(tmp_path).spec == spec and SPEC.validate_json(spec.model_dump_json()) == spec
    assert Run(tmp_path).running, "its process is this one"


@pytest.mark.parametrize(
    "told", ["{", "[]", "{}", '{"pid": 1, "created": 2.0}', '{"spec": {"kind": "study", "file": 3}}']
)
def test_a_folder_without_a_run_of_this_version_has_no_spec(tmp_path, told):
    (tmp_path / "run.json").write_text(told)
    assert Run(tmp_path).spec is None and not Run(tmp_path).running and Run(tmp_path).trouble == ""


def test_only_whole_lines_are_read_and_a_torn_one_spoils_no_other(tmp_path):
    kept, file = Statuses(tmp_path), tmp_path / STATUS_FILE
    kept.tell(0.25, "one")
    whole = file.read_bytes()
    torn = json.dumps(vars(read_statuses(tmp_path)[0]) | {"share": 0.5})
    file.write_bytes(whole + torn.encode())  # all but the newline: perhaps more was to come
    assert [one.share for one in read_statuses(tmp_path)] == [0.25]
    file.write_bytes(whole + torn.encode()[:20])
    Statuses(tmp_path).tell(0.75, "two")
    assert [one.share for one in read_statuses(tmp_path)] == [0.25, 0.75]
    file.write_bytes(b'{"time": 1}\nnothing\n[[]]\n' + whole)
    assert [one.what for one in read_statuses(tmp_path)] == ["one"]


def test_of_many_statuses_the_last_ones_are_read(tmp_path):
    kept = Statuses(tmp_path)
    for i in range(2000):
        kept.add(RUNNING, i / 2000, f"part {i}")
    found = read_statuses(tmp_path)
    assert 100 < len(found) < 2000 and found[-1].what == "part 1999" and found[0].what == f"part {2000 - len(found)}"


def test_a_share_is_kept_by_the_per_cent(tmp_path):
    seen = []
    kept = Statuses(tmp_path, seen.append)
    for i in range(1001):
        kept.tell(i / 1000, "all")
    assert [round(100 * one.share) for one in read_statuses(tmp_path)] == list(range(101)) and len(seen) == 101


def test_how_a_run_ended_is_its_last_status(tmp_path):
    for error, state, told in (
        (FitRefused("Too few."), FAILED, "Too few."),
        (KeyboardInterrupt(), CANCELLED, ""),
        (ZeroDivisionError("x"), FAILED, "The run ended with a defect, ZeroDivisionError: x. Please report it."),
        (OSError(errno.ENOSPC, ""), FAILED, f"{FULL} Free some space, or set --out to a folder on another disk."),
        (
            MemoryError(),
            FAILED,
            "The memory ran out; take a smaller model, a narrower precision, or fewer prompts at once.",
        ),
    ):
        kept = Statuses(tmp_path)
        with pytest.raises(type(error)), kept.of_run():
            kept.tell(0.5, "half")
            raise error
        last = read_statuses(tmp_path)[-1]
        assert (last.state, last.message, last.share, last.what) == (state, told, 0.5, "half")
        assert Run(tmp_path).trouble == told
    kept = Statuses(tmp_path)
    with kept.of_run():
        kept.message = "All is well."
    assert read_statuses(tmp_path)[-1].message == "All is well." and Run(tmp_path).trouble == ""


def test_what_is_left_is_told_by_the_pace_since_it_began_to_compute():
    now = time.time()
    past = [Status(now - 900, RUNNING, 0.9), Status(now - 800, CANCELLED)]
    waits = [Status(now - 300, WAITING), Status(now - 200, RUNNING), Status(now - 100, RUNNING)]
    assert seconds_left([]) is None and seconds_left(past) is None and seconds_left([*past, *waits]) is None
    half = Status(now, RUNNING, 0.5)
    assert seconds_left([*past, *waits, half]) == pytest.approx(100, abs=1), "opening the model does not count"
    ahead = [Status(now + 3500, RUNNING), Status(now + 3600, RUNNING, 0.4), Status(now - 10, RUNNING, 0.45), half]
    assert seconds_left(ahead) == pytest.approx(100, abs=1), "since the clock was set back"


# ---------------------------------------------------------------- processes and the queue


def test_two_runs_take_turns(cache):
    first, second = cache / "claims" / "a", cache / "studies" / "b"
    launch.begin(CLAIM, first, "me")
    begin_study(second)
    assert [ticket.folder for ticket in launch.line()] == [str(first), str(second)]
    until(lambda: Run(second).status.what == "1 run ahead", PATIENCE)
    assert Run(second).waiting and Run(first).running
    assert Run(first).process.nice() >= machine.RUN, "pages go first"
    until(lambda: not (Run(first).running or Run(second).running), PATIENCE)
    assert Run(first).status.state == Run(second).status.state == DONE, (Run(first).trouble, Run(second).trouble)
    ended = read_statuses(first)[-1].time
    began = next(one.time for one in read_statuses(second) if one.state == RUNNING)
    assert began >= ended and states(second) == [WAITING, RUNNING, DONE]
    until(lambda: not launch.line(), PATIENCE)


def test_a_run_that_is_killed_frees_its_place_and_goes_on(cache, monkeypatch):
    monkeypatch.setenv("ED_TEST_STEP_DELAY", "0.05")
    first, second = cache / "studies" / "a", cache / "claims" / "b"
    begin_study(first)
    monkeypatch.delenv("ED_TEST_STEP_DELAY")
    until(lambda: computed(first) >= 2, PATIENCE)
    launch.begin(CLAIM, second)
    until(lambda: Run(second).waiting and Run(second).status.what, PATIENCE)
    os.kill(Run(first).process.pid, signal.SIGKILL)
    until(lambda: not Run(first).running, PATIENCE)
    there = computed(first)
    assert "The process ended before it was done; it said last: s: 1 model" in Run(first).trouble
    assert Run(first).unfinished
    until(lambda: not Run(second).running, PATIENCE)
    assert Run(second).status.state == DONE, "it took the place over"
    begin_study(first)
    until(lambda: not Run(first).running, PATIENCE)
    assert Run(first).status.state == DONE and Run(first).trouble == "" and 2 <= there < computed(first)
    assert f"{there} there" in (first / launch.LOG).read_text()


def test_of_what_a_process_said_the_end_is_read_and_of_a_pipe_nothing(tmp_path):
    log = tmp_path / launch.LOG
    log.touch()
    os.truncate(log, 1 << 40)
    with log.open("ab") as handle:
        handle.write(b"\none\rtwo\nthree\n")
    assert launch._last_lines(log)[-2:] == ["two", "three"]
    log.unlink()
    os.mkfifo(log)
    assert launch._last_lines(log) == []


def test_a_run_is_cancelled_while_it_waits_and_while_it_computes(cache, monkeypatch):
    monkeypatch.setenv("ED_TEST_STEP_DELAY", "0.05")
    first, second = cache / "studies" / "a", cache / "claims" / "b"
    begin_study(first)
    launch.begin(CLAIM, second)
    until(lambda: computed(first) >= 1 and Run(second).status.what, PATIENCE)
    process = Run(first).process
    Run(second).stop()
    Run(first).stop()
    for folder in (first, second):
        run = Run(folder)
        assert not run.running and run.status.state == CANCELLED and run.trouble == "" and run.process is None
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert not launch.line() and Run(first).unfinished and not Run(second).unfinished


def test_a_run_that_ended_well_while_it_was_cancelled_is_done(tmp_path):
    process = psutil.Popen(["sleep", "60"])
    launch.note(tmp_path, CLAIM, process)
    Statuses(tmp_path).add(RUNNING, 0.99)
    shown = Run(tmp_path)
    assert shown.running and shown.status.share == 0.99
    Statuses(tmp_path).add(DONE, 1.0)
    shown.stop()
    assert Run(tmp_path).status.state == DONE and Run(tmp_path).process is None


def test_a_run_that_cannot_be_noted_is_not_started(cache, monkeypatch):
    started, start = [], launch._start
    monkeypatch.setattr(launch, "_start", lambda folder: started.append(start(folder)) or started[0])
    monkeypatch.setattr(launch, "enter", Mock(side_effect=OSError(errno.ENOSPC, "")))
    with pytest.raises(StudyError, match="The run cannot be started: the disk is full"):
        launch.begin(CLAIM, cache / "claims" / "x")
    (process,) = started
    process.wait(10)
    assert not Run(cache / "claims" / "x").running


def test_a_run_that_is_refused_says_why(cache):
    folder = cache / "claims" / "x"
    launch.begin(ClaimsRun(asked=Asked("ed-demo-8", "no-such-set")), folder)
    until(lambda: not Run(folder).running, PATIENCE)
    assert Run(folder).trouble.startswith("There is no prompt set 'no-such-set'") and states(folder)[-1] == FAILED


def test_a_run_that_cannot_read_the_queue_says_why(cache, monkeypatch):
    launch.note(cache, CLAIM, psutil.Process())
    monkeypatch.setattr(launch, "_ahead", Mock(side_effect=OSError(errno.ENOSPC, "")))
    with pytest.raises(OSError):
        process_of_a_run(cache)
    assert Run(cache).trouble == f"{FULL} Free some space, or set ED_CACHE to a folder on another disk."


@pytest.mark.parametrize("by", ["ED_CACHE", "lab.toml"])
def test_a_run_finds_folders_that_are_named_from_where_the_server_stands(clean, tmp_path, monkeypatch, by):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab.toml").write_text('cache = "data"')
    monkeypatch.setenv("ED_CONFIG", "lab.toml")
    if by == "ED_CACHE":
        monkeypatch.setenv("ED_CACHE", "data")
    shutil.copytree(MODELS["ed-demo-8"], "mine")
    (tmp_path / "typing.py").write_text("raise SystemExit('a file of the folder was taken for a module')")
    folder = items.home() / "s"
    begin_study(folder, study=STUDY.replace("ed-demo-8", "./mine"))
    (ticket,) = launch.line()
    assert ticket.folder == str(tmp_path / "data" / "studies" / "s")
    until(lambda: not Run(folder).running, PATIENCE)
    assert Run(folder).status.state == DONE, Run(folder).trouble
    assert not launch.line() and not (settings.ROOT / "data").exists()


def test_a_visitor_and_all_together_may_begin_so_many(cache, monkeypatch):
    started = []

    def start(folder):
        process = psutil.Popen(["sleep", "60"])
        started.append(process)
        return psutil.Process(process.pid)

    monkeypatch.setattr(launch, "_start", start)
    monkeypatch.setenv("ED_MAX_JOBS_PER_VISITOR", "2")
    monkeypatch.setenv("ED_MAX_JOBS", "3")
    for i in range(2):
        launch.begin(CLAIM, cache / f"mine{i}", "me")
    with pytest.raises(StudyError, match="under way already"):
        launch.begin(CLAIM, cache / "mine0", "you")
    with pytest.raises(QueueFull, match="You have 2 runs.*max_jobs_per_visitor"):
        launch.begin(CLAIM, cache / "mine2", "me")
    launch.begin(CLAIM, cache / "yours", "you")
    with pytest.raises(QueueFull, match="3 runs.*max_jobs"):
        launch.begin(CLAIM, cache / "theirs", "they")
    started[0].kill()
    started[0].wait()
    launch.begin(CLAIM, cache / "mine2", "me")
    monkeypatch.setenv("ED_STUDIES", "false")
    with pytest.raises(NotAllowed, match="starts no runs"):
        launch.begin(CLAIM, cache / "other", "other")


def test_as_many_compute_at_once_as_the_settings_and_the_memory_allow(cache, monkeypatch):
    me = psutil.Process()
    monkeypatch.setenv("ED_RUNS", "2")
    other = psutil.Popen(["sleep", "60"])
    waits = psutil.Popen(["sleep", "60"])

    def tickets(*began: bool):
        for file in (cache / "runs").glob("*.json"):
            file.unlink()
        with launch.locked():
            for process, has in zip((other, waits), began, strict=False):
                launch.enter(launch.Ticket(process.pid, process.create_time(), "f", "", has))
            launch.enter(launch.Ticket(me.pid, me.create_time(), "mine"))

    tickets(True)
    monkeypatch.setattr(launch, "free_memory", lambda: 1000)
    assert launch._ahead(CLAIM) == 0, "there is a place, and no memory"
    assert launch._ahead(CLAIM.model_copy(update={"asked": Asked("no-such-model", "copy")})) == 0, "no size is known"
    monkeypatch.setattr(launch, "free_memory", lambda: 10**9)
    assert launch._ahead(CLAIM) is None
    assert [ticket.began for ticket in launch.line()] == [True, True]
    tickets(True, True)
    assert launch._ahead(CLAIM) == 2
    tickets(True, False)
    assert launch._ahead(CLAIM) == 2, "who came first goes first"
    waits.kill()
    waits.wait()
    assert launch._ahead(CLAIM) is None
    other.kill()


def test_a_clock_that_is_set_ends_no_run(tmp_path, monkeypatch):
    me = psutil.Process()
    launch.note(tmp_path, CLAIM, me)
    Statuses(tmp_path).add(RUNNING)
    boot, created = psutil.boot_time(), me.create_time()
    monkeypatch.setattr(launch.psutil, "boot_time", lambda: boot + 3600)
    monkeypatch.setattr(launch.psutil.Process, "create_time", lambda self: created + 3600)
    assert Run(tmp_path).running and launch.alive(me.pid, launch.began(me)) and not launch.alive(me.pid, created)


def test_who_asks_last_is_last_in_the_line_also_where_the_clock_has_gone_back(cache, monkeypatch):
    now, me = iter((10**18, 10**18 - 5)), psutil.Process()
    monkeypatch.setattr(launch.time, "time_ns", lambda: next(now))
    with launch.locked():
        for name in ("first", "second"):
            launch.enter(launch.Ticket(me.pid, launch.began(me), name))
    assert [ticket.folder for ticket in launch.line()] == ["first", "second"]


def test_a_run_of_the_shell_stands_in_the_line_and_in_its_folder(cache, monkeypatch, capsys):
    seen = []

    def run(asked, out, tell, **_):
        out.mkdir(parents=True)
        (out / launch.LOG).write_text("said by an earlier run")
        tell(0.5, "contributions")
        seen.append((launch.line(), Run(out).running, Run(out).spec, Run(out).status.share))
        raise StudyError("No.")

    monkeypatch.setattr(running, "run", run)
    out = cache / "claims" / "x"
    monkeypatch.chdir(cache)
    words = ["claims", "--model", "ed-demo-8", "--set", "copy", "--out", "claims/x", "--progress"]
    assert main(words) == 2
    ((line, alive, spec, share),) = seen
    assert [(ticket.pid, ticket.folder, ticket.began) for ticket in line] == [(os.getpid(), str(out), True)]
    assert alive and share == 0.5 and not launch._last_lines(out / launch.LOG)
    assert spec == ClaimsRun(asked=Asked("ed-demo-8", "copy")) and not launch.line()
    assert Run(out).trouble == "No." and "50 % · contributions" in capsys.readouterr().err


def test_a_second_run_in_a_folder_says_nothing_of_the_first(cache, monkeypatch):
    out, other = cache / "claims" / "x", psutil.Popen(["sleep", "60"])
    out.mkdir(parents=True)
    launch.note(out, CLAIM, other)
    Statuses(out).add(RUNNING, 0.25)
    monkeypatch.setattr(execute, "_claims", lambda spec, out, statuses: statuses.tell(0.5) or 0)
    assert main(["claims", "--model", "ed-demo-8", "--set", "copy", "--out", str(out)]) == 0
    found = Run(out)
    assert found.running and found.status.share == 0.25 and found.process.pid == other.pid and found.spec == CLAIM
    other.kill()


def test_a_card_run_holds_all_that_the_command_was_given(cache, monkeypatch):
    seen = []
    monkeypatch.setattr(long_work, "in_shell", lambda spec, folder, lines: seen.append((spec, folder)) or 0)
    words = ["card", "--model", "ed-demo-8", "--set", "copy", "--prompts", "7", "--precisions", "bf16", "--seed", "3"]
    assert main([*words, "--also", "ed-demo-16"]) == 0
    ((spec, folder),) = seen
    asked = spec.asked
    assert isinstance(spec, CardRun) and folder == asked.place and folder.parent == cache / "cards"
    assert (asked.most, asked.others, asked.also, asked.seed) == (7, ("bf16",), ("ed-demo-16",), 3)
