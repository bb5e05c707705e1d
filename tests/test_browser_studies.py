"""The pages of studies in a browser: what is plotted is what the shipped study's tables hold."""

from __future__ import annotations

import pytest
from test_browser import settled, wait

pytestmark = pytest.mark.browser

DRAWN = """() => document.querySelector('.st-key-box-study-forest .js-plotly-plot')._fullData
  .filter(t => t.name === 'average depth, with its 90 % interval').map(t => t.x.length)"""


def test_a_study_is_chosen_in_three_steps_run_and_followed_to_its_end(server, page):
    page.set_default_timeout(60_000)
    page.goto(f"{server}/studies?model=ed-demo-8")
    page.get_by_role("button", name="New study").click()

    def number(label: str, n: int) -> None:
        box = page.get_by_role("spinbutton", name=label)
        box.fill(str(n))
        box.press("Enter")
        settled(page)

    models = page.get_by_role("combobox", name="Models")
    models.click()
    models.fill("ed-demo-16")
    page.get_by_role("option", name="ed-demo-16").first.click()
    settled(page)
    page.keyboard.press("Tab")
    number("Untrained copies of each", 0)
    page.get_by_role("button", name="Next").click()
    number("Prompts of each set", 5)
    page.get_by_text("2 models · 5 prompts · 2 parts · about").wait_for()
    page.get_by_role("button", name="Next").click()
    name = page.get_by_role("textbox", name="Name")
    name.fill("from a dialog")
    name.press("Enter")
    settled(page)
    page.locator(".st-key-studies-start button").click()
    page.get_by_text("settle their words at").wait_for(timeout=240_000)
    page.locator(".st-key-box-study-forest .js-plotly-plot").wait_for(timeout=240_000)
    wait(page, lambda: page.locator(".st-key-cancel-studies").count() == 0, 240)
    settled(page)
    assert page.evaluate(DRAWN) == [2]
