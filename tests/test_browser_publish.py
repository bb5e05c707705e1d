"""A published site in a real browser: from a file and from a server's subfolder, in both themes, on a telephone."""

from __future__ import annotations

import functools
import http.server
import threading

import pytest
from hosted_app import until
from kept_cases import HOME, case, small
from test_browser_report import DRAWN
from test_report import hostile

from ed_core.cases.kept import Kept
from ed_core.sharing import site
from ed_core.sources.bundled import STUDIES

pytestmark = pytest.mark.browser

LIGHT, DARK = "rgb(31, 36, 48)", "rgb(230, 232, 238)"
INK = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A site in a subfolder: (its folder, the server's address of it, the ids of a sum, a small one, a hostile one)."""
    folder = tmp_path_factory.mktemp("www")
    kept = Kept(folder / "cache")
    cases = [case("A sum", HOME, notes="**carried** over", tags=["by hand"]), small("Straße nach Rom"), hostile()]
    for one in cases:
        kept.add(one)
    site.write([*(site.of_case(kept, one.id) for one in cases), site.of_study(STUDIES / "toys")], folder / "a" / "b")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder / "a" / "b", f"http://127.0.0.1:{server.server_address[1]}/a/b", [one.id for one in cases]
    server.shutdown()
    server.server_close()


@pytest.fixture
def opened(visitor, published):
    """`opened(how, …)`: a tab with the index, "file" or "server"; what it must not do is collected on it."""
    out, address, _ = published

    def show(how, width=1200, scheme="light"):
        base = out.as_uri() if how == "file" else address
        tab = visitor(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=how == "file")
        tab.seen = []
        own = (f"{base}/", "data:", "blob:")
        tab.on("request", lambda r: tab.seen.append(r.url) if not r.url.startswith(own) else None)
        tab.on("response", lambda r: tab.seen.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        tab.on("console", lambda m: tab.seen.append(m.text) if m.type in ("error", "warning") else None)
        tab.on("pageerror", lambda e: tab.seen.append(str(e)))
        tab.on("dialog", lambda d: (tab.seen.append("dialog " + d.message), d.dismiss()))
        tab.goto(f"{base}/index.html")
        return tab

    return show


def drawn(tab) -> int:
    """How many figures there are, once all are drawn. (The page's policy lets nobody evaluate a text within it.)"""
    until(
        lambda: tab.evaluate(
            f"document.readyState === 'complete' && {DRAWN} === document.querySelectorAll('.plot').length"
        )
    )
    return tab.evaluate(DRAWN)


def shown(tab) -> list[str]:
    return tab.locator("li:visible h3").all_inner_texts()


@pytest.mark.parametrize("how", ["file", "server"])
def test_every_page_is_drawn_and_asks_nobody(opened, published, how):
    tab = opened(how)
    for title, figures in (("A sum", 6), ("toys", 13)):
        tab.get_by_role("link", name=title, exact=True).click()
        assert drawn(tab) >= figures
        tab.get_by_role("link", name="← Effective depth").click()
        tab.get_by_label("Search").wait_for()
    with tab.expect_download() as download:
        tab.get_by_role("link", name="A sum", exact=True).click()
        drawn(tab)
        tab.hover(".plot >> nth=1")
        tab.locator(".plot .hoverlayer text, .plot .hoverlayer .hovertext").first.wait_for()
        tab.get_by_role("link", name="case study, to import").click()
    out, _, (id, *_) = published
    assert download.value.path().read_bytes() == (out / f"cases/{id}.edcase").read_bytes()
    assert tab.seen == []


def test_no_script_of_a_stranger_runs(opened, published):
    tab = opened("server")
    tab.locator(f"a[href='cases/{published[2][2]}.html']").click()
    drawn(tab)
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tab.wait_for_timeout(500)
    assert tab.seen == [] and tab.evaluate("document.querySelectorAll('img, svg[onload]').length") == 0


def test_search_takes_every_word_and_says_how_many_there_are(opened):
    tab = opened("file")
    assert len(shown(tab)) == 4 and tab.locator("#found").inner_text() == ""
    box = tab.get_by_label("Search")
    box.fill("SUM carried")
    assert shown(tab) == ["A sum"] and tab.locator("#found").inner_text() == "1 page"
    assert tab.locator("h2:visible").all_inner_texts() == ["Case studies"], "a kind without a page is not shown"
    box.fill("STRASSE")
    assert shown(tab) == [] and tab.locator("#found").inner_text() == "No page has all of these words."
    box.fill("straße ROM")
    assert shown(tab) == ["Straße nach Rom"]
    box.fill("ed-demo-8")
    assert len(shown(tab)) == 3 and tab.locator("#found").inner_text() == "3 pages"  # two case studies and the study
    box.fill("")
    tab.get_by_role("button", name="by hand", exact=True).click()
    assert box.input_value() == "by hand" and shown(tab) == ["A sum"]


@pytest.mark.parametrize("how", ["file", "server"])
def test_the_theme_follows_the_system_until_it_is_chosen_and_is_kept(opened, how):
    tab = opened(how, scheme="dark")
    ink = "getComputedStyle(document.body).color"
    assert tab.evaluate(ink) == DARK
    tab.get_by_role("link", name="A sum", exact=True).click()
    drawn(tab)
    assert tab.evaluate(INK) == DARK
    tab.emulate_media(color_scheme="light")
    until(lambda: tab.evaluate(INK) == LIGHT)
    tab.get_by_label("Theme").select_option("Dark")
    until(lambda: tab.evaluate(INK) == DARK)
    tab.get_by_role("link", name="← Effective depth").click()
    tab.get_by_label("Search").wait_for()
    assert tab.evaluate(ink) == DARK and tab.get_by_label("Theme").input_value() == "dark"
    tab.get_by_label("Theme").select_option("System")
    assert tab.evaluate(ink) == LIGHT
    tab.reload()
    assert tab.evaluate(ink) == LIGHT and tab.get_by_label("Theme").input_value() == "" and tab.seen == []


def test_it_can_be_read_at_400_pixels(opened):
    tab = opened("file", width=400)
    wide = "document.documentElement.scrollWidth"
    assert tab.evaluate(wide) <= 400
    for title in ("A sum", "toys"):
        tab.get_by_role("link", name=title, exact=True).click()
        drawn(tab)
        assert tab.evaluate(wide) <= 400, "figures and tables scroll within their frames, the page does not"
        tab.go_back()
    assert tab.seen == []
