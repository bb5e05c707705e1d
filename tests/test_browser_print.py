"""Every room on paper: all of its figures within the sheet, in light colours, and nothing that can only be pressed."""

from __future__ import annotations

import math
import re

import pytest
from test_browser import settled, wait

pytestmark = pytest.mark.browser

WIDE, HIGH = 703, 1031  # pixels of A4 within margins of 12 mm
ROOMS = ("", "skip", "surgery", "two", "studies", "cards", "cases")
PRESSED = ".stSidebar, .stAppHeader button, " + ", ".join(
    f".st{kind}" for kind in ("Button", "DownloadButton", "PageLink", "Slider", "Selectbox", "Popover")
)
ON_PAPER = """pressed => {
  const kept = '.st-key-model-box, [class*=st-key-title-]';
  const seen = e => e.checkVisibility({visibilityProperty: true}) && !e.closest(kept);
  const light = color => color.match(/\\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0) / 765;
  const style = (e, what) => light(getComputedStyle(e)[what]);
  return {
    pressed: [...document.querySelectorAll(pressed)].filter(seen).map(e => `${e.className}: ${e.innerText}`),
    edges: [...document.querySelectorAll('.ed-chart')].map(e => {
      const [box, svg] = [e, e.querySelector('.main-svg')].map(one => one?.getBoundingClientRect());
      return svg && [box.left, svg.left, svg.right, box.right];
    }),
    ground: style(document.querySelector('.stApp'), 'backgroundColor'),
    letters: style(document.querySelector('.st-key-room h3'), 'color'),
    ticks: [...document.querySelectorAll('.xtick text')].map(e => style(e, 'fill')),
    tables: [...document.querySelectorAll('.ed-paper')].map(e => [seen(e), e.getBoundingClientRect().right]),
    canvases: [...document.querySelectorAll('.stDataFrame')].filter(seen).length,
    clicks: document.querySelector('.stMain').innerText.match(/.*\\bclick\\b.*/gi) || [],
    bottom: document.querySelector('.stMainBlockContainer').getBoundingClientRect().bottom,
  };
}"""
WIDTHS = "[...document.querySelectorAll('.ed-chart .main-svg:first-child')].map(e => e.clientWidth)"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_printed_whole_in_light_colours_and_without_buttons(server, visitor, room):
    tab = visitor(color_scheme="dark", viewport={"width": 1440, "height": 900})
    tab.goto(f"{server}/{room}")
    tab.locator(".st-key-page").wait_for(state="attached")
    wait(tab, lambda: tab.evaluate("window.edBrowser"))
    if room != "cases":
        wait(tab, lambda: tab.locator(".ed-chart .main-svg").count())
    settled(tab)
    on_screen = tab.evaluate(WIDTHS)

    printed = tab.pdf(format="A4", prefer_css_page_size=True, print_background=True)
    sheets = len(re.findall(rb"/Type\s*/Page\b", printed))
    settled(tab)
    assert tab.evaluate(WIDTHS) == on_screen and tab.locator(".stSidebar").is_visible(), "the screen as it was"

    tab.emulate_media(media="print", color_scheme="dark")
    tab.set_viewport_size({"width": WIDE, "height": HIGH})
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    found = tab.evaluate(ON_PAPER, PRESSED)
    assert not found["pressed"] and not found["clicks"]
    if room == "cases":
        assert tab.locator("[class*=st-key-title-] a").first.is_visible(), "a case study's title is no button"
    assert all(found["edges"]), "every figure is drawn"
    for left, begins, ends, right in found["edges"]:
        assert left <= begins + 1 and ends <= right + 1 <= WIDE + 2, (left, begins, ends, right)
    assert not found["canvases"] and all(there and right <= WIDE + 2 for there, right in found["tables"])
    assert len(found["tables"]) == (room in ("studies", "surgery")), "its table"
    assert found["ground"] == 1 and found["letters"] < 0.2 and all(tick < 0.5 for tick in found["ticks"])
    assert math.ceil(found["bottom"] / HIGH) <= sheets <= 2 * math.ceil(found["bottom"] / HIGH), "nothing is left out"
