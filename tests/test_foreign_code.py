"""A model folder does not choose code: what its config asks for is not used, and nothing of it reaches the loader of
compiled code, were that installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import save_random

ROOT = Path(__file__).parent.parent
KERNEL = "kernels-community/flash-attn2"
# The package by which transformers fetches compiled code, as far as it looks, telling whenever it is asked.
LOADER = """
class _Any:
    def __init__(self, *a, **b): print("FETCHED", a, b)
    def __getattr__(self, name): return _Any
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return _Any
"""
OPEN = """
import sys
sys.path.insert(0, sys.argv[2])
from ed_core.models.opening import load_model
from ed_core.service.resolve import resolve
from ed_core.types import Prompt
model = load_model(resolve(sys.argv[1], "fp32"))
import transformers
print("ATTENTION", model.config._attn_implementation, transformers.utils.is_kernels_available())
print("NOTES", *model.encode(Prompt("1 + 1 =")).notes)
"""


@pytest.fixture
def opened(tmp_path):
    """Open a random Llama whose config asks for this, in a process that has the loader; what was told."""
    loader = tmp_path / "loader"
    for folder in ("kernels/layer", "kernels-0.18.2.dist-info"):
        (loader / folder).mkdir(parents=True)
    for file in ("kernels/__init__.py", "kernels/layer/__init__.py", "kernels/layer/mode.py"):
        (loader / file).write_text(LOADER)
    (loader / "kernels-0.18.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
    )
    save_random(tmp_path / "model", "llama")

    def opening(**asked) -> subprocess.CompletedProcess:
        file = tmp_path / "model" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | asked))
        command = [sys.executable, "-c", OPEN, str(tmp_path / "model"), str(loader)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    return opening


@pytest.mark.parametrize(
    "name, asked",
    [("_attn_implementation", KERNEL), ("attn_implementation", "flash_attention_2"), ("attn_implementation", "eager")],
)
def test_the_attention_that_a_folder_asks_for_is_not_used(opened, name, asked):
    done = opened(**{name: asked})
    assert "ATTENTION sdpa False" in done.stdout, done.stderr
    assert f"asks for '{asked}'" in done.stdout and "does not choose code" in done.stdout
    assert "FETCHED" not in done.stdout and "kernels" not in done.stderr


def test_an_ordinary_folder_has_no_such_note(opened):
    done = opened(use_kernels=True)
    assert "ATTENTION sdpa False" in done.stdout and "choose code" not in done.stdout, done.stderr
    assert "FETCHED" not in done.stdout


@pytest.mark.parametrize("method", ["mxfp4", "metal"])
def test_no_way_of_quantizing_has_code_fetched_or_recommends_it(opened, method):
    done = opened(quantization_config={"quant_method": method})
    assert done.returncode and "FETCHED" not in done.stdout and "install kernels" not in done.stderr
