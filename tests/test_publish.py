"""A published site: what enters it, that nothing of a stranger runs, and that a folder keeps what is not the site's."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from kept_cases import small
from test_report import Page, hostile

from ed_core.cards import card
from ed_core.cases import bundle, site
from ed_core.cases.kept import SHIPPED, Kept
from ed_core.cli import main
from ed_core.models.bundled import STUDIES
from ed_core.studies import bundle as study_bundle
from ed_core.studies import items

pytestmark = pytest.mark.usefixtures("own_cache")
CARD = next(file for file in card.shipped() if file.stem == "ed-demo-8")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "site"


def publish(out, *options) -> int:
    return main(["publish", "--out", str(out), *options])


def files(out) -> set[str]:
    return {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}


def titles(out) -> list[str]:
    return [unescape(title) for title in re.findall(r"<h3 .*?><a .*?>(.*?)</a>", (out / "index.html").read_text())]


def check_links(out: Path) -> None:
    """Every link leads to a file of the site, and nothing is asked for elsewhere."""
    for file in out.rglob("*.html"):
        page = Page(file.read_text(encoding="utf-8"))
        for address in (attributes.get(name) for _, attributes in page.tags for name in ("href", "src")):
            if not address or address.startswith(("data:", "https://arxiv.org/")):
                continue
            place = (file.parent / unquote(address)).resolve()
            assert not address.startswith("/") and place.is_file() and place.is_relative_to(out), (file, address)
        (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'" and rules["script-src"] == "'self' file:" and "http" not in policy


def test_ones_own_is_published_with_its_files_and_renewed(out, monkeypatch):
    kept, first, second = Kept(), small("First"), small("Second")
    kept.add(first), kept.add(second)
    own = card.folder() / "x" / card.FILE
    own.parent.mkdir(parents=True)
    own.write_bytes(card.to_json(card.read(CARD).but(made="2027-01-01")))
    assert publish(out) == 0
    assert titles(out) == ["Second", "First", "Depth card: ed-demo-8"]
    assert bundle.decode((out / f"cases/{first.id}.edcase").read_bytes()) == first
    check_links(out)
    monkeypatch.setattr(card, "shipped", lambda: [CARD])
    assert publish(out, "--own", "--shipped") == 0
    (published,) = (out / "cards").glob("*.json")
    assert card.read(published).made == "2027-01-01", "one's own replaces the shipped one of the same"
    (out / ".git").mkdir()
    (out / ".git" / "HEAD").write_text("mine")
    (out / "CNAME").write_text("mine")
    kept.delete(first.id)
    own.unlink()
    assert publish(out) == 0 and titles(out) == ["Second"]
    of_second = {f"cases/{second.id}.html", f"cases/{second.id}.edcase"}
    kept_there = {name for name in files(out) if not name.startswith("assets/")}
    assert kept_there == {"index.html", site.MARKER, *of_second, ".git/HEAD", "CNAME"}


def test_only_what_is_named_or_shipped_is_published_where_that_is_asked(out, tmp_path, monkeypatch):
    kept, mine, other = Kept(), small("Mine"), small("Other")
    kept.add(mine), kept.add(other)
    assert publish(out, "--case", other.id) == 0 and titles(out) == ["Other"]
    monkeypatch.setattr(items, "shipped", list)
    monkeypatch.setattr(card, "shipped", lambda: [CARD])
    (tmp_path / "shipped").mkdir()
    shutil.copy(SHIPPED / "6sg64f3464.edcase", tmp_path / "shipped")
    monkeypatch.setattr(site, "Kept", partial(Kept, shipped=tmp_path / "shipped"))
    assert publish(out, "--shipped") == 0 and len(titles(out)) == 2 and "Mine" not in titles(out)
    assert publish(out, "--shipped", "--own") == 0 and {"Mine", "Other"} < {*titles(out)} and len(titles(out)) == 4


@pytest.mark.process
def test_a_studys_page_has_its_depths_its_curves_and_its_words(out):
    assert publish(out, "--study", str(STUDIES / "training")) == 0
    text = unescape((out / "studies/training.html").read_text(encoding="utf-8"))
    figures = json.loads(Page(text).texts["script"][1])
    assert len(figures) == text.count("<figure>") == 1 + 1 + 3 and "Depth over training on prompts" in text
    assert {"average depth, KL", "papers: KL", "sinks"} <= {trace["name"] for trace in figures[1]["data"]}
    assert study_bundle.name_of(out / "studies/training.edstudy") == "training"
    check_links(out)


def test_every_word_of_a_stranger_is_text(out):
    kept = Kept()
    kept.add(hostile())
    assert publish(out) == 0
    for file in out.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        page = Page(text)
        assert "alert(1)" in text and "<script>alert" not in text
        assert not [a for _, attributes in page.tags for a in attributes if a.startswith("on")], file
        pictures = [attributes["src"] for tag, attributes in page.tags if tag in ("img", "svg", "i")]
        assert all(address.startswith("data:image/png;base64,") for address in pictures), file


def test_another_folder_is_refused_and_left_as_it_was(out, capsys):
    Kept().add(small())
    out.mkdir()
    (out / "thesis.tex").write_text("work")
    assert publish(out) == 2
    err = capsys.readouterr().err
    assert "no site was published into it" in err and len(err.strip().splitlines()) == 1
    assert files(out) == {"thesis.tex"}


def test_a_damaged_one_is_left_out_and_said_and_refused_where_it_is_named(out, capsys):
    kept, good, bad = Kept(), small("Good"), small("Bad")
    kept.add(good), kept.add(bad)
    assert publish(out) == 0
    file = kept.path / f"{bad.id}.edcase"
    file.write_bytes(file.read_bytes()[:-40])
    before = {name: (out / name).read_bytes() for name in files(out)}
    assert publish(out, "--case", good.id, "--case", bad.id) == 2 and "damaged" in capsys.readouterr().err
    assert {name: (out / name).read_bytes() for name in files(out)} == before
    assert publish(out) == 1 and bad.id in capsys.readouterr().err and titles(out) == ["Good"]
