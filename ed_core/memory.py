"""Bytes: how many are free here, and how a number of them is said."""

from __future__ import annotations

from pathlib import Path

ROOM = 0.9  # share of the free memory that may be planned with


def free_memory() -> int:
    """Bytes of memory that are free here, within the limit of a container where there is one."""
    import psutil  # 10 ms that the app's start need not wait for

    free: int = psutil.virtual_memory().available
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        return max(0, min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text())))
    except (OSError, ValueError):
        return free


def gigabytes(n: int | float) -> str:
    """ "812 MB", "3.1 GB" (decimal)."""
    return f"{n / 1e6:.0f} MB" if n < 1e9 else f"{n / 1e9:.1f} GB"
