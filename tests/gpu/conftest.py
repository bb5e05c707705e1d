"""Tests of a GPU stand alone, for a bare machine: torch, transformers and what `ed_core` imports, and none of what the
other tests need. `--confcutdir tests/gpu` keeps theirs away."""

from __future__ import annotations


def pytest_addoption(parser):
    parser.addoption("--device", default="auto", help="the device that is tried, as --device of the commands")
