"""The causal probes' pages through AppTest: pruning over chosen prompts, one prompt over others, boundaries, failures
shown as failures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from charts import charts, fresh, numbers
from shell import wrote
from small_models import computed, unsettled
from streamlit.testing.v1 import AppTest
from test_pages import PROMPT, app, holds, plotted, session_of

from ed_core.depth import among_others, say, surgery
from ed_core.figures.canvas import size
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
    ResidualErasure,
    find,
)
from ed_core.probes.integrated_gradients import UNSETTLED, completeness, incomplete
from ed_core.prompts import to_jsonl
from ed_core.results import aggregate, lookup
from ed_core.types import Prompt
from ed_ui import show


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
    probes = [
        Prune(drop=(1, 2)),
        *(
            p()
            for p in (
                EarlyExit,
                ExactAnswers,
                LogitLens,
                LayerSkip,
                ResidualErasure,
                IntegratedGradients,
                Contributions,
            )
        ),
    ]
    found = {probe.name: [computed(probe.request(spec, prompt)) for prompt in SET] for probe in probes}
    for result in (r for results in found.values() for r in results):
        lookup.store().put(result)
    return found


def prune_on(prompts, **state) -> AppTest:
    test = fresh(model="small")
    lines = prompts if isinstance(prompts, str) else to_jsonl(prompts)
    state = {"prompts.source": "A file or pasted lines", "prompts.lines": lines} | state
    session_of(test).inputs.update(state)
    test.run()
    test.query_params.clear()  # as the navigation does
    return test.switch_page("pages/intervene/prune.py").run()


def test_pruning_over_chosen_prompts_shows_what_the_command_line_writes(stored_set, tmp_path):
    test = prune_on(SET, **{"prune.drop": "1,2"})
    assert not test.exception and not test.error
    probes = ("prune", "early_exit", "logit_lens", "exact_answers")
    data = wrote(tmp_path, SET, *probes, given=["prune.drop=1,2"], model="small")
    for name in ("kl", "top1_kept", "perplexity"):
        assert drawn(test, "over all tokens", data[f"prune.{name}"]), name
        assert drawn(
            test, "median", np.median(np.stack([data_of(stored_set["prune"][i], name) for i in range(4)]), axis=0)
        ), name
    for name in ("block_influence", "angular_distance", "update_cosine"):
        assert drawn(test, name.replace("_", " "), data[f"prune.{name}"]), name
    assert drawn(test, "agreement", data["early_exit.agreement"])
    assert drawn(test, "confidence", data["early_exit.confidence"])
    values = {m.label: m.value for m in test.metric}
    for label, name in {
        "Block influence": "block_influence",
        "Angular distance": "angular_distance",
        "Update's cosine": "update_cosine",
        "Best guesses lost": "top1_lost",
    }.items():
        assert values[f"{label} against measured KL"] == f"{data[f'prune.spearman_{name}']:+.2f}".replace("-", "−")
    few = 1 - data["early_exit.exit_agrees"] < 0.1
    assert values["Mean exit depth"] == (f"{data['early_exit.exit_depth']:.1f} of 5" if few else "not usable here")
    assert values["Agreement on leaving"] == say.share(float(data["early_exit.exit_agrees"]), signs=True)
    assert values["Deep-thinking ratio"] == say.share(float(data["logit_lens.deep_thinking_ratio"]), signs=True)
    said = " ".join(m.value for m in test.markdown)
    best = int(data["prune.cheapest"])
    assert f"Least KL, one layer: {best}" in said and f"KL {data['prune.kl'][best]:.3g} nats" in said
    assert "The chosen set: 1, 2" in said and f"KL {data['prune.drop_kl']:.3g} nats" in said
    assert f"→ {size(float(data['prune.drop_perplexity']))}" in said
    assert f"Over **4 prompts**, {data['n_tokens']} tokens" in said
    code = next(c.value for c in test.code if c.value.startswith("python")).replace("\\\n  ", "")
    assert (
        code.startswith(
            "python -m ed_core run prune early_exit logit_lens exact_answers --model small --precision fp32 "
            "--device cpu --prompts prompts.jsonl"
        )
        and "--set prune.drop=1,2" in code
    )


def test_what_is_written_stands_beside_the_loss(stored_set):
    """Over the prompts with a known answer; `small` writes none of them, so one that it does write is added."""
    spec = ModelRef.parse("small")
    text = computed(Continuation(n_tokens=8).request(spec, Prompt("nm"))).provenance["continuation"]
    known = [SET[0], Prompt("nm", text[:1]), SET[1]]
    found = {p.name: [computed(p.request(spec, prompt)) for prompt in known] for p in (ExactAnswers(), Prune())}
    for result in (r for results in found.values() for r in results):
        lookup.store().put(result)
    share = np.mean([r["exact"] for r in found["exact_answers"]], axis=0)
    whole = np.mean([r["exact_whole"] for r in found["exact_answers"]])
    assert 0 < whole < 1 and share.max() > 0
    curves = aggregate.aggregate(Prune(), [r.summary for r in found["prune"]])
    test = prune_on([*known, Prompt("never answered")])
    assert not test.exception and not test.error
    assert drawn(test, "exact answers", share) and drawn(test, "all layers", np.full(5, whole))
    assert drawn(test, "added loss", curves["nll"] - curves["nll_whole"])
    said = [m.value for m in test.markdown]
    written = {"exact": share, "exact_whole": whole}
    assert f"**{show.plain(say.kept_answers(written, 3))}**" in said
    assert any("Over the 3 of 4 prompts that have a known answer" in c.value for c in test.caption)
    code = next(c.value for c in test.code if c.value.startswith("python"))
    assert "exact_answers" not in code, "the command line would refuse the prompt without an answer"
    test = prune_on([Prompt("never answered")])
    assert any(m.value.startswith("No chosen prompt has a known answer") for m in test.markdown)


def data_of(result, name: str) -> np.ndarray:
    return among_others.curves_of(Prune, result.summary)[name]


def test_pruning_says_how_many_prompts_are_missing_and_exports_nothing_yet(stored_set):
    test = prune_on([*SET, Prompt("never measured")], **{"prune.drop": "1,2"})
    said = " ".join(m.value for m in test.markdown)
    assert "4 of 5 prompts measured" in said and "Least KL, one layer" in said
    downloads = {b.label: b.proto.disabled for b in test.get("download_button") if b.label in ("Keep-list", "mergekit")}
    assert downloads == {"Keep-list": True, "mergekit": True}


def test_one_prompt_is_pruned_as_before(stored, stored_set):
    test = app("pages/intervene/prune.py")
    curves = aggregate.aggregate(Prune, [stored["prune"].summary])
    cheapest = surgery.best_stretch(curves["kl"], 1)[0]
    assert f"Least KL, one layer: {cheapest}" in " ".join(m.value for m in test.markdown)
    assert len(charts(test)) == 8 and not drawn(test, "median", curves["kl"]), "one prompt has no spread"
    assert test.query_params["run"] == stored["prune"].request.key[:12]


@pytest.mark.parametrize(
    "lines, words",
    [
        ('{"text": "ab"}\n{"text": 3}', ["line 2", "text"]),
        (json.dumps({"text": "x" * 600}), ["Prompt 0", "600 tokens and the "]),
    ],
)
def test_a_bad_list_of_prompts_is_refused_in_one_sentence(stored, lines, words):
    test = prune_on(lines)
    assert not test.exception and len(test.error) == 1 and all(w in test.error[0].value for w in words)
    assert not charts(test)


def test_an_empty_list_is_no_error_and_a_long_one_is_cut_openly(stored):
    test = prune_on("")
    assert not test.exception and not test.error and "No prompts yet" in test.info[0].value
    test = prune_on([Prompt(f"prompt {i}") for i in range(25)])
    assert any("25 prompts; the first 20" in w.value for w in test.warning)
    assert any("Nothing measured yet" in m.value for m in test.markdown)
    asked = {request.prompts[0].text for request in session_of(test).batches["prune"].requests.values()}
    assert asked == {f"prompt {i}" for i in range(20)}


def test_an_uploaded_file_fills_the_box(stored_set):
    test = prune_on("")
    test.file_uploader(key="prompts.file").set_value(("p.jsonl", b"\xff\xfe", "application/json")).run()
    assert "not UTF-8" in test.error[0].value
    test.text_area(key="prompts.lines").set_value(to_jsonl(SET[:1])).run()
    assert not test.error, "what is pasted afterwards counts"
    test.file_uploader(key="prompts.file").set_value(("p.jsonl", to_jsonl(SET).encode(), "application/json")).run()
    assert not test.exception and not test.error and test.text_area(key="prompts.lines").value == to_jsonl(SET)
    assert any(
        "of 4 prompts" in m.value or "Over **4 prompts**" in m.value or "Nothing measured yet" in m.value
        for m in test.markdown
    )


def test_bundled_prompts_are_chosen_by_task_and_difficulty(stored):
    test = app("pages/intervene/prune.py")
    test.segmented_control(key="prompts.source").set_value("Bundled prompts").run()
    assert any(c.value.startswith("12 prompts, spread evenly") for c in test.caption)
    test.multiselect(key="prompts.tasks").set_value(["copy"]).run()
    test.multiselect(key="prompts.difficulties").set_value([9]).run()
    assert not test.exception
    assert any(c.value.startswith("2 prompts, spread evenly: Copy 9 letters (a)") for c in test.caption)


def test_more_blocks_than_the_model_has_is_said_before_anything_runs(stored):
    test = app("pages/intervene/prune.py")
    test.number_input(key="prune.n").set_value(5).run()
    assert any("less than the model's 5 layers" in e.value for e in test.error) and not charts(test)


COMPARED = {
    "pages/prompt/logit_lens.py": "logit_lens",
    "pages/intervene/skip.py": "layer_skip",
}


@pytest.mark.parametrize("page", COMPARED)
def test_the_prompt_is_shown_over_the_spread_of_others(stored_set, page):
    results = stored_set[COMPARED[page]]
    probe, others = find(COMPARED[page]), [r.summary for r in results[:3]]
    test = app(page)
    assert not test.exception and not test.error
    for spread in among_others.spreads(probe, results[3].summary, others):
        assert drawn(test, "this prompt", spread.values) and drawn(test, "median", spread.quantiles[1])
        assert drawn(test, "lower end", spread.quantiles[0]) and drawn(test, "all 3 others", spread.quantiles[2])
    assert f"**{show.plain(say.among_others(among_others.compared(probe, results[3].summary, others)))}**" in [
        m.value for m in test.markdown
    ]


def test_a_boundary_can_be_looked_at_alone(stored):
    probe, spec = LayerSkip(mode="future", boundaries=(16, 8)), ModelRef.parse("small")
    result = computed(probe.request(spec, PROMPT))
    lookup.store().put(result)
    test = app("pages/intervene/skip.py", run=result.request.key, boundary="99")
    assert [w.value for w in test.warning] == [
        "The link asks for the split point '99', which is not here to show; another one is shown."
    ]
    choice = test.segmented_control(key="skip.boundary")
    assert choice.options == ["maximum over all", "token 8", "token 16"] and holds(plotted(test), result["effect"])
    choice.set_value(1).run()  # the second of the result's, which is token 8
    assert holds(plotted(test), result["effect_by_boundary"][1]) and not holds(plotted(test), result["effect"])
    assert any({"boundary 8", "boundary 16"} <= {t.get("name") for t in c["data"]} for c in charts(test))
    assert drawn(test, "noise floor", result["noise_floor"])
    largest = [np.nan, *(result["effect"][:layer, layer].max() for layer in range(1, 5))]
    assert any(np.allclose(figure.get("largest effect", 0), largest, equal_nan=True) for figure in traces(test))


def test_layers_whose_integral_did_not_settle_are_named(stored):
    result = unsettled(computed(IntegratedGradients(nodes=100).request(ModelRef.parse("small"), PROMPT)))
    result = replace(result, notes=(f"{UNSETTLED} within 100 nodes at layer 0.", "What else there is to say."))
    lookup.store().put(result)
    failed = incomplete(result)
    test = app("pages/intervene/gradients.py", run=result.request.key)
    assert failed
    assert f"did not settle at layer{'s' * (len(failed) > 1)} {', '.join(map(str, failed))}" in test.warning[0].value
    said, other = ([one.value for one in test.info].count(show.plain(note)) for note in result.notes)
    assert other == said + 1 > 1, "every figure's details have both; below the map stands what nothing else says"
    assert holds(plotted(test), result["attribution"].astype(float))
    assert drawn(test, "completeness error", completeness(result)) and drawn(test, "nodes", result["nodes_used"])
    assert "allowed: 0.5 %" in str(charts(test)), "as the page's words have it"
    assert not any("this prompt" in figure for figure in traces(test)), "what is not to be relied on is not compared"
    assert not app("pages/intervene/gradients.py").warning


@pytest.mark.parametrize("target", ["answer", "future"])
def test_erasing_for_the_answer_asks_for_one_and_for_what_follows_does_not(stored, target):
    test = app("pages/intervene/erase.py", prompt=Prompt("5 + 7 = "), target=target)
    asked = any("answer" in one.value for one in test.info if "Not computed yet" not in one.value)
    assert not test.exception and asked == (target == "answer")
