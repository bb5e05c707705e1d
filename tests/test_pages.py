"""Every page through AppTest: what it draws is what is stored, what is wrong becomes one sentence, links open."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_models import computed
from streamlit.testing.v1 import AppTest

from ed_core import lookup
from ed_core.demo import MODELS
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
from ed_core.sources import resolve
from ed_core.types import Prompt

ROOT = Path(__file__).parent.parent
PROMPT = Prompt("5 + 7 + 5 + 3 + 1 + 7 = ", "28")
PAGES = {
    "pages/look/home.py": (Contributions(), LogitLens(), LayerSkip(), Continuation()),
    "pages/look/contributions.py": (Contributions(),),
    "pages/look/logit_lens.py": (LogitLens(),),
    "pages/intervene/skip.py": (LayerSkip(),),
    "pages/intervene/erase.py": (ResidualErasure(),),
    "pages/intervene/gradients.py": (IntegratedGradients(),),
    "pages/intervene/prune.py": (Prune(), EarlyExit(), LogitLens()),
}


@pytest.fixture(scope="module")
def stored(small_folder, tmp_path_factory):
    """A store that holds every page's results for one prompt on a small model; no worker is started."""
    import ed_ui.running
    from ed_core.jobs import Jobs

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(ed_ui.running, "Jobs", lambda: Jobs(warm=False))
        patch.setitem(
            MODELS, "small", small_folder
        )  # AppTest cannot hold a selectbox value that is not among its options
        lookup.store.cache_clear()
        ed_ui.running.jobs.clear()
        spec, results = resolve("small"), {}
        for probe in {p.name: p for probes in PAGES.values() for p in probes}.values():
            results[probe.name] = computed(probe.request(spec, PROMPT))
            lookup.store().put(results[probe.name])
        yield results
        lookup.store.cache_clear()
        ed_ui.running.jobs.clear()


def app(page="pages/look/home.py", prompt=PROMPT, model="small", **query) -> AppTest:
    """A fresh session in which a link to a page was opened, with this prompt in its box."""
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    if page != "pages/look/home.py":
        test.switch_page(page)
    test.query_params["model"] = model
    for name, value in query.items():
        test.query_params[name] = value
    if prompt is not None and "run" not in query:
        test.session_state["kept.text"], test.session_state["kept.answer"] = prompt.text, prompt.answer
    return test.run()


def plotted(test: AppTest) -> list[np.ndarray]:
    """`z` of every figure that has one, decoded from plotly's JSON."""
    found = []
    for chart in test.get("plotly_chart"):
        first = json.loads(chart.proto.spec)["data"][0]
        if first.get("name") == "z":
            z = first["z"]
            if isinstance(z, dict):
                z = np.frombuffer(b64decode(z["bdata"]), z["dtype"]).reshape([int(n) for n in z["shape"].split(",")])
            found.append(np.asarray(z, float))
    return found


def holds(figures: list[np.ndarray], expected: np.ndarray) -> bool:
    return any(z.shape == expected.shape and np.nanmax(np.abs(z - expected)) <= 1e-6 for z in figures)


def says_what_the_papers_saw(test: AppTest, page: str) -> bool:
    """And what to beware of, on every page of one probe."""
    texts = " ".join(c.value for c in test.caption)
    sources = "2605.14075" in texts or "2604.12426" in texts
    return "home" in page or all((sources, "**The papers saw:**" in texts, "et al." in texts, "**Beware:**" in texts))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_draws_exactly_what_is_stored(stored, page):
    test = app(page)
    assert not test.exception and not test.error and says_what_the_papers_saw(test, page)
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
            assert holds(figures, values[..., 0] if measure == "top_probs" else values), (
                f"{page} does not show {probe.name}.{measure}"
            )


def test_home_says_the_verdict_and_what_the_model_continues(stored):
    from ed_core import verdict

    test = app()
    said = " ".join(m.value for m in test.markdown)
    assert verdict.of_prompt(stored["contributions"], stored["logit_lens"]).sentence in said
    assert "The model continues" in said and "expected" in said
    assert test.run().query_params["run"] == stored["contributions"].request.key[:12], (
        "a first run's are put into the URL by the browser"
    )


def test_a_prompt_outside_what_the_models_know_is_marked(stored):
    mark = "outside what the bundled models know"
    assert any(mark in m.value for m in app(prompt=None, example="english-a").markdown)
    assert not any(mark in m.value for m in app(prompt=None, example="copy-3-a").markdown)


def test_a_long_answer_is_judged_to_its_end():
    """Nine letters take nine tokens: eight of them right are not yet an answer, and not a wrong one either."""
    from ed_core import verdict
    from ed_core.demo import load_prompts

    asked = next(p for p in load_prompts() if p["id"] == "copy-12-a")
    spec = resolve("ed-demo-8")
    result = computed(Continuation().request(spec, Prompt(asked["text"], asked["answer"])))
    assert len(result["ids"]) == 13 and verdict.right(result) is True


def test_a_link_to_a_stored_run_opens_its_prompt(stored):
    test = app(run=stored["contributions"].request.key)
    assert test.text_area[0].value == PROMPT.text
    assert holds(plotted(test), stored["layer_skip"]["effect"])


