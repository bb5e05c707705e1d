"""Studies on Ray: the same numbers as here, an item whose process ends is tried again, and not for ever."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from shell import refused

from ed_core.commands import main
from ed_core.errors import ParameterError, StudyError
from ed_core.runs import processes
from ed_core.studies import items, plan, running, study
from ed_core.studies.items import open_folder

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
TOML = 'name = "mine"\nmodels = ["ed-demo-8"]\nprobes = ["contributions"]\nchunk = 2\n'
SET = '[[sets]]\nname = "sums"\nbundled = "sum_mod10"\nlevels = [2, 3]\nper_level = 3\n'


def digest(out) -> str:
    return items.digest(out, open_folder(out).keys())


# ---------------------------------------------------------------- without Ray: what the driver makes of what it hears


class Gone(Exception):
    """As Ray's, of an actor that ended."""


class Defect(Gone):
    cause = "TypeError: no"


class FakeRay:
    """Ray's few functions, an actor being an object of this process; `dies(method, call)` says where one ends."""

    exceptions = SimpleNamespace(RayError=Gone, RayTaskError=Defect)

    def __init__(self, cores: int = 2, dies=lambda method, load, n: False):
        self.cores, self.dies, self.asked, self.most, self.made = cores, dies, {}, 0, 0

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": float(self.cores)}}, {"Alive": False, "Resources": {"CPU": 64.0}}]

    def remote(self, kind):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *args: self.actor(kind(*args))))

    def actor(self, worker):
        """Calls wait until somebody looks; after its end every one is lost."""
        self.made += 1
        actor, state = SimpleNamespace(), {"alive": True}

        def method(name):
            def remote(model, load):
                def answer():
                    key = (name, getattr(load, "key", None))
                    if state["alive"]:
                        self.asked[key] = self.asked.get(key, 0) + 1
                        state["alive"] = not self.dies(name, load, self.asked[key])
                    if not state["alive"]:
                        raise Gone("The worker died.\nby SIGKILL")
                    return getattr(worker, name)(model, load)

                return answer

            return SimpleNamespace(remote=remote)

        actor.try_out, actor.compute = method("try_out"), method("compute")
        return Hashable(actor)

    def wait(self, refs, num_returns, timeout):
        self.most = max(self.most, len(refs))
        return refs[:1], refs[1:]

    def get(self, ref):
        return ref()

    def kill(self, actor):
        pass

    def shutdown(self):
        pass


class Hashable:
    def __init__(self, what):
        self.__dict__ |= vars(what)


@pytest.fixture
def made(tmp_path):
    found = plan.make(study.parse(TOML + SET), tmp_path)
    plan.write_plan(found, tmp_path / "out")
    return found, tmp_path / "out"


def run(made, ray, monkeypatch, **more):
    monkeypatch.setattr(processes, "_Cluster", lambda address: SimpleNamespace(ray=ray, close=lambda: None))
    return running.run(*made, engine=processes.OnRay, **more)


@pytest.mark.parametrize("cores", [1, 2])
def test_actors_write_the_same_and_are_asked_a_little_at_a_time(made, tmp_path, monkeypatch, cores):
    ray, told = FakeRay(cores), []
    outcome = run(made, ray, monkeypatch, report=lambda model, done, total: told.append((done, total)))
    assert outcome.counts == {"computed": 3, "there": 0, "failed": 0} and told == [(2, 6), (4, 6), (6, 6)]
    assert ray.made == cores and ray.most == min(cores * processes.IN_FLIGHT, 3)
    plan.write_plan(made[0], tmp_path / "here")
    running.run(made[0], tmp_path / "here")
    assert digest(made[1]) == digest(tmp_path / "here")


def test_an_item_whose_actor_ends_is_made_again_and_others_are_not_blamed(made, monkeypatch):
    first, second, third = (item.key for item in made[0].items())
    deaths = {second: processes.RETRIES, third: 1}
    ray = FakeRay(1, lambda method, load, n: n <= deaths.get(getattr(load, "key", ""), 0))
    assert run(made, ray, monkeypatch).counts == {"computed": 3, "there": 0, "failed": 0}
    assert [ray.asked["compute", key] for key in (first, second, third)] == [1, processes.RETRIES + 1, 2]
    assert ray.made == 1 + processes.RETRIES + 1


