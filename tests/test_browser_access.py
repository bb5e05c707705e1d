"""Every page checked by axe-core, in light and in dark, and used by keyboard alone."""

from __future__ import annotations

import pytest
from test_browser import browser, page, serve, wait  # noqa: F401 (fixtures)

pytestmark = pytest.mark.browser

PAGES = ("", "contributions", "logit_lens", "numerics", "skip", "erase", "gradients", "prune", "audit")
STREAMLITS_OWN = {"list", "listitem"}  # its navigation puts <div> between <ul> and <li>


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("cache")) as started:
        yield started


@pytest.mark.parametrize("scheme", ("light", "dark"))
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(address, browser, name, scheme):  # noqa: F811
    from axe_playwright_python.sync_playwright import Axe

    tab = browser.new_page(viewport={"width": 1440, "height": 1300}, color_scheme=scheme)
    tab.goto(f"{address}/{name}?token=3")
    tab.get_by_role("button", name="Run").wait_for(timeout=60_000)
    tab.wait_for_timeout(3000)
    found = Axe().run(tab).response
    assert len(found["passes"]) > 20, "it has looked"
    serious = [
        v for v in found["violations"] if v["impact"] in ("serious", "critical") and v["id"] not in STREAMLITS_OWN
    ]
    tab.close()
    assert not serious, [(v["id"], n["html"][:120], n["failureSummary"][:200]) for v in serious for n in v["nodes"][:3]]


def test_every_figure_has_a_text_that_tells_its_numbers(address, page):  # noqa: F811
    for name in PAGES[:6]:
        page.goto(f"{address}/{name}")
        page.get_by_role("button", name="Run").wait_for(timeout=60_000)
        charts = page.locator("[data-testid=stPlotlyChart]")
        wait(page, lambda: charts.count() > 0, 20)
        page.wait_for_timeout(1500)
        texts = page.evaluate(
            "Array.from(document.querySelectorAll('[data-testid=stPlotlyChart]'), c => (c.closest('[aria-label]') || "
            "c.querySelector('[aria-label]') || c).getAttribute('aria-label'))"
        )
        assert texts and all(text and any(c.isdigit() for c in text) for text in texts), (name, texts)


def test_a_token_is_chosen_and_a_page_left_by_keyboard_alone(address, page):  # noqa: F811
    page.goto(f"{address}/contributions")
    box = page.get_by_label("Selected token")
    box.wait_for(timeout=60_000)
    page.wait_for_timeout(1500)
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        focus = page.evaluate("""() => {const e = document.activeElement, s = getComputedStyle(e), w = e.closest('[data-baseweb]') || e.parentElement;
            return [e.tagName, e.getAttribute('aria-label') || e.innerText || e.id, s.outlineStyle + s.boxShadow + getComputedStyle(w).boxShadow]}""")
        seen.append(tuple(focus))
        if focus[1] == "Selected token":
            break
    names = " ".join(str(f[1]) for f in seen)
    assert all(word in names for word in ("Home", "Layer skip", "Prompt", "Run", "Link", "Details")), names
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    wait(page, lambda: "token=" in page.url, 20)
    wait(page, lambda: page.locator(".st-key-box-profile").count() == 1, 20)
