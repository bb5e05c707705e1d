"""The tab *Loops*: what it draws of a looped model is what is stored; of any other it says that there is nothing."""

from __future__ import annotations

import numpy as np
import pytest
from charts import charts, numbers, words
from small_models import computed, save_random
from test_pages import PROMPT, app

from ed_core.depth import say
from ed_core.models import catalogue
from ed_core.models.bundled import MODELS, example_of, load_prompts
from ed_core.models.ref import ModelRef
from ed_core.probes import EarlyExit, LogitLens, Loops, Prune
from ed_core.results import lookup
from ed_core.results.aggregate import aggregate
from ed_core.types import Prompt

PAGE = "pages/model/loops.py"


@pytest.fixture
def looped(stored, tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "looped", save_random(tmp_path / "looped", "looped", n_loops=3))
    catalogue.entries.cache_clear()
    yield "looped"
    catalogue.entries.cache_clear()


def test_in_place_of_a_model_whose_layers_run_once_stands_the_stored_example_of_a_looped_one(stored):
    test = app(PAGE)
    assert not test.exception and not test.error
    told = " ".join(test.info[0].value.replace("\\", "").split())
    assert told.startswith("**small** runs each of its layers once") and "example of **ed-loop-4x4**" in told
    spec = ModelRef.parse("ed-loop-4x4")
    known = next(p for p in load_prompts(spec.name) if p["id"] == example_of(spec.name))
    assert known["text"].strip() in told, "its own prompt, and not the one in the box"
    result = lookup.find(Loops().request(spec, Prompt(known["text"], known["answer"])))
    values = aggregate(Loops(), [result.summary])
    assert say.loops(values) in words(test)
    drawn = [numbers(one["data"][0]["y"]) for one in charts(test)]
    assert len(drawn) == 6 and np.allclose(drawn[0], values["readout_kl"][4, :5], equal_nan=True)
    assert "run.loops" not in [b.key for b in test.button]


def test_what_is_drawn_is_what_is_stored(looped):
    waiting = app(PAGE, model=looped)
    assert not waiting.exception and any("Not computed yet" in i.value for i in waiting.info)
    result = computed(Loops().request(ModelRef.parse(looped), PROMPT))
    lookup.store().put(result)
    test = app(PAGE, model=looped)
    assert not test.exception and not test.error
    values = aggregate(Loops(), [result.summary])
    said = words(test)
    assert say.loops(values) in said
    drawn = [numbers(one["data"][0]["y"]) for one in charts(test)]
    expected = (
        values["readout_kl"][3, :4],
        [np.nan, *values["times_kl"][1:]],
        [np.nan, *values["times_loss"][1:]],
        values["block_skip_kl"],
        np.array([np.nan, *values["fixed_point"].reshape(2, -1).mean(1)]),
        values["update_norm"],
    )
    assert len(drawn) == len(expected)
    for mine, theirs in zip(drawn, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_layers_of_a_looped_model_are_in_no_file_for_other_tools(looped):
    for probe in (Prune(), EarlyExit(), LogitLens()):
        lookup.store().put(computed(probe.request(ModelRef.parse(looped), PROMPT)))
    test = app("pages/intervene/prune.py", model=looped)
    assert not test.exception and not test.error
    files = [one.proto for one in test.get("download_button") if "Not for a looped model" in one.proto.help]
    assert files and all(one.disabled for one in files)