def test_an_item_whose_actor_always_ends_fails_its_model_with_the_reason(made, monkeypatch):
    first = next(iter(made[0].items())).key
    ray = FakeRay(1, lambda method, load, n: getattr(load, "key", "") == first)
    outcome = run(made, ray, monkeypatch)
    assert outcome.failed == {"ed-demo-8": "its process on Ray ended 3 times on the same part (by SIGKILL)"}
    assert ray.asked["compute", first] == 3 and outcome.counts["failed"] + outcome.counts["computed"] == 3
    assert open_folder(made[1]).failures().keys() == {"ed-demo-8"}


def test_a_full_disk_ends_the_run_with_its_sentence(made, monkeypatch):
    full = StudyError("The study's folder cannot be written: the disk is full.")
    monkeypatch.setattr(items, "write", Mock(side_effect=full))
    with pytest.raises(StudyError, match="the disk is full"):
        run(made, FakeRay(), monkeypatch)


def test_a_model_that_cannot_do_it_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text(json.dumps({"text": "1 + " * 600 + "1 ="}) + "\n", encoding="utf-8")
    found = plan.make(study.parse(TOML + '[[sets]]\nname = "long"\nfile = "p.jsonl"\n'), tmp_path)
    ray = FakeRay()
    outcome = run((found, tmp_path / "out"), ray, monkeypatch)
    assert "The prompt has" in outcome.failed["ed-demo-8"] and outcome.counts["failed"] == 1
    assert not any(name == "compute" for name, _ in ray.asked)


def test_places_are_gpus_or_cores():
    nodes = [{"CPU": 16.0, "GPU": 2.0}, {"CPU": 64.0}, {"CPU": 4.0, "GPU": 1.0}]
    assert processes._places(nodes, True, 1) == (3, 4, 2)
    assert processes._places(nodes, False, 1) == (84, 1, 64) and processes._places(nodes, False, 8) == (10, 8, 8)
    with pytest.raises(ParameterError, match="has no GPU"):
        processes._places(nodes[1:2], True, 1)
    with pytest.raises(ParameterError, match="32 free cores"):
        processes._places(nodes[:1], False, 32)


def test_without_ray_one_sentence_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "s.toml").write_text(TOML + SET, encoding="utf-8")
    arguments = ["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "o")]
    refused(capsys, [*arguments, "--engine", "ray"], "python -m pip install 'ray==2.60.*'")
    refused(capsys, [*arguments, "--address", "1.2.3.4:6379"], "give --engine ray")


# ---------------------------------------------------------------- with it


def test_an_address_that_nobody_answers_at_is_refused_at_once(tmp_path, monkeypatch, capsys):
    fake = SimpleNamespace(init=pytest.fail, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    (tmp_path / "s.toml").write_text(TOML + SET, encoding="utf-8")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nobody listens
        address = "{}:{}".format(*nobody.getsockname())
        arguments = ["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "o")]
        asked = [*arguments, "--engine", "ray", "--address", address]
        refused(capsys, asked, f"Ray at {address} could not be reached")
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


@needs_ray
def test_a_cluster_of_its_own_gives_the_same_measures_and_leaves_nothing(tmp_path, capfd):
    (tmp_path / "s.toml").write_text(TOML + SET, encoding="utf-8")
    where = ["study", str(tmp_path / "s.toml"), "--out"]
    assert main([*where, str(tmp_path / "here")]) == 0
    assert main([*where, str(tmp_path / "ray"), "--engine", "ray"]) == 0
    assert "3 computed" in capfd.readouterr().out and digest(tmp_path / "ray") == digest(tmp_path / "here")
    assert "ray" in sys.modules and not sys.modules["ray"].is_initialized()
