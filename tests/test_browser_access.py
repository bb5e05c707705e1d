"""Every page checked by axe-core, in light and in dark, and used by keyboard alone."""

from __future__ import annotations

from itertools import product

import pytest
from test_browser import screen, settled, wait

pytestmark = pytest.mark.browser

PAGES = (
    "",
    "contributions",
    "logit_lens",
    "lenses",
    "numerics",
    "skip",
    "erase",
    "gradients",
    "prune",
    "audit",
    "maps",
    "studies",
    "difficulty",
    "claims",
    "cards",
    "loops",
)
FIGURES = {*PAGES[:7], "studies", "difficulty", "cards"}  # what these show at once
GROUND = "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
STREAMLITS_OWN = {"list", "listitem"}  # its navigation puts <div> between <ul> and <li>


FOCUS = "(e => e.getAttribute('aria-label') || e.innerText || e.id)(document.activeElement)"
TEXTS = "Array.from(document.querySelectorAll('.ed-chart'), c => c.getAttribute('aria-label'))"


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious_and_every_figure_tells_its_numbers(server, visitor, name):
    from axe_playwright_python.sync_playwright import Axe

    tab = visitor(color_scheme="light")
    tab.goto(f"{server}/{name}?token=3")
    # the model here is none that loops
    there = "[data-testid=stAlert]" if name == "loops" else "[class*=st-key-run-row]"
    tab.locator(there).first.wait_for(state="attached")
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
        serious = [
            v for v in found["violations"] if v["impact"] in ("serious", "critical") and v["id"] not in STREAMLITS_OWN
        ]
        assert not serious, [
            (scheme, v["id"], n["html"][:120], n["failureSummary"][:200]) for v in serious for n in v["nodes"][:3]
        ]
    texts = tab.evaluate(TEXTS)
    assert texts or name not in FIGURES
    assert all(text and any(c.isdigit() for c in text) for text in texts), texts


def test_what_opens_over_the_page_is_readable_in_light_and_in_dark(server, visitor):
    """It stands outside the app, whose colours it must follow."""
    from axe_playwright_python.sync_playwright import Axe

    tab = visitor(color_scheme="light", viewport={"width": 1440, "height": 900})
    tab.goto(f"{server}/skip?model=ed-demo-8")
    tab.locator("[class*=st-key-run-row]").first.wait_for()
    settled(tab)
    for scheme, opened in product(("light", "dark"), (".st-key-model-box", ".st-key-share", ".st-key-options")):
        tab.emulate_media(color_scheme=scheme)
        tab.locator(f"{opened} button").first.click()
        tab.locator("[data-testid=stPopoverBody]").wait_for()
        settled(tab)
        found = Axe().run(tab, options={"runOnly": ["color-contrast"]}).response
        assert found["passes"], "it has looked"
        assert not found["violations"], (scheme, opened, [n["html"][:120] for n in found["violations"][0]["nodes"]])
        tab.keyboard.press("Escape")
        tab.locator("[data-testid=stPopoverBody]").wait_for(state="hidden")


def test_a_token_is_chosen_and_a_page_left_by_keyboard_alone(server, page):
    page.goto(f"{server}/contributions")
    box = page.get_by_label("Selected token")
    box.wait_for()
    settled(page)
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        seen.append(str(page.evaluate(FOCUS)))
        if seen[-1] == "Selected token":
            break
    names = " ".join(seen)
    assert all(word in names for word in ("Intervene", "Case studies", "Prompt", "Run", "Link", "Details")), names
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    wait(page, lambda: "token=" in page.url)
    wait(page, lambda: page.locator(".st-key-box-profile").count() == 1)


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
    to("Prompt", "Shift+Tab")
    while page.evaluate("document.activeElement.tagName") != "TEXTAREA":
        to("Prompt", "Shift+Tab")
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
    wait(page, lambda: page.locator(".st-key-headline").inner_text().startswith("Next token “"))
    to("direction of the layer's addition")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    page.locator(".ed-cursor-says").get_by_text("After layer 14").wait_for()
    page.keyboard.press("Escape")
    to("Link", "Shift+Tab")
    page.keyboard.press("Enter")
    to("Copy")
    page.locator(".ed-link-copy").first.wait_for()
