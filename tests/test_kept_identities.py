"""Identities that held before: believed of the same weights under the same code alone."""

from __future__ import annotations

import json

import pytest
from shell import wrote
from small_models import save_random

from ed_core.api import model
from ed_core.models import opening
from ed_core.models.ref import ModelRef
from ed_core.models.verify import verify
from ed_core.probes import Contributions
from ed_core.types import Prompt
from ed_core.work import compute

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def measured(monkeypatch):
    """The models whose identities were measured."""
    found = []
    monkeypatch.setattr(opening, "verify", lambda model: found.append(model.spec.name) or verify(model))
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


def test_the_shell_believes_them(small_folder, tmp_path, measured):
    for text, options, times in (("5 + 7 = ", [], 1), ("1 + 2 = ", [], 1), ("1 + 2 = ", ["--no-cache"], 2)):
        model._models.cache_clear()  # as in a process of its own
        wrote(tmp_path, [Prompt(text)], "contributions", *options, model=small_folder)
        assert len(measured) == times
