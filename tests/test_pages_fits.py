"""The pages of what is fitted, Maps and Fitted lenses, and Home's choice of lens: they draw what is stored or what the
command writes, run it, stop it, and open its files."""

from __future__ import annotations

import numpy as np
import pytest
from charts import charts, fresh, numbers, traces, words
from streamlit.testing.v1 import AppTest
from workers import until

from ed_core.depth import lenses, matching, say
from ed_core.errors import StudyError
from ed_core.lenses import measured
from ed_core.models.bundled import EXAMPLE, load_prompts
from ed_core.models.ref import ModelRef
from ed_core.probes import Lenses
from ed_core.results import lookup
from ed_core.types import Prompt
from ed_ui import prompt_set, runs

pytestmark = pytest.mark.usefixtures("laboratory")

MIXED = runs.distinct([Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts()])


def page(**query) -> AppTest:
    own = {"model": "ed-demo-8", "precision": "fp32", "second_precision": "fp32"}
    return fresh("pages/compare/maps.py", **(own | query)).run()


def wanted(*names: str) -> runs.Fitted:
    return runs.Fitted(tuple(ModelRef.parse(name) for name in names), MIXED)


def stored(of: runs.Fitted) -> measured.Maps | measured.Replacement:
    """Some numbers where the page looks for those of this fit."""
    draw = np.random.default_rng(0)
    told = {side: {"name": model.name} for side, model in zip("ab", of.models)} | {"notes": ["so few."]}
    if of.kind == "maps":
        error, r2 = (draw.uniform(0.2, 0.9, (9, 17)) for _ in range(2))
        controls = dict(error_mean=np.full(17, 0.95), r2_mean=np.zeros(17))
        found = measured.Maps(error, r2, error + 0.05, r2 - 1, **controls, tokens=400, test_tokens=90, certificate=told)
    else:
        told = {"model": {"name": of.models[0].name}, "notes": []}
        curves = (draw.uniform(2, 3, 8) for _ in range(3))
        loss, fitted, error = curves
        found = measured.Replacement(loss, fitted, 2.0, 2.1, error, 400, 90, told)
    of.out.mkdir(parents=True)
    (of.out / runs.FOUND).write_bytes(measured.packed(found))
    return found


def test_the_page_draws_what_is_stored_and_says_what_it_means():
    found = stored(wanted("ed-demo-8", "ed-demo-16"))
    test = page(second="ed-demo-16", shown="r2")
    assert not test.exception and not test.error
    assert say.matching(found).split(" (")[0] in words(test) and "so few" in words(test)
    assert "Fitted on 400 tokens, judged on 90" in words(test)
    drawn = traces(*charts(test))
    assert np.allclose(numbers(drawn["z"]["z"]), found.r2)
    assert np.allclose(numbers(drawn["best"]["x"]), matching.match(found, "r2").best)
    assert np.allclose(numbers(drawn["best match"]["y"]), matching.match(found).error)
    test.segmented_control(key="maps.measure").set_value("error").run()
    assert np.allclose(numbers(traces(*charts(test))["z"]["z"]), found.error)
    test.segmented_control(key="maps.measure").set_value("shuffled").run()
    drawn = traces(*charts(test))
    assert np.allclose(numbers(drawn["z"]["z"]), found.error_shuffled) and "best" not in drawn

    assert not {"run.maps", "cancel.maps"} & {b.key for b in test.button}, "nothing is left to run"


def test_replacement_is_drawn_in_per_cent_of_the_loss():
    found = stored(wanted("ed-demo-8"))
    test = page(maps="within")
    assert not test.exception and not test.error
    drawn = traces(*charts(test))
    assert np.allclose(numbers(drawn["held-out prompts"]["y"]), 100 * (found.loss / 2.0 - 1))
    assert np.allclose(numbers(drawn["prompts fitted on"]["y"]), 100 * (found.loss_fitted / 2.1 - 1))
    assert say.replacement(found) in words(test)


