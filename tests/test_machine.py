"""What a machine has: memory, cores, GPUs, what of them a process takes, and what its threads are told."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ed_core import machine
from ed_core.machine import free_memory


@pytest.mark.parametrize(
    "limit, current, free", [("700", "300", 400), ("5000", "300", 1000), ("300", "700", 0), ("max", "300", 1000)]
)
def test_a_containers_limit_bounds_what_is_free(monkeypatch, limit, current, free):
    told = {"memory.max": limit, "memory.current": current}
    monkeypatch.setattr(machine.Path, "read_text", lambda file: told[file.name])
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    assert free_memory() == free


@pytest.mark.parametrize(
    "told, n, expected",
    [
        ("0,1,2,3", 2, ["0,2", "1,3"]),
        ("GPU-a,GPU-b", 2, ["GPU-a", "GPU-b"]),
        ("5", 3, ["5", "5", "5"]),
        ("", 2, [None] * 2),
    ],
)
def test_every_worker_has_its_share_of_the_machine(told, n, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(9))
    shares = [machine.share(i, n) for i in range(n)]
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in shares] == expected
    assert {one["OMP_NUM_THREADS"] for one in shares} == {str(9 // n)}


@pytest.mark.parametrize(
    "files, quota, cores",
    [
        ({}, 0, 9),
        ({"cpu.max": "max 100000\n"}, 0, 9),
        ({"cpu.max": "150000 100000\n"}, 1.5, 2),
        ({"cpu.max": "20000 100000\n"}, 0.2, 1),
    ],
)
def test_a_containers_time_bounds_the_cores(monkeypatch, tmp_path, files, quota, cores):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(9))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (machine.quota(), machine.cores()) == (quota, cores)
    assert machine.share(0, 2)["OMP_NUM_THREADS"] == str(max(1, cores // 2))


@pytest.mark.process
@pytest.mark.parametrize("before, warned", [("", False), ("import torch", True)], ids=["ours first", "torch first"])
def test_torch_is_told_how_to_wait_or_it_is_said_that_it_was_not(before, warned):
    bare = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    program = f"{before}\nimport os, ed_core\nprint(os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PASSIVE"]
    assert ("import ed_core first" in done.stderr) is (warned and machine.cores() > 1), done.stderr
