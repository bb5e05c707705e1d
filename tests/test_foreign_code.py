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
pytestmark = pytest.mark.process
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
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ed_core.models.opening import load_model
from ed_core.models.ref import ModelRef
for folder in sorted(Path(sys.argv[2]).iterdir()):
    opened, out, err = False, StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            model = load_model(ModelRef.parse(str(folder), "fp32"))
            print("ATTENTION", model.config._attn_implementation)
            opened = True
        except Exception as error:
            print(type(error).__name__, error)
    print(json.dumps([folder.name, [opened, out.getvalue(), err.getvalue()]]))
import transformers
print(json.dumps(["kernels", transformers.utils.is_kernels_available()]))
"""
ASKED = {
    "ordinary": {"use_kernels": True},
    "kernel": {"_attn_implementation": KERNEL},
    "flash": {"attn_implementation": "flash_attention_2"},
    "eager": {"attn_implementation": "eager"},
    "mxfp4": {"quantization_config": {"quant_method": "mxfp4"}},
    "metal": {"quantization_config": {"quant_method": "metal"}},
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Whether random Llamas whose configs ask for these opened, in a process that has the loader, and what was said."""
    at = tmp_path_factory.mktemp("code")
    loader = at / "loader"
    for folder in ("kernels/layer", "kernels-0.18.2.dist-info"):
        (loader / folder).mkdir(parents=True)
    for file in ("kernels/__init__.py", "kernels/layer/__init__.py", "kernels/layer/mode.py"):
        (loader / file).write_text(LOADER)
    (loader / "kernels-0.18.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
    )
    for name, asked in ASKED.items():
        file = save_random(at / "models" / name, "llama") / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | asked))
    command = [sys.executable, "-c", OPEN, str(loader), str(at / "models")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "FETCHED" not in done.stdout + done.stderr, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("name", ASKED)
def test_the_code_that_a_folder_asks_for_is_neither_used_nor_recommended(told, name):
    opened, out, err = told[name]
    assert opened == ("ATTENTION sdpa" in out) == (name not in ("mxfp4", "metal")) and not told["kernels"]
    assert "FETCHED" not in out + err and "install kernels" not in err and not (opened and "kernels" in err)
