"""`python -m ed_core publish static --out FOLDER`: findings as a static site."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import disk
from ..errors import EffectiveDepthError, PublishError
from .models import Commands


def add(commands: Commands) -> None:
    """Register the command with the parser's `commands`."""
    what = commands.add_parser(
        "publish", help="case studies, studies and depth cards for those who have no laboratory: static (a site)"
    ).add_subparsers(required=True, metavar="WHAT")
    p = what.add_parser(
        "static", help="a site that opens from a file and from any server; your own unless some are named"
    )
    p.add_argument(
        "--out", required=True, metavar="FOLDER", help="empty, not there yet, or published before: then it is renewed"
    )
    p.add_argument("--own", action="store_true", help="all that is kept here (unless some are named)")
    p.add_argument("--shipped", action="store_true", help="those that come with the product")
    p.add_argument("--case", nargs="+", action="extend", default=[], metavar="ID", help="these case studies")
    p.add_argument("--study", nargs="+", action="extend", default=[], metavar="FOLDER", help="these studies")
    p.add_argument(
        "--card", nargs="+", action="extend", default=[], metavar="FILE", help="these depth cards (card.json)"
    )
    p.set_defaults(run=static)


def static(args: argparse.Namespace) -> int:
    from ..cards import card
    from ..cases.kept import Kept
    from ..depth import say
    from ..sharing import site
    from ..studies import items

    disk.require_out_folder(args.out)
    kept, problems = Kept(), []
    cases, studies, cards = list(args.case), list(map(Path, args.study)), list(map(Path, args.card))
    told = ["those named"] if cases or studies or cards else []
    if args.own or not (told or args.shipped):
        cases = [*cases, *site.own_cases(kept)]
        studies, cards = [*studies, *items.made_here()], [*cards, *card.made_here()]
        told.append("your own")
    if args.shipped:
        names = {place.name for place in studies}
        cases = [*cases, *site.shipped_cases(kept)]
        studies = [*studies, *(place for place in items.shipped() if place.name not in names)]
        cards = [*cards, *card.shipped()]
        told.append("those that come with the product")
    if not (cases or studies or cards):
        raise PublishError(
            "There is nothing of your own to publish here; give --shipped for what comes with the product, or --case, "
            "--study, --card."
        )

    def found() -> Iterator[site.Page]:
        named, places = {*args.case, *map(Path, args.study), *map(Path, args.card)}, set()
        every = ((lambda id: site.of_case(kept, id), cases), (site.of_study, studies), (site.of_card, cards))
        for make, of_kind in every:
            for one in dict.fromkeys(of_kind):
                try:
                    page = make(one)
                    if page.place not in places or one in named or one not in card.shipped():
                        yield page  # a shipped card of what one's own measured is left out
                    places.add(page.place)
                except EffectiveDepthError as error:
                    if one in named:
                        raise
                    problems.append(f"{one}: {error}")

    written = site.write(found(), Path(args.out))
    kinds = {site.CASES: "case study", site.OF_STUDIES: "study", site.OF_CARDS: "depth card"}
    each = [say.count(n, what) for kind, what in kinds.items() if (n := sum(page.kind == kind for page in written))]
    counts = say.listed(each) or "nothing"
    print(f"{args.out}: {counts} ({' and '.join(told)}); open {Path(args.out) / site.INDEX}")
    for problem in [*kept.problems, *problems]:
        print(f"ed_core: {problem}", file=sys.stderr)
    return 1 if problems else 0
