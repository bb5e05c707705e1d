"""The code is formatted, linted and, the engine strictly, typed as `pyproject.toml` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import given

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command", ["ruff check --no-cache .", "ruff format --check --no-cache .", "mypy --no-error-summary"]
)
def test_a_tool_has_nothing_to_say(command):
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_a_tool_answers_help_and_refuses_a_word_that_it_does_not_know(monkeypatch, capsys):
    for words, code, said in ((["--help"], None, "what it does\n\nWords"), (["c"], "'c' is not known here", "")):
        monkeypatch.setattr(sys, "argv", ["tool", *words])
        with pytest.raises(SystemExit) as ended:
            given("what it does", "a", "b")
        assert str(ended.value.code).startswith(str(code)) and said in capsys.readouterr().out
    for file in ROOT.glob("tools/*.py"):
        _, _, begun = (text := file.read_text(encoding="utf-8")).partition('__name__ == "__main__"')
        assert not begun or "given(__doc__" in begun or "ArgumentParser(" in text, file.name
