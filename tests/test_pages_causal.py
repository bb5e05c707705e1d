"""The causal probes' pages through AppTest: pruning over chosen prompts, one prompt over others, boundaries, failures
shown as failures."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from charts import charts, fresh, numbers, words
from shell import wrote
from small_models import computed, unsettled
from streamlit.testing.v1 import AppTest
from test_pages import PROMPT, app, holds, plotted, session_of

from ed_core.depth import among_others, say, surgery
from ed_core.figures.canvas import size
from ed_core.models.bundled import SETS
from ed_core.models.ref import ModelRef
from ed_core.probes import (
    Continuation,
    Contributions,
    EarlyExit,
    ExactAnswers,
    IntegratedGradients,
    LayerSkip,
    LogitLens,
    Prune,
    find,
)
from ed_core.probes.integrated_gradients import UNSETTLED, completeness, incomplete
from ed_core.prompts import read_jsonl, to_jsonl
from ed_core.results import aggregate, lookup
from ed_core.types import Prompt


def traces(test: AppTest) -> list[dict[str, np.ndarray]]:
    """Of every figure, its named curves."""
    return [{t["name"]: numbers(t["y"]) for t in c["data"] if "name" in t and "y" in t} for c in charts(test)]


def drawn(test: AppTest, name: str, expected: np.ndarray) -> bool:
    """Whether some figure has a curve of that name and these values."""
    found = [figure[name] for figure in traces(test) if name in figure]
    return any(y.shape == expected.shape and np.allclose(y, expected, rtol=1e-5, atol=1e-7) for y in found)


SET = [Prompt("5 + 7 + 5 = ", "17", "sum"), Prompt("a=3; b=a; b?", "3"), Prompt("copy a b c: a b", " c"), PROMPT]


@pytest.fixture(scope="module")
def stored_set(stored):
    """Every probe on several prompts, in the store; by probe's name, in the order of `SET`."""
    spec = ModelRef.parse("small")
    probes = (Prune(drop=(1, 2)), EarlyExit(), ExactAnswers(), LogitLens(), LayerSkip(), Contributions())
    found = {probe.name: [computed(probe.request(spec, prompt)) for prompt in SET] for probe in probes}
    for result in (r for results in found.values() for r in results):
        lookup.store().put(result)
    return found


def prune_on(prompts, **state) -> AppTest:
    test = fresh(model="small")
    lines = prompts if isinstance(prompts, str) else to_jsonl(prompts)
    state = {"prompts.source": "lines", "prompts.lines": lines} | state
    session_of(test).inputs.update(state)
    test.run()
    test.query_params.clear()  # as the navigation does
    return test.switch_page("pages/intervene/prune.py").run()


def cells(test: AppTest) -> str:
    """The tables of a page, as HTML."""
    return "\n".join(e.proto.body for e in test.get("html") if "ed-table" in e.proto.body)


def test_pruning_over_chosen_prompts_shows_what_the_command_line_writes(stored_set, tmp_path):
    test = prune_on(SET, **{"prune.drop": "1,2"})
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    data = wrote(tmp_path, SET, "prune", "exact_answers", given=["prune.drop=1,2"], model="small")
    best = int(data["prune.cheapest"])
    table = cells(test)
    assert say.stretch(best, best + 1) in table and say.share(float(data["prune.top1_kept"][best])) in table
    whole, without = (size(float(v)) for v in (data["prune.perplexity_whole"], data["prune.perplexity"][best]))
    assert f"{whole} → {without}" in table
    assert drawn(test, "1 layer", data["prune.kl"])
    for name in ("block_influence", "angular_distance", "update_cosine"):
        assert drawn(test, name.replace("_", " "), data[f"prune.{name}"]), name
    said = words(test)
    assert f"Layer {best + 1} is the cheapest to remove" in said and f"4 prompts, {data['n_tokens']} tokens" in said
    assert f"KL {data['prune.drop_kl']:.3g} nats" in said
    assert "too few" in test.warning[0].value, "four prompts"


def test_known_answers_are_counted_without_the_cheapest_layer(stored_set):
    """`small` writes none of the answers, so one that it does write is added."""
    spec = ModelRef.parse("small")
    text = computed(Continuation(n_tokens=8).request(spec, Prompt("nm"))).provenance["continuation"]
    known = [SET[0], Prompt("nm", text[:1]), SET[1]]
    for probe in (ExactAnswers(), Prune()):
        for prompt in known:
            lookup.store().put(computed(probe.request(spec, prompt)))
    found = [lookup.find(ExactAnswers().request(spec, prompt)) for prompt in known]
    kept = [lookup.find(Prune().request(spec, prompt)) for prompt in known]
    best = surgery.best_stretch(aggregate.aggregate(Prune, [r.summary for r in kept])["kl"], 1)[0]
    whole = sum(int(one["exact_whole"]) for one in found)
    assert whole and f">{sum(int(one['exact'][best]) for one in found)} of {whole}<" in cells(prune_on(known))


