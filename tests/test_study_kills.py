"""Studies that are killed anywhere and go on end with the measures of an undisturbed run; of Ray nothing is left.

A kill comes a chance moment after some new items lie there, so it lands in the middle of the work however busy the
machine is."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from workers import until

from ed_core.cli import main
from ed_core.studies.items import open_folder

pytestmark = pytest.mark.process
ROOT = Path(__file__).parent.parent
PATIENCE = 300  # seconds for anything to happen at all
TOML = (
    'name = "mine"\nmodels = ["ed-demo-8", "ed-demo-16"]\nchunk = 1\n'
    'probes = ["contributions", "logit_lens", {name = "layer_skip", limit = 5}]\n'
    '[[sets]]\nname = "sums"\nbundled = "sum_mod10"\nlimit = 12\n'
)
N_ITEMS = 24


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The study's file, and the digest of its measures."""
    here = tmp_path_factory.mktemp("study")
    (here / "s.toml").write_text(TOML, encoding="utf-8")
    assert main(["study", str(here / "s.toml"), "--out", str(here / "out")]) == 0
    assert n_items(here / "out") == N_ITEMS
    return here / "s.toml", open_folder(here / "out").digest()


def begin(file: Path, out: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "ed_core", "study", str(file), "--out", str(out), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def n_items(out: Path) -> int:
    """How many are computed, wherever they are."""
    return len(list(open_folder(out).item_keys())) if (out / "plan.json").is_file() else 0


def killed(process: subprocess.Popen, out: Path, new: int, processes: int = 0) -> None:
    """Kill a run a chance moment after some new items; of at least so many processes that belong to it none is left."""
    new += n_items(out)
    until(lambda: n_items(out) >= new or process.poll() is not None, PATIENCE)
    time.sleep(random.Random(new).uniform(0, 0.05))
    belonging = psutil.Process(process.pid).children(recursive=True)
    assert len(belonging) >= processes
    process.kill()
    process.communicate()
    until(lambda: not any(map(alive, belonging)), PATIENCE)


def ends_as(expected: str, process: subprocess.Popen, out: Path) -> None:
    """It ends well, and all its items are those of a run that nobody disturbed."""
    assert process.wait(PATIENCE) == 0, process.stderr.read()
    assert n_items(out) == N_ITEMS and open_folder(out).digest() == expected


def test_kills_lose_nothing_and_add_nothing(undisturbed, tmp_path):
    """One of a run in this process, one of a run in two processes, which end with it."""
    file, expected = undisturbed
    killed(begin(file, tmp_path), tmp_path, 1)
    first = n_items(tmp_path)
    killed(begin(file, tmp_path, "--processes", "2"), tmp_path, 3, processes=2)
    assert first < n_items(tmp_path) < N_ITEMS, "it was killed in the middle of the work"
    ends_as(expected, begin(file, tmp_path), tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_actors_that_are_killed_are_replaced(undisturbed, tmp_path):
    file, expected = undisturbed
    process = begin(file, tmp_path, "--ray", "local")
    for kill in (1, 2):
        until(lambda: (n_items(tmp_path) >= 4 * kill and actors(process.pid)) or process.poll() is not None, PATIENCE)
        actors(process.pid)[0].kill()
    ends_as(expected, process, tmp_path)


def actors(driver: int) -> list[psutil.Process]:
    """The actors of a driver, oldest first."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::Actor"):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
