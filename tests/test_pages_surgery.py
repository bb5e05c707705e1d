"""The pages of surgery and writing through AppTest: what they draw and say is what is stored, and what is wrong becomes
one sentence."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from charts import charts, fresh, numbers
from small_models import computed
from streamlit.testing.v1 import AppTest
from test_pages import PROMPT, app, figure_named, holds, plotted, session_of
from test_pages_causal import drawn
from test_pages_save import case_page, folder, save  # noqa: F401 (a fixture)

from ed_core.cases import drawings
from ed_core.depth import surgery, writing
from ed_core.errors import PromptError
from ed_core.figures.canvas import escaped
from ed_core.probes import EarlyExit, Generation, Surgery
from ed_core.prompts import to_jsonl
from ed_core.results import aggregate, lookup
from ed_core.sources import specs
from ed_core.sources.bundled import EXAMPLE
from ed_core.types import Measure, ProbeResult, Prompt, Request
from ed_core.work.resolve import resolve
from ed_ui import inputs, probe_page, running, show

SURGERY, WRITING = "pages/intervene/surgery.py", "pages/prompt/writing.py"
ORDER = "0-2,2,4"
ORDERED = {"order": ORDER, "continued": "4", "seed": "2"}
SET = [PROMPT, Prompt("a=3; b=a; b?", "3")]


@pytest.fixture(scope="module")
def results(stored):
    """Both probes in the store, on two prompts."""
    spec, found = resolve("small"), {}
    for probe in (Surgery(order=ORDER, continued=4, seed=2), Generation(n_tokens=7, threshold=0.02, temperature=0.5)):
        found[probe.name] = [computed(probe.request(spec, prompt)) for prompt in SET]
        for result in found[probe.name]:
            lookup.store().put(result)
    return found


def over_both(**query) -> AppTest:
    test = fresh(SURGERY, **({"model": "small"} | ORDERED | query))
    lines = {"prompts.source": "A file or pasted lines", "prompts.lines": to_jsonl(SET)}
    session_of(test).inputs.update(lines)
    return test.run()


def words(test: AppTest) -> str:
    return " ".join(w.value for w in (*test.markdown, *test.caption))


def test_surgery_draws_and_says_what_is_stored(results):
    (one, _), probe = results["surgery"], Surgery(order=ORDER, continued=4, seed=2)
    curves = aggregate.aggregate(probe, [one.summary])
    for kind in surgery.KINDS:
        test = app(SURGERY, order=ORDER, continued="4", seed="2", map=kind)
        assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
        found = surgery.rows(curves, kind, one["random_layer"].tolist())
        assert holds(plotted(test), curves[f"{kind}_loss"][:, 0 if kind == "swap" else 1 :])
        assert all(
            show.plain(said) in words(test)
            for said in (surgery.sentence(curves, kind, found), *surgery.reasons(curves, kind, found))
        )
        for name, values in surgery.added(curves, kind, found).items():
            assert drawn(test, escaped(name), values), name
    assert surgery.ordered(curves, [0, 1, 2, 2, 4], 5) in words(test)
    written = [one.provenance[f"continuation_{name}"] for name in ("whole", "order")]
    assert set(written) <= {code.value for code in test.code}
    kl = app(SURGERY, order=ORDER, continued="4", seed="2", map="drop", value="kl")
    assert holds(plotted(kl), curves["drop_kl"][:, 1:])


def test_a_map_stands_while_parts_of_its_result_are_still_to_come(results):
    whole = results["surgery"][0]
    test = app(SURGERY, order=ORDER, continued="4", seed="2")
    for n, name in enumerate(whole.measures):  # in the order in which they come
        there = dict(list(whole.measures.items())[:n])
        partial = replace(whole, measures=there, complete=False, summary={}, provenance={})
        session_of(test).batches["surgery"].results["surgery.0"] = partial
        test.run()
        assert not test.exception and not test.error, name


def test_where_nothing_could_be_measured_no_figures_are_spoken_of(results):
    test = app(SURGERY, prompt=Prompt("1"))
    session_of(test).batches["surgery"].errors["surgery.0"] = PromptError("too short")
    said = words(test.run())
    assert "Nothing measured yet for these prompts" in said and "measures the rest" not in said


def test_over_prompts_surgery_shows_the_aggregate_and_exports_it(results):
    probe = Surgery(order=ORDER, continued=4, seed=2)
    curves = aggregate.aggregate(probe, [r.summary for r in results["surgery"]])
    test = over_both(map="repeat", length="2")
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    assert holds(plotted(test), curves["repeat_loss"][:, 1:]) and "Over **2 prompts**" in words(test)
    row = surgery.rows(curves, "repeat", results["surgery"][0]["random_layer"].tolist())[1]
    assert f"Layers **{row.best.layers}** run twice" in words(test) and row.length == 2
    assert row.random_layer == results["surgery"][0]["random_layer"][1]


def test_layers_left_out_of_a_gguf_model_are_a_command_of_llama_cpp(results, monkeypatch):
    packed = SimpleNamespace(file=Path("small.gguf"))
    monkeypatch.setattr(probe_page, "specs", SimpleNamespace(**vars(specs) | {"of_gguf": lambda spec: packed}))
    one = aggregate.aggregate(Surgery(order=ORDER, continued=4, seed=2), [results["surgery"][0].summary])
    row = surgery.rows(one, "drop", results["surgery"][0]["random_layer"].tolist())[1]
    for kind in surgery.KINDS:
        test = app(SURGERY, order=ORDER, continued="4", seed="2", map=kind, length="2")
        said = [code.value for code in test.code if code.value.startswith("llama-quantize")]
        left_out = ",".join(str(layer) for layer in range(5) if layer not in row.best.order(5))
        command = f"llama-quantize --prune-layers {left_out} small.gguf small-without-2-layers.gguf COPY"
        assert said == [command] * (kind == "drop"), "the order that was typed runs layer 2 twice"


def test_what_surgery_found_is_a_file_for_other_tools():
    best = surgery.Choice("repeat", 1, 3, 2.0, 0.1, 0.9)
    assert best.order(5) == [0, 1, 2, 1, 2, 3, 4] and best.layers == "1–2"
    text = surgery.passthrough(best.order(5), "a/b", {"loss": 2.0})
    slices = [line.strip() for line in text.splitlines() if "layer_range" in line]
    assert slices == ["layer_range: [0, 3]", "layer_range: [1, 5]"] and "passthrough" in text
    told = json.loads(surgery.order_list(5, [0, 3, 1], "a/b", {"loss": 2.0}))
    assert (told["order"], told["keep"], told["drop"]) == ([0, 3, 1], [0, 1, 3], [2, 4]) and told["measured"]
    assert surgery.Choice("swap", 1, 3, 0.0, 0.0, 0.0).order(5) == [0, 3, 2, 1, 4]
    assert surgery.Choice("drop", 1, 3, 0.0, 0.0, 0.0).order(5) == [0, 3, 4]


def test_a_bad_order_is_one_sentence_on_the_page(results):
    test = app(SURGERY, order="0-9")
    assert not test.exception
    assert [e.value for e in test.error] == ["surgery.order names layer 9; this model's layers are 0 to 4."]


def test_a_link_to_a_length_that_no_stretch_has_says_so(results):
    test = app(SURGERY, order=ORDER, continued="4", seed="2", length="200")
    told = "The link asks for the length '200', which is not here to show; another one is shown."
    assert [w.value for w in test.warning] == [told] and test.number_input(key="surgery.length").value == 5


def test_surgery_is_kept_with_all_its_figures(results, folder):  # noqa: F811
    case = save(app(SURGERY, order=ORDER, continued="4", seed="2"), "surgery", folder)
    drop, swap, repeat = drawings.SURGERY.values()
    assert [d.title for d in drawings.drawings(case)] == [
        drop,
        f"{drop}, by length of the stretch",
        swap,
        f"{swap}, by distance",
        repeat,
        f"{repeat}, by length of the stretch",
        "A typed order",
    ]


def test_open_live_shows_the_map_that_was_kept(results, folder):  # noqa: F811
    live = app(SURGERY, order=ORDER, continued="4", seed="2", map="swap", value="kl", length="2")
    test = case_page(save(live, "surgery", folder).id)
    test.button(key="case.live").click().run()
    assert holds(plotted(test), plotted(live)[0]) and test.number_input(key="surgery.length").value == 2


def test_writing_draws_and_says_what_is_stored(results, folder):  # noqa: F811
    one = results["generation"][0]
    test = app(WRITING, n_tokens="7", threshold="0.02", temperature="0.5")
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    assert holds(plotted(test), one["jsd"])
    values = {name: m.values for name, m in one.measures.items()}
    assert writing.sentence(values, 5, 0.02, sampled=True) in words(test)
    assert one.provenance["written"] in [code.value for code in test.code]
    assert drawn(test, "for good", one["settle_depth"])
    assert drawn(test, "deep-thinking ratio", one["deep_thinking_ratio"])
    case = save(test, "generation", folder)
    assert [d.title for d in drawings.drawings(case)] == ["While the model writes"]


def test_a_text_that_is_being_written_can_be_stopped(results, monkeypatch):
    """What is there so far is drawn with a button; pressed, the page asks for just these tokens and shows them."""
    spec, whole = resolve("small"), results["generation"][0]
    part = {
        name: replace(m, values=np.where(np.arange(7) < 3, m.values, -1 if m.values.dtype.kind == "i" else np.nan))
        for name, m in whole.measures.items()
        if m.spec.dims[-1:] == ("step",)
    }
    part = {name: replace(m, values=m.values.astype(whole[name].dtype)) for name, m in part.items()}
    partial = replace(whole, measures=part, complete=False, progress=3 / 7, summary={}, provenance={})
    asked = {"n_tokens": "7", "threshold": "0.02", "temperature": "0.5"}
    fewer = computed(Generation(n_tokens=3, threshold=0.02, temperature=0.5).request(spec, PROMPT))
    lookup.store().put(fewer)
    test = app(WRITING, **asked)
    session_of(test).batches["generation"].results["generation"] = partial
    test.run()
    assert not test.exception and not test.error
    assert "3 tokens written" in words(test) and holds(plotted(test), part["jsd"].values)
    text = "".join(whole.token_text[i] for i in whole["ids"][:3].tolist())
    assert text in [code.value for code in test.code]
    (button,) = [b for b in test.button if b.label == "Stop here"]
    button.click().run()
    assert session_of(test).inputs["generation.n_tokens"] == 3
    assert holds(plotted(test), fewer["jsd"]) and fewer["ids"].tolist() == whole["ids"][:3].tolist()
    assert not [b for b in test.button if b.label == "Stop here"]
    test.number_input(key="generation.n_tokens").set_value(7).run()
    assert session_of(test).inputs["generation.n_tokens"] == 3, "what the browser still says of before does not count"
    monkeypatch.setattr(inputs, "ECHO", 0.0)
    test.number_input(key="generation.n_tokens").set_value(7).run()
    assert session_of(test).inputs["generation.n_tokens"] == 7, "later it is a choice"


DEPTHS = "home.depths"
AS_STORED = {"n_tokens": "7", "threshold": "0.02", "temperature": "0.5"}


def test_home_shows_the_depth_of_each_token_where_one_asks(results, folder):  # noqa: F811
    one = results["generation"][0]
    test = app(**AS_STORED)
    assert not test.exception and not test.error and not holds(plotted(test), one["jsd"])
    test.toggle(key=DEPTHS).set_value(True).run()
    assert not test.exception and not test.error and holds(plotted(test), one["jsd"])
    values = {name: m.values for name, m in one.measures.items()}
    assert writing.sentence(values, 5, 0.02, sampled=True) in words(test)
    assert test.run().query_params["depths"] == "true" and test.query_params["n_tokens"] == "7"
    assert holds(plotted(app(depths="true", **AS_STORED)), one["jsd"]), "a link carries it"
    case = save(test, "home", folder)
    assert "While the model writes" in [d.title for d in drawings.drawings(case)]
    assert dict(case.items[0].shown.settings)["depths"] is True
    test.toggle(key=DEPTHS).set_value(False).run()
    assert not holds(plotted(test), one["jsd"])


@pytest.mark.parametrize("missing, begun", [((), 0), (("generation",), 1), (("generation", "layer_skip"), 0)])
def test_homes_depths_are_computed_at_once_where_nothing_else_is_missing(results, monkeypatch, missing, begun):
    submitted, find = [], lookup.find
    monkeypatch.setattr(lookup, "find", lambda request: None if request.probe in missing else find(request))
    monkeypatch.setattr(running, "submit", lambda batch: submitted.append(batch.missing))
    test = app(**AS_STORED)
    test.toggle(key=DEPTHS).set_value(True).run()
    assert not test.exception and submitted == [["generation"]] * begun


def test_the_shipped_example_has_its_depths_at_once_and_letters_where_they_fit(stored):
    low = figure_named(app(prompt=None, example="english-b", model="smollm2", depths="true"), "settled")
    assert low["layout"]["height"] == 260 and numbers(low["data"][0]["z"]).shape == (31, 21)
    assert not [t for t in low["data"] if t.get("name", "").startswith("letters")]
    roomy = figure_named(app(prompt=None, example=EXAMPLE, model="ed-demo-8", depths="true"), "settled")
    assert sum(len(t["text"]) for t in roomy["data"] if t.get("name", "").startswith("letters")) > 9
    assert roomy["layout"]["height"] == 260


def test_a_click_on_the_ruler_edits_the_order(results, monkeypatch):
    """The clicked cell comes from the browser; here it is handed to the page."""
    clicks, draw = [[0, 3]], show.draw

    def clicked(key, fig, alt, clickable=False, over=None):
        draw(key, fig, alt, clickable, over)
        return clicks.pop() if key == "order-ruler" and clicks else None

    monkeypatch.setattr(show, "draw", clicked)
    test = app(SURGERY)
    assert not test.exception and not test.error
    assert test.text_input(key="surgery.order").value == "0-2,4" and not clicks
    (row,) = [c for c in charts(test) if c["data"][0].get("name") == "layers"]
    assert numbers(row["data"][0]["z"]).tolist() == [[1, 1, 1, 0, 1]]
    for click, order in ((None, "0-2,4"), ([0, 1], "0,2,4")):
        clicks += [click] if click else []
        test.text_input(key="surgery.order").set_value("").run()  # a browser that has not heard of the first click
        assert test.text_input(key="surgery.order").value == order
    test.text_input(key="surgery.order").set_value("0,1,1").run()
    (row,) = [c for c in charts(test) if c["data"][0].get("name") == "layers"]
    assert numbers(row["data"][0]["z"]).tolist() == [[1, 2, 0, 0, 0]], "what is typed is what is drawn"
    clicks.append([0, 1])
    test.run()
    assert test.text_input(key="surgery.order").value == "0"


def test_how_this_prompt_compares_is_on_both_pages(results):
    for page, query in ((WRITING, {"n_tokens": "7", "threshold": "0.02", "temperature": "0.5"}), (SURGERY, ORDERED)):
        test = app(page, **query)
        assert not test.exception and not test.error and "#### How this prompt compares" in words(test)
        captions = [c.value for c in test.caption]
        titles = [c.title for c in (Generation if page == WRITING else Surgery).curves]
        assert all(any(c.startswith(f"{title}: this prompt") for c in captions) for title in titles), captions
    one = results["generation"][0]
    assert drawn(app(WRITING, n_tokens="7", threshold="0.02", temperature="0.5"), "this prompt", one["share_settled"])


def test_sentences_of_surgery():
    """Known figures, every branch."""
    nan = float("nan")
    drop = np.full((3, 4), nan)
    for (i, j), loss in {(0, 1): 9, (1, 2): 2.5, (2, 3): 3, (0, 2): 9, (1, 3): 4, (0, 3): 11}.items():
        drop[i, j] = loss
    same = {f"drop_{name}": drop for name in ("loss", "kl", "top1_kept")} | {"loss_whole": np.float32(2)}
    flat = np.ones((3, 4))
    late = np.where(np.arange(3)[:, None] == 2, 0.0, flat)
    curves = same | {"angular_distance": late, "block_influence": -drop * -1, "update_cosine": -drop}
    rows = surgery.rows(curves, "drop")
    assert [(r.length, r.n, r.best.i, r.median) for r in rows] == [(1, 3, 1, 3.0), (2, 2, 1, 6.5), (3, 1, 0, 11.0)]
    assert not any(row.alike for row in rows), "a single stretch is like no other"
    same_cost = surgery.rows(curves | {"drop_loss": np.where(np.isfinite(drop), 3.0, np.nan)}, "drop")
    assert [row.alike for row in same_cost] == [True, True, False]
    assert surgery.sentence(curves, "drop", same_cost) == (
        "Whichever layer is left out, the loss changes alike: 2 → 3 (+1) nats per token."
    )
    said = surgery.sentence(curves, "drop", rows)
    assert said == (
        "By loss, the cheapest layer to leave out is layer 1, on the text it was chosen on: 2 → 2.5 (+0.5) nats per "
        "token."
    )
    told = surgery.reasons(curves, "drop", rows)
    assert any(
        "Choosing by angular distance over all tokens finds the cheapest stretch at none of 2 lengths; its choice costs"
        in t
        for t in told
    )
    assert "Choosing by block influence over all tokens finds the cheapest stretch at 2 of 2 lengths." in told
    drop[2, 3] = np.inf
    told = surgery.reasons(curves, "drop", surgery.rows(curves, "drop"))
    broken = next(t for t in told if "at none of 2 lengths; at 1 its choice costs" in t)
    assert broken.endswith("; at 1 its choice gives no finite loss.")
    drop[2, 3] = 2.5  # as cheap as the cheapest
    alike = surgery.reasons(curves, "drop", surgery.rows(curves, "drop"))
    assert "angular distance over all tokens finds the cheapest stretch at 1 of 2 lengths; at the others" in alike[0]
    drop[2, 3] = 3
    assert surgery.added(curves, "drop", rows)["least"].tolist() == [0, 0.5, 2, 9]
    again = {f"repeat_{n}": drop for n in ("loss", "kl", "top1_kept")} | {
        "loss_whole": np.float32(2.6),
        "random_loss": np.array([2.55, 7, 8]),
    }
    found = surgery.rows(again, "repeat", [2, 1, 0])
    assert surgery.sentence(again, "repeat", found) == (
        "Running layer 1 twice lowers the loss, 2.6 → 2.5 (−0.1) nats per token: the best of 6 stretches, on the text "
        "it was chosen on."
    )
    assert surgery.reasons(again, "repeat", found) == [
        "Control: 1 further pass through layer 2, drawn at random, gives 2.6 → 2.55 (−0.05) nats per token."
    ]
    worse = surgery.sentence(again | {"loss_whole": np.float32(1)}, "repeat", found)
    assert worse == (
        "None of 6 stretches run twice lowers the loss; layer 1 costs least, 1 → 2.5 (+1.5) nats per token."
    )
    assert surgery.sentence(same, "drop", []) == "No variant of this kind gives a finite loss."
    assert surgery.reasons(same, "drop", []) == []
    assert surgery.parted([1, 2, 3], [1, 2, 3]) == "All 3 tokens match the whole model's."
    assert surgery.parted([1, 2, 3], [1, 2, 4]) == "The first 2 tokens match the whole model's."
    assert surgery.parted([1, 2], [1, 4]).startswith("The first token matches")
    assert "already" in surgery.parted([1], [2])


def test_sentences_of_writing():
    values = {
        "ids": np.array([5, 6, 7, -1]),
        "settle_depth": np.array([2, 4, 9, np.nan]),
        "exit_depth": np.array([10, 7, 4, np.nan]),
        "exit_agrees": np.array([1, 1, 0, np.nan]),
        "deep_thinking_ratio": np.array([0, 0, 1 / 3, np.nan]),
    }
    said = writing.sentence(values, 10, 0.9)
    assert said == (
        "Of 3 tokens written, at least half have their final best guess by depth 4 of 10; leaving at 0.9 confidence, "
        "depth 0 included, where the lens sees only the token just read, is not usable "
        "here (limit: a tenth): 1 of 3 tokens would change (above depth 0)."
    )
    sampled = writing.sentence(values, 10, 0.9, sampled=True)
    assert sampled.endswith("1 of 3 best guesses would change (above depth 0).")
    lost = values | {"exit_depth": np.array([0, 7, 0, np.nan]), "exit_agrees": np.array([0, 0, 0, np.nan])}
    assert writing.sentence(lost, 10, 0.9).endswith("3 of 3 tokens would change (2 of these at depth 0).")
    never = values | {"exit_depth": np.array([10.0, 10, 10, np.nan]), "exit_agrees": np.ones(4)}
    assert writing.sentence(never, 10, 0.9).endswith("; before the output the lens never reaches 0.9 confidence.")
    sure = values | {"exit_agrees": np.ones(4)}
    assert writing.sentence(sure, 10, 0.9).endswith(
        "would change no token, each token judged with the whole model's keys and values before it; the exit lies 3.0 "
        "layers before the output on average."
    )
    one = {name: v[:1] for name, v in values.items()}
    assert writing.sentence(one, 10, 0.9) == (
        "The one token written has its final best guess by depth 2 of 10; before the output the lens never "
        "reaches 0.9 confidence."
    )
    assert writing.sentence({"ids": np.array([-1])}, 10, 0.9) == "No token has been written yet."


@pytest.mark.parametrize("changed, usable", [(0, True), (1, True), (2, False), (19, False)])
def test_layers_spared_are_never_said_where_many_tokens_would_change(changed, usable):
    said = writing.leaving(20, changed, 0, 12.5, 0.9)
    assert ("not usable" in said) == (not usable) and ("12.5 layers before the output" in said) == usable
    assert f"{changed} of 20 tokens" in said or (not changed and "change no token" in said)


@pytest.mark.parametrize(
    "loss, d_vocab, said", [(3.25, 26, False), (3.27, 26, True), (math.nan, 26, False), (9.0, None, False)]
)
def test_a_text_that_the_model_predicts_worse_than_a_uniform_guess_says_so(loss, d_vocab, said):
    told = surgery.worse_than_uniform(loss, d_vocab)
    assert bool(told) is said and (not said or "(3.27 against 3.26 nats per token)" in told)


def exits_of(depths, agrees) -> ProbeResult:
    values, n = (
        {"exit_depth": np.asarray(depths, np.float32), "exit_agrees": np.asarray(agrees, np.float32)},
        len(agrees),
    )
    measures = {name: Measure(EarlyExit.spec(name), one) for name, one in values.items()}
    made = ProbeResult(Request((), (), "early_exit", (), 1), measures, ("t",) * n, (0,) * n, None, 12)
    return aggregate.summarize(made)


def test_leaving_over_prompts_is_counted_token_by_token():
    rng, n_layers = np.random.default_rng(3), 12
    prompts = [(rng.integers(0, n_layers + 1, n), rng.random(n) < 0.97) for n in (40, 7, 90)]
    long, kept = prompts[2]
    long[np.flatnonzero(~kept)[0]] = 0
    results = [exits_of(depths, agrees) for depths, agrees in prompts]
    changed = sum(1 for _, agrees in prompts for one in agrees if not one)
    at_0 = sum(1 for depths, agrees in prompts for d, one in zip(depths, agrees) if not one and d == 0)
    spared = sum(n_layers - int(d) for depths, _ in prompts for d in depths) / 137
    said = writing.of_prompts(results, 0.8)
    assert 0 < at_0 < changed < 13 and said == (
        f"Leaving at 0.8 confidence, depth 0 included, where the lens sees only the token just read, would change "
        f"{changed} of 137 best guesses ({at_0} of these at depth 0), each token judged with the whole "
        f"model's keys and values before it; the exit lies {spared:.1f} layers before the output on average."
    )