def test_from_ten_prompts_on_layers_go_to_other_tools_once_all_are_measured(stored):
    spec, many = ModelRef.parse("small"), [Prompt(f"{i} + {i} = ") for i in range(10)]
    for prompt in many[:9]:
        lookup.store().put(computed(Prune().request(spec, prompt)))

    def off(test) -> list[bool]:
        return [b.proto.disabled for b in test.get("download_button") if b.label in ("Layers kept", "mergekit")]

    assert off(prune_on(many)) == [True, True]
    lookup.store().put(computed(Prune().request(spec, many[9])))
    assert off(prune_on(many)) == [False, False]


@pytest.mark.parametrize(
    "lines, told",
    [
        ('{"text": "ab"}\n{"text": 3}', ["line 2", "text"]),
        (json.dumps({"text": "x" * 600}), ["Prompt 0", "600 tokens and the "]),
    ],
)
def test_a_bad_list_of_prompts_is_refused_in_one_sentence(stored, lines, told):
    test = prune_on(lines)
    assert not test.exception and len(test.error) == 1 and all(w in test.error[0].value for w in told)
    assert not charts(test)


def asked(test: AppTest) -> set[str]:
    return {request.prompts[0].text for request in session_of(test).batches["prune"].requests.values()}


def test_an_uploaded_file_fills_the_box_and_a_long_list_is_cut_openly(stored):
    test = prune_on("")
    assert not test.exception and not test.error, "an empty list is no error"
    test.file_uploader(key="prompts.file").set_value(("p.jsonl", b"\xff\xfe", "application/json")).run()
    assert "not UTF-8" in test.error[0].value
    test.text_area(key="prompts.lines").set_value(to_jsonl(SET[:1])).run()
    assert not test.error, "what is pasted afterwards counts"
    many = to_jsonl([Prompt(f"prompt {i}") for i in range(25)])
    test.file_uploader(key="prompts.file").set_value(("p.jsonl", many.encode(), "application/json")).run()
    assert not test.exception and not test.error and test.text_area(key="prompts.lines").value == many
    assert any("25 prompts; the first 20" in w.value for w in test.warning)
    assert asked(test) == {f"prompt {i}" for i in range(20)}


def test_a_model_has_prompts_of_its_own_over_all_levels(stored):
    known = read_jsonl(SETS / "sum_mod10.jsonl")
    assert asked(app("pages/intervene/prune.py")) == {known[i * len(known) // 12].text for i in range(12)}


@pytest.mark.parametrize("page, name", [("prompt/logit_lens", "logit_lens"), ("intervene/skip", "layer_skip")])
def test_the_prompt_is_shown_over_the_spread_of_others(stored_set, page, name):
    results = stored_set[name]
    probe, others = find(name), [r.summary for r in results[:3]]
    test = app(f"pages/{page}.py")
    assert not test.exception and not test.error
    for spread in among_others.spreads(probe, results[3].summary, others):
        assert drawn(test, "this prompt", spread.values) and drawn(test, "median", spread.quantiles[1])
        assert drawn(test, "lower end", spread.quantiles[0]) and drawn(test, "all 3 others", spread.quantiles[2])
    assert say.among_others(among_others.compared(probe, results[3].summary, others)) in words(test)


def test_a_boundary_can_be_looked_at_alone(stored):
    probe, spec = LayerSkip(mode="future", boundaries=(16, 8)), ModelRef.parse("small")
    result = computed(probe.request(spec, PROMPT))
    lookup.store().put(result)
    test = app("pages/intervene/skip.py", run=result.request.key, boundary="99")
    assert ["'99'" in w.value for w in test.warning] == [True]
    choice = test.segmented_control(key="skip.boundary")
    assert choice.options == ["maximum over all", "token 8", "token 16"] and holds(plotted(test), result["effect"])
    choice.set_value(1).run()  # the second of the result's, which is token 8
    assert holds(plotted(test), result["effect_by_boundary"][1]) and not holds(plotted(test), result["effect"])
    assert drawn(test, "noise floor", result["noise_floor"])
    largest = [np.nan, *(result["effect"][:layer, layer].max() for layer in range(1, 5))]
    assert any(np.allclose(figure.get("largest effect", 0), largest, equal_nan=True) for figure in traces(test))


def test_layers_whose_integral_did_not_settle_are_named(stored):
    result = unsettled(computed(IntegratedGradients(nodes=100).request(ModelRef.parse("small"), PROMPT)))
    result = replace(result, notes=(f"{UNSETTLED} within 100 nodes at layer 0.", "What else there is to say."))
    lookup.store().put(result)
    failed = ", ".join(str(one + 1) for one in incomplete(result))
    test = app("pages/intervene/gradients.py", run=result.request.key)
    assert failed and re.search(f"did not settle at layers? {failed}", test.warning[0].value)
    assert result.notes[1] in words(test)
    assert holds(plotted(test), result["attribution"].astype(float))
    assert drawn(test, "completeness error", completeness(result)) and drawn(test, "nodes", result["nodes_used"])
    assert not any("this prompt" in figure for figure in traces(test)), "what is not to be relied on is not compared"
    assert not app("pages/intervene/gradients.py").warning
