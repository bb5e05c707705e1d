"""The process of one measurement: `python -m tools.bench NAME`."""

import argparse
from importlib import import_module

from ed_core.models import permits

from . import THREADS, report

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("name", choices=THREADS)
name = parser.parse_args().name
permits.as_owner()
report(import_module(f".{name}", __package__).measure())
