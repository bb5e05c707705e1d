"""The pages of studies in a browser: what is plotted is what the shipped study's tables hold."""

from __future__ import annotations

import numpy as np
import pytest
from test_browser import settled, wait

from ed_core.depth.criteria import RULES
from ed_core.sources.bundled import STUDIES
from ed_core.studies import difficulty, export, tables
from ed_core.studies.folder import open_folder

pytestmark = pytest.mark.browser

SET = "look-ups"
DRAWN = """key => {
  const plot = document.querySelector(`.st-key-box-${key} .js-plotly-plot`);
  const list = values => values && Array.from(values, v => Number.isFinite(v) ? v : null);
  return plot && plot._fullData && plot._fullData.map(t => ({name: t.name, x: list(t.x), y: list(t.y), text: t.text}));
}"""


@pytest.fixture(scope="module")
def folder():
    return open_folder(STUDIES / "toys")


def drawn(page, key: str) -> dict[str, dict]:
    """The traces of a figure, by name."""
    page.locator(".st-key-run-row").wait_for()
    settled(page)
    return {trace["name"]: trace for trace in wait(page, lambda: page.evaluate(DRAWN, key))}


def test_a_study_is_plotted_as_its_tables_say(server, page, folder):
    page.goto(f"{server}/studies?study=toys&set={SET}")
    marks = drawn(page, "study-depths")
    verdict = [
        r for r in tables.stored(folder, "verdict").to_pylist() if r["set"] == SET and r["variant"] in export.LEADING
    ]
    assert {r["variant"] for r in verdict} == set(export.LEADING), "mean depths and the papers' rules"
    for criterion, name in ((rule.name, rule.label) for rule in RULES.values()):
        ratios = [r["ratio"] for r in verdict if r["criterion"] == criterion and r["ratio"] is not None]
        assert (marks[name]["x"] if name in marks else []) == pytest.approx(ratios), name
    assert page.get_by_text("not defined").count(), "what gives no layer is said"
    curves = drawn(page, "study-curves")
    summary = tables.stored(folder, "summary").to_pylist()
    for model in folder.models:
        own = [
            r for r in summary if (r["model"], r["set"], r["probe"], r["measure"]) == (model, SET, "logit_lens", "kl")
        ]
        assert curves[model]["y"] == pytest.approx([r["value"] for r in own], rel=1e-6)
        assert curves[model]["x"] == pytest.approx(np.linspace(0, 1, len(own)))
    settled(page)
    page.get_by_text("Write a study").click()
    words = page.get_by_role("textbox", name="The study's file (TOML)")
    words.fill('name = "mine"\nmodel = ["ed-demo-8"]\n')
    words.blur()
    settled(page)
    page.get_by_role("button", name="Check").click()
    page.get_by_text("did you mean 'models'?").wait_for()
    assert words.input_value().startswith('name = "mine"'), "what was typed stays"


def test_depth_scores_are_plotted_as_the_study_has_them(server, page, folder):
    page.goto(f"{server}/difficulty?study=toys&set={SET}&effect=output")
    lines = drawn(page, "study-levels")
    for model in folder.models:
        found = difficulty.look(folder, model, SET, "output")
        means = np.array([level.mean for level in found.levels]) / (found.n_layers - 1)
        assert lines[model]["y"] == pytest.approx(means, rel=1e-6)
        assert page.get_by_text(found.sentence.split(";")[0].split(" has ")[0][:60]).count(), found.sentence
