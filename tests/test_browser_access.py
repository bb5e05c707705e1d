"""A page of every room checked by axe-core, in light and in dark, and the main job done by keyboard alone."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from test_browser import screen, settled, wait

pytestmark = pytest.mark.browser

PAGES = ("", "skip", "two", "studies", "model", "cases")  # one of each room
FIGURES = {"", "skip", "two", "model"}  # what these show at once
GROUND = "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
STREAMLITS_OWN = {"list", "listitem"}  # its navigation puts <div> between <ul> and <li>
FOCUS = "(e => e.getAttribute('aria-label') || e.innerText || e.id)(document.activeElement)"
TEXTS = "Array.from(document.querySelectorAll('.ed-chart'), c => c.getAttribute('aria-label'))"


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious_and_every_figure_tells_its_numbers(server, visitor, name):
    tab = visitor(color_scheme="light")
    tab.goto(f"{server}/{name}?token=3")
    tab.locator(".st-key-page").wait_for(state="attached")
    if name in FIGURES:
        wait(tab, lambda: tab.locator(".ed-chart").count())
    ground = None
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        wait(tab, lambda before=ground: tab.evaluate(GROUND) != before)
        settled(tab)
        ground = tab.evaluate(GROUND)
        found = Axe().run(tab).response
        assert len(found["passes"]) > 20, "it has looked"
        counted = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
        serious = [v for v in counted if v["id"] not in STREAMLITS_OWN]
        assert not serious, [(scheme, v["id"], n["html"], n["failureSummary"]) for v in serious for n in v["nodes"]]
    texts = tab.evaluate(TEXTS)
    assert texts or name not in FIGURES
    assert all(text and any(c.isdigit() for c in text) for text in texts), texts


def test_the_main_job_is_done_by_keyboard_alone(server, page):
    """Another model chosen, a prompt typed, run, the verdict read, a depth followed through the maps, the link found."""

    def to(name: str, key: str = "Tab") -> None:
        """On until something of this name has the focus; of the page itself the name is all its text."""
        for _ in range(60):
            page.keyboard.press(key)
            if name in str(page.evaluate(FOCUS))[:60] and page.evaluate("document.activeElement.tagName") != "MAIN":
                return
        raise AssertionError(f"no way by {key} to {name!r}; {screen(page)}")

    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{server}/?model=ed-demo-8")
    page.locator(".st-key-box-norms .js-plotly-plot").wait_for()
    settled(page)
    to("ed-demo-8 ·")
    page.keyboard.press("Enter")
    settled(page)
    to("Model")
    to("Model")  # the first is its help
    page.keyboard.type("ed-demo-16")
    page.keyboard.press("Enter")
    wait(page, lambda: "model=ed-demo-16" in page.url)
    page.keyboard.press("Escape")
    settled(page)
    while page.evaluate("document.activeElement.tagName") != "TEXTAREA":
        page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("Sums mod 10:")
    page.keyboard.press("Enter")
    page.keyboard.type("2 + 5 = ")
    to("Run")
    wait(page, lambda: page.get_by_role("button", name="Run").is_enabled())
    settled(page)
    page.keyboard.press("Enter")
    wait(page, lambda: "run=" in page.url)
    settled(page)
    wait(page, lambda: "on average" in page.locator(".st-key-headline").inner_text())
    to("Does it erase or strengthen?")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    page.locator(".ed-cursor-says").get_by_text("After layer 15 of 16").wait_for()
    page.keyboard.press("Escape")
    to("Share", "Shift+Tab")
    page.keyboard.press("Enter")
    page.locator("[data-testid=stPopoverBody] code").get_by_text("model=ed-demo-16").wait_for()
