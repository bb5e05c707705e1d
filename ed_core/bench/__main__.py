"""The process of one measurement: `python -m ed_core.bench MODULE`."""

import sys
from importlib import import_module

from ..sources import permits
from . import report

permits.as_owner()
report(import_module(f".{sys.argv[1]}", __package__).measure())
