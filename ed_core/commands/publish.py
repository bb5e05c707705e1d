"""`python -m ed_core publish static --out FOLDER`: findings as a static site; `deploy space OWNER/NAME`: the app as a
Docker Space of the hub."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .. import disk
from ..errors import EffectiveDepthError, PublishError
from .models import Commands


def add(commands: Commands) -> None:
    """Register both commands with the parser's `commands`."""
    what = commands.add_parser(
        "publish", help="case studies, studies and depth cards for those who have no laboratory: static (a site)"
    ).add_subparsers(required=True, metavar="WHAT")
    p = what.add_parser(
        "static", help="a site that opens from a file and from any server; your own unless some are named"
    )
    p.add_argument(
        "--out", required=True, metavar="FOLDER", help="empty, not there yet, or published before: then it is renewed"
    )
    p.add_argument(
        "--own", action="store_true", help="all that is kept here and belongs to nobody who logged in (unless named)"
    )
    p.add_argument("--shipped", action="store_true", help="those that come with the product")
    p.add_argument(
        "--case", nargs="+", action="extend", default=[], metavar="ID", help="these case studies, whoever's they are"
    )
    p.add_argument("--study", nargs="+", action="extend", default=[], metavar="FOLDER", help="these studies")
    p.add_argument(
        "--card", nargs="+", action="extend", default=[], metavar="FILE", help="these depth cards (card.json)"
    )
    p.set_defaults(run=static)
    where = commands.add_parser(
        "deploy", help="put the app on a server: space (a Docker Space of the hub)"
    ).add_subparsers(required=True, metavar="WHERE")
    p = where.add_parser("space", help="make a Docker Space, or renew one that was deployed from here")
    p.add_argument("id", metavar="OWNER/NAME")
    p.add_argument("--hardware", default="cpu-basic", metavar="NAME", help="cpu-basic (unless given), t4-small, …")
    p.add_argument(
        "--variable",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="settings (ED_…) and others that everybody may see, over those of docs/deploy.md",
    )
    p.add_argument(
        "--secret",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="its value is read from the environment variable of that name, or of another: NAME=VARIABLE",
    )
    p.add_argument("--bucket", default="", metavar="OWNER/NAME", help="a storage bucket that keeps results and models")
    p.add_argument("--private", action="store_true", help="only its owner sees it")
    p.add_argument("--dry-run", metavar="FOLDER", help="write the files, say what the hub would be asked, and stop")
    p.set_defaults(run=deploy)


def static(args: argparse.Namespace) -> int:
    from ..cards import card
    from ..cases.kept import Kept
    from ..depth.wording import count, listed
    from ..sharing import site
    from ..studies import items

    disk.require_out_folder(args.out)
    kept, problems = Kept(), []
    cases, studies, cards = list(args.case), list(map(Path, args.study)), list(map(Path, args.card))
    told, left = ["those named"] if cases or studies or cards else [], []
    if args.own or not (told or args.shipped):
        (mine, others), (made, of_anybody) = site.own_cases(kept), site.own_studies()
        own_cards, anybodys = site.own_cards()
        cases, studies, cards = [*cases, *mine], [*studies, *made], [*cards, *own_cards]
        told.append("your own")
        left += [f"{count(others, 'case study')} of others (--case ID names one)"] * (others > 0)
        left += [f"{count(of_anybody, 'study')} that may be anybody's (--study FOLDER names one)"] * (of_anybody > 0)
        left += [f"{count(anybodys, 'depth card')} that may be anybody's (--card FILE names one)"] * (anybodys > 0)
    if args.shipped:
        names = {place.name for place in studies}
        cases = [*cases, *site.shipped_cases(kept)]
        studies = [*studies, *(place for place in items.shipped() if place.name not in names)]
        cards = [*cards, *card.shipped()]
        told.append("those that come with the product")
    if left:
        print(f"left out: {', '.join(left)}")
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
    each = [count(n, what) for kind, what in kinds.items() if (n := sum(page.kind == kind for page in written))]
    counts = listed(each) or "nothing"
    print(f"{args.out}: {counts} ({' and '.join(told)}); open {Path(args.out) / site.INDEX}")
    for problem in [*kept.problems, *problems]:
        print(f"ed_core: {problem}", file=sys.stderr)
    return 1 if problems else 0


def deploy(args: argparse.Namespace) -> None:
    from ..sharing import space

    asked = space.planned(args.id, args.hardware, args.variable, args.secret, args.bucket, args.private)
    if args.dry_run is not None:
        folder = disk.require_out_folder(args.dry_run, "--dry-run")
        names = space.write(asked, folder)
        print("\n".join([f"{folder}: {len(names)} files; the hub would be asked", *space.told(asked, folder)]))
        return
    with tempfile.TemporaryDirectory(prefix="ed-space-") as place:
        names = space.write(asked, Path(place))
        address = space.deploy(asked, Path(place))
    print(f"{address}: {len(names)} files; the hub builds the image now, which takes minutes")
    if not asked.bucket:
        print("Without --bucket its results and case studies are gone at every restart.")
