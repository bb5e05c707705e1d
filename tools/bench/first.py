"""The first token of a fresh process: the shell's `run`, from its start to the file with what the model writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from ed_core.errors import JobError
from ed_core.settings import ROOT
from ed_core.sources import hub, specs

from . import Row
from .live import seconds_row, with_models

MODEL = os.environ.get("ED_BENCH_MODEL", "smollm2")
WHAT = f"a fresh process to its first token ({MODEL}; identities held before)"
TIMES = 5
TARGET_SECONDS = 2.5
LOOK_SECONDS = 0.005


def measure() -> list[Row]:
    if not hub.is_here(specs.named(MODEL)):
        return [Row(WHAT, f"skipped: {MODEL} is not fetched", f"<= {TARGET_SECONDS:g} s", True)]
    with TemporaryDirectory() as folder:
        cache = Path(folder, "cache")
        cache.mkdir()
        environment = os.environ | {"ED_CACHE": str(with_models(cache))}
        taken = [told(Path(folder), i, environment) for i in range(TIMES + 1)]
    first, ended = zip(*taken[1:])
    return [
        seconds_row(WHAT, list(first), TARGET_SECONDS),
        Row("  to its end, identities measured", f"{sorted(ended)[TIMES // 2]:.2f} s", "", True),
    ]


def told(folder: Path, i: int, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds to the file, and to the end of the process."""
    prompts, out = folder / "prompts.jsonl", folder / f"{i}.npz"
    prompts.write_text(json.dumps({"text": f"The capital of France, {i} times, is"}))
    options = ["--model", MODEL, "--prompts", str(prompts), "--out", str(out), "--set", "continuation.n_tokens=1"]
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "ed_core", "run", "continuation", *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    while not out.exists() and process.poll() is None:
        time.sleep(LOOK_SECONDS)
    first = time.monotonic() - begin
    if process.wait():
        raise JobError(f"The process ended with exit code {process.returncode}; what went wrong stands above.")
    return first, time.monotonic() - begin
