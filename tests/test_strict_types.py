"""mypy, strict, on `ed_core` (its settings stand in `pyproject.toml`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_engine_is_typed_strictly():
    command = [sys.executable, "-m", "mypy", "--no-error-summary"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
