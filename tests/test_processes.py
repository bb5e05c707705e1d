"""Studies in several processes of this machine and on Ray: the same numbers as here; one that ends is told and leaves
nothing; on Ray its item is tried again, and not for ever."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from shell import refused

from ed_core.commands import main
from ed_core.errors import Cancelled, JobError, ParameterError, StudyError
from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.runs import execute, processes
from ed_core.sources import permits
from ed_core.studies import items, plan, running, study
from ed_core.studies.items import open_folder
from ed_core.work import compute

TOML = (
    'name = "mine"\nmodels = ["ed-demo-8", "ed-demo-16"]\nprobes = ["contributions"]\nchunk = 2\n'
    '[[sets]]\nname = "sums"\nbundled = "sum_mod10"\nlevels = [2, 3]\nper_level = 3\n'
)
N_ITEMS = 6  # three of each model
ONE_MODEL = TOML.replace(', "ed-demo-16"', "")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
FULL = "The study's folder cannot be written: the disk is full."


def digest(out) -> str:
    return items.digest(out, open_folder(out).keys())


@pytest.fixture
def made(tmp_path):
    found = plan.make(study.parse(TOML), tmp_path)
    plan.write_plan(found, tmp_path / "out")
    return found, tmp_path / "out"


class OneAfterAnother(processes.Pool):
    """As a pool, but its only process is a thread that waits until it may begin."""

    def __init__(self):
        self.stopped, self.executor, self.may_begin = threading.Event(), ThreadPoolExecutor(1), threading.Event()
        self.executor.submit(self.may_begin.wait)


@pytest.fixture
def engine(monkeypatch):
    pool = OneAfterAnother()
    monkeypatch.setattr(processes, "_opened", running.opened_models())
    monkeypatch.setattr(processes, "_stopped", pool.stopped)

    def begin(*arguments):
        pool.may_begin.set()
        return processes.InProcesses(*arguments, pool=pool)

    yield begin
    pool.may_begin.set()
    pool.executor.shutdown()


# ---------------------------------------------------------------- what the parent makes of what it hears


def test_what_is_missing_is_computed_and_told_prompt_by_prompt(made, engine):
    running.run(*made, (1, 2))
    told = []
    found = running.run(*made, engine=engine, report=lambda model, done, total: told.append((model.label, done, total)))
    assert found.counts == {"computed": 3, "there": 3, "failed": 0} and not found.failed
    assert sorted(done for _, done, _ in told) == [2, 4, 6] and {total for *_, total in told} == {6}
    assert {label for label, *_ in told} == {"ed-demo-8", "ed-demo-16"}


def test_of_a_model_that_fails_nothing_more_is_begun_and_the_other_goes_on(made, engine, monkeypatch):
    real, asked = items.compute, []

    def fails(model, plan, item, *more):
        asked.append(item.model.label)
        if item.model.label == "ed-demo-8":
            while asked.count("ed-demo-8") == 2 and not open_folder(made[1]).failures():
                time.sleep(0.01)  # the second one was begun already; the third must not be
            raise JobError("It broke.")
        return real(model, plan, item, *more)

    monkeypatch.setattr(items, "compute", fails)
    found = running.run(*made, engine=engine)
    assert found.failed == {"ed-demo-8": "It broke."} and found.counts == {"computed": 3, "there": 0, "failed": 3}
    assert asked == ["ed-demo-8"] * 2 + ["ed-demo-16"] * 3, "what waited was taken back"
    assert open_folder(made[1]).failures() == {"ed-demo-8": "It broke."}


def test_a_model_that_cannot_be_opened_is_told_before_anything_is_computed(made, engine, monkeypatch):
    def refuses(self, spec):
        raise JobError("No.") if spec.name == "ed-demo-16" else Cancelled("stop here")

    monkeypatch.setattr(compute.Models, "get", refuses)
    with pytest.raises(Cancelled):
        running.run(*made, engine=engine)
    monkeypatch.setattr(compute.Models, "get", lambda *_: refuses(None, SimpleNamespace(name="ed-demo-16")))
    assert running.run(*made, engine=engine).failed == {"ed-demo-8": "No.", "ed-demo-16": "No."}
    assert not list(made[1].glob("items/*/*.parquet"))


def test_a_full_disk_ends_the_run_with_its_sentence(made, engine, monkeypatch):
    monkeypatch.setattr(items, "write", Mock(side_effect=StudyError(FULL)))
    with pytest.raises(StudyError, match="the disk is full"):
        running.run(*made, engine=engine)


def test_a_run_that_is_stopped_computes_no_more(made, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    pool = OneAfterAnother()
    monkeypatch.setattr(processes, "_opened", running.opened_models())
    monkeypatch.setattr(processes, "_stopped", pool.stopped)
    pool.may_begin.set()
    with pytest.raises(KeyboardInterrupt), pool as engine:
        running.run(*made, report=interrupt, engine=engine)
    assert 0 < len(list(made[1].glob("items/*/*.parquet"))) < N_ITEMS and pool.stopped.is_set()


def test_models_stay_open_from_one_study_to_the_next(made, monkeypatch):
    opened, times = running.opened_models(), []
    real = compute.open_model
    monkeypatch.setattr(compute, "open_model", lambda spec, **how: times.append(spec.name) or real(spec, **how))
    for shard in ((1, 2), (2, 2)):
        running.run(*made, shard, engine=lambda *arguments: running.Here(*arguments, opened=opened))
    assert sorted(times) == ["ed-demo-16", "ed-demo-8"] and len(opened) == 2


# ---------------------------------------------------------------- several studies together


@pytest.fixture
def several(made, tmp_path):
    """Two studies of the same models, the second of fewer prompts, with their folders."""
    other = TOML.replace("contributions", "logit_lens").replace("per_level = 3", "per_level = 2")
    found = plan.make(study.parse(other), tmp_path)
    plan.write_plan(found, tmp_path / "other")
    return [made, (found, tmp_path / "other")]


@pytest.fixture(params=["here", "processes"])
def ahead(request, several, engine):
    """The studies computed together by an engine; the items that it says are there."""

    def compute_all():
        made, done = several[0], []
        opened = running.opened_models()
        at_work = engine(*made) if request.param == "processes" else running.Here(*made, opened=opened)
        at_work.ahead(running.groups(several), done.append)
        return [item.key for item in done]

    return compute_all


def test_several_studies_of_a_model_trace_each_prompt_once(several, ahead, tmp_path, monkeypatch):
    alone = [(one, tmp_path / f"alone{i}") for i, (one, _) in enumerate(several)]
    for one, out in alone:
        plan.write_plan(one, out)
        running.run(one, out)
    passes, logits = [], LanguageModel.logits

    def counted(self, ids, keep=0):
        passes.append((self.spec.name, tuple(ids[0].tolist())))
        return logits(self, ids, keep)

    monkeypatch.setattr(LanguageModel, "logits", counted)
    monkeypatch.setattr(compute, "open_model", lambda spec, **how: (open_model(spec, **how), passes.clear())[0])
    done = ahead()
    prompts = {e.prompt.text + e.prompt.answer for e in several[0][0].sets[0].examples}
    assert len(passes) == len(set(passes)) == len(prompts) == 6, "of the model that was opened last"
    assert len(done) == len(set(done)) == N_ITEMS + 4
    for (one, out), (_, there) in zip(several, alone):
        assert running.run(one, out, engine=pytest.fail).counts["there"] == one.n_items
        assert digest(out) == digest(there)


def test_what_fails_ahead_is_met_again_by_its_study_alone(several, ahead, monkeypatch):
    real, asked = items.compute, []

    def fails(model, plan, item, *more):
        name = plan.study.probes[0].name
        asked.append((item.model.label, name))
        if asked[-1] == ("ed-demo-8", "logit_lens"):
            raise JobError("It broke.")
        return real(model, plan, item, *more)

    monkeypatch.setattr(items, "compute", fails)
    assert len(ahead()) == N_ITEMS + 2
    first, second = (running.run(*one) for one in several)
    assert not first.failed and first.counts["there"] == N_ITEMS
    assert second.failed == {"ed-demo-8": "It broke."} and second.counts == {"computed": 0, "there": 2, "failed": 2}


def test_a_full_disk_ends_what_is_computed_ahead(ahead, monkeypatch):
    monkeypatch.setattr(items, "write", Mock(side_effect=StudyError(FULL)))
    with pytest.raises(StudyError, match="the disk is full"):
        ahead()


@pytest.mark.parametrize(
    "options, told",
    [
        (["--processes", "0"], "--processes is 0; expected 1 to"),
        (["--processes", "-1"], "--processes is -1; expected 1 to"),
        (["--processes", ""], "--processes is ''; expected 1 to"),
        (["--processes", "2", "--engine", "ray"], "leave it or --engine ray out"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(tmp_path, capsys, options, told):
    (tmp_path / "s.toml").write_text(TOML, encoding="utf-8")
    assert main(["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "o"), *options]) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "o").exists()


def test_claims_are_measured_in_processes_where_these_are_asked_for(tmp_path, monkeypatch):
    asked = []

    class Counted:
        def __init__(self, n):
            asked.append(n)

        def __enter__(self):
            return lambda plan, *more: asked.append(plan.study.name) or running.Here(plan, *more)

        def __exit__(self, *_):
            asked.append("ended")

    monkeypatch.setattr(processes, "Pool", Counted)
    words = ["claims", "--model", "ed-demo-8", "--set", "sum_mod10", "--claim", "turn", "--prompts", "5"]
    assert main([*words, "--out", str(tmp_path), "--processes", "3"]) == 0
    assert asked == [3, "contributions", "ended"]


def test_processes_are_of_the_cpu_or_have_a_gpu_each(monkeypatch):
    monkeypatch.setattr(execute, "device_of", lambda name: "cuda:0")
    with pytest.raises(ParameterError, match="this runs on cuda:0"):
        execute.in_processes(2, "auto")


# ---------------------------------------------------------------- with them


@pytest.mark.slow
def test_two_processes_give_the_same_measures_and_are_gone_afterwards(made, tmp_path):
    with processes.Pool(2) as engine:
        assert running.run(*made, engine=engine).counts == {"computed": N_ITEMS, "there": 0, "failed": 0}
        begun = [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())]
        assert len(begun) == 2
    assert not psutil.wait_procs(begun, 30)[1]
    plan.write_plan(made[0], tmp_path / "here")
    running.run(made[0], tmp_path / "here")
    assert digest(made[1]) == digest(tmp_path / "here")


@pytest.mark.parametrize("owner", [False, True])
def test_a_process_may_do_what_its_parent_may(owner, monkeypatch):
    monkeypatch.setattr(permits, "_owner", owner)
    pool = processes.Pool(1)
    with pool:
        assert pool.executor.submit(permits.is_owner).result() is owner


def test_a_process_that_ends_is_told_in_a_sentence(made):
    with processes.Pool(1) as engine, pytest.raises(JobError, match="fewer --processes"):
        at_work = engine(*made)
        at_work._pending[at_work._pool.executor.submit(os._exit, 1)] = "itself"
        list(at_work._answers())


# ---------------------------------------------------------------- Ray, without it: what the driver makes of it


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
def of_one(tmp_path):
    found = plan.make(study.parse(ONE_MODEL), tmp_path)
    plan.write_plan(found, tmp_path / "out")
    return found, tmp_path / "out"


def run(of_one, ray, monkeypatch, **more):
    monkeypatch.setattr(processes, "_Cluster", lambda address: SimpleNamespace(ray=ray, close=lambda: None))
    return running.run(*of_one, engine=processes.OnRay, **more)


@pytest.mark.parametrize("cores", [1, 2])
def test_actors_write_the_same_and_are_asked_a_little_at_a_time(of_one, tmp_path, monkeypatch, cores):
    ray, told = FakeRay(cores), []
    outcome = run(of_one, ray, monkeypatch, report=lambda model, done, total: told.append((done, total)))
    assert outcome.counts == {"computed": 3, "there": 0, "failed": 0} and told == [(2, 6), (4, 6), (6, 6)]
    assert ray.made == cores and ray.most == min(cores * processes.IN_FLIGHT, 3)
    plan.write_plan(of_one[0], tmp_path / "here")
    running.run(of_one[0], tmp_path / "here")
    assert digest(of_one[1]) == digest(tmp_path / "here")


def test_an_item_whose_actor_ends_is_made_again_and_others_are_not_blamed(of_one, monkeypatch):
    first, second, third = (item.key for item in of_one[0].items())
    deaths = {second: processes.RETRIES, third: 1}
    ray = FakeRay(1, lambda method, load, n: n <= deaths.get(getattr(load, "key", ""), 0))
    assert run(of_one, ray, monkeypatch).counts == {"computed": 3, "there": 0, "failed": 0}
    assert [ray.asked["compute", key] for key in (first, second, third)] == [1, processes.RETRIES + 1, 2]
    assert ray.made == 1 + processes.RETRIES + 1


def test_an_item_whose_actor_always_ends_fails_its_model_with_the_reason(of_one, monkeypatch):
    first = next(iter(of_one[0].items())).key
    ray = FakeRay(1, lambda method, load, n: getattr(load, "key", "") == first)
    outcome = run(of_one, ray, monkeypatch)
    assert outcome.failed == {"ed-demo-8": "its process on Ray ended 3 times on the same part (by SIGKILL)"}
    assert ray.asked["compute", first] == 3 and outcome.counts["failed"] + outcome.counts["computed"] == 3
    assert open_folder(of_one[1]).failures().keys() == {"ed-demo-8"}


def test_a_full_disk_ends_the_run_on_ray_with_its_sentence(of_one, monkeypatch):
    monkeypatch.setattr(items, "write", Mock(side_effect=StudyError(FULL)))
    with pytest.raises(StudyError, match="the disk is full"):
        run(of_one, FakeRay(), monkeypatch)


def test_a_model_that_cannot_do_it_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text(json.dumps({"text": "1 + " * 600 + "1 ="}) + "\n", encoding="utf-8")
    found = plan.make(
        study.parse(ONE_MODEL.partition("[[sets]]")[0] + '[[sets]]\nname = "long"\nfile = "p.jsonl"\n'), tmp_path
    )
    ray = FakeRay()
    outcome = run((found, tmp_path / "out"), ray, monkeypatch)
    assert "The prompt has" in outcome.failed["ed-demo-8"] and outcome.counts["failed"] == 1
    assert not any(name == "compute" for name, _ in ray.asked)


@pytest.mark.parametrize(("told", "threads"), [("2", 2), ("2,1", 2), ("0", 1), ("", 1), ("many", 1)])
def test_an_actor_has_the_threads_that_openmp_is_told(monkeypatch, told, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    ray = Mock()
    ray.nodes.return_value = [{"Alive": True, "Resources": {"CPU": 4}}]
    assert processes._Actors(ray, plan.Plan(study.parse(TOML), (), (), ()), Path("out"))._most == 4 // threads


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
    (tmp_path / "s.toml").write_text(ONE_MODEL, encoding="utf-8")
    arguments = ["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "o")]
    refused(capsys, [*arguments, "--engine", "ray"], "python -m pip install 'ray==2.60.*'")
    refused(capsys, [*arguments, "--address", "1.2.3.4:6379"], "give --engine ray")


# ---------------------------------------------------------------- Ray, with it


def test_an_address_that_nobody_answers_at_is_refused_at_once(tmp_path, monkeypatch, capsys):
    fake = SimpleNamespace(init=pytest.fail, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    (tmp_path / "s.toml").write_text(ONE_MODEL, encoding="utf-8")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nobody listens
        address = "{}:{}".format(*nobody.getsockname())
        arguments = ["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "o")]
        asked = [*arguments, "--engine", "ray", "--address", address]
        refused(capsys, asked, f"Ray at {address} could not be reached")
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


@needs_ray
def test_a_cluster_of_its_own_gives_the_same_measures_and_leaves_nothing(tmp_path, capfd):
    (tmp_path / "s.toml").write_text(ONE_MODEL, encoding="utf-8")
    where = ["study", str(tmp_path / "s.toml"), "--out"]
    assert main([*where, str(tmp_path / "here")]) == 0
    assert main([*where, str(tmp_path / "ray"), "--engine", "ray"]) == 0
    assert "3 computed" in capfd.readouterr().out and digest(tmp_path / "ray") == digest(tmp_path / "here")
    assert "ray" in sys.modules and not sys.modules["ray"].is_initialized()
