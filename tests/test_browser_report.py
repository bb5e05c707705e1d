"""The report in a real browser: it draws, asks nobody, runs nothing of a stranger's, and can be read on a telephone."""

from __future__ import annotations

import pytest
from kept_cases import HOME, case
from test_browser import settled
from test_report import hostile

from ed_core.drawings import drawings
from ed_core.report import report

pytestmark = pytest.mark.browser

DRAWN = "Array.from(document.querySelectorAll('.plot')).filter(p => p._fullData && p.querySelector('.main-svg')).length"


@pytest.fixture
def opened(visitor, tmp_path):
    """`opened(case, …)`: a tab with the case's report; requests, errors and dialogs are collected on it."""

    def show(kept, width=1200, scheme="light"):
        file = tmp_path / "report.html"
        file.write_text(report(kept), encoding="utf-8")
        tab = visitor(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        tab.seen = []
        tab.on(
            "request", lambda r: tab.seen.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None
        )
        tab.on("console", lambda m: tab.seen.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda e: tab.seen.append(str(e)))
        tab.on("dialog", lambda d: (tab.seen.append("dialog " + d.message), d.dismiss()))
        tab.goto(file.as_uri())
        tab.wait_for_function(f"{DRAWN} === document.querySelectorAll('.plot').length")
        return tab

    return show


def test_every_figure_is_drawn_without_a_request_or_an_error(opened):
    kept = case(notes="**x**", probes=(*HOME, "residual_erasure", "integrated_gradients", "prune", "early_exit"))
    tab = opened(kept)
    assert tab.evaluate(DRAWN) == len(drawings(kept)) > len(kept.items) and tab.seen == []
    tab.hover(".plot >> nth=1")
    assert tab.evaluate("document.querySelectorAll('.plot')[1]._fullData[0].z.length") == 8


def test_no_script_of_a_stranger_runs(opened):
    tab = opened(hostile())
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tab.wait_for_function("[...document.images].every(image => image.complete)")
    settled(tab)
    assert tab.seen == [] and tab.evaluate("document.querySelectorAll('img, svg[onload], script').length") == 3


@pytest.mark.parametrize("scheme, ink", [("light", "rgb(31, 36, 48)"), ("dark", "rgb(230, 232, 238)")])
def test_light_and_dark_and_readable_at_400_pixels(opened, scheme, ink):
    tab = opened(case(title="A sum " * 20, notes="x" * 300), width=400, scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400, (
        "figures scroll within their frames, the page does not"
    )
    assert tab.evaluate("getComputedStyle(document.querySelector('.plot .xtick text')).fill") == ink
    assert tab.seen == []
