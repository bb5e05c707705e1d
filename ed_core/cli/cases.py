"""`case list | show | export | import | delete`, `publish`: what is kept."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from .. import disk, untrusted
from ..cases.export import EXPORTS, exported
from ..cases.kept import SORTS, Kept
from ..depth import say
from ..errors import ParameterError
from ..models.controls import full_name

Id = Annotated[str, typer.Argument(help="As `case list` prints it.")]


def list_(
    words: Annotated[list[str] | None, typer.Argument(help="Words in title, notes, tags, prompt or model.")] = None,
    sort: Literal[tuple(SORTS)] = "changed",  # type: ignore[valid-type]
) -> None:
    """List the case studies kept here."""
    kept = Kept()
    for card in kept.cards(" ".join(words or ()), sort):
        tags = f"  [{', '.join(card.tags)}]" if card.tags else ""
        shipped = "  (shipped)" if kept.is_shipped(card.id) else ""
        print(f"{card.id}  {_day(card.changed)}  {card.model:<14}  {card.title}{tags}{shipped}")
    for problem in kept.problems:
        print(f"ed_core: {problem}", file=sys.stderr)


def show(id: Id) -> None:
    """Print one case study in words."""
    case, _ = Kept().open(id)
    tags = f", tags {', '.join(case.tags)}" if case.tags else ""
    print(f"{case.title}\n{case.id}, kept {_day(case.created)}, changed {_day(case.changed)}{tags}")
    if case.verdict:
        print(f"\n{case.verdict}")
    for view in case.views:
        print(f"\n{', '.join(map(full_name, view.models))}: {view.prompts[0].text!r}")
        for probe, item in view.by_probe.items():
            measures = ", ".join(f"{n} {m.values.shape}" for n, m in item.result.measures.items())
            print(f"  {probe:<22} run {item.result.provenance.get('run', '?')}: {measures}")
    if case.notes:
        print(f"\n{case.notes}")


def export(
    id: Id,
    out: Annotated[str, typer.Argument(metavar="FILE", help=f"Its ending decides: {', '.join(EXPORTS)}.")],
    measure: Annotated[
        str, typer.Option(metavar="PROBE.MEASURE", help="Of a .csv; names are listed without one.")
    ] = "",
    figure: Annotated[str, typer.Option(metavar="NAME", help="Of a .png or .svg; names are listed without one.")] = "",
) -> None:
    """Write a case study as a file."""
    kept, file = Kept(), Path(out)
    case, _ = kept.open(id)
    if (ending := untrusted.ending(file)) not in EXPORTS:
        raise ParameterError(f"{out} ends in {ending!r}; expected one of {', '.join(EXPORTS)}.")
    disk.require_out(file, kept.path.rglob("*"), "FILE")
    data = kept.read(id) if ending == ".edcase" else exported(case, ending, measure or figure)
    disk.write(file, data)
    print(f"{file}: {len(data)} bytes")


def import_(file: Annotated[Path, typer.Argument(metavar="FILE.edcase")]) -> None:
    """Check somebody else's case study and keep it."""
    from ..cases.bundle import MAX_BYTES

    case, new = Kept().take_in(untrusted.content(file, MAX_BYTES, ParameterError))
    print(f"{case.id}  {case.title}{'' if new else '  (already here)'}")


def delete(id: Id) -> None:
    """Delete a case study for good."""
    Kept().delete(id)
    print(f"{id} was deleted.")


def publish(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Empty, new, or a site published before: replaced.")],
    own: Annotated[bool, typer.Option("--own", help="Everything kept here (the default if nothing is named).")] = False,
    shipped: Annotated[bool, typer.Option("--shipped", help="What comes with the product.")] = False,
    case: Annotated[list[str] | None, typer.Option(metavar="ID", help="A case study; repeatable.")] = None,
    study: Annotated[list[Path] | None, typer.Option(metavar="FOLDER", help="A study; repeatable.")] = None,
    card: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="A card.json; repeatable.")] = None,
) -> int:
    """Write case studies, studies and depth cards as a static site."""
    from ..cases import site

    disk.require_out_folder(out)
    pages, problems = site.publish(out, case or [], study or [], card or [], own=own, shipped=shipped)
    counts = [
        say.count(n, name) for kind, name in site.NAMES.items() if (n := sum(page.kind == kind for page in pages))
    ]
    print(f"{out}: {say.listed(counts) or 'nothing'}; open {out / site.INDEX}")
    for problem in problems:
        print(f"ed_core: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _day(seconds: float) -> str:
    """Return a time (Unix seconds) as text in UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
