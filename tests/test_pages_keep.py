"""Case studies on the pages: saved as they were seen, opened without the model, edited without a loss, found and
deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from archives import sealed_anew
from charts import charts, fresh, words
from kept_cases import case, results
from streamlit.testing.v1 import AppTest
from test_pages import holds, plotted, session_of

from ed_core.cases import case_study
from ed_core.cases import kept as kept_module
from ed_core.cases.case_study import Shown
from ed_core.cases.drawings import drawings
from ed_core.cases.kept import Kept
from ed_core.errors import CaseError
from ed_ui import case_studies, navigation

GALLERY, CASE = "pages/case_studies/gallery.py", "pages/case_studies/case.py"
EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> **bold** :red[x] $y$ [l](javascript:alert(1)) "
    "![i](http://127.0.0.1/i.png) {{7*7}}"
)
SHIPPED = len(list(kept_module.SHIPPED.glob("*.edcase")))


@pytest.fixture
def folder(laboratory):
    """An empty folder of case studies; no worker is started."""
    return Kept(laboratory)


def app(page: str = "", **query: str) -> AppTest:
    """A fresh session in which a page was opened."""
    test = fresh(CASE if page else "")
    if page == GALLERY:  # whose name in the URL is not its file's: it is found once the app has run
        test.run().switch_page(GALLERY)
    for name, value in query.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    return test


def own_links(test: AppTest) -> list:
    """The links of the page; those to the rooms have other labels."""
    rooms = {room.title for room in navigation.ROOMS}
    return [one for one in test.main.get("page_link") if one.proto.label not in rooms]


def html(test: AppTest) -> str:
    return "\n".join(e.proto.body for e in test.get("html") if not e.proto.unsafe_allow_javascript)


def type_in(test: AppTest, prefix: str, **values: str) -> None:
    for name, text in values.items():
        (test.text_area if name == "notes" else test.text_input)(key=f"{prefix}.{name}").set_value(text)


def test_home_is_kept_as_it_is_seen_and_a_shipped_one_as_a_copy(folder):
    test = app(model="ed-demo-16")
    test.segmented_control(key="of").set_value("answer").run()
    session_of(test).inputs["token"] = 3
    test.toggle(key="first_token").set_value(False).run()
    type_in(test, "keep.home", title="Mine", tags="a, b ,a", notes="*n*")
    test.button(key="keep.home.save").click().run()
    assert not test.exception and not test.error
    (card,) = [c for c in folder.cards() if not folder.is_shipped(c.id)]
    kept, _ = folder.open(card.id)
    assert (kept.title, kept.tags, kept.notes, kept.first_token) == ("Mine", ("a", "b"), "*n*", False)
    assert [i.result.request.probe for i in kept.items] == ["contributions", "continuation", "logit_lens", "layer_skip"]
    shown = kept.items[0].shown
    assert shown.page == "home" and shown.selected == 3 and dict(shown.settings) == {"of": "answer"}
    assert kept.verdict and any(kept.title in s.value for s in test.success)
    assert "keep.home.save" not in [b.key for b in test.button], "a second click does not save the same view twice"
    id = next(c.id for c in folder.cards() if folder.is_shipped(c.id))
    test = app(CASE, id=id)
    assert test.button(key="case.edit").disabled and "case.delete.yes" not in {b.key for b in test.button}
    test.button(key="case.duplicate").click().run()
    (copy,) = [c for c in folder.cards() if not folder.is_shipped(c.id) and c.id != kept.id]
    assert not test.exception and not app(CASE, id=copy.id).button(key="case.edit").disabled


def test_who_may_not_keep_is_told_why(folder, monkeypatch):
    one = case()
    folder.add(one)
    monkeypatch.setattr("ed_ui.visitor.why_not", lambda: "This server keeps nothing.")
    test = app()
    assert "This server keeps nothing." in words(test) and "keep.home.save" not in {b.key for b in test.button}
    test = app(CASE, id=one.id)
    off = {b.key: b.disabled for b in test.button if b.key and b.key.startswith("case.")}
    assert off["case.edit"] and off["case.duplicate"] and not off["case.live"] and "case.delete.yes" not in off
    with pytest.raises(CaseError, match="keeps nothing"):
        case_studies.writable(one.id)


def test_a_link_opens_every_figure_in_a_fresh_session_without_the_model(folder, monkeypatch):
    kept = case(
        notes="**Look** here.", tags=["one"], shown=Shown("home", (2, 40), 5, (("branch", "attn"), ("shade", "kl")))
    )
    folder.add(kept)
    monkeypatch.setattr("ed_core.models.ref.ModelRef.named", lambda *a: pytest.fail("a case study asks for no model"))
    monkeypatch.setattr("ed_ui.picker.current", lambda: pytest.fail("a case study asks for no model"))
    test = app(CASE, id=kept.id)
    assert not test.error and kept.verdict in words(test) and "<strong>Look</strong>" in html(test)
    figures = plotted(test)
    for measure in ("contributions.attn_ratio", "contributions.attn_cos", "logit_lens.kl", "layer_skip.effect"):
        probe, name = measure.split(".")
        assert holds(figures, results()[probe][name]), measure
    shown = charts(test)
    assert len(shown) == len(drawings(kept)) == 6
    spec = shown[1]["layout"]
    assert spec["xaxis"]["range"] == [1.5, 40.5]
    assert any(s.get("x0") == 4.5 for s in spec["shapes"]), "window and token as they were kept"


@pytest.mark.parametrize("id, says", [("", "names no"), ("aaaaaaaaaa", "no case study"), (EVIL, "is not the id")])
def test_a_link_to_nothing_is_one_sentence_and_the_way_to_the_list(folder, id, says):
    test = app(CASE, id=id)
    assert len(test.error) == 1 and says in words(test)
    assert [one.proto.page for one in own_links(test) if one.proto.page.startswith("case")] == ["cases"]


def test_newer_and_damaged_files_are_told_and_left_alone(folder):
    newer, damaged, whole = case("newer"), case("damaged"), case("whole")
    for one in (newer, damaged, whole):
        folder.add(one)
    file = folder.path / f"{newer.id}.edcase"
    file.write_bytes(sealed_anew(file.read_bytes(), lambda header: header | {"version": 9}))
    (folder.path / f"{damaged.id}.edcase").write_bytes(b"PK rubbish")
    test = app(CASE, id=newer.id)
    assert not test.exception and "version 9" in words(test) and file.is_file()
    test = app(GALLERY)
    assert not test.exception and "version 9" in words(test) and f"{damaged.id}.edcase is damaged" in words(test)
    assert "whole" in words(test) + tiles(test)
    test = app(CASE, id=damaged.id)
    assert "is damaged" in words(test)
    test.button(key="case.delete.yes").click().run()
    assert not test.exception and not (folder.path / f"{damaged.id}.edcase").exists()
    assert "no case study" in words(app(CASE, id=damaged.id))


def tiles(test: AppTest) -> str:
    return "\n".join(link.proto.label for link in own_links(test)).replace("\\", "")


def test_hostile_words_are_shown_as_they_are(folder):
    lens = results()["logit_lens"]
    prompt = replace(lens.request.prompts[0], text=EVIL, answer="</pre>" + EVIL)
    evil = replace(lens, request=replace(lens.request, prompts=(prompt,)))
    kept = case_study.make(
        EVIL, [evil], notes=EVIL + "\n\n```\n</div><script>alert(2)</script>\n```", tags=["<b>t</b>", ":red[x]"]
    )
    folder.add(kept)
    for test in (app(CASE, id=kept.id), app(GALLERY)):
        assert not test.error
        for unsafe in ("<script", "onerror=alert(1)>", 'href="javascript', "<img src=x"):
            assert unsafe not in html(test)
        shown = [one.value for kind in (test.markdown, test.caption, test.subheader) for one in kind]
        shown = "\n".join([*shown, *(link.proto.label for link in own_links(test))])
        assert "![i](" not in shown and ":red[" not in shown.replace("\\:red\\[", "")


def test_words_are_edited_and_the_numbers_stay_and_two_editors_lose_nothing(folder):
    kept = case("before", notes="old")
    folder.add(kept)

    def edit(**values: str) -> AppTest:
        test = app(CASE, id=kept.id)
        test.button(key="case.edit").click().run()
        type_in(test, f"edit.{kept.id}", **values)
        return test.run()

    test, mine = edit(title="after", tags="x, y", notes="new *words*"), edit(notes="mine")
    assert "<em>words</em>" in html(test), "the notes are shown as they will read"
    test.switch_page(GALLERY).run()
    test.switch_page(CASE)
    test.query_params["id"] = kept.id
    box = test.run().text_area(key=f"edit.{kept.id}.notes")
    assert box.value == "new *words*", "unsaved words survive a page change"
    test.button(key=f"edit.{kept.id}.save").click().run()
    assert not test.exception and not test.error
    now, _ = folder.open(kept.id)
    assert (now.title, now.tags, now.notes) == ("after", ("x", "y"), "new *words*") and now.items == kept.items
    assert "after" in words(test) and not test.text_area
    mine.button(key=f"edit.{kept.id}.save").click().run()
    assert not mine.exception and any("changed by somebody else" in e.value for e in mine.error)
    assert mine.text_area(key=f"edit.{kept.id}.notes").value == "mine" and folder.open(kept.id)[0] == now


def test_deleting_asks_once_and_leads_to_the_list(folder):
    kept = case("Mine")
    folder.add(kept)
    test = app(CASE, id=kept.id)
    test.button(key="case.delete.yes").click().run()
    assert not test.exception and not test.error and [c for c in folder.cards() if not folder.is_shipped(c.id)] == []
    assert len(own_links(test)) == SHIPPED
    assert "no case study" in words(app(CASE, id=kept.id))


def test_open_live_puts_everything_back_into_the_boxes(folder):
    shown = Shown("home", (2, 40), 5, (("of", "answer"), ("count_sinks", True)))
    kept = case(shown=shown, kl_threshold=0.25, first_token=False)
    folder.add(kept)
    test = app(CASE, id=kept.id)
    test.button(key="case.live").click().run()
    assert not test.exception
    request = kept.items[0].result.request
    assert test.text_area(key="text").value == request.prompts[0].text
    assert test.selectbox(key="model").value == "ed-demo-8"
    assert session_of(test).inputs["of"] == "answer" and session_of(test).inputs["count_sinks"] is True
    assert test.slider(key="kl_threshold").value == 0.25 and test.toggle(key="first_token").value is False
    assert session_of(test).inputs["token"] == 5
    assert holds(plotted(test), results()["contributions"]["layer_ratio"])


def test_the_gallery_searches_sorts_and_finds_by_tag(folder):
    for title, tags in (("Zebra", ["stripes"]), ("Ant", ["small thing"])):
        folder.add(case(title, tags=tags))
    test = app(GALLERY)
    assert not test.exception and len(own_links(test)) == SHIPPED + 2
    assert html(test).count('alt="Thumbnail of') == SHIPPED + 2 and "http" not in html(test)
    test.selectbox(key="gallery.sort").set_value("title").run()
    assert [t.strip("*") for t in tiles(test).splitlines()[:2]] == ["Ant", "Zebra"], "one's own first"
    for search, found in (("zebra", "**Zebra**"), ("stripes", "**Zebra**"), ("zebras without lines", "")):
        test.text_input(key="gallery.search").set_value(search).run()
        assert tiles(test) == found


def test_imports_are_taken_refused_and_recognised(folder, tmp_path):
    elsewhere = Kept(tmp_path / "elsewhere", shipped=None)
    kept = case("Theirs")
    elsewhere.add(kept)
    test = app(GALLERY)
    files = [(f"{name}.edcase", data, "application/zip") for name, data in (("a", elsewhere.read(kept.id)), ("b", b""))]
    test.file_uploader[0].set_value(files).run()
    assert not test.exception and folder.open(kept.id)[0] == kept
    assert "is kept now" in words(test) and "b.edcase was not taken in" in words(test)
    test.file_uploader[0].set_value(files[:1]).run()
    assert "was here already" in words(test) and len(folder.cards()) == SHIPPED + 1
