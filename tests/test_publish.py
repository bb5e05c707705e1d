"""A published site: what enters it, that nothing of a stranger runs, and that a folder keeps what is not the site's."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from kept_cases import small
from test_report import EVIL, Page, hostile

from ed_core.cards import card
from ed_core.cases import bundle
from ed_core.cases.kept import Kept
from ed_core.commands import main
from ed_core.errors import PublishError
from ed_core.sharing import site
from ed_core.sources.bundled import STUDIES
from ed_core.studies import bundle as study_bundle
from ed_core.studies import items

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "site"


def publish(out, *options) -> int:
    return main(["publish", "static", "--out", str(out), *options])


def files(out) -> set[str]:
    return {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}


def titles(out) -> list[str]:
    return [
        unescape(title) for title in re.findall(r"<h3 dir=auto><a [^>]*>(.*?)</a>", (out / "index.html").read_text())
    ]


ASSETS = {f"assets/{name}" for name in ("plotly.js", "report.js", "site.css", "site.js")}


@pytest.fixture(scope="module")
def shipped(made_once):
    """What comes with the product, published."""

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ED_CACHE", str(folder / "cache"))
            assert publish(folder / "site", "--shipped") == 0

    return made_once("shipped", make) / "site"


def test_only_what_is_too_long_for_the_index_is_shortened():
    kept = Kept()
    told = [site.of_case(kept, file.stem) for file in kept.files(kept.shipped)]
    assert all(one.lead.endswith(".") for one in told), "leads of a sentence"
    prompts = [one.facts.partition("“")[2].removesuffix("”") for one in told]
    assert {len(prompt) for prompt in prompts} == {60} and all(prompt.endswith("…") for prompt in prompts)


def test_what_is_shipped_has_a_page_each_and_its_file(shipped):
    ids = {file.stem for file in Kept().files(Kept().shipped)}
    studies, cards = {"toys", "training", "SmolLM2-135M-Instruct-on-GSM8K"}, list(map(site.of_card, card.shipped()))
    assert (
        len(cards) == 6
        and len(ids) >= 9
        and files(shipped)
        == {
            "index.html",
            site.MARKER,
            *ASSETS,
            *(f"cases/{id}.{kind}" for id in ids for kind in ("html", "edcase")),
            *(f"studies/{name}{kind}" for name in studies for kind in (".html", ".edstudy", "-verdict.csv")),
            *(place for one in cards for place in one.files),
        }
    )
    for id in ids:
        assert bundle.decode((shipped / f"cases/{id}.edcase").read_bytes()).id == id
    assert study_bundle.name_of(shipped / "studies/toys.edstudy") == "toys"
    assert len(titles(shipped)) == len(ids) + len(studies) + len(cards)


def test_every_link_leads_to_a_file_of_the_site_and_nothing_is_asked_for_elsewhere(shipped):
    for file in shipped.rglob("*.html"):
        page = Page(file.read_text(encoding="utf-8"))
        asked = [attributes.get(name) for _, attributes in page.tags for name in ("href", "src")]
        for address in filter(None, asked):
            if address.startswith(("data:", "https://arxiv.org/")):
                continue
            place = (file.parent / unquote(address)).resolve()
            assert not address.startswith("/") and place.is_file() and place.is_relative_to(shipped), (file, address)
        (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'" and rules["script-src"] == "'self' file:"
        assert "http" not in policy and "connect-src" not in rules
        scripts = [text for text in page.texts["script"] if text]
        has_figures = file.name != "index.html" and file.parent.name != "cards"
        assert len(scripts) == has_figures and all(json.loads(text) for text in scripts)


def test_a_studys_page_has_its_depths_its_curves_set_by_set_and_its_words(shipped):
    text = unescape((shipped / "studies/toys.html").read_text(encoding="utf-8"))
    figures = json.loads(Page(text).texts["script"][1])
    assert len(figures) == text.count("<figure>") == 1 + 3 * 4
    for figure in figures[1:]:
        assert [t["name"] for t in figure["data"] if t.get("showlegend") is not False] == ["ed-demo-8", "ed-demo-16"]
    assert "<h2 dir=auto>Curves on sums, worked out</h2>" in text
    assert "The papers' KL rule gives layer 5 of 0–7" in text and "<table>" in text
    first, of_look_ups = figures[1]["data"], figures[7]["data"]
    assert first[-1]["y"] != of_look_ups[-1]["y"], "each set has its own curves"


def test_a_trainings_page_has_its_depth_over_the_steps(shipped):
    text = unescape((shipped / "studies/training.html").read_text(encoding="utf-8"))
    figures = json.loads(Page(text).texts["script"][1])
    assert len(figures) == text.count("<figure>") == 1 + 1 + 3 and ">Over training on prompts</h2>" in text
    assert {"mean depth, KL", "papers: KL", "sinks"} <= {trace["name"] for trace in figures[1]["data"]}
    assert set(re.findall(r"Depth over training[^<:\"]*", text)) == {"Depth over training on prompts"}


def a_study(kept: Kept):
    """The bundled one, as one of one's own."""
    return shutil.copytree(STUDIES / "toys", kept.root / "studies" / "toys")


