"""The process of one measurement: `python -m tools.bench MODULE`."""

import sys
from importlib import import_module

from ed_core.sources import permits

from . import report

permits.as_owner()
report(import_module(f".{sys.argv[1]}", __package__).measure())
