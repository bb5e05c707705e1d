"""The code is formatted, linted and, the engine strictly, typed as `pyproject.toml` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command", ["ruff check --no-cache .", "ruff format --check --no-cache .", "mypy --no-error-summary"]
)
def test_a_tool_has_nothing_to_say(command):
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