def test_a_link_brings_model_and_parameters_along(stored):
    probe = LayerSkip(mode="future", boundaries=(4, 8), part="attention")
    spec = resolve("small")
    result = computed(probe.request(spec, PROMPT))
    lookup.store().put(result)
    test = app("pages/intervene/skip.py", model="ed-demo-16", run=result.request.key)
    assert test.sidebar.selectbox(key="model").value == "small"
    assert test.segmented_control(key="layer_skip.mode").value == "future"
    assert test.text_input(key="layer_skip.boundaries").value == "4,8"
    assert holds(plotted(test), result["effect"])


def test_a_dead_link_says_so_and_loses_nothing(stored):
    test = app(run="0" * 32)
    assert not test.exception
    assert any("No stored result" in w.value for w in test.warning)


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_computed_teaches_and_starts_nothing(stored, page):
    test = app(page, prompt=Prompt("a=3; b=a; b?", "3"))
    assert not test.exception and not plotted(test)
    assert says_what_the_papers_saw(test, page)
    assert not test.get("plotly_chart") or "home" in page
    words = " ".join(e.value for e in [*test.markdown, *test.info])
    assert "Not computed yet" in words and "**Run**" in words


@pytest.mark.parametrize(
    "text, words",
    [("", "empty"), ("   ", "empty"), ("a\x07b", "control character"), ("x" * 2000, "2000 tokens and the ")],
)
def test_a_bad_prompt_is_said_beside_the_box(stored, text, words):
    test = app(prompt=Prompt(text))
    assert not test.exception
    assert any(words in c.value for c in test.caption)


@pytest.mark.parametrize(
    "model, words",
    [("/no/such/folder", "no folder"), ("x y z", "not a hub id"), ("![x](http://127.0.0.1/x.png)", "no folder")],
)
def test_a_model_that_cannot_be_had_is_one_sentence_in_the_sidebar(stored, model, words):
    test = app(model=model)
    assert not test.exception
    errors = [e.value for e in test.sidebar.error]
    assert len(errors) == 1 and words in errors[0] and "Traceback" not in errors[0]
    assert "![" not in errors[0].replace("\\!\\[", ""), "a stranger's Markdown is shown, not rendered"


def test_controls_change_what_is_shown_not_what_is_stored(stored):
    test = app()
    test.segmented_control(key="branch").set_value("attention").run()
    figures = plotted(test)
    assert holds(figures, stored["contributions"]["attn_ratio"]) and holds(figures, stored["contributions"]["attn_cos"])
    test.selectbox(key="shade").set_value("KL to output").run()
    assert holds(plotted(test), stored["logit_lens"]["kl"])


def test_the_preview_shows_the_models_own_tokens(stored):
    from ed_core import tokens

    result = stored["contributions"]
    assert tuple(tokens.preview(result.request.models[0], PROMPT)) == result.tokens
    test = app()
    test.toggle(key="special_tokens").set_value(False).run()
    assert not test.exception and not plotted(test), "another encoding is another prompt"


def test_harder_steps_up_the_same_task(stored):
    test = app(prompt=None)
    before = test.session_state["example"]
    test.button(key="harder").click().run()
    from ed_ui.scope import examples

    known = examples()
    after = known[test.session_state["example"]]
    assert after["task"] == known[before]["task"] and after["difficulty"] > known[before]["difficulty"]


@pytest.mark.parametrize("page", ["pages/intervene/erase.py", "pages/intervene/gradients.py"])
def test_without_an_answer_the_models_own_is_offered(stored, page):
    question = Prompt(PROMPT.text)
    request = Continuation(n_tokens=2).request(resolve("small"), question)
    lookup.store().put(computed(request))
    test = app(page, prompt=question)
    assert not test.exception and not plotted(test)
    use = next(b for b in test.button if b.label.startswith("Use"))
    use.click().run()
    assert test.text_input(key="answer").value == lookup.find(request).provenance["continuation"]
    assert not test.exception


def test_a_parameter_that_cannot_be_is_refused_on_the_page(stored):
    test = app("pages/intervene/skip.py")
    test.text_input(key="layer_skip.boundaries").set_value("a,b").run()
    assert any("whole numbers" in e.value for e in test.error)


def test_hostile_prompts_do_not_break_a_page(stored):
    for text in (
        "<script>alert(1)</script>",
        "`code` **bold** $x^2$ :red[x] ![i](http://127.0.0.1/i.png)",
        "{{7*7}} %s {0}",
        "\u202eabc",
        "好" * 20,
    ):
        test = app(prompt=replace(PROMPT, text=text))
        assert not test.exception


def test_without_a_usable_store_the_pages_still_work_and_say_so(stored, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ED_CACHE", str(blocked))
    lookup.store.cache_clear()
    try:
        test = app()
        assert not test.exception
        assert any(str(blocked) in w.value.replace("\\", "") for w in test.sidebar.warning)
    finally:
        lookup.store.cache_clear()


@pytest.mark.parametrize("setting", ["512", "2048"])
def test_a_prompt_that_is_too_long_is_said_before_the_button(stored, monkeypatch, setting):
    monkeypatch.setenv("ED_MAX_TOKENS", setting)  # the model has 512 positions
    test = app(prompt=Prompt("1 + 2 = 3\n" * 120, ""))
    assert not test.exception and test.button(key="run.home").disabled
    assert any("the model has 512 positions" in c.value for c in test.caption)