def test_the_command_it_shows_is_what_it_runs():
    test = page(second="ed-demo-8", second_control="shuffled", second_seed="3")
    (code,) = [c.value for c in test.code if "ed_core fit" in c.value]
    assert "--other ed-demo-8 --other-precision fp32 --other-control shuffled --other-seed 3" in code
    assert "of memory" in words(test)


def test_run_fits_and_cancel_ends_it(monkeypatch):
    few = MIXED[::6]
    monkeypatch.setattr(prompt_set, "to_fit", lambda *_: list(few))
    of = runs.Fitted((ModelRef.parse("ed-demo-8"),), few)
    test = page(maps="within")
    assert not test.button(key="run.maps").disabled and "is not measured yet" in words(test)
    test.button(key="run.maps").click().run()
    assert runs.under_way(of.out) and not test.button(key="cancel.maps").disabled
    with pytest.raises(StudyError, match="under way already"):
        of.begin()
    test.button(key="cancel.maps").click().run()
    until(lambda: not runs.under_way(of.out))
    assert of.found() is None and runs.of(of.out).state == "cancelled"
    assert page(maps="within").button(key="run.maps").label == "Resume"
    of.begin()
    until(lambda: not runs.under_way(of.out))
    assert runs.of(of.out).state == "done" and of.found().loss.shape == (8,)
    assert "raises the loss" in words(page(maps="within"))


@pytest.mark.process
def test_why_a_fit_failed_is_said():
    of = runs.Fitted((ModelRef.parse("ed-demo-8"),), tuple(Prompt(f"{i} + 1 = ") for i in range(5)))
    of.begin()
    until(lambda: not runs.under_way(of.out))
    assert "needs more tokens than dimensions" in str(runs.of(of.out).error) and of.found() is None


BOTH = "ed-demo-8-affine,ed-demo-8-jacobian"


def opened(page: str, **query: str) -> AppTest:
    app = fresh(f"pages/prompt/{page}.py", **query).run()
    assert not app.exception
    return app


def test_the_page_opens_on_the_stored_example_with_all_bundled_lenses():
    app = opened("lenses", model="ed-demo-8", example=EXAMPLE)
    assert app.pills(key="lenses.box").value == BOTH.split(",")
    known = next(p for p in load_prompts() if p["id"] == EXAMPLE)
    prompt = Prompt(known["text"], known["answer"])
    result = lookup.find(Lenses(fit=BOTH).request(ModelRef.parse("ed-demo-8"), prompt))
    drawn = [fig for fig in charts(app) if fig["data"] and fig["data"][0].get("name") == "z"]
    assert len(drawn) == 3
    for fig, lens in zip(drawn, ("logit", "affine", "jacobian")):
        assert np.allclose(numbers(fig["data"][0]["z"]), result[f"{lens}_top_probs"][..., 0], equal_nan=True)
    assert say.by_lens(lenses.by_lens([result]).verdicts) in words(app)
    assert sum("Certificate of" in one.label for one in app.expander) == 2


def test_a_token_is_followed_by_what_is_typed_and_forgotten_with_it():
    app = opened("lenses", model="ed-demo-8", example=EXAMPLE)
    app.text_input(key="lenses.text").set_value("12").run()
    assert any("2 tokens; the first is followed" in one.value for one in app.caption)
    assert "follow" in app.query_params
    app.text_input(key="lenses.text").set_value("").run()
    assert "follow" not in app.query_params and not app.exception


def test_a_link_names_fits_and_never_a_path():
    app = opened("lenses", model="ed-demo-8", example=EXAMPLE, fits="ed-demo-8-affine")
    assert app.pills(key="lenses.box").value == ["ed-demo-8-affine"]
    app = opened("lenses", model="ed-demo-8", fits="/etc/passwd")
    assert any("a link cannot give a path" in one.value for one in (*app.warning, *app.info, *app.error))
    app = opened("lenses", model="ed-demo-8", example=EXAMPLE, fits="ed-demo-8-affine,nowhere")
    assert "lens 'nowhere', which is not here" in words(app)
    assert app.pills(key="lenses.box").value == ["ed-demo-8-affine"]
