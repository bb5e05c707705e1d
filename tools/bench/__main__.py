"""`python -m tools.bench [skip lens gpu] [--check]`: speed and memory, each row next to its target."""

import argparse
import sys
from importlib import import_module

from ed_core.models import permits

parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
names = ("skip", "lens", "gpu")
parser.add_argument("names", nargs="*", help="skip and lens unless given")
parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
parser.add_argument("--device", default="auto", help="for gpu")
parser.add_argument("--out", default="", metavar="FILE.json", help="for gpu: write its figures")
args = parser.parse_args()
permits.as_owner()
missed = False
for name in args.names or names[:2]:
    measure = import_module(f".{name}", __package__).measure
    for row in measure(args.device, args.out) if name == "gpu" else measure():
        print(row, flush=True)
        missed |= not row.ok
sys.exit(args.check and missed)
