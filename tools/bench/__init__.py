"""`python -m tools.bench`: speed and memory, measured in one run and compared with a target.

Each measurement runs in a process of its own, so that its number of threads is fixed before torch starts and its memory
is its own. docs/benchmarks.md says what each row means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

from ed_core.errors import JobError, ParameterError
from ed_core.settings import ROOT

THREADS = {"lens": 1, "skip": 1}  # measurement, which is a module here, to its torch threads
GPU = "gpu"  # one device, in one process, into one file


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure and its target."""

    what: str
    measured: str
    target: str
    ok: bool


def main(names: list[str], check: bool, device: str = "auto", out: str = "") -> int:
    """Run the named measurements (both if none is named) and print the table; 1 if `check` and a target is missed.

    `gpu` runs alone: it measures `device` and also writes its figures to the JSON file `out`."""
    if names == [GPU]:
        from . import gpu

        rows = gpu.measure(device, out)
        return 1 if check and not all(row.ok for row in rows) else 0
    for name in names:
        if name not in THREADS:
            raise ParameterError(f"Unknown measurement '{name}'; expected {', '.join(THREADS)}, or {GPU} alone.")
    rows = []
    for name in dict.fromkeys(names or THREADS):
        for row in measured(name):
            rows.append(row)
            print(line(row), flush=True)
    return 1 if check and not all(row.ok for row in rows) else 0


def line(row: Row) -> str:
    verdict = "ok" if row.ok else "missed"
    return f"{row.what:<62} {row.measured:<36} {row.target:<22} {verdict}"


def measured(name: str) -> list[Row]:
    """Rows of one measurement, from a fresh process."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(THREADS[name]),
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.run(
        [sys.executable, "-m", "tools.bench", "--one", name],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    if process.returncode:
        raise JobError(f"The measurement {name} failed with exit code {process.returncode}; its error is above.")
    return [Row(**row) for row in json.loads(process.stdout.splitlines()[-1])]


def report(rows: list[Row]) -> None:
    """Print rows in the form that `measured` reads."""
    print(json.dumps([asdict(row) for row in rows]))
