"""`docs/sentences.md`: complete, up to date, and what it says of the pages."""

from __future__ import annotations

import re

import pytest

from tools import sentences


def test_every_function_that_gives_a_sentence_is_listed_and_none_that_is_gone():
    assert sentences.unlisted() == []
    assert len(sentences.functions()) > 60


def test_a_new_sentence_function_and_one_that_is_gone_are_noticed(tmp_path, monkeypatch):
    room = tmp_path / "ed_core" / "depth"
    room.mkdir(parents=True)
    (room / "fresh.py").write_text(
        "def sentence(x) -> str:\n    return ''\n\n\ndef _part() -> str:\n    return ''\n\n\nclass Found:\n"
        "    @property\n    def lines(self) -> list[str]:\n        return []\n\n"
        "    def count(self) -> int:\n        return 1\n"
    )
    monkeypatch.setattr(sentences, "ROOT", tmp_path)
    assert sentences.functions() == ["fresh.sentence", "fresh.Found.lines"]
    found = sentences.unlisted()
    assert found[:2] == ["not listed: fresh.Found.lines", "not listed: fresh.sentence"]
    assert "listed, but gone: writing.sentence" in found


def test_the_list_is_up_to_date():
    """Else: `python -m tools.sentences`."""
    assert sentences.main(["--check"]) == 0


def test_an_entry_without_an_example_is_named(monkeypatch):
    monkeypatch.setattr(sentences, "SAID", {"Page": {"room.broken": lambda: 1 / 0}})
    with pytest.raises(RuntimeError, match=r"no example of room\.broken"):
        sentences.document()


def test_what_must_not_be_said_is_not_said_on_any_page():
    """Words that one seed, or one prompt, cannot carry."""
    text = sentences.DOCUMENT.read_text(encoding="utf-8")
    pages = re.split(r"^## ", text, flags=re.M)[1:]
    assert len(pages) == len(sentences.SAID) + 1
    for page in pages:
        for never in (
            "would stand there without",
            "was not learned",
            "what the model learned",
            "can have been learned",
            "rests on the order",
            "told of",
            "tells of it alone",
        ):
            assert never not in page, (never, page[:40])
        for line in page.splitlines():
            if "not usable here" in line:
                assert "layers before the output" not in line
            for low, high in re.findall(r"(?<!from )(?<![\d.])(−?[\d.]+) ?(?:to|–) ?(−?[\d.]*\d)", line):
                assert low != high, f"an interval without width looks like certainty: {line}"
