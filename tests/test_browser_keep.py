"""A finding's life in a real browser: saved, opened from its link where the model is gone, edited, handed
on, deleted."""

from __future__ import annotations

import numpy as np
import pytest
from shell import arrays
from small_models import save_random
from test_browser import fill, start, wait

from ed_core.cases.kept import Kept
from tools.bench.browser import serving

pytestmark = pytest.mark.browser

NOTES = "**Look** at `depth 3`. <script>document.title = 'broken'</script> [x](javascript:alert(1))"
MAP = """key => { const plot = document.querySelector(`.st-key-box-${key} .js-plotly-plot`);
  const z = plot && plot._fullData && plot._fullData[0].z; return z ? Array.from(z, row => Array.from(row)) : null; }"""


def plotted(tab, key: str) -> np.ndarray:
    return np.array(wait(tab, lambda: tab.evaluate(MAP, key)), float)


def download(tab, button: str):
    """What this button gives."""
    with tab.expect_download() as given:
        tab.get_by_role("button", name=button).click()
    return given.value


def test_a_finding_goes_from_home_to_a_colleague_without_the_model(page, visitor, tmp_path):
    tab, model, cache = visitor(), tmp_path / "model", tmp_path / "cache"
    model.mkdir()
    save_random(model)
    with serving(cache) as address:
        start(page, address, f"/?model={model}", text="5 + 7 + 5 + 3 = ", answer="20")
        page.locator(".st-key-headline", has_text="on average").wait_for()
        wait(page, lambda: page.get_by_role("button", name="Cancel").count() == 0)
        page.get_by_role("button", name="Share").click()
        fill(page, "Title", "What I found")
        fill(page, "Tags", "random, mine")
        fill(page, "Notes", NOTES)
        page.locator("[class*=keep-home-save] button").click()
        page.get_by_text("Open the case study").wait_for()
        seen = plotted(page, "norms")
        page.get_by_text("Open the case study").click()
        page.wait_for_url("**/case?id=*")
        link = page.url
        page.goto("about:blank")
    (card,) = list(Kept(cache, shipped=None).cards())
    assert link.endswith(f"/case?id={card.id}") and card.tags == ("random", "mine")
    numbers = Kept(cache, shipped=None).open(card.id)[0].items
    model.rename(tmp_path / "gone")
    with serving(cache) as address:
        tab.goto(f"{address}/case?id={card.id}")
        tab.get_by_text("What I found").wait_for()
        assert np.array_equal(plotted(tab, "figure-0-1"), seen), "the numbers on Home"
        assert tab.locator(".ed-notes strong").inner_text() == "Look" and "broken" not in tab.title()
        assert tab.locator(".ed-notes script").count() == tab.locator(".ed-notes [href^=javascript]").count() == 0

        tab.get_by_role("button", name="Edit").click()
        fill(tab, "Title", "What we found")
        tab.locator("[class*=edit-][class*=-save] button").click()
        tab.get_by_role("heading", name="What we found").wait_for()
        assert Kept(cache, shipped=None).open(card.id)[0].title == "What we found"

        tab.get_by_role("button", name="Share").click()
        bundle = download(tab, "to import elsewhere").path().read_bytes()
        data = arrays(download(tab, "All numbers").path())
        assert np.array_equal(data["contributions.layer_ratio.0"], numbers[0].result["layer_ratio"])
        report = download(tab, "Report")
        assert "What we found" in report.path().read_text()
        assert report.suggested_filename == f"what-we-found-{card.id}.html"
        tab.keyboard.press("Escape")

        tab.get_by_role("button", name="Delete").click()
        tab.get_by_role("button", name="Delete it").click()
        tab.get_by_text("Nothing of your own yet").wait_for()
    elsewhere = tmp_path / "elsewhere"
    with serving(elsewhere) as address:
        tab.goto(f"{address}/cases")
        tab.get_by_text("Nothing of your own yet").wait_for()
        tab.get_by_role("button", name="Import").click()
        for name, data, says in (
            ("a.edcase", bundle, "is kept now"),
            ("b.edcase", bundle[:-100], "was not taken in"),
            ("a.edcase", bundle, "was here already"),
        ):
            wait(tab, lambda: tab.locator("input[type=file]").count() == 1)
            tab.locator("input[type=file]").set_input_files(
                files=[{"name": name, "mimeType": "application/octet-stream", "buffer": data}]
            )
            tab.get_by_text(says).wait_for()
        tab.keyboard.press("Escape")
        tab.get_by_role("link", name="What we found").click()
        tab.wait_for_url(f"**/case?id={card.id}")
        assert np.array_equal(plotted(tab, "figure-0-1"), seen), "the same numbers in another installation"
    assert Kept(elsewhere, shipped=None).open(card.id)[0].items == numbers
