"""Home in a real browser: run by the keyboard, one depth through all figures, and Play."""

from __future__ import annotations

import pytest
from test_browser import settled, wait

pytestmark = pytest.mark.browser

MODEL = "ed-demo-8"


def opened(page, address: str) -> None:
    page.goto(address)
    page.locator(".st-key-run-row").wait_for()
    settled(page)


def test_ctrl_enter_runs_what_was_just_typed(server, page):
    opened(page, f"{server}/?model={MODEL}&example=copy-3-a")
    box = page.get_by_label("Prompt", exact=True)
    wait(page, lambda: box.input_value().startswith("Copy"))
    box.fill("Sums mod 10:\n4 + 5 = ")
    page.keyboard.press("Control+Enter")
    wait(page, lambda: "run=" in page.url and "example=" not in page.url)
    assert box.input_value() == "Sums mod 10:\n4 + 5 = "
    wait(page, lambda: "on average" in page.locator(".st-key-headline").inner_text())


MARKED = """key => {
  const box = document.querySelector(`.st-key-box-${key} .ed-chart`), full = box._fullLayout;
  const { axis } = full.meta.along, mark = box.querySelector('.ed-cursor-depth')?.style;
  if (!mark || mark.display === 'none') return null;  // a figure just drawn has no mark yet
  const [at, length] = axis === 'y' ? [mark.top, mark.height] : [mark.left, mark.width];
  const place = (parseFloat(at) + parseFloat(length) / 2) - full[`${axis}axis`]._offset;
  return Math.round(full[`${axis}axis`].p2l(place));
}"""


def test_one_depth_is_marked_in_all_figures_by_pointer_and_keys(server, page):
    """And what the lens reads there is said: of the model's own words at the top."""
    page.set_viewport_size({"width": 1440, "height": 1000})
    opened(page, f"{server}/?model={MODEL}&example=sum-mod10-5-a")
    figures = ("course", "norms", "cosine", "skip", "lens")
    box = page.locator(".st-key-box-cosine .js-plotly-plot").bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 100)
    told = page.locator(".ed-cursor-says")
    told.get_by_text("After layer").wait_for()
    depth = int(told.inner_text().split("After layer ")[1].split(" ")[0])
    assert 1 <= depth <= 8 and {page.evaluate(MARKED, key) for key in figures} == {depth}
    assert "the lens reads" in told.inner_text() and "at " in told.inner_text()
    page.mouse.move(5, 700)
    told.wait_for(state="hidden")
    page.locator(".st-key-box-lens .ed-chart").focus()
    for press in ("ArrowUp", "ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(press)  # the first shows the output
    told.get_by_text("After layer 6 of 8").wait_for()
    assert {page.evaluate(MARKED, key) for key in figures} == {6}
    page.keyboard.press("Escape")
    told.wait_for(state="hidden")
    assert {page.evaluate(MARKED, key) for key in figures} == {None}
    page.keyboard.press("ArrowUp")
    page.keyboard.press(" ")  # opens its tab
    wait(page, lambda: "/logit_lens" in page.url and "token=" in page.url)


def test_no_translator_touches_what_a_model_reads_or_writes(server, page):
    opened(page, f"{server}/?model={MODEL}&example=sum-mod10-5-a")
    page.locator(".st-key-box-norms .js-plotly-plot").wait_for()
    page.get_by_role("button", name="Options").click()
    page.locator(".stPopoverBody code, [data-testid=stPopoverBody] code").first.wait_for()
    verbatim = "[...document.querySelectorAll('textarea, code, pre, .js-plotly-plot, .st-key-headline')]"
    assert page.evaluate(f"{verbatim}.length") > 10
    assert page.evaluate(f"{verbatim}.filter(one => !one.closest('[translate=no]')).length") == 0
    assert page.get_by_role("button", name="Run").evaluate("one => !one.closest('[translate=no]')")


def test_play_leads_the_prompt_through_the_layers(server, page):
    page.set_viewport_size({"width": 1440, "height": 900})
    opened(page, server)
    page.get_by_role("button", name="Play").click()
    said = page.locator(".ed-story-said")
    said.get_by_text("Before any layer").wait_for()
    wait(page, lambda: page.evaluate(MARKED, "lens") == 0)
    said.get_by_text("After layer").wait_for()
    assert page.locator(".ed-story-guess").inner_text()
    page.get_by_role("button", name="Stop").click()
    said.get_by_text("Point at a layer").wait_for()
    wait(page, lambda: page.evaluate(MARKED, "lens") is None)
