"""The tab Fitted lenses, and Home's choice of lens: what they ask for, and that what they draw is what is stored."""

from __future__ import annotations

import numpy as np
import pytest
from charts import charts, fresh, numbers, words
from streamlit.testing.v1 import AppTest
from test_pages_maps import until

from ed_core import fits
from ed_core.depth import lenses
from ed_core.probes import Lenses
from ed_core.results import lookup
from ed_core.service.resolve import resolve
from ed_core.sources.bundled import EXAMPLE, load_prompts
from ed_core.types import Prompt
from ed_ui import runs, show

pytestmark = pytest.mark.usefixtures("forks", "laboratory")

BOTH = "ed-demo-8-affine,ed-demo-8-jacobian"


def opened(page: str, **query: str) -> AppTest:
    app = fresh(**query).run()
    app.switch_page(f"pages/prompt/{page}.py").run()
    assert not app.exception
    return app


def shipped():
    known = next(p for p in load_prompts() if p["id"] == EXAMPLE)
    return lookup.find(Lenses(fit=BOTH).request(resolve("ed-demo-8"), Prompt(known["text"], known["answer"])))


def test_the_page_opens_on_the_stored_example_with_all_bundled_lenses():
    app = opened("lenses", model="ed-demo-8", example=EXAMPLE)
    assert app.pills(key="lenses.box").value == BOTH.split(",")
    result = shipped()
    drawn = [fig for fig in charts(app) if fig["data"] and fig["data"][0].get("name") == "z"]
    assert len(drawn) == 3
    for fig, lens in zip(drawn, ("logit", "affine", "jacobian")):
        assert np.allclose(numbers(fig["data"][0]["z"]), result[f"{lens}_top_probs"][..., 0], equal_nan=True)
    assert lenses.by_lens([result]).sentence in words(app)
    assert sum("Certificate of" in one.label for one in app.expander) == 2


def test_a_lens_that_is_taken_away_is_not_asked_for():
    app = opened("lenses", model="ed-demo-8", example=EXAMPLE)
    app.pills(key="lenses.box").set_value(["ed-demo-8-jacobian"]).run()
    assert app.session_state["lenses.box"] == ["ed-demo-8-jacobian"]
    assert app.query_params["fits"] == "ed-demo-8-jacobian"
    app.pills(key="lenses.box").set_value([]).run()
    assert not app.exception


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
    app = fresh(lens="/etc/passwd", model="ed-demo-8").run()
    assert any("is no name of a fitted lens" in one.value for one in (*app.warning, *app.info, *app.error))


def test_homes_lens_panel_draws_the_lens_that_is_chosen():
    app = fresh(model="ed-demo-8", example=EXAMPLE, lens="ed-demo-8-affine").run()
    assert not app.exception
    assert app.selectbox(key="home.lens").value == "ed-demo-8-affine"
    assert app.selectbox(key="home.lens").options == ["logit", *BOTH.split(",")]
    said = [one.value for one in app.caption]
    teach = [one.value for one in app.markdown]
    assert any("Affine lens" in one for one in (*said, *teach))  # not computed yet: the panel says what it would show
    app.selectbox(key="home.lens").set_value("logit").run()
    assert any("**Logit lens**" in one.value for one in app.caption)


def test_a_lens_is_fitted_from_the_page_and_then_read_with():
    app = opened("lenses", model="ed-demo-8", example=EXAMPLE)
    app.segmented_control(key="lens-fit.kind").set_value("affine").run()
    assert not app.button(key="run.lens-fit").disabled
    app.button(key="run.lens-fit").click().run()
    prompts = [Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts()]
    of = runs.Fitted((resolve("ed-demo-8"),), runs.distinct(prompts), "affine")
    assert of.run.running and not app.button(key="cancel.lens-fit").disabled
    until(lambda: not of.run.running, 120)
    fit = of.found()
    assert fit is not None, of.run.trouble
    assert fit in fits.of_model(resolve("ed-demo-8")) and fit.path == fits.find(of.file.stem).path
    app.run()
    assert show.plain(lenses.certified("affine", fit.certificate)) in [one.value for one in app.success]
    app.button(key="lens-fit.use").click().run()
    assert app.pills(key="lenses.box").value == [*BOTH.split(","), of.file.stem]
    twin = runs.Fitted((resolve("ed-demo-8", control="untrained"),), of.prompts, "affine")
    assert twin.file != of.file and of.file != runs.Fitted(of.models, of.prompts, "jacobian").file
