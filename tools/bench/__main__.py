"""`python -m tools.bench [NAME …] [--check]`; the process of one measurement is `… --one NAME`."""

import argparse
import sys
from importlib import import_module

from ed_core.errors import EffectiveDepthError
from ed_core.models import permits

from . import GPU, THREADS, main, report

parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
parser.add_argument("names", nargs="*", help=f"{', '.join(THREADS)} (all unless given), or {GPU}")
parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
parser.add_argument("--device", default="auto", help="for gpu")
parser.add_argument("--out", default="", metavar="FILE.json", help="for gpu: write its figures")
parser.add_argument("--one", choices=THREADS, help=argparse.SUPPRESS)
args = parser.parse_args()
permits.as_owner()
if args.one:
    report(import_module(f".{args.one}", __package__).measure())
else:
    try:
        sys.exit(main(args.names, args.check, args.device, args.out))
    except EffectiveDepthError as error:
        sys.exit(f"bench: {error}")
