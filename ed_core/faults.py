"""What an error of Python's, of torch's or of a device means, whatever its type: memory that ran out, which may be
tried again with less; or a device that answers nothing any more. Torch-free."""

from __future__ import annotations

import gc
import re
import sys

NO_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate memory|cannot allocate memory|_STATUS_ALLOC_FAILED|"
    r"_STATUS_NOT_ENOUGH_MEMORY|ERROR_OUT_OF_MEMORY|ErrorMemoryAllocation",
    re.IGNORECASE,
)
LOST = re.compile(
    r"CUDA error|HIP error|CUDA driver error|device-side assert|illegal memory access|cudaError|hipError|"
    r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|MIOPEN)_STATUS_|uncorrectable ECC|MPSGraph|command buffer"
)


def ran_out(error: BaseException) -> bool:
    """Whether memory ran out: Python's, or torch's on any device (on a CPU torch raises a plain RuntimeError, and what
    cuBLAS or cuDNN could not allocate is one as well)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error)))


def lost_device(error: BaseException | None) -> bool:
    """Whether a device has failed so that everything asked of it by this process from now on fails too: an assert in a
    kernel, an illegal access, a library's status. Only a new process cures it."""
    return isinstance(error, RuntimeError) and not ran_out(error) and bool(LOST.search(str(error)))


def free_cache() -> None:
    """Hand back what nobody holds any more, torch's own cache on a GPU included."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is None:
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def one_line(error: BaseException) -> str:
    """What an error says first, in a line of bounded length."""
    return (str(error) or type(error).__name__).splitlines()[0][:160]
