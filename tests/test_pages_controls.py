"""The control beside the model on every page, and the page of sanity checks: what is drawn is what is stored, and
nothing of it is the model's map."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from charts import charts, numbers, words
from small_models import computed
from test_pages import app, holds, plotted

from ed_core.depth import among_others, say
from ed_core.depth.among_others import curves_of
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, find
from ed_core.results import lookup
from ed_core.types import ModelSpec, Prompt
from ed_ui import control_model

STRIPS = {  # page: probe, and what its strip holds of the control's result
    "pages/prompt/logit_lens.py": ("logit_lens", lambda r: r["kl"].mean(1)),
    "pages/intervene/skip.py": ("layer_skip", lambda r: r["output"]),
    "pages/intervene/erase.py": (
        "residual_erasure",
        lambda r: np.fmax.reduce(np.delete(r["effect"], r.answer_start - 1, 1), axis=1),
    ),
}


@pytest.fixture(scope="module")
def controlled(stored):
    """The same probes on the untrained copy with seed 3, stored too."""
    spec = ModelRef.parse("small").twin("untrained", 3)
    results = {}
    for name, own in stored.items():
        if find(name).curves:
            results[name] = computed(replace(own.request, models=(spec,)))
            lookup.store().put(results[name])
    return results


def opened(page, seed=3):
    return app(page, control="untrained", control_seed=str(seed))


def settles(test) -> str:
    """What Home says of the lens, as it reads."""
    (said,) = [m.value for m in test.markdown if " settle by layer " in m.value]
    return said.replace("\\", "")


def traces(test, name) -> list[np.ndarray]:
    """x (or y where x counts layers) of every trace of that name."""
    named = (trace for chart in charts(test) for trace in chart["data"] if trace.get("name") == name)
    return [numbers(trace["x" if name == "control" else "y"]) for trace in named]


@pytest.mark.parametrize("page", STRIPS)
def test_the_controls_curve_stands_behind_the_models_on_every_probe_page(stored, controlled, page):
    probe, strip = STRIPS[page]
    test = opened(page)
    assert not test.exception and not test.error
    assert holds(traces(test, "control"), strip(controlled[probe])), "the strip"
    expected = curves_of(find(probe), [controlled[probe].summary])
    for curve in find(probe).curves:
        assert holds(traces(test, "untrained copy, seed 3"), expected[curve.name]), curve.name
    likeness = among_others.likeness(find(probe), stored[probe].summary, controlled[probe].summary)
    assert say.against_control("untrained", [likeness]) in words(test)
    maps = [m.values for m in controlled[probe].measures.values() if m.values.ndim == 2]
    assert not any(holds(plotted(test), values) for values in maps), "maps stay the model's own"


def test_home_draws_and_says_it(stored, controlled):
    test = opened("pages/prompt/home.py")
    assert not test.exception and not test.error
    lens = stored["logit_lens"]
    ranks = controlled["logit_lens"]["rank"]
    bands = [numbers(t["y"]) for spec in charts(test) for t in spec["data"] if t["name"] == "range copies"]
    courses = [one[: len(one) // 2] for one in bands]  # there and back
    assert any(np.array_equal(course, ranks[:, at]) for at in range(lens.n_tokens) for course in courses)
    assert ", in one untrained copy by " in settles(test)
    assert not test.button(key="run.home").disabled


def test_without_a_control_nothing_is_grey_and_another_seed_is_not_shown(stored, controlled):
    for test in (app("pages/prompt/contributions.py"), opened("pages/prompt/contributions.py", seed=4)):
        assert not traces(test, "control") and not any("twin shows" in m.value for m in test.markdown)


def test_a_control_that_cannot_be_had_leaves_the_page_as_it_is(monkeypatch):
    monkeypatch.setattr(control_model, "chosen", lambda: ("untrained", 0))
    own = {"contributions": Contributions().request(ModelSpec("m", content_hash="c", precision="int8"), Prompt("p"))}
    assert control_model.with_control(own) == own


def test_five_stored_twins_are_read_without_being_asked_for_and_fewer_are_not(stored, controlled):
    """Seed 3 alone says nothing on a page that was not asked for a control; all five do."""
    assert "copies" not in settles(app("pages/prompt/home.py"))
    for seed in range(5):
        for name in ("contributions", "logit_lens"):
            spec = ModelRef.parse("small").twin("untrained", seed)
            lookup.store().put(computed(replace(stored[name].request, models=(spec,))))
    assert ", in untrained copies by " in settles(app("pages/prompt/home.py"))
