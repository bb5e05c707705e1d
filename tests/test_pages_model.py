"""The room *Model*: it says what the card holds; what was measured on a prompt is drawn; Run asks for a card."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from charts import charts, forget, fresh, numbers, words
from small_models import computed, save_random
from test_pages import PROMPT, app, holds, plotted

from ed_core.cards import card
from ed_core.depth import say
from ed_core.models.bundled import MODELS
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, Loops, Numerics
from ed_core.results import lookup
from ed_core.results.aggregate import aggregate, summarize
from ed_core.types import Prompt
from ed_core.work.runs import study as long_work
from ed_ui import runs

PAGE = "pages/model/model.py"


def html(test) -> str:
    return "\n".join(e.proto.body for e in test.get("html"))


def shipped(model: str):
    return next(one for one in map(card.read, card.shipped()) if one.model.name == model)


def test_a_models_card_is_its_page(laboratory):
    test = fresh(PAGE, model="ed-demo-8", precision="fp32").run()
    assert not test.exception and not test.error, (test.exception, [e.value for e in test.error])
    told = shipped("ed-demo-8")
    assert say.layers(told.depth("kl", True).depth, 8) in words(test)
    course = charts(test)[0]
    np.testing.assert_allclose(numbers(course["data"][1]["y"]), told.curves["kl"]["model"].values)
    for one in told.claims:
        assert one.title in html(test), one.id


def test_a_strangers_words_in_a_card_stay_words(laboratory):
    told = shipped("ed-demo-8")
    evil = told.but(claims=(told.claims[0].but(title="<b>no</b>"), *told.claims[1:]))
    (laboratory / "cards" / "evil").mkdir(parents=True)
    (laboratory / "cards" / "evil" / card.FILE).write_bytes(card.to_json(evil))
    test = fresh(PAGE, model="ed-demo-8", card="evil").run()
    assert not test.exception and "&lt;b&gt;no" in html(test) and "<b>no</b>" not in html(test)


def test_run_asks_for_a_card_on_the_chosen_prompts(laboratory, monkeypatch):
    begun = []
    monkeypatch.setattr(runs, "begin", lambda folder, title, files, *work: begun.append((folder, files, *work)))
    test = fresh(PAGE, model="ed-demo-8", precision="fp32", set="copy").run()
    test.button(key="run.cards").click().run()
    ((out, _, work, asked, _),) = begun
    wanted = runs.Card(ModelRef.parse("ed-demo-8"), "copy")
    assert out == wanted.out and work is long_work.card and (asked.model, asked.prompts) == ("ed-demo-8", "copy")
    typed = runs.Card(ModelRef.parse("ed-demo-8"), "", (Prompt("1 + 1 = ", "2"),), ("ed-demo-16",))
    typed.begin()
    assert begun[-1][3].prompts == str(typed.out / runs.PROMPTS) and begun[-1][3].also == ("ed-demo-16",)


def test_all_models_are_in_one_table(laboratory):
    test = fresh("pages/model/models.py").run()
    assert not test.exception and not test.error
    (frame,) = (one.value for one in test.dataframe)
    assert set(frame["model"]) == {card.read(file).model.name for file in card.shipped()}


def test_the_sums_of_a_prompt_are_drawn_and_an_error_says_so(stored):
    spec = ModelRef.parse("small")
    result = computed(Numerics().request(spec, PROMPT))
    for one in (result, computed(Contributions().request(spec, PROMPT))):
        lookup.store().put(one)
    test = app(PAGE)
    assert not test.exception and not test.error and holds(plotted(test), result["miss"])
    assert say.checks(result) in words(test)
    asked = replace(PROMPT, text="5 + 7 = ")
    other = computed(Numerics().request(spec, asked))
    wrong = replace(other.measures["miss"], values=np.full_like(other["miss"], 0.5))
    lookup.store().put(summarize(replace(other, measures={**other.measures, "miss": wrong})))
    test = app(PAGE, prompt=asked)
    assert not test.exception and [e.value[:20] for e in test.error] == ["1 of 5 checks failed"]


def test_what_is_drawn_of_loops_is_what_is_stored(stored, tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "looped", save_random(tmp_path / "looped", "looped", n_loops=3))
    forget()
    result = computed(Loops().request(ModelRef.parse("looped"), PROMPT))
    lookup.store().put(result)
    test = app(PAGE, model="looped")
    forget()
    assert not test.exception and not test.error
    values = aggregate(Loops(), [result.summary])
    assert say.loops(values) in words(test)
    drawn = [numbers(one["data"][0]["y"]) for one in charts(test)]
    expected = (
        values["readout_kl"][3, :4],
        [np.nan, *values["times_kl"][1:]],
        [np.nan, *values["times_loss"][1:]],
        values["block_skip_kl"],
        [np.nan, *values["fixed_point"].reshape(2, -1).mean(1)],
        values["update_norm"],
    )
    for mine, theirs in zip(drawn, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
