"""Save on every page: all it shows is kept, drawn again from the file alone, and Open live leads back to the same
view."""

from __future__ import annotations

import numpy as np
import pytest
from charts import fresh, words
from small_models import computed
from streamlit.testing.v1 import AppTest
from test_pages import PROMPT, app, holds, plotted, session_of
from test_pages_causal import SET, drawn, prune_on, stored_set  # noqa: F401 (a fixture)
from test_pages_controls import controlled, opened, traces  # noqa: F401 (a fixture)
from test_pages_two import OTHER, seconds, two  # noqa: F401 (a fixture)

from ed_core.cases.drawings import sections
from ed_core.cases.kept import Kept
from ed_core.cases.report import report
from ed_core.depth import say
from ed_core.depth.sample import Sample
from ed_core.depth.verdict import verdict
from ed_core.models.ref import ModelRef
from ed_core.probes import LayerSkip, Prune
from ed_core.results import aggregate, lookup
from ed_ui import case_studies


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder of case studies beside the module's store."""
    found = Kept(tmp_path, shipped=None)
    case_studies.kept.clear()
    monkeypatch.setattr(case_studies, "kept", lambda: found)
    return found


def save(test: AppTest, page: str, folder: Kept):
    assert not test.exception and not test.error
    test.button(key=f"keep.{page}.save").click().run()
    assert not test.exception and not test.error, [e.value for e in test.error]
    (card,) = folder.cards()
    return folder.open(card.id)[0]


def case_page(id: str) -> AppTest:
    test = fresh("pages/case_studies/case.py", id=id).run()
    assert not test.exception and not test.error
    return test


def open_live(test: AppTest) -> AppTest:
    test.button(key="case.live").click().run()
    assert not test.exception and not test.error
    return test


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(holds(other, z) for z in one)


def test_a_page_keeps_what_it_shows_and_leads_back(stored, folder):
    live = app("pages/prompt/contributions.py")
    before = plotted(live)
    kept = save(live, "contributions", folder)
    assert [i.result.request.key for i in kept.items] == [stored["contributions"].request.key]
    assert {i.shown.page for i in kept.items} == {"contributions"}
    test = case_page(kept.id)
    assert all(holds(plotted(test), z) for z in before), "the maps of the page are those of the case study"
    assert same(before, plotted(open_live(test))), "Open live shows the page as it was"
    assert report(kept).count("<figure>") == len([d for s in sections(kept) for d in s.drawings])


def test_the_verdict_that_is_kept_is_read_for_the_token_on_the_screen(stored, folder):
    query = {"of": "token", "token": "3"}
    live = app(**query)
    kept = save(live, "home", folder)
    read = verdict(Sample.of(stored["contributions"], stored["logit_lens"], of=3))
    assert kept.verdict == say.verdict(read)
    assert f"the predictions at token 3 settle by layer {read.means['kl'].depth:.0f}" in words(live)
    test = open_live(case_page(kept.id))
    assert session_of(test).link.values.items() >= query.items()
    assert f"the predictions at token 3 settle by layer {read.means['kl'].depth:.0f}" in words(test)


def test_parameters_and_the_chosen_boundary_come_back(stored, folder):
    probe = LayerSkip(mode="future", boundaries=(4, 8), part="attention", direct=False)
    result = computed(probe.request(ModelRef.parse("small"), PROMPT))
    lookup.store().put(result)
    live = app("pages/intervene/skip.py", run=result.request.key)
    live.segmented_control(key="skip.boundary").set_value(1).run()
    kept = save(live, "layer_skip", folder)
    test = case_page(kept.id)
    assert holds(plotted(test), result["effect_by_boundary"][1])
    assert open_live(test).segmented_control(key="layer_skip.mode").value == "future"
    assert test.text_input(key="layer_skip.boundaries").value == "4,8"
    assert test.segmented_control(key="skip.boundary").value == 1
    assert holds(plotted(test), result["effect_by_boundary"][1])


def test_a_control_is_kept_as_a_view_of_its_own_behind_the_models(stored, controlled, folder, monkeypatch):  # noqa: F811
    live = opened("pages/prompt/home.py")
    kept = save(live, "home", folder)
    assert [len(view.by_probe) for view in kept.views] == [4, 3] and kept.views[1].models[0].control == "untrained"
    assert ["untrained copy, seed 3" in line for line in kept.verdict.splitlines()] == [False, True]
    test = case_page(kept.id)
    assert any("untrained copy, seed 3" in m.value for m in test.markdown)
    assert holds(traces(test, "control"), controlled["contributions"]["layer_ratio"].mean(1)), "behind the model's"
    assert holds(plotted(test), controlled["layer_skip"]["effect"]), "and in maps of its own"
    monkeypatch.undo()
    monkeypatch.setattr("ed_ui.case_studies.kept", lambda: folder)
    assert open_live(test).selectbox(key="control").value == "untrained"
    assert test.number_input(key="control.seed").value == 3


def test_pruning_over_prompts_is_kept_over_prompts(stored_set, folder):  # noqa: F811
    kept = save(prune_on(SET, **{"prune.drop": "1,2"}), "prune", folder)
    assert {i.result.request.probe for i in kept.items} == {"prune", "exact_answers"}
    (section,) = sections(kept)
    assert section.prompts == SET
    test = case_page(kept.id)
    curves = aggregate.aggregate(Prune(drop=(1, 2)), [r.summary for r in stored_set["prune"]])
    for trace, name in (("1 layer", "kl"), ("block influence", "block_influence")):
        assert drawn(test, trace, curves[name]), name
    assert drawn(open_live(test), "1 layer", curves["kl"]) and test.text_input(key="prune.drop").value == "1,2"


@pytest.mark.process
def test_a_comparison_is_kept_with_both_sides_and_leads_back(stored, seconds, folder):  # noqa: F811
    maps = {"branch": "attn", "shade": "jsd", "contributions_map": "direction"}
    live = two("models", {}, second="small", second_control="untrained", second_seed="3", **maps)
    before = plotted(live)
    kept = save(live, "two", folder)
    keys = [i.result.request.key for i in kept.items]
    assert len(set(keys)) == len(keys) and {r.request.key for r in seconds["twin"].values()} < set(keys)
    first = sections(kept)[0]
    assert len(kept.views) == 2 and len(first.drawings) > 4
    test = case_page(kept.id)
    assert first.says and first.says[0] in words(live) and first.says[0] in words(test), "what differs"
    for results in (stored, seconds["twin"]):
        assert holds(plotted(test), results["layer_skip"]["effect"])
    assert same(before, plotted(open_live(test)))
    assert session_of(test).link.values.items() >= maps.items()
