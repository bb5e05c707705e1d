"""Compare two: what stands side by side is what is stored, differences only where cells mean the same, and the second
side outlives a page change."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from charts import charts, fresh, numbers, sent, words
from small_models import computed
from test_pages import PROMPT, holds, plotted, session_of

from ed_core.depth import say, side_by_side
from ed_core.depth.sample import Sample
from ed_core.depth.verdict import verdict
from ed_core.errors import HubUnreachable
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, LayerSkip, LogitLens
from ed_core.results import lookup
from ed_core.types import Prompt
from ed_ui import downloads

PAGE = "pages/compare/two.py"
OTHER = Prompt("2 + 2 = ", "4")
THREE = (Contributions(), LogitLens(), LayerSkip())

DRAWN = {"contributions": "layer_ratio", "logit_lens": "top_probs", "layer_skip": "effect"}


@pytest.fixture(scope="module")
def seconds(stored):
    """Results of second sides: a twin, another prompt, another model."""
    small = ModelRef.parse("small")
    asked = {
        "twin": [p.request(small.twin("untrained", 3), PROMPT) for p in THREE],
        "prompt": [p.request(small, OTHER) for p in THREE],
        "model": [p.request(ModelRef.parse("ed-demo-8"), PROMPT) for p in THREE],
    }
    found = {}
    for name, requests in asked.items():
        found[name] = {r.probe: computed(r) for r in requests}
        for result in found[name].values():
            lookup.store().put(result)
    return found


def two(mode="models", state=(), prompt=PROMPT, model="small", **query):
    test = fresh(PAGE, model=model, compare=mode, **query)
    if prompt:
        session_of(test).inputs.update({"text": prompt.text, "answer": prompt.answer, **dict(state)})
    return test.run()


def carried(test) -> dict[str, str]:
    """What the URL is to hold; in a session's first run a script puts it there."""
    return session_of(test).link.values


def values(result) -> np.ndarray:
    return side_by_side.shown_values(result, DRAWN[result.request.probe]).astype(float)


def test_a_model_beside_its_twin(stored, seconds):
    test = two(second="small", second_control="untrained", second_seed="3")
    assert not test.exception and not test.error
    found = plotted(test)
    for probe in DRAWN:
        mine, theirs = stored[probe], seconds["twin"][probe]
        for z in (values(mine), values(theirs), values(theirs) - values(mine)):
            assert holds(found, z), probe
        one = next(p for p in THREE if p.name == probe)
        assert all(say.pair(pair) in words(test) for pair in side_by_side.pairs((one, one), mine, theirs))
    for side, results in (("A", stored), ("B", seconds["twin"])):
        assert say.verdict(verdict(Sample.of(results["contributions"], results["logit_lens"]))) in words(test), side
    ruler = next(c for c in charts(test) if "blocks A" in str(c))
    marks = {t["name"] for t in ruler["data"]}
    for side, results in (("A", stored), ("B", seconds["twin"])):
        found = verdict(Sample.of(results["contributions"], results["logit_lens"]))
        expected = {n for n, mean in found.means.items() if mean.depth is not None}
        expected |= {f"{n} rule" for n, layer in found.layers.items() if layer is not None}
        assert expected and marks >= {f"{side} {name}" for name in expected}


@pytest.mark.parametrize("model", ["ed-demo-16", "smollm2"])
def test_a_fresh_installation_shows_both_sides_their_difference_and_the_divider(laboratory, model):
    test = two(prompt=None, model=model)
    assert not test.exception and not test.error and "Not measured yet" not in words(test)
    found = [sent(one) for one in test.get("bidi_component") if one.proto.bytes]
    assert sum("over" in one for one in found) == len(DRAWN)
    assert words(test).count("**B − A**") == len(DRAWN) and "No map of B − A" not in words(test)


def test_models_of_different_depth_have_a_difference_on_relative_depth(stored, seconds):
    test = two(second="ed-demo-8")
    assert not test.exception and not test.error
    found = plotted(test)
    sides = [(stored[p], seconds["model"][p]) for p in DRAWN]
    assert all(holds(found, values(r)) for pair in sides for r in pair)
    dims = lambda result: result.measures[DRAWN[result.request.probe]].spec.dims
    drawn = [pair for pair in sides if not side_by_side.no_difference(*pair, dims(pair[0]))]
    assert drawn and len(found) == 6 + len(drawn)
    assert words(test).count("A's 5 layers, each against B's nearest") == len(drawn)
    for a, b in drawn:
        assert holds(found, side_by_side.difference(a, b, DRAWN[a.request.probe]))
    assert words(test).count("No map of B − A") == 3 - len(drawn) and "of the depth" in words(test)


