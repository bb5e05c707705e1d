"""The process of one measurement: `python -m tools.bench MODULE`."""

import argparse
from importlib import import_module

from ed_core.sources import permits

from . import MEASUREMENTS, report

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("module", choices=sorted({module for module, _ in MEASUREMENTS.values()}))
module = parser.parse_args().module
permits.as_owner()
report(import_module(f".{module}", __package__).measure())
