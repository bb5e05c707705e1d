"""Identities that held before: believed of the same weights under the same code alone, measured again when nobody
waits, and what was computed on them withdrawn where they do not hold any more."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from small_models import save_random
from workers import Direct

from ed_core.commands import main
from ed_core.errors import IdentityFailed, NotFinite, TooLarge
from ed_core.models import opening
from ed_core.models.verify import verify
from ed_core.notebook import model
from ed_core.probes import Contributions
from ed_core.results.store import Store
from ed_core.types import Prompt
from ed_core.work import compute, measure
from ed_core.work.resolve import resolve

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


def test_whoever_does_not_measure_later_measures_now(spec, measured):
    opening.open_model(spec, trust_kept=True)
    assert not opening.open_model(spec).to_recheck and len(measured) == 2


@pytest.mark.parametrize("other", ["code", "weights", "precision", "library", "threads"])
def test_figures_of_anything_else_are_not_believed(spec, measured, other, monkeypatch, tmp_path):
    opening.open_model(spec, trust_kept=True)
    if other == "code":
        monkeypatch.setattr(opening, "code_hash", lambda: "another")
    elif other == "weights":
        spec = resolve(str(save_random(tmp_path / "other", "llama")))
    elif other == "precision":
        spec = resolve(spec.source, precision="bf16")
    elif other == "library":
        monkeypatch.setattr(opening, "version", lambda name: "0.0.1")
    else:
        monkeypatch.setattr(opening.torch, "get_num_threads", lambda: 63)
    assert not opening.open_model(spec, trust_kept=True).to_recheck and len(measured) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"dtype": "float32"}', "failing", "layers"])
def test_a_file_that_says_anything_else_is_measured_anew(spec, measured, damage):
    model = opening.open_model(spec, trust_kept=True)
    file = opening._kept_file(model)
    if damage in ("failing", "layers"):
        told = json.loads(file.read_text())
        told |= {"closure": 0.5} if damage == "failing" else {"miss": told["miss"][:-1]}
        damage = json.dumps(told)
    file.write_text(damage)
    assert not opening.open_model(spec, trust_kept=True).to_recheck and len(measured) == 2
    assert opening.open_model(spec, trust_kept=True).to_recheck


def test_a_model_that_is_refused_leaves_nothing(spec, monkeypatch):
    with monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises(IdentityFailed):
            opening.open_model(spec, trust_kept=True)
    assert not opening.open_model(spec, trust_kept=True).to_recheck


def test_weights_that_nothing_identifies_are_measured_every_time(spec):
    model = opening.open_model(spec)
    model.spec = replace(spec, content_hash="", revision="")
    opening.keep_identities(model)
    assert opening.kept_identities(model) is None


def test_the_code_that_opens_and_runs_a_model_is_all_counted(monkeypatch, tmp_path):
    opening.code_hash.cache_clear()
    before = opening.code_hash()
    opening.code_hash.cache_clear()
    monkeypatch.setattr(opening, "CODE", ("models",))
    assert opening.code_hash() != before
    opening.code_hash.cache_clear()


def stored(spec, models):
    """A result, computed and stored as a worker does it."""
    request = Contributions().request(spec, ASKED)
    Direct(models, lambda header, body: None).step("1", True, pickle.dumps((measure.compute, (request,))))
    assert Store().get(request.key) is not None
    return request


def believed(spec, **more):
    """Models whose kept identities are believed, what is said of them, and a result that is stored."""
    opening.open_model(spec, trust_kept=True)
    models = compute.Models(trust_kept=True, **more)
    return models, stored(spec, models)


def rechecked(models):
    """What an idle worker with these models says."""
    said = []
    Direct(models, lambda header, body: said.append(header)).recheck()
    return said


@pytest.mark.parametrize("error", [None, NotFinite("not finite")])
def test_what_rests_on_identities_that_fail_is_withdrawn(spec, monkeypatch, error):
    models, request = believed(spec)
    assert models.to_recheck
    breaks(monkeypatch, error)
    (said,) = rechecked(models)
    assert said["type"] == "withdrawn" and said["keys"] == [request.key]
    assert said["error"] == ("NotFinite" if error else "IdentityFailed") and said["message"]
    assert Store().get(request.key) is None and not len(models) and not models.to_recheck
    monkeypatch.setattr(opening, "verify", verify)
    assert not opening.open_model(spec, trust_kept=True).to_recheck, "nothing of it is kept"


def test_where_they_hold_nothing_is_said_and_nothing_lost(spec):
    models, request = believed(spec)
    assert not rechecked(models) and Store().get(request.key) is not None and len(models) == 1
    assert not models.to_recheck
    stored(spec, models)
    assert not models.to_recheck, "once an opening"


def test_memory_that_runs_out_over_it_withdraws_nothing(spec, monkeypatch):
    models, request = believed(spec)
    breaks(monkeypatch, TooLarge("no room"))
    assert not rechecked(models) and Store().get(request.key) is not None and not len(models)


@pytest.fixture
def another(tmp_path):
    """A second model whose identities are kept, for which the first one has to be closed."""
    found = resolve(str(save_random(tmp_path / "another", "llama")))
    opening.open_model(found, trust_kept=True)
    return found


@pytest.mark.parametrize("error", [None, NotFinite("not finite")])
def test_a_model_that_is_closed_before_is_measured_then(spec, another, monkeypatch, error):
    models, request = believed(spec, budget=1)
    breaks(monkeypatch, error)
    models.get(another)
    assert len(models) == 1 and models.to_recheck
    (said,) = rechecked(models)
    assert said["keys"] == [request.key] and said["error"] == ("NotFinite" if error else "IdentityFailed")
    assert Store().get(request.key) is None and not models.to_recheck
    assert len(models) == 1, "the other one stays"


def test_one_that_holds_when_it_is_closed_loses_nothing(spec, another, measured):
    models, request = believed(spec, budget=1)
    before = len(measured)
    models.get(another)
    assert len(measured) == before + 1 and not models.to_recheck and Store().get(request.key) is not None
    models.get(spec)
    assert len(measured) == before + 1, "nothing was computed of the other one"


@pytest.mark.parametrize("holds", [True, False])
def test_one_without_room_to_be_measured_is_measured_at_its_next_opening(spec, another, measured, monkeypatch, holds):
    models, request = believed(spec, budget=1)
    with monkeypatch.context() as patch:
        breaks(patch, TooLarge("no room"))
        models.get(another)
    assert not models.to_recheck and Store().get(request.key) is not None
    before = len(measured)
    if holds:
        assert not models.get(spec).to_recheck and len(measured) == before + 1 and not models.to_recheck
        return
    breaks(monkeypatch)
    with pytest.raises(IdentityFailed):
        models.get(spec)
    (said,) = rechecked(models)
    assert said["keys"] == [request.key] and Store().get(request.key) is None


def test_a_study_measures_at_every_opening(spec, measured):
    opening.open_model(spec, trust_kept=True)
    models = compute.Models()
    stored(spec, models)
    assert len(measured) == 2 and not models.to_recheck


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
