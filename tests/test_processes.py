"""Studies in several processes of this machine and on Ray: the same numbers as here; failures are told."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from shell import refused

from ed_core.errors import Cancelled, JobError, StudyError
from ed_core.studies import items, plan, running, study
from ed_core.studies.items import open_folder
from ed_core.work import compute, executors
from ed_core.work.turn import Turn

TOML = (
    'name = "mine"\nmodels = ["ed-demo-8", "ed-demo-16"]\nprobes = ["contributions"]\nchunk = 1\n'
    '[[sets]]\nname = "sums"\nbundled = "sum_mod10"\nlevels = [2]\nper_level = 3\n'
)


@pytest.fixture
def made(tmp_path):
    found = plan.make(study.parse(TOML), tmp_path)
    plan.write_plan(found, tmp_path / "out")
    return found, tmp_path / "out"


@pytest.fixture
def turn(monkeypatch):
    """A run whose items one other process computes."""
    turn = Turn()
    monkeypatch.setattr(executors.own, "models", compute.Models())
    with ThreadPoolExecutor(1) as turn.executor:
        yield turn


def test_what_is_missing_is_computed_and_told_prompt_by_prompt(made, turn):
    running.run(*made)
    for file in sorted(made[1].glob("items/*/*.parquet"))[::2]:
        file.unlink()
    told = []
    found = running.run(*made, turn, lambda share, label: told.append((label, share)))
    assert found.counts == {"computed": 3, "there": 3, "failed": 0} and not found.failed
    assert [share for _, share in told] == pytest.approx([1 / 3, 2 / 3, 1])
    assert {label for label, _ in told} == {"ed-demo-8", "ed-demo-16"}


def test_of_a_model_that_fails_nothing_more_is_begun_and_the_other_goes_on(made, turn, monkeypatch):
    real, asked = items.compute, []

    def fails(model, plan, item, *more):
        asked.append(item.model.label)
        if item.model.label == "ed-demo-8":
            while asked.count("ed-demo-8") == 2 and not open_folder(made[1]).failures():
                time.sleep(0.01)  # the second one was begun already; the third must not be
            raise JobError("It broke.")
        return real(model, plan, item, *more)

    monkeypatch.setattr(items, "compute", fails)
    found = running.run(*made, turn)
    assert found.failed == {"ed-demo-8": "It broke."} and found.counts == {"computed": 3, "there": 0, "failed": 3}
    assert asked == ["ed-demo-8"] * 2 + ["ed-demo-16"] * 3, "what waited was taken back"
    assert open_folder(made[1]).failures() == {"ed-demo-8": "It broke."}


def test_a_model_that_cannot_be_opened_fails_and_a_cancelled_run_or_a_full_disk_ends_it(made, turn, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(StudyError, match="the disk is full"):
        patch.setattr(items, "write", Mock(side_effect=StudyError("the disk is full.")))
        running.run(*made, turn)
    monkeypatch.setattr(compute.Models, "get", Mock(side_effect=JobError("No.")))
    assert running.run(*made, turn).failed == {"ed-demo-8": "No.", "ed-demo-16": "No."}
    monkeypatch.setattr(compute.Models, "get", Mock(side_effect=Cancelled("stop here")))
    with pytest.raises(Cancelled):
        running.run(*made, turn)
    assert not list(made[1].glob("items/*/*.parquet"))


@pytest.mark.parametrize(
    "options, told",
    [
        (["--processes", "0"], "--processes"),
        (["--processes", "2", "--ray", "local"], "leave it or --ray out"),
        (["--ray", "local"], "pip install 'effective-depth-lab[ray]'"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(tmp_path, capsys, options, told, monkeypatch):
    monkeypatch.setattr("ed_core.machine.installed", lambda package: package != "ray")
    (tmp_path / "s.toml").write_text(TOML, encoding="utf-8")
    refused(capsys, ["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "o"), *options], told)
    assert not (tmp_path / "o").exists()


class Gone(Exception):
    """As Ray's, of an actor that ended."""


class FakeRay:
    """Ray's few functions, an actor being an object of this process; `gone`: no actor answers."""

    exceptions = SimpleNamespace(RayError=Gone, RayTaskError=type("Defect", (Gone,), {}))
    init = shutdown = Mock()

    def __init__(self, gone: bool = False):
        self.gone, self.lock = gone, threading.Lock()

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}]

    def remote(self, kind):
        actor = SimpleNamespace(call=SimpleNamespace(remote=lambda function, given: (function, given)))
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: actor))

    def get(self, call):
        if self.gone:
            raise Gone("The worker died.")
        function, given = call
        with self.lock:
            return function(*given)


@pytest.fixture
def on_ray(monkeypatch, made, turn):
    """Runs the study on such a Ray."""
    monkeypatch.setattr("ed_core.machine.installed", lambda package: True)

    def run(ray):
        monkeypatch.setitem(sys.modules, "ray", ray)
        with executors.executor(1, "local") as turn.executor:
            return running.run(*made, turn)

    return run


def test_ray_computes_the_same(made, on_ray, tmp_path):
    assert on_ray(FakeRay()).counts == {"computed": 6, "there": 0, "failed": 0}
    plan.write_plan(made[0], tmp_path / "here")
    running.run(made[0], tmp_path / "here")
    assert open_folder(made[1]).digest() == open_folder(tmp_path / "here").digest()


def test_what_ends_every_actor_ends_the_run_with_a_sentence(on_ray):
    with pytest.raises(JobError, match="3 times on the same part, on Ray: The worker died"):
        on_ray(FakeRay(gone=True))
