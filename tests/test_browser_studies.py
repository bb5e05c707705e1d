"""The pages of studies in a browser: what is plotted is what the shipped study's tables hold."""

from __future__ import annotations

import numpy as np
import pytest
from test_browser import settled, wait
from test_browser_pages import ON_TOKENS

from ed_core.depth.criteria import RULES
from ed_core.sources.bundled import STUDIES
from ed_core.studies import difficulty, steps, tables
from ed_core.studies.items import open_folder

pytestmark = pytest.mark.browser

SET = "look-ups"
DRAWN = """key => {
  const plot = document.querySelector(`.st-key-box-${key} .js-plotly-plot`);
  const list = values => values && Array.from(values, v => Number.isFinite(v) ? v : null);
  return plot && plot._fullData && plot._fullData.map(t => ({name: t.name, x: list(t.x), y: list(t.y), text: t.text}));
}"""


def drawn(page, key: str) -> dict[str, dict]:
    """The traces of a figure, by name."""
    page.locator(".st-key-run-row-top").wait_for()
    settled(page)
    return {trace["name"]: trace for trace in wait(page, lambda: page.evaluate(DRAWN, key))}


def test_a_study_is_plotted_as_its_tables_say(server, page, toys):
    page.goto(f"{server}/studies?study=toys&set={SET}")
    marks = drawn(page, "study-depths")
    verdict = [
        r for r in tables.stored(toys, "verdict").to_pylist() if r["set"] == SET and r["variant"] in tables.LEADING
    ]
    assert {r["variant"] for r in verdict} == set(tables.LEADING), "mean depths and the papers' rules"
    for criterion, name in ((rule.name, rule.label) for rule in RULES.values()):
        ratios = [r["ratio"] for r in verdict if r["criterion"] == criterion and r["ratio"] is not None]
        assert (marks[name]["x"] if name in marks else []) == pytest.approx(ratios), name
    assert page.get_by_text("not defined").count(), "what gives no layer is said"
    curves = drawn(page, "study-curves")
    summary = tables.stored(toys, "summary").to_pylist()
    for model in toys.models:
        own = [
            r for r in summary if (r["model"], r["set"], r["probe"], r["measure"]) == (model, SET, "logit_lens", "kl")
        ]
        assert curves[model]["y"] == pytest.approx([r["value"] for r in own], rel=1e-6)
        assert curves[model]["x"] == pytest.approx(np.linspace(0, 1, len(own)))
    settled(page)


def test_a_training_is_followed_step_by_step_with_the_slider(server, page, visitor):
    page.goto(f"{server}/studies?study=training")
    training = open_folder(STUDIES / "training")
    (labels,) = steps.series(training).values()
    rows = steps.depths(tables.stored(training, "verdict").to_pylist(), labels, "prompts")
    depths = [row["depth"] for row in rows if (row["criterion"], row["variant"]) == ("kl", "mean")]
    assert drawn(page, "depth-steps")["mean depth, KL"]["y"] == pytest.approx(depths) and len(depths) == len(labels)
    summary = tables.stored(training, "summary").to_pylist()
    ratios = steps.over_layers(summary, labels, "prompts", "contributions.layer_ratio")
    cosines = steps.over_layers(summary, labels, "prompts", "contributions.attn_cos")
    assert drawn(page, "steps-ratio")["mean"]["x"] == pytest.approx(ratios[:, -1], rel=1e-6), "the last step at first"
    for width in (1440, 1100, 800):
        page.set_viewport_size({"width": width, "height": 2400})
        settled(page)
        for key in ("ratio", "cos", "kl"):
            n_steps, n_words, covered, _ = page.locator(f".st-key-box-steps-{key} .ed-chart").evaluate(ON_TOKENS)
            assert n_steps and n_words and not covered, (width, key)
    slider = page.get_by_role("slider", name="Step")
    slider.press("ArrowLeft")
    wait(page, lambda: drawn(page, "steps-ratio")["mean"]["x"] == pytest.approx(ratios[:, -2], rel=1e-6))
    slider.press("Home")
    wait(page, lambda: drawn(page, "steps-ratio")["mean"]["x"] == pytest.approx(ratios[:, 0], rel=1e-6))
    page.get_by_role("radio", name="attention").click()
    wait(page, lambda: drawn(page, "steps-cos")["mean"]["x"] == pytest.approx(cosines[:, 0], rel=1e-6))
    wait(page, lambda: "step=0" in page.url and "branch=attn" in page.url)
    fresh = visitor()
    fresh.goto(page.url)
    assert drawn(fresh, "steps-cos")["mean"]["x"] == pytest.approx(cosines[:, 0], rel=1e-6), "its link opens that step"
    page.get_by_role("radio", name="side by side").click()
    assert drawn(page, "study-curves").keys() >= set(labels.values()), "steps beside each other as models are"


def test_a_study_is_chosen_in_a_form_run_and_followed_to_its_end(server, page):
    page.set_default_timeout(60_000)
    page.goto(f"{server}/studies?model=ed-demo-8")
    page.get_by_text("New study").click()
    page.get_by_text("sum_mod10: 20 prompts of").wait_for()

    def choose(label: str, *names: str) -> None:
        box = page.get_by_role("combobox", name=label)
        for name in names:
            box.click()
            box.fill(name)
            page.get_by_role("option", name=name, exact=True).click()
            settled(page)
        page.keyboard.press("Escape")

    def number(label: str, n: int) -> None:
        box = page.get_by_role("spinbutton", name=label)
        box.fill(str(n))
        box.press("Enter")
        settled(page)

    choose("Models", "ed-demo-16")
    number("Untrained twins of each", 0)
    number("Prompts of each set", 5)
    page.get_by_text("2 models · 5 prompts · 2 parts · about").wait_for()
    page.get_by_role("button", name="Prompts", exact=True).click()
    page.get_by_text("The first 5 of 5").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("The first 5 of 5").wait_for(state="hidden")
    settled(page)
    page.get_by_text("Advanced: the study's file").click()
    words = page.get_by_role("textbox", name="TOML")
    assert 'models = ["ed-demo-8", "ed-demo-16"]' in words.input_value()
    assert "per_level = 1" in words.input_value()
    written = words.input_value()
    words.fill('name = "mine"\nmodel = ["ed-demo-8"]\n')
    words.blur()
    page.get_by_text("did you mean 'models'?").wait_for()
    assert words.input_value().startswith('name = "mine"'), "what was typed stays"
    run = page.get_by_role("button", name="Run", exact=True)
    assert run.first.is_disabled()
    words.fill(written.replace('name = "mine"', 'name = "from a form"', 1))
    words.blur()
    wait(page, lambda: page.get_by_role("textbox", name="Name").input_value() == "from a form")
    settled(page)
    run.first.click()
    page.get_by_text("2 models · 1 set · 5 prompts · complete").wait_for(timeout=240_000)
    marks = drawn(page, "study-depths")
    assert len(marks["KL"]["x"]) >= 2, "a mean depth of each model"


def test_depth_scores_are_plotted_as_the_study_has_them(server, page, toys):
    page.goto(f"{server}/difficulty?study=toys&set={SET}&effect=output")
    lines = drawn(page, "study-levels")
    for model in toys.models:
        found = difficulty.look(toys, model, SET, "output")
        means = np.array([level.mean for level in found.levels]) / (found.n_layers - 1)
        assert lines[model]["y"] == pytest.approx(means, rel=1e-6)
        assert page.get_by_text(found.sentence.split(";")[0].split(" has ")[0][:60]).count(), found.sentence