def test_every_word_of_a_stranger_is_text(out, monkeypatch):
    """With the first part of the first set: tables are made anew. Of a plan that nobody could open besides."""
    monkeypatch.setattr(study_bundle, "packed", lambda place: b"")
    kept = Kept()
    kept.add(hostile())
    place = a_study(kept)
    plan = json.loads((place / "plan.json").read_text())
    plan["note"] = plan["models"][0]["label"] = EVIL
    first = plan["sets"][0]
    some = {name: first[name][: plan["chunk"]] for name in ("ids", "levels", "pairs", "forms") if name in first}
    plan["sets"] = [{**first, **some, "chunks": first["chunks"][:1]}]
    (place / "plan.json").write_text(json.dumps(plan))
    assert publish(out) == 0
    for file in out.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        page = Page(text)
        assert "alert(1)" in text and "<script>alert" not in text
        assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")], file
        pictures = [attributes["src"] for tag, attributes in page.tags if tag in ("img", "svg", "i")]
        assert all(address.startswith("data:image/png;base64,") for address in pictures), file
    assert titles(out) == [EVIL.replace("\u2067", "").strip(), "toys"]


def test_only_what_belongs_to_nobody_else_is_published_unasked(out, capsys, monkeypatch):
    kept = Kept()
    mine, hers = small("Mine"), small("Hers")
    kept.add(mine)
    kept.add(hers, "ada@lab.org")
    a_study(kept)
    monkeypatch.setattr(site, "of_case", lambda kept, id: _light("cases", id, kept.open(id)[0].title))
    monkeypatch.setattr(site, "of_study", light_study)
    assert publish(out) == 0
    told = capsys.readouterr().out
    assert titles(out) == ["Mine", "toys"] and f"cases/{hers.id}" not in files(out)
    assert "left out: 1 case study of others (--case ID names one)" in told
    assert f"{out}: 1 case study and 1 study (your own)" in told
    assert publish(out, "--case", hers.id) == 0 and titles(out) == ["Hers"]
    assert publish(out, "--shipped") == 0 and "Mine" not in titles(out) and len(titles(out)) == 12 + len(card.shipped())
    assert publish(out, "--shipped", "--own") == 0
    assert {"Mine", "An easy sum: two digits, done half-way up"} <= {*titles(out)}
    assert titles(out).count("toys") == 1, "an own study stands for the shipped one of its name"


def _light(folder: str, name: str, title: str) -> site.Page:
    kind = {"cases": site.CASES, "studies": site.OF_STUDIES}[folder]
    return site.Page(kind, f"{folder}/{name}", title, "", "", "", files={f"{folder}/{name}": b""})


def light_study(place) -> site.Page:
    return _light("studies", place.name, place.name)


def test_where_people_log_in_a_study_is_published_by_name_alone(out, capsys, monkeypatch):
    kept = Kept()
    kept.add(small("Mine"))
    place = a_study(kept)
    monkeypatch.setattr(site, "of_study", light_study)
    monkeypatch.setenv("ED_LOGIN", "optional")
    assert publish(out) == 0 and titles(out) == ["Mine"]
    assert "left out: 1 study that may be anybody's (--study FOLDER names one)" in capsys.readouterr().out
    assert publish(out, "--study", str(place)) == 0 and titles(out) == ["toys"]


