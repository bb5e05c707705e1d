"""How a device multiplies: full float32, whatever the environment or a notebook asked torch for, and what a result's
certificate says of that."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def settle() -> None:
    """Before a model is loaded. TF32 keeps ten bits of a product's operands and breaks 1e-5; halves are summed in
    float32; cuDNN's attention builds a plan for every new batch size, and a sweep has one at each block."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    of_cuda = torch.backends.cuda
    of_cuda.matmul.allow_fp16_reduced_precision_reduction = False
    of_cuda.matmul.allow_bf16_reduced_precision_reduction = False
    of_cuda.enable_cudnn_sdp(False)
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA context")


@contextmanager
def settled() -> Iterator[None]:
    """`settle`, until the block ends; then torch multiplies as it did before, to the last switch."""
    backends: Any = torch.backends
    of_cuda = backends.cuda
    places = (of_cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)
    per_place = [place.fp32_precision for place in places]
    halves = of_cuda.matmul.allow_fp16_reduced_precision_reduction
    narrow = of_cuda.matmul.allow_bf16_reduced_precision_reduction
    plans = of_cuda.cudnn_sdp_enabled()
    try:
        whole = torch.get_float32_matmul_precision()
    except RuntimeError:  # set place by place, which is put back below
        whole = ""
    try:
        settle()
        yield
    finally:
        if whole:
            torch.set_float32_matmul_precision(whole)
        for place, precision in zip(places, per_place):
            place.fp32_precision = precision
        of_cuda.matmul.allow_fp16_reduced_precision_reduction = halves
        of_cuda.matmul.allow_bf16_reduced_precision_reduction = narrow
        of_cuda.enable_cudnn_sdp(plans)


def told(device: torch.device) -> dict[str, Any]:
    """The GPU, its CUDA, whether TF32 is on and which attention kernels may run; nothing for other devices."""
    if device.type != "cuda":
        return {}
    kernels = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "cuDNN": torch.backends.cuda.cudnn_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
    }
    return {
        "gpu": torch.cuda.get_device_name(device),
        "cuda": torch.version.cuda,
        "tf32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
        "attention_kernels": [name for name, on in kernels.items() if on],
    }
