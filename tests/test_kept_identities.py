"""Identities that held before: believed of the same weights under the same code alone, measured again when nobody
waits, and what was computed on them withdrawn where they do not hold any more."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial

import pytest
from small_models import save_random
from workers import Direct, until

from ed_core.commands import main
from ed_core.errors import IdentityFailed, NotFinite
from ed_core.models import opening
from ed_core.models.ref import ModelRef
from ed_core.models.verify import verify
from ed_core.notebook import model
from ed_core.probes import Contributions, LogitLens
from ed_core.results.store import Store
from ed_core.types import Prompt
from ed_core.work import compute, measure
from ed_core.work.queue import Queue
from ed_core.work.worker import Process

pytestmark = pytest.mark.usefixtures("own_cache")
ASKED = Prompt("5 + 7 = ")


@pytest.fixture
def measured(monkeypatch):
    """How often identities were measured."""
    found = []

    def counted(model):
        found.append(model.spec.name)
        return verify(model)

    monkeypatch.setattr(opening, "verify", counted)
    return found


def breaks(monkeypatch, error=None):
    """From now on the sums do not hold, or measuring raises."""

    def broken(model):
        if error is not None:
            raise error
        model.identities = replace(verify(model), closure=0.5)
        return model.identities

    monkeypatch.setattr(opening, "verify", broken)


def test_what_held_before_is_not_measured_at_the_next_opening(spec, measured):
    first = opening.open_model(spec, trust_kept=True)
    again = opening.open_model(spec, trust_kept=True)
    assert len(measured) == 1 and not first.to_recheck and again.to_recheck
    assert again.identities == first.identities and again.identities is not first.identities
    opening.recheck(again)
    assert len(measured) == 2 and not again.to_recheck


@pytest.mark.parametrize("other", ["code", "weights", "precision", "library"])
def test_figures_of_anything_else_are_not_believed(spec, measured, other, monkeypatch, tmp_path):
    opening.open_model(spec, trust_kept=True)
    if other == "code":
        monkeypatch.setattr(opening, "code_hash", lambda: "another")
    elif other == "weights":
        spec = ModelRef.parse(str(save_random(tmp_path / "other", "llama")))
    elif other == "precision":
        spec = ModelRef.parse(spec.source, precision="bf16")
    else:
        monkeypatch.setattr(opening, "version", lambda name: "0.0.1")
    assert not opening.open_model(spec, trust_kept=True).to_recheck and len(measured) == 2


@pytest.mark.parametrize("damage", ["{", "null", "failing", "layers"])
def test_a_file_that_says_anything_else_is_measured_anew(spec, measured, own_cache, damage):
    opening.open_model(spec, trust_kept=True)
    (file,) = own_cache.glob("identities/*.json")
    if damage in ("failing", "layers"):
        told = json.loads(file.read_text())
        told |= {"closure": 0.5} if damage == "failing" else {"miss": told["miss"][:-1]}
        damage = json.dumps(told)
    file.write_text(damage)
    assert not opening.open_model(spec, trust_kept=True).to_recheck and len(measured) == 2
    assert opening.open_model(spec, trust_kept=True).to_recheck


def stored(spec, models):
    """A result, computed and stored as a worker does it."""
    said, request = [], Contributions().request(spec, ASKED)
    server = Direct(models, lambda header, body: said.append(header))
    server.step("1", True, pickle.dumps((measure.compute, (request,))))
    assert Store().get(request.key) is not None
    said.clear()
    return server, said, request


def believed(spec, **more):
    """A worker whose models' kept identities are believed, what it says from now on, and a result that is stored."""
    opening.open_model(spec, trust_kept=True)
    return stored(spec, compute.Models(trust_kept=True, **more))


@pytest.mark.parametrize("error", [None, NotFinite("not finite")])
def test_what_rests_on_identities_that_fail_is_withdrawn(spec, monkeypatch, error):
    server, told, request = believed(spec)
    models = server.models
    assert models.to_recheck
    breaks(monkeypatch, error)
    server.recheck()
    (said,) = told
    assert said["type"] == "withdrawn" and said["keys"] == [request.key]
    assert said["error"] == ("NotFinite" if error else "IdentityFailed") and said["message"]
    assert Store().get(request.key) is None and not len(models) and not models.to_recheck
    monkeypatch.setattr(opening, "verify", verify)
    assert not opening.open_model(spec, trust_kept=True).to_recheck, "nothing of it is kept"