def test_nothing_of_ones_own_is_said(out, capsys):
    assert publish(out) == 2 and not out.exists()
    assert "nothing of your own to publish here; give --shipped" in capsys.readouterr().err


def test_where_people_log_in_a_card_is_published_by_name_alone(out, capsys, monkeypatch):
    own = card.folder() / "x" / card.FILE
    own.parent.mkdir(parents=True)
    own.write_bytes(card.to_json(card.read(card.shipped()[0])))
    monkeypatch.setenv("ED_LOGIN", "optional")
    kept = Kept()
    kept.add(small("Mine"))
    assert publish(out) == 0 and titles(out) == ["Mine"]
    assert "left out: 1 depth card that may be anybody's (--card FILE names one)" in capsys.readouterr().out
    assert publish(out, "--card", str(own)) == 0 and len(titles(out)) == 1 and titles(out) != ["Mine"]


@pytest.mark.parametrize("command, missing", [("publish", "WHAT"), ("deploy", "WHERE")])
def test_a_command_without_its_second_word_says_that_it_is_missing(capsys, command, missing):
    with pytest.raises(SystemExit) as end:
        main([command])
    assert end.value.code == 2 and f"the following arguments are required: {missing}" in capsys.readouterr().err


def test_a_card_that_is_not_there_is_said_to_be_missing(out, capsys):
    assert publish(out, "--card", "nope.json") == 2 and not out.exists()
    assert capsys.readouterr().err == "ed_core: There is no card nope.json; check the path.\n"


def test_what_is_gone_is_removed_and_what_is_not_the_sites_stays(out, tmp_path, monkeypatch):
    monkeypatch.setattr(site, "of_study", light_study)
    kept = Kept()
    first, second = small("First"), small("Second")
    kept.add(first)
    kept.add(second)
    assert publish(out, "--own", "--study", str(STUDIES / "toys")) == 0
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("mine")
    (out / "cases" / "CNAME").write_text("mine")
    kept.delete(first.id)
    assert publish(out) == 0
    assert titles(out) == ["Second"]
    assert files(out) == {
        "index.html",
        site.MARKER,
        *ASSETS,
        f"cases/{second.id}.html",
        f"cases/{second.id}.edcase",
        ".git/HEAD",
        "cases/CNAME",
    }
    assert not (out / "studies").exists()
    assert sorted(json.loads((out / site.MARKER).read_text())["files"]) == sorted(
        files(out) - {site.MARKER, ".git/HEAD", "cases/CNAME"}
    )
    assert not list(tmp_path.glob("*.unfinished"))


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("thesis.tex", "years of work", "is not empty, and no site was published into it"),
        (site.MARKER, "{", "that this program did not write"),
        (site.MARKER, '{"format": "effective-depth site", "files": ["../thesis.tex"]}', "did not write"),
        (site.MARKER, '{"format": "another", "files": []}', "did not write"),
    ],
)
def test_another_folder_is_refused_and_left_as_it_was(out, capsys, name, text, words):
    Kept().add(small())
    out.mkdir()
    (out / name).write_text(text)
    assert publish(out) == 2
    err = capsys.readouterr().err
    assert words in err and len(err.strip().splitlines()) == 1 and files(out) == {name}


def test_a_site_is_written_through_no_link_and_removes_no_folder(out, tmp_path, capsys):
    argv = ["publish", "static", "--card", str(card.shipped()[0]), "--out", str(out)]
    assert main(argv) == 0
    told = json.loads((out / site.MARKER).read_text())
    (out / site.MARKER).write_text(json.dumps(told | {"files": [*told["files"], "mine"]}))
    (out / "mine").mkdir()
    assert main(argv) == 0 and (out / "mine").is_dir()
    shutil.rmtree(out / site.ASSETS)
    (out / site.ASSETS).symlink_to(tmp_path)
    before = sorted(tmp_path.iterdir())
    capsys.readouterr()
    assert main(argv) == 2
    assert f"{site.ASSETS} is a link" in capsys.readouterr().err and sorted(tmp_path.iterdir()) == before


