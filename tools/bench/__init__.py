"""`python -m ed_core bench`: what is promised of speed and memory, measured anew and held against its target.

Every measurement runs in a process of its own: its threads are fixed before torch starts, its memory is nobody else's,
and the one that measures the app's side never imports torch. What each row means stands in docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

from ed_core.errors import JobError, ParameterError
from ed_core.settings import ROOT

MEASUREMENTS = {
    "floor": ("floor", 1),
    "skip": ("skip", 1),
    "surgery": ("surgery", 1),
    "generation": ("generation", 1),
    "causal": ("causal", 1),
    "gradients": ("gradients", 1),
    "lens": ("lens", 1),
    "lens-memory": ("lens_memory", 2),
    "live": ("home", 2),
    "stored": ("stored", 2),
    "cancel": ("cancel", 2),
    "first": ("first", 2),
    "opening": ("opening", 1),
    "studies": ("studies", 1),
    "fits": ("fits", 1),
    "loops": ("loops", 1),
}
"""Name: the module whose `measure` makes the rows, and the threads it may use."""


PACK = "gpu"  # of one device, in one process, into one file


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure against its target."""

    what: str
    measured: str
    target: str
    ok: bool


def main(names: list[str], check: bool, device: str = "auto", out: str = "") -> int:
    """Run the named measurements, all if none is named, and print the table; 1 where `check` finds a target missed.
    "gpu" stands alone: the pack of `device`, whose figures go to the JSON file `out` besides."""
    if names == [PACK]:
        return _pack(check, device, out)
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        known = ", ".join(MEASUREMENTS)
        raise ParameterError(f"There is no measurement '{unknown[0]}'; expected {known}, or {PACK} by itself.")
    print(line("what", "measured", "target", ""))
    missed = 0
    for name in dict.fromkeys(names or MEASUREMENTS):
        for row in measured(name):
            missed += not row.ok
            print(line(row.what, row.measured, row.target, "ok" if row.ok else "missed"), flush=True)
    return 1 if check and missed else 0


def _pack(check: bool, device: str, out: str) -> int:
    from . import gpu

    rows = gpu.pack(device, out)
    print(gpu.markdown(rows))
    return 1 if check and not all(row.ok for row in rows) else 0


def line(what: str, figure: str, target: str, verdict: str) -> str:
    return f"{what:<62} {figure:<36} {target:<22} {verdict}".rstrip()


def measured(name: str) -> list[Row]:
    """One measurement's rows, from a fresh process."""
    module, threads = MEASUREMENTS[name]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench", module], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise JobError(f"The measurement {name} ended with exit code {done.returncode}; what went wrong stands above.")
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def report(rows: list[Row]) -> None:
    """The measuring process' side of `measured`."""
    print(json.dumps([asdict(row) for row in rows]))
