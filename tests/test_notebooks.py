"""The examples run from their first cell to their last."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import plotly.io as pio
import pytest

from ed_core.models.ref import ModelRef

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("own_cache")]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda file: file.stem)
def test_a_notebook_runs(file, tmp_path, monkeypatch):
    """Cells tagged `real` need SmolLM2 and are left out where it is not here."""
    monkeypatch.chdir(tmp_path)
    space: dict = {"__name__": "__main__"}
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        real = "real" in cell["metadata"].get("tags", ())
        if cell["cell_type"] == "code" and (not real or ModelRef.parse("smollm2").is_ready):
            exec(compile("".join(cell["source"]), f"{file.name}, {cell['id']}", "exec", dont_inherit=True), space)
            pio.renderers.default = "json"  # draws nothing


def test_the_looped_example_finds_more_depth_in_longer_chains(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["looped.py", "--prompts", "3"])
    runpy.run_path(str(EXAMPLES / "looped.py"), run_name="__main__")
    depths = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert depths == sorted(depths) and depths[-1] > depths[0] + 3