def test_two_prompts_have_a_difference_of_blocks_only(stored, seconds):
    test = two("prompts", {"two.text": OTHER.text, "two.answer": OTHER.answer})
    assert not test.exception and not test.error
    found = plotted(test)
    assert len(found) == 7 and holds(found, values(seconds["prompt"]["layer_skip"]) - values(stored["layer_skip"]))
    assert words(test).count("The sides have different tokens") == 2
    link = carried(test)
    assert not any(one.text in str(v) for v in link.values() for one in (OTHER, PROMPT)), "no prompt's text in the URL"
    runs = lambda results: {r.request.key[: lookup.SHORT] for r in results}
    assert link["run"] in runs(stored[p] for p in DRAWN) and link["second_run"] in runs(seconds["prompt"].values())
    other = two("prompts", prompt=None, **{name: link[name] for name in ("run", "second_run")})
    assert not other.exception and len(plotted(other)) == 7
    assert [other.text_area(key=key).value for key in ("text", "two.text")] == [PROMPT.text, OTHER.text]


def test_equal_sides_are_said_to_be(stored):
    test = two(second="small")
    assert not test.exception and any("same model" in i.value for i in test.info) and not charts(test)


def test_maps_of_the_same_cells_lie_one_over_the_other(stored, seconds):
    test = two(second="small", second_control="untrained", second_seed="3", overlaid="true")
    assert not test.exception and test.toggle(key="two.overlaid").value
    laid = [found for one in test.get("bidi_component") if one.proto.bytes and "over" in (found := sent(one))]
    assert len(laid) == len(DRAWN)
    for probe, found in zip(DRAWN, laid, strict=True):
        lower, upper = (numbers(one["figure"]["data"][0]["z"]) for one in (found, found["over"]))
        assert holds([lower], values(stored[probe])) and holds([upper], values(seconds["twin"][probe])), probe
        assert found["alt"].startswith("A: ") and found["over"]["alt"].startswith("B: ")
    test.toggle(key="two.overlaid").set_value(False).run()
    assert "overlaid" not in carried(test)
    assert not any("over" in sent(one) for one in test.get("bidi_component") if one.proto.bytes)


def test_the_second_side_outlives_a_page_change(stored, seconds):
    test = two(second="small", second_control="untrained", second_seed="3", measures="logit_lens")
    wanted = {"second": "small", "second_control": "untrained", "second_seed": "3", "measures": "logit_lens"}
    test.query_params.clear()
    test.switch_page("pages/prompt/logit_lens.py").run()
    test.query_params.clear()  # as the browser does on a page change
    test.switch_page(PAGE).run()
    assert not test.exception
    assert {name: carried(test)[name] for name in wanted} == wanted and len(plotted(test)) == 3


def test_a_second_model_that_is_not_here_is_offered_and_run_is_off(stored, monkeypatch):
    test = two(second="/no/such/folder")
    assert not test.exception and len(test.error) == 1 and "/no/such/folder" in words(test)
    monkeypatch.setattr(downloads.hub, "plan", Mock(side_effect=HubUnreachable("no network")))
    test = two(second="Qwen/Qwen2.5-3B")
    assert not test.exception and not test.error and test.button(key="run.two").disabled
    assert any("is not here yet" in one.value for one in test.warning)


def test_an_empty_second_prompt_and_no_measure_are_refused(stored):
    test = two("prompts")
    test.text_area(key="two.text").set_value("").run()
    assert len(test.error) == 1 and "Second prompt" in test.error[0].value
    test = two(measures="logit_lens")
    test.pills(key="two.probes").set_value([]).run()
    assert len(test.error) == 1 and "No measure" in test.error[0].value


def test_what_explains_an_answer_is_left_out_without_one(stored):
    measures = "logit_lens,residual_erasure,integrated_gradients"
    test = two(prompt=replace(PROMPT, answer=""), second="ed-demo-8", measures=measures)
    assert not test.exception and "Erase and Integrated gradients left out" in words(test)
    batch = session_of(test).batches["two"]
    assert set(batch.requests) == {"A.logit_lens", "B.logit_lens"}
