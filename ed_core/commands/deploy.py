"""`python -m ed_core deploy space OWNER/NAME`: the app as a Docker Space of the hub."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from .runs import Commands


def add(commands: Commands) -> None:
    """Register the command with the parser's `commands`."""
    where = commands.add_parser(
        "deploy", help="put the app on a server: space (a Docker Space of the hub)"
    ).add_subparsers(required=True, metavar="WHERE")
    p = where.add_parser("space", help="make a Docker Space, or renew one that was deployed from here")
    p.add_argument("id", metavar="OWNER/NAME")
    p.add_argument("--hardware", default="cpu-basic", metavar="NAME", help="cpu-basic (unless given), t4-small, …")
    p.add_argument(
        "--variable",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="settings (ED_…) and others that everybody may see, over those of docs/deploy.md",
    )
    p.add_argument(
        "--secret",
        nargs="+",
        default=[],
        metavar="NAME",
        help="its value is read from the environment variable of that name, or of another: NAME=VARIABLE",
    )
    p.add_argument("--bucket", default="", metavar="OWNER/NAME", help="a storage bucket that keeps results and models")
    p.add_argument("--private", action="store_true", help="only its owner sees it")
    p.add_argument("--dry-run", metavar="FOLDER", help="write the files, say what the hub would be asked, and stop")
    p.set_defaults(run=deploy)


def deploy(args: argparse.Namespace) -> None:
    from ..sharing import space

    asked = space.planned(args.id, args.hardware, args.variable, args.secret, args.bucket, args.private)
    if args.dry_run:
        folder = Path(args.dry_run)
        names = space.write(asked, folder)
        print("\n".join([f"{folder}: {len(names)} files; the hub would be asked", *space.told(asked, folder)]))
        return
    with tempfile.TemporaryDirectory(prefix="ed-space-") as place:
        names = space.write(asked, Path(place))
        address = space.deploy(asked, Path(place))
    print(f"{address}: {len(names)} files; the hub builds the image now, which takes minutes")
    if not asked.bucket:
        print("Without --bucket its results and case studies are gone at every restart.")
