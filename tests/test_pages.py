"""Every page through AppTest: what it draws is what is stored, what is wrong becomes one sentence, links open."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from charts import charts, fresh, numbers, words
from small_models import computed
from streamlit.testing.v1 import AppTest

from ed_core.depth import say
from ed_core.depth.sample import Sample
from ed_core.depth.verdict import verdict
from ed_core.models import tokens
from ed_core.models.ref import ModelRef
from ed_core.probes import (
    Continuation,
    Contributions,
    EarlyExit,
    IntegratedGradients,
    LayerSkip,
    LogitLens,
    Prune,
    ResidualErasure,
)
from ed_core.results import lookup
from ed_core.types import Prompt
from ed_ui import picker, running, session, show

ROOT = Path(__file__).parent.parent
PROMPT = Prompt("5 + 7 + 5 + 3 + 1 + 7 = ", "28")
PAGES = {
    "pages/prompt/home.py": (Contributions(), Continuation(), LogitLens(), LayerSkip()),
    "pages/prompt/contributions.py": (Contributions(),),
    "pages/prompt/logit_lens.py": (LogitLens(),),
    "pages/intervene/skip.py": (LayerSkip(),),
    "pages/intervene/erase.py": (ResidualErasure(),),
    "pages/intervene/gradients.py": (IntegratedGradients(),),
    "pages/intervene/prune.py": (Prune(), EarlyExit(), LogitLens()),
}


def session_of(test: AppTest) -> session.Session:
    """What the session remembers; made here where the app has not run yet."""
    if session.KEY not in test.session_state:
        test.session_state[session.KEY] = session.Session()
    return test.session_state[session.KEY]


def app(page="pages/prompt/home.py", prompt=PROMPT, model="small", **query) -> AppTest:
    """A fresh session in which a link to a page was opened, with this prompt in its box."""
    test = fresh("" if page == "pages/prompt/home.py" else page, model=model, **query)
    if prompt is not None and "run" not in query:
        session_of(test).inputs.update(text=prompt.text, answer=prompt.answer)
    return test.run()


def plotted(test: AppTest) -> list[np.ndarray]:
    """`z` of every figure that has one."""
    return [numbers(spec["data"][0]["z"]) for spec in charts(test) if spec["data"][0].get("name") == "z"]


def holds(figures: list[np.ndarray], expected: np.ndarray) -> bool:
    return any(z.shape == expected.shape and np.nanmax(np.abs(z - expected)) <= 1e-6 for z in figures)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_draws_exactly_what_is_stored(stored, page):
    test = app(page)
    assert not test.exception and not test.error
    figures = plotted(test)
    wanted = {
        "contributions": ["layer_ratio", "layer_cos"] if "home" in page else ["layer_ratio"],
        "logit_lens": [] if "prune" in page else ["top_probs"],
        "residual_erasure": ["effect"],
        "integrated_gradients": ["attribution"],
        "layer_skip": ["effect"] if "home" in page else ["effect", "output_pos"],
    }
    for probe in PAGES[page]:
        for measure in wanted.get(probe.name, []):
            values = stored[probe.name][measure]
            assert holds(figures, values[..., 0] if measure == "top_probs" else values), measure


def test_the_answers_course_is_its_rank_in_the_lens_and_says_where_it_leads(stored):
    lens = stored["logit_lens"]
    [rank] = [t for spec in charts(app()) for t in spec["data"] if t["name"] == "rank"]
    ranks = numbers(rank["y"])
    places = range(lens.answer_start - 1, lens.n_tokens - 1)
    wrong = [at for at in places if lens["top_ids"][-1, at, 0] != lens.token_ids[at + 1]]
    np.testing.assert_allclose(ranks, lens["rank"][:, wrong[0]])
    assert ranks[-1] == 1, "the output's own first choice"


def test_home_says_the_verdict_and_what_the_model_continues(stored):
    test = app()
    said = " ".join(m.value for m in test.markdown)
    reached = verdict(Sample.of(stored["contributions"], stored["logit_lens"]))
    assert "small says “" in said and "not “28”" in said
    assert f"settle by layer {reached.means['kl'].depth:.0f} on average" in said
    table = unescape(" ".join(one.proto.body for one in test.get("html")))
    assert all(f">{cell}</td>" in table for row in say.rule_table(reached) for cell in row.values())
    assert "The model writes" in said and "expected" in said
    assert test.query_params["run"] == stored["contributions"].request.key[:12]


def strips(test: AppTest) -> list[np.ndarray]:
    return [numbers(t["x"]) for spec in charts(test) for t in spec["data"] if t.get("name") == "mean"]


def test_means_leave_out_sinks_and_the_first_token_as_asked(stored):
    real = dict(prompt=None, example="english-b", model="smollm2")  # which has sinks
    test = app("pages/prompt/contributions.py", **real)
    whole = plotted(test)[0].mean(1)
    assert not holds(strips(test), whole)
    test.toggle(key="count_sinks").set_value(True).run()
    assert holds(strips(test), whole)
    drawn, values = strips(app("pages/prompt/contributions.py", first_token="false")), stored["contributions"]
    assert holds(drawn, values["layer_ratio"][:, 1:].mean(1)) and not holds(drawn, values["layer_ratio"].mean(1))


def test_a_link_brings_prompt_model_and_parameters_along(stored):
    probe = LayerSkip(mode="future", boundaries=(4, 8), part="attention")
    result = computed(probe.request(ModelRef.parse("small"), PROMPT))
    lookup.store().put(result)
    test = app("pages/intervene/skip.py", model="ed-demo-16", run=result.request.key)
    assert test.selectbox(key="model").value == "small" and test.text_area[0].value == PROMPT.text
    assert test.segmented_control(key="layer_skip.mode").value == "future"
    assert test.text_input(key="layer_skip.boundaries").value == "4,8"
    assert holds(plotted(test), result["effect"])
    test.text_input(key="layer_skip.boundaries").set_value("a,b").run()
    assert any("whole numbers" in e.value for e in test.error), "what cannot be is refused on the page"


def test_a_dead_link_says_so_and_loses_nothing(stored):
    test = app(run="0" * 32)
    assert not test.exception
    assert any("No stored result" in w.value for w in test.warning)


@pytest.mark.parametrize("page", ["pages/prompt/home.py", "pages/intervene/skip.py"])
def test_what_is_not_computed_teaches_and_starts_nothing(stored, page):
    test = app(page, prompt=Prompt("a=3; b=a; b?", "3"))
    assert not test.exception and not plotted(test)
    assert not charts(test) or "home" in page
    words = " ".join(e.value for e in [*test.markdown, *test.info])
    assert "Not computed yet" in words and "**Run**" in words


@pytest.mark.parametrize(
    "text, words",
    [("", "empty"), ("a\x07b", "control character"), ("1 + 2 = 3\n" * 120, "the model has 512 positions")],
)
def test_a_bad_prompt_is_said_beside_the_box(stored, monkeypatch, text, words):
    monkeypatch.setenv("ED_MAX_TOKENS", "2048")
    test = app(prompt=Prompt(text))
    assert not test.exception and test.button(key="run.home").disabled
    assert any(words in c.value for c in test.caption)


def test_hostile_prompts_do_not_break_a_page(stored):
    text = "<script>alert(1)</script> `code` **bold** :red[x] ![i](http://127.0.0.1/i.png) {{7*7}} %s {0} \u202eabc 好"
    assert not app(prompt=replace(PROMPT, text=text)).exception
    assert show.token("a`b") == "`aˋb`", "a token cannot end its code"


@pytest.mark.parametrize("model, words", [("x y z", "not a hub id"), ("![x](http://127.0.0.1/x.png)", "no folder")])
def test_a_model_that_cannot_be_had_is_one_sentence_on_top(stored, model, words):
    test = app(model=model)
    assert not test.exception
    errors = [e.value for e in test.error]
    assert len(errors) == 1 and words in errors[0] and "Traceback" not in errors[0]
    assert "![" not in errors[0].replace("\\!\\[", ""), "a stranger's Markdown is shown, not rendered"


def test_the_preview_shows_the_models_own_tokens(stored):
    result = stored["contributions"]
    assert tokens.preview(result.request.models[0], PROMPT).tokens == result.tokens
    test = app()
    test.toggle(key="special_tokens").set_value(False).run()
    assert not test.exception and not plotted(test), "another encoding is another prompt"


def held(test: AppTest) -> tuple[str, str]:
    inputs = session_of(test).inputs
    return inputs["text"], inputs["answer"]


def test_an_edited_example_loses_its_answer_and_what_was_there_can_be_had_back(stored):
    test = app(prompt=None)
    before = held(test)
    assert before[1] and "undo" not in {b.key for b in test.button}
    test.text_area(key="text").input(before[0] + "1 + 2 = ").run()
    assert held(test) == (before[0] + "1 + 2 = ", "") and session_of(test).inputs["example"] == ""
    test.text_input(key="answer").input("3").run()
    assert held(test)[1] == "3", "an answer of one's own stays"
    test.button(key="undo").click().run()
    assert held(test) == before and session_of(test).inputs["example"]
    assert "undo" not in {b.key for b in test.button}
    test = app(prompt=Prompt("words of mine", "too"))
    test.selectbox(key="examples").set_value("copy-3-a").run()
    assert session_of(test).inputs["example"].startswith("copy") and held(test)[0] != "words of mine"
    test.button(key="undo").click().run()
    assert held(test) == ("words of mine", "too") and session_of(test).inputs["example"] == ""


def test_an_edited_examples_answer_does_not_come_back_with_a_press_that_knows_nothing_of_it(stored, monkeypatch):
    """A press on Run right after the typing says again what the answer's box held before; who types it without a press
    means it."""
    test = app(prompt=None, model="ed-demo-8", example="copy-3-a")
    answer = held(test)[1]
    monkeypatch.setattr(running, "submit", lambda batch: None)
    for pressed in (True, False):
        test.text_area(key="text").set_value("words of mine").run()
        assert held(test) == ("words of mine", "") and answer
        if pressed:
            test.button(key="run.home").click()
        test.text_input(key="answer").set_value(answer).run()
        assert held(test) == ("words of mine", "" if pressed else answer)


def test_a_model_that_cannot_be_had_leaves_the_last_figures_and_is_said_once(stored, monkeypatch):
    known = picker.names()
    monkeypatch.setattr(picker, "names", lambda: [*known, "/nowhere/at/all"])
    test = app()
    before = plotted(test)
    session_of(test).inputs["model"] = "/nowhere/at/all"
    test.run()
    assert len(before) == len(plotted(test)) >= 4 and all(holds(plotted(test), z) for z in before)
    assert ["small" in i.value for i in test.info] == [True]
    assert len(test.error) == 1 and "nowhere" in test.error[0].value
    session_of(test).inputs["model"] = "small"
    assert not test.run().info and not test.error


def test_an_example_that_takes_little_time_runs_by_itself(stored, monkeypatch):
    ran, seconds, of = [], 1.9, running.outlook
    monkeypatch.setattr(running, "submit", lambda batch: ran.append(batch.page))
    monkeypatch.setattr(running, "outlook", lambda *a: replace(of(*a), seconds=seconds))
    test = app(prompt=Prompt("words of mine", "too"))
    assert not ran, "what a link or a typist puts there waits for Run"
    test.selectbox(key="examples").set_value("copy-3-a").run()
    test.run()
    assert ran == ["home"], "once"
    seconds = 2.1
    test.selectbox(key="examples").set_value("lookup-2-a").run()
    assert ran == ["home"], "what takes longer waits for Run"


def test_a_selected_token_shows_its_best_tokens_on_the_lens(stored):
    """At every depth, the output on top."""
    test = app("pages/prompt/logit_lens.py", token="3")
    table, *_ = test.dataframe
    lens = stored["logit_lens"]
    assert table.value["after layer"].tolist() == list(range(lens.n_layers, -1, -1))
    shares = [say.share(float(p)) for p in lens["top_probs"][::-1, 3, 0]]
    assert all(cell.endswith(f" {share}") for cell, share in zip(table.value["1"], shares, strict=True))


def test_without_an_answer_the_models_own_is_offered(stored):
    page, name = "pages/intervene/erase.py", "residual_erasure"
    question = Prompt(PROMPT.text)
    request = Continuation(n_tokens=2).request(ModelRef.parse("small"), question)
    lookup.store().put(computed(request))
    test = app(page, prompt=question)
    assert not test.exception and not plotted(test)
    typed = app(page, prompt=question)
    typed.text_input(key="answer").set_value("12")
    typed.button(key=f"run.{name}").click().run()  # typing and pressing Run reach the server together
    asked = session_of(typed).batches[name]
    assert asked.jobs or asked.results or asked.errors, "it runs at once"
    use = next(b for b in test.button if b.label.startswith("Use"))
    use.click().run()
    assert test.text_input(key="answer").value == lookup.find(request).provenance["continuation"]
    assert not test.exception


def test_without_a_usable_store_the_pages_still_work_and_say_so(stored, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ED_CACHE", str(blocked))
    lookup.store.cache_clear()
    try:
        test = app()
        assert not test.exception
        assert any(str(blocked) in w.value.replace("\\", "") for w in test.warning)
    finally:
        lookup.store.cache_clear()


def test_a_page_that_fails_says_one_sentence_and_keeps_everything(stored, monkeypatch, failures):
    test = app("pages/prompt/logit_lens.py")
    test.text_area(key="text").set_value("typed").run()
    with monkeypatch.context() as patch:
        patch.setattr("ed_ui.link.say_troubles", lambda: 1 / 0)
        test.run()
        assert test.run().selectbox(key="model").value == "small", "the box of models stays"
    assert not test.exception and not test.text_area
    (record,) = failures  # the same failure is logged once
    failures.clear()
    id, _, told = record.getMessage().partition("\n")
    assert "ZeroDivisionError" in told and "say_troubles" in told
    (error,) = test.error
    assert f"**{id}**" in error.value and len(id) == 8 and "\n" not in error.value
    test.run()
    assert not test.error and test.text_area(key="text").value == "typed"
    test.text_area(key="text").set_value(PROMPT.text).run()
    test.text_input(key="answer").set_value(PROMPT.answer).run()
    assert not test.error and plotted(test)


def test_home_judges_by_the_thresholds_that_are_set(stored):
    """Both off their defaults and far apart: swapped, there would be no KL depth. What has no threshold stays."""
    test = app(prompt=None, model="ed-demo-8", kl="0.75", overlap="0.1")
    assert "rules say no layer, layer 3 and layer 2 in the papers' count;" in words(test)
    usual = app(prompt=None, model="ed-demo-8")
    lines = [m.value for page in (test, usual) for m in page.markdown if " settle by layer " in m.value]
    assert len(lines) == 2 and lines[0] == lines[1] and "untrained copies" in lines[0]
    assert not any("untrained copies" in button.label for button in usual.button), "shipped copies are offered again"


def test_a_page_shows_the_shade_and_marks_the_token_of_its_link(stored):
    test = app("pages/prompt/logit_lens.py", shade="kl", token="2")
    assert holds(plotted(test), stored["logit_lens"]["kl"])
    boxes = [shape for spec in charts(test) for shape in spec["layout"].get("shapes", ()) if shape["type"] == "rect"]
    assert boxes and {(box["x0"], box["x1"]) for box in boxes} == {(1.5, 2.5)}


def test_run_pressed_before_the_browser_has_the_edit_keeps_what_was_typed(stored):
    """With Run it sends once more the example, and its answer, that the edit took along."""
    test = app(prompt=None, model="ed-demo-8", example="copy-3-a")
    before = {key: test.session_state[key] for key in ("examples", "answer")}
    test.text_area(key="text").set_value("4 + 5 = ").run()
    test.selectbox(key="examples").set_value(before["examples"])
    test.text_input(key="answer").set_value(before["answer"])
    test.button(key="run.home").click().run()
    assert test.text_area(key="text").value == "4 + 5 = " and not test.text_input(key="answer").value
