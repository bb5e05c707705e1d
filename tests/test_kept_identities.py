"""Identities that held before: believed of the same weights under the same code alone."""

from __future__ import annotations

import json

import pytest
from small_models import save_random

from ed_core.api import model
from ed_core.cli import main
from ed_core.models import opening
from ed_core.models.ref import ModelRef
from ed_core.models.verify import verify
from ed_core.probes import Contributions
from ed_core.types import Prompt
from ed_core.work import compute

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


def test_what_held_before_is_not_measured_at_the_next_opening(spec, measured):
    first = opening.open_model(spec, trust_kept=True)
    again = opening.open_model(spec, trust_kept=True)
    assert len(measured) == 1 and not first.identities_kept and again.identities_kept
    assert again.identities == first.identities
    certificate = compute.run(again, Contributions().request(spec, Prompt("5 + 7 = "))).provenance
    assert certificate["identities"]["at_an_earlier_opening"]


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
    assert not opening.open_model(spec, trust_kept=True).identities_kept and len(measured) == 2


@pytest.mark.parametrize("damage", ["{", "failing"])
def test_a_file_that_says_anything_else_is_measured_anew(spec, measured, own_cache, damage):
    opening.open_model(spec, trust_kept=True)
    (file,) = own_cache.glob("identities/*.json")
    if damage == "failing":
        damage = json.dumps(json.loads(file.read_text()) | {"closure": 0.5})
    file.write_text(damage)
    assert not opening.open_model(spec, trust_kept=True).identities_kept and len(measured) == 2
    assert opening.open_model(spec, trust_kept=True).identities_kept


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


def test_the_shell_believes_them(shell, measured, monkeypatch):
    run, out = shell
    assert run("5 + 7 = ") == 0 and len(measured) == 1
    assert run("1 + 2 = ") == 0 and len(measured) == 1 and out.exists()
    assert run("1 + 2 = ", "--no-cache") == 0 and len(measured) == 2, "nothing is believed then"