def test_a_link_to_another_disk_is_published_into(out, tmp_path, monkeypatch):
    there, replace = tmp_path / "disk" / "there", os.replace
    there.mkdir(parents=True)
    out.symlink_to(there)

    def on_one_disk(file, to):
        if Path(file).resolve().is_relative_to(there) != Path(to).resolve().is_relative_to(there):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(file, to)

    monkeypatch.setattr(os, "replace", on_one_disk)
    page = site.Page("Model cards", "cards/a.html", "A", "", "", "", files={"cards/a.html": b"x"})
    for killed in (False, True):
        if killed:
            shutil.rmtree(there)
            (there / ".abcdefgh.unfinished").mkdir(parents=True)
        site.write([page], out)
        assert files(there) == {"index.html", site.MARKER, "cards/a.html", *ASSETS}
        assert not list(there.glob(".*.unfinished"))


@pytest.fixture
def two():
    """A case study, another, and how that is damaged."""
    kept, good, bad = Kept(), small("Good"), small("Bad")
    kept.add(good), kept.add(bad)
    file = kept.path / f"{bad.id}.edcase"
    return good, bad, lambda: file.write_bytes(file.read_bytes()[:-40])


def test_a_named_one_that_is_damaged_changes_nothing(out, two, capsys):
    good, bad, damage = two
    assert publish(out, "--case", good.id, bad.id) == 0
    before = {name: (out / name).read_bytes() for name in files(out)}
    damage()
    assert publish(out, "--case", good.id, bad.id) == 2
    assert "damaged" in capsys.readouterr().err
    assert {name: (out / name).read_bytes() for name in files(out)} == before


def test_what_is_damaged_and_not_named_is_left_out_and_said(out, two, capsys):
    good, bad, damage = two
    damage()
    capsys.readouterr()
    assert publish(out) == 0
    told = capsys.readouterr()
    (problem,) = [line for line in told.err.splitlines() if "damaged" in line]
    assert problem.startswith("ed_core: ") and bad.id in problem
    assert any(good.id in name for name in files(out)) and not any(bad.id in name for name in files(out))


def test_two_studies_of_one_name_are_refused(out):
    page = site.Page(site.OF_STUDIES, "", "toys", "", "", "", files={"studies/toys.html": b""})
    with pytest.raises(PublishError, match="Two files of the site would be called studies/toys.html"):
        site.write([page, page], out)
    assert not out.exists()


def test_a_card_of_ones_own_stands_for_the_shipped_one_of_the_same(out, monkeypatch):
    monkeypatch.setattr(site, "shipped_cases", lambda kept: [])
    monkeypatch.setattr(items, "shipped", list)
    shipped, own = card.shipped()[0], card.folder() / "x" / card.FILE
    own.parent.mkdir(parents=True)
    own.write_bytes(card.to_json(card.read(shipped).but(made="2027-01-01")))
    assert publish(out, "--own", "--shipped") == 0
    assert len(list((out / "cards").glob("*.html"))) == len(card.shipped())
    place = site.of_card(shipped).place.removesuffix(".html")
    assert card.read(out / f"{place}.json").made == "2027-01-01"


@pytest.mark.parametrize("model", ["(mine)", ".hidden", "+x"])
def test_a_card_of_a_model_of_any_name_is_published_again(out, tmp_path, model):
    told = card.read(card.shipped()[0])
    told = told.but(model=told.model.model_copy(update={"name": model}))
    (tmp_path / "card.json").write_bytes(card.to_json(told))
    for _ in range(2):
        assert publish(out, "--card", str(tmp_path / "card.json")) == 0


def test_the_index_takes_pages_of_any_kind(out):
    page = site.Page("Model cards", "cards/a.html", "A <model>", "One & all", "", "a\nB", files={"cards/a.html": b"x"})
    assert site.write([page], out) == [site.Page(*list(vars(page).values())[:-1])]
    text = (out / "index.html").read_text()
    assert "<h2>Model cards</h2>" in text and "A &lt;model&gt;</a>" in text and 'data-words="a\nb"' in text
    assert (out / "cards/a.html").read_bytes() == b"x"