def test_a_model_that_is_closed_before_is_measured_then(spec, tmp_path, monkeypatch):
    another = ModelRef.parse(str(save_random(tmp_path / "another", "llama")))
    opening.open_model(another, trust_kept=True)
    server, told, request = believed(spec, budget=1)
    models = server.models
    breaks(monkeypatch)
    models.get(another)
    assert len(models) == 1 and models.to_recheck
    server.recheck()
    (said,) = told
    assert said["keys"] == [request.key] and said["error"] == "IdentityFailed"
    assert Store().get(request.key) is None and not models.to_recheck
    assert len(models) == 1, "the other one stays"


@pytest.mark.process
def test_a_worker_measures_when_it_is_idle_and_its_queue_hears_of_it(spec, own_cache, tmp_path, monkeypatch):
    """The file that was kept is of another opening: this one's head is broken meanwhile, so the sums fail."""
    opening.open_model(spec, trust_kept=True)
    (file,) = own_cache.glob("identities/*.json")
    (tmp_path / "broken_worker.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    jobs = Queue(partial(Process, module="broken_worker"))
    try:
        request = LogitLens().request(spec, ASKED)
        job = measure.submit(jobs, request, "me")
        until(lambda: jobs.poll(job).over)
        assert job.state == "done" and jobs.withdrawn(request.key) is None
        until(lambda: jobs.withdrawn(request.key) is not None)
        assert "Refused" in str(jobs.withdrawn(request.key)) and Store().get(request.key) is None
        assert not file.exists()
        job = measure.submit(jobs, request, "me")
        assert jobs.withdrawn(request.key) is None, "it was asked for again"
        until(lambda: jobs.poll(job).over)
        assert isinstance(job.error, IdentityFailed)
    finally:
        jobs.close()


@pytest.fixture
def shell(small_folder, tmp_path, monkeypatch):
    """`run` of the shell, each time as in a process of its own; the file that it writes."""
    asked, out = tmp_path / "asked.jsonl", tmp_path / "r.npz"

    def run(text, *options):
        model._models.cache_clear()
        asked.write_text(json.dumps({"text": text}))
        argv = ["run", "contributions", "--model", str(small_folder), "--prompts", str(asked), "--out", str(out)]
        return main([*argv, *options])

    return run, out


def test_the_shell_believes_them_and_measures_when_the_file_is_written(shell, measured, capsys, monkeypatch):
    run, out = shell
    assert run("5 + 7 = ") == 0 and len(measured) == 1
    written = []
    monkeypatch.setattr(opening, "verify", lambda model: written.append(out.exists()) or verify(model))
    out.unlink()
    assert run("1 + 2 = ") == 0 and written == [True] and out.exists()
    assert run("1 + 2 = ") == 0 and written == [True], "all of it is stored"
    assert run("1 + 2 = ", "--no-cache") == 0 and written == [True, True], "nothing is believed then"


def test_what_the_shell_wrote_is_gone_where_they_fail(shell, spec, capsys, monkeypatch):
    run, out = shell
    assert run("5 + 7 = ") == 0
    breaks(monkeypatch)
    assert run("1 + 2 = ") == 2 and not out.exists()
    assert "Refused" in (said := capsys.readouterr().err) and str(out) in said
    assert Store().get(Contributions().request(spec, Prompt("1 + 2 = ")).key) is None
    assert Store().get(Contributions().request(spec, Prompt("5 + 7 = ")).key) is not None, "measured at its opening"
    assert run("1 + 2 = ") == 2 and not out.exists(), "nothing is believed any more"


BROKEN = """
from dataclasses import replace
from ed_core.models import opening
from ed_core.models.verify import verify
from ed_core.work import worker
opening.verify = lambda model: replace(verify(model), closure=0.5)
worker.IDLE = 0.1
worker.main("interactive")
"""
