"""The report and a published site in a real browser, from a file and from a server's subfolder: they draw, ask nobody,
and run nothing of a stranger's."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kept_cases import HOME, case, small
from test_browser import settled
from test_report import hostile
from workers import until

from ed_core.cases import site
from ed_core.cases.drawings import drawings
from ed_core.cases.kept import Kept
from ed_core.cases.report import report
from ed_core.models.bundled import STUDIES

pytestmark = pytest.mark.browser

DRAWN = "Array.from(document.querySelectorAll('.plot')).filter(p => p._fullData && p.querySelector('.main-svg')).length"


@pytest.fixture
def watched(visitor):
    """`watched(address, own, …)`: a tab there; what it must not do is collected on it: a request for anything else than
    its own, a failed one, a word on the console, an error, a dialog."""

    def show(address, own, loud=("error",)):
        tab = visitor(viewport={"width": 1200, "height": 900}, offline=address.startswith("file:"))
        tab.seen = []
        own = (own, "data:", "blob:")
        tab.on("request", lambda r: tab.seen.append(r.url) if not r.url.startswith(own) else None)
        tab.on("response", lambda r: tab.seen.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        tab.on("console", lambda m: tab.seen.append(m.text) if m.type in loud else None)
        tab.on("pageerror", lambda e: tab.seen.append(str(e)))
        tab.on("dialog", lambda d: (tab.seen.append("dialog " + d.message), d.dismiss()))
        tab.goto(address)
        return tab

    return show


@pytest.fixture
def opened(watched, tmp_path):
    """`opened(case)`: a tab with the case's report."""

    def show(kept):
        file = tmp_path / "report.html"
        file.write_text(report(kept), encoding="utf-8")
        tab = watched(file.as_uri(), "file:")
        tab.wait_for_function(f"{DRAWN} === document.querySelectorAll('.plot').length")
        return tab

    return show


def test_every_figure_is_drawn_without_a_request_or_an_error(opened):
    kept = case(notes="**x**", probes=(*HOME, "residual_erasure", "integrated_gradients", "prune", "early_exit"))
    tab = opened(kept)
    assert tab.evaluate(DRAWN) == len(drawings(kept)) > len(kept.items) and tab.seen == []
    verbatim = "[...document.querySelectorAll('pre, code, .tokens, .plot')]"
    assert tab.evaluate(f"{verbatim}.every(one => one.closest('[translate=no]'))"), "no translator touches them"
    tab.hover(".plot >> nth=1")
    assert tab.evaluate("document.querySelectorAll('.plot')[1]._fullData[0].z.length") == 8


def test_no_script_of_a_stranger_runs(opened):
    tab = opened(hostile())
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tab.wait_for_function("[...document.images].every(image => image.complete)")
    settled(tab)
    assert tab.seen == [] and tab.evaluate("document.querySelectorAll('img, svg[onload], script').length") == 3


# ---------------------------------------------------------------- a published site


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A site in a subfolder: (its folder, the server's address of it, the ids of a sum, a small one, a hostile one)."""
    folder = tmp_path_factory.mktemp("www")
    kept = Kept(folder / "cache")
    cases = [case("A sum", HOME, notes="**carried** over", tags=["by hand"]), small("Straße nach Rom"), hostile()]
    for one in cases:
        kept.add(one)
    site.write(
        [*(site.of_case(kept, one.id) for one in cases), site.of_study(STUDIES / "training")], folder / "a" / "b"
    )

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder / "a" / "b", f"http://127.0.0.1:{server.server_port}/a/b", [one.id for one in cases]
        server.shutdown()


@pytest.fixture
def site_opened(watched, published):
    """`site_opened(how)`: a tab with the index, "file" or "server"."""
    bases = {"file": published[0].as_uri(), "server": published[1]}
    loud = ("error", "warning")
    return lambda how: watched(f"{bases[how]}/index.html", f"{bases[how]}/", loud)


def drawn(tab) -> int:
    """How many figures there are, once all are drawn. (The page's policy lets nobody evaluate a text within it.)"""
    whole = f"document.readyState === 'complete' && {DRAWN} === document.querySelectorAll('.plot').length"
    until(lambda: tab.evaluate(whole))
    return tab.evaluate(DRAWN)


@pytest.mark.parametrize("how", ["file", "server"])
def test_every_page_is_drawn_and_asks_nobody(site_opened, published, how):
    tab = site_opened(how)
    for title, figures in (("A sum", 6), ("training", 5)):
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


def test_search_takes_every_word_and_says_how_many_there_are(site_opened):
    tab = site_opened("file")
    box, shown = tab.get_by_label("Search"), lambda: tab.locator("li:visible h3").all_inner_texts()
    assert len(shown()) == 4
    for words, titles, says in (
        ("SUM carried", ["A sum"], "1 page"),
        ("STRASSE", [], "No page"),
        ("straße ROM", ["Straße nach Rom"], "1 page"),
    ):
        box.fill(words)
        assert shown() == titles and says in tab.locator("#found").inner_text()
    box.fill("")
    tab.get_by_role("button", name="by hand", exact=True).click()
    assert box.input_value() == "by hand" and shown() == ["A sum"]
