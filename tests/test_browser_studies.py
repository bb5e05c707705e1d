"""The pages of studies in a browser: what is plotted is what the shipped study's tables hold."""

from __future__ import annotations

import pytest
from test_browser import settled, wait

pytestmark = pytest.mark.browser

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
    number("Untrained copies of each", 0)
    number("Prompts of each set", 5)
    page.get_by_text("2 models · 5 prompts · 2 parts · about").wait_for()
    page.get_by_role("button", name="Prompts", exact=True).click()
    page.get_by_text("The first 5 of 5").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("The first 5 of 5").wait_for(state="hidden")
    settled(page)
    page.get_by_text("Advanced: the study's file").click()
    page.get_by_text("Edit", exact=True).click()
    words = page.get_by_role("textbox", name="TOML")
    wait(page, lambda: 'models = ["ed-demo-8", "ed-demo-16"]' in words.input_value())
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
    settled(page)
    run.first.click()
    page.get_by_text("2 models · 1 set · 5 prompts · complete").wait_for(timeout=240_000)
    marks = drawn(page, "study-depths")
    assert len(marks["KL"]["x"]) >= 2, "a mean depth of each model"
