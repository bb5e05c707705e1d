"""What this machine has for us: bytes that are free, cores, GPUs and packages; and the part of it that each process
takes. Torch-free."""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import ParameterError

ROOM = 0.9  # share of the free memory that may be planned with
PROBE = {"cpu": 1 << 30}  # bytes that a probe may hold above the model and its trace
ON_A_GPU = 4 << 30  # the same elsewhere, and never more than a quarter of a device
THREADS, WAITING = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"  # what OpenMP reads when torch is imported, and not again
PASSIVE = {WAITING: "PASSIVE"}  # two threads that spin next to another busy process are 20 times slower than one
# The niceness of a process. A worker, which computes for minutes, comes after what reads and opens pages, and not by
# much: two threads that wait for each other both wait for the one that shares its core, and at 10 that core's other
# process took nearly all of it. A run of the browser behind what pages compute.
WORKER, RUN = 1, 10
# What torch reads of its allocator on a GPU, by its name now and before. A sweep's batches grow with the layers, and
# each would leave another segment.
ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
GROWING = "expandable_segments:True"
GROUPS = Path("/sys/fs/cgroup")
GPUS = Path("/proc/driver/nvidia/gpus")
AMD = Path("/dev/kfd")


def probe_bytes(kind: str, total: int = 0) -> int:
    """Return the bytes that a probe may use above the model and its trace, on a device of this kind ("cpu", "cuda")
    with `total` bytes (0: not known). By the device, not by what is free: sizes must not depend on what else runs."""
    most = PROBE.get(kind, ON_A_GPU)
    return min(most, total // 4) if total and kind not in PROBE else most


_totals: dict[str, int] = {}  # bytes of each device, as reported by a process that uses it


def learn(totals: Mapping[str, int]) -> None:
    """Remember how many bytes devices have of their own, for what is planned without torch."""
    _totals.update(totals)


def total_bytes(device: str) -> int:
    """Return the bytes of a device's own memory; 0 where it shares the host's, or is not known yet."""
    return _totals.get(device, 0)


def free_memory() -> int:
    """Return the bytes of memory that are free here, within a container's limit."""
    import psutil  # 10 ms that the app's start need not wait for

    free: int = psutil.virtual_memory().available
    try:
        limit = int((GROUPS / "memory.max").read_text())
        return max(0, min(free, limit - int((GROUPS / "memory.current").read_text())))
    except (OSError, ValueError):
        return free


def limit_memory(more: int) -> None:
    """Let this process take `more` bytes beyond what it has; where the system cannot say what it has, set no limit."""
    with suppress(OSError, ValueError, StopIteration, ImportError):
        import resource

        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        taken = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (taken + more, taken + more))


@contextmanager
def uncollected(for_good: bool = False) -> Iterator[None]:
    """Suspend Python's search for cycles in the block: a fifth of the time of importing modules or opening a model,
    nearly all of which stays. `for_good`: never search what was made in it; for imports in a process of our own."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if for_good:
            gc.freeze()
        if before:
            gc.enable()


def free_cache() -> None:
    """Free unused memory, torch's cache on a GPU included."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is None:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def gigabytes(n: int | float) -> str:
    """Return a number of bytes in words: "64 kB", "812 MB", "3.1 GB" (decimal)."""
    return f"{n / 1e3:.0f} kB" if 0 < n < 1e6 else f"{n / 1e6:.0f} MB" if n < 1e9 else f"{n / 1e9:.1f} GB"


def cores() -> int:
    """Return how many cores this process may use: those it is bound to, within a container's limit. Torch takes the
    machine's for its threads, and 64 threads on two cores' time wait for each other."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(bound, math.ceil(quota())) if quota() else bound)


def quota() -> float:
    """Return the cores' time that a container gives, in cores; 0 without a limit."""
    try:
        limit, period = map(float, (GROUPS / "cpu.max").read_text().split())
    except (OSError, ValueError):  # no container, or "max"
        return 0.0
    return limit / period


def share(i: int, n: int) -> dict[str, str]:
    """Return the environment variables by which process `i` of `n` takes its part of the cores and GPUs; several
    processes share a GPU where these are fewer. A number of threads that somebody has set stays."""
    mine = PASSIVE | {THREADS: os.environ.get(THREADS) or str(max(1, cores() // n))}
    if devices := gpus():
        mine["CUDA_VISIBLE_DEVICES"] = ",".join(devices[i::n] or [devices[i % len(devices)]])
    return mine


def prepare() -> None:
    """Set the variables that OpenMP and torch's allocator read when torch is imported, unless somebody has; warn where
    that is too late for the threads."""
    late = "torch" in sys.modules and WAITING not in os.environ
    for name, value in PASSIVE.items():
        os.environ.setdefault(name, value)
    if quota():
        os.environ.setdefault(THREADS, str(cores()))
    if gpus() and not any(name in os.environ for name in ALLOCATORS):
        os.environ[ALLOCATORS[0]] = GROWING
    if late and cores() > 1:
        import warnings

        warnings.warn(
            f"torch was imported before ed_core, so its threads spin while they wait, which is up to 20 times slower "
            f"next to another busy process; import ed_core first, or set {WAITING}=PASSIVE.",
            RuntimeWarning,
            stacklevel=3,
        )


def may_have_gpu() -> bool:
    """Return whether torch might find a GPU here, without importing it."""
    return bool(gpus()) or sys.platform == "darwin" or AMD.exists()


def gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(i) for i in range(len(list(GPUS.glob("*"))))] if GPUS.is_dir() else []


# ---------------------------------------------------------------- packages that an extra of this one installs


EXTRAS = {
    "streamlit": "app",
    "bitsandbytes": "quantized",
    "peft": "adapters",
    "ray": "ray",
    "datasets": "remote",
    "nnsight": "ndif",
}


def installed(package: str) -> bool:
    """Return whether a package can be imported here."""
    return importlib.util.find_spec(package) is not None


def require_package(package: str, purpose: str) -> None:
    """Raise a `ParameterError`, with the command that installs it, where a package that `purpose` needs is missing."""
    if not installed(package):
        raise ParameterError(
            f"{purpose} needs the package {package}, which is not installed; install it with "
            f"pip install 'effective-depth-lab[{EXTRAS[package]}]'."
        )
