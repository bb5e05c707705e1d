"""Bytes: how many are free here, how what nobody holds is handed back, and how a number of them is said. Torch-free."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

ROOM = 0.9  # share of the free memory that may be planned with
PROBE = {"cpu": 1 << 30}  # bytes that a probe may hold above the model and its trace
ON_A_GPU = 4 << 30  # the same elsewhere, and never more than a quarter of a device


def probe_bytes(kind: str, total: int = 0) -> int:
    """What a probe may hold above the model and its trace on a device of this kind with `total` bytes of its own (0:
    not known). By the device, not by what is free at the moment: sizes must not depend on what else runs."""
    most = PROBE.get(kind, ON_A_GPU)
    return min(most, total // 4) if total and kind not in PROBE else most


def free_memory() -> int:
    """Bytes of memory that are free here, within the limit of a container where there is one."""
    import psutil  # 10 ms that the app's start need not wait for

    free: int = psutil.virtual_memory().available
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        return max(0, min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text())))
    except (OSError, ValueError):
        return free


def free_cache() -> None:
    """Hand back what nobody holds any more, torch's own cache on a GPU included."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is None:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def gigabytes(n: int | float) -> str:
    """ "812 MB", "3.1 GB" (decimal)."""
    return f"{n / 1e6:.0f} MB" if n < 1e9 else f"{n / 1e9:.1f} GB"
