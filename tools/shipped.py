"""The words of what ships, over the numbers that are kept: `python -m tools.shipped` writes the depth cards' pages
(`docs/cards`) and the reports of the bundled studies anew, with case studies' notes (`tools.cases --words`), after a
sentence has changed. A test holds each against what the program says."""

from __future__ import annotations

from pathlib import Path

from ed_core.cards import card, page, words
from ed_core.settings import ROOT
from ed_core.sources.bundled import STUDIES
from ed_core.studies import report, tables
from ed_core.studies.items import open_folder

from . import cases, given

PAGES = ROOT / "docs" / "cards"


def write_card(file: Path) -> None:
    """A card's page and Markdown."""
    told = card.read(file)
    (PAGES / f"{file.stem}.md").write_text(words.markdown(told), encoding="utf-8")
    (PAGES / f"{file.stem}.html").write_bytes(page.html(told))


def write_report(out: Path) -> None:
    """A study's report."""
    there = open_folder(out)
    told = report.markdown(there, tables.stored(there, "verdict"), there.digest())
    (out / "report.md").write_text(told, encoding="utf-8")


def main() -> None:
    for file in card.shipped():
        write_card(file)
    for plan in sorted(STUDIES.glob("*/plan.json")):
        write_report(plan.parent)
    cases.main(["--words"])


if __name__ == "__main__":
    given(__doc__)
    main()
