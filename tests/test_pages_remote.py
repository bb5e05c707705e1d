"""Pages with a model that is elsewhere: what they say leaves the machine, what they ask for, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from charts import charts
from test_pages import PROMPT, app

from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, LayerSkip, LogitLens
from ed_core.results import lookup
from ed_ui import picker

NAME = "ndif:small"


@pytest.fixture
def elsewhere(stored, monkeypatch):
    """The small model's results, stored as those of the same model elsewhere."""
    monkeypatch.setenv("ED_NDIF", "true")
    named = picker.names
    monkeypatch.setattr(picker, "names", lambda: [*named(), NAME])  # AppTest holds only what is among the options
    for probe in (Contributions(), LogitLens(), LayerSkip()):
        lookup.store().put(replace(stored[probe.name], request=probe.request(ModelRef.parse(NAME), PROMPT)))
    return stored


def said(test) -> list[str]:
    return [one.value.replace("\\", "") for one in (*test.info, *test.error, *test.warning)]


def test_home_says_what_leaves_and_draws_what_came(elsewhere, monkeypatch):
    test = app(model=NAME)
    assert not test.exception and not test.error
    told = next(one for one in said(test) if "is measured elsewhere" in one)
    assert "Run sends the prompt's tokens and the measuring code to api.ndif.us, under" in told
    assert len(charts(test)) >= 5 and not test.button(key="run.home").disabled
    monkeypatch.setenv("ED_NDIF", "false")
    test = app(model=NAME)
    assert not test.exception and not any("is measured elsewhere." in one for one in said(test))
    assert any("this installation sends none (ndif = false)" in one for one in said(test))


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("pages/intervene/gradients.py", "integrated_gradients is not measured on a model that is elsewhere"),
        ("pages/prompt/lenses.py", "a lens is fitted to streams, which do not leave the service"),
        ("pages/compare/maps.py", "those of ndif:small do not leave the service"),
    ],
)
def test_what_cannot_be_measured_there_is_one_sentence_on_its_page(elsewhere, page, words):
    test = app(page, model=NAME)
    assert not test.exception
    assert [words in one for one in said(test)].count(True) == 1
    assert not [button.label for button in test.button if button.label.startswith(("Run", "Make"))]


def test_beside_a_model_that_is_elsewhere_stands_another_one_and_no_twin(elsewhere):
    page = "pages/compare/two.py"
    test = app(page, model=NAME)
    assert not test.exception and not test.error
    assert test.selectbox(key="two.model").value not in ("", NAME)
    assert test.selectbox(key="two.control").value == "none"
    told = [one for one in said(app(page, model="small", second=NAME)) if "is measured elsewhere" in one]
    assert len(told) == 1 and "to api.ndif.us, under the key of this installation" in told[0], "what leaves for side B"
