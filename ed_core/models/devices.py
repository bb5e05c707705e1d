"""Devices: which one a model goes to and what is free there, how a model too large for one is spread over several GPUs,
RAM and disk; and how a device multiplies, which a result's certificate says."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from ..errors import ParameterError, TooLarge
from ..machine import ROOM, free_memory, gigabytes, probe_bytes
from ..types import ModelSpec, command_line
from .modules import Pretrained
from .sizes import QUANTIZED


def pick(device: str) -> str:
    """Return the device to use: for "auto" CUDA, else MPS, else the CPU. `ParameterError` for one that is not here."""
    present = devices()
    if device != "auto" and device not in present:
        raise ParameterError(f"There is no device {device!r} here; expected auto or one of {', '.join(present)}.")
    return present[0] if device == "auto" else device


def devices() -> list[str]:
    """Return the names of this machine's devices, of which "auto" takes the first. "cuda" means as many GPUs as a model
    takes, "cuda:1" that one."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*(["cuda"] if gpus else []), *(f"cuda:{i}" for i in range(gpus)), *mps, "cpu"]


def _gpus(device: torch.device) -> list[int]:
    """Return the indices of the GPUs that a CUDA device's name means: all for "cuda", one for "cuda:1"."""
    return list(range(torch.cuda.device_count())) if device.index is None else [device.index]


def free_bytes(device: str) -> int:
    """Return the bytes that are free on a device; on "cuda" over all GPUs together."""
    return sum(map(_free_on, _gpus(torch.device(device)))) if device.startswith("cuda") else free_memory()


def total_bytes(device: str | torch.device) -> int:
    """Return the bytes of a device's own memory, for "cuda" of the smallest GPU; 0 where it shares the host's."""
    device = torch.device(device)
    return min(torch.cuda.mem_get_info(i)[1] for i in _gpus(device)) if device.type == "cuda" else 0


def _free_on(gpu: int) -> int:
    """Return the bytes free on a GPU: what CUDA reports, and what torch has reserved and does not use."""
    return torch.cuda.mem_get_info(gpu)[0] + torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)


def overview() -> dict[str, int]:
    """Return the bytes free on every device, by name."""
    return {device: free_bytes(device) for device in devices()}


def totals() -> dict[str, int]:
    """Return the bytes of memory of every device, by name (see `total_bytes`)."""
    return {device: total_bytes(device) for device in devices()}


def plan(spec: ModelSpec, needed: int) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that bring `needed` bytes of weights to the spec's device, or raise
    `TooLarge`.

    A model that fits one device goes there whole; on a GPU what a probe needs stays free. One that does not is spread
    over all GPUs and, with an offload folder, over RAM and that folder: its blocks are then fetched whenever they are
    called, which is slow and right."""
    device = torch.device(spec.device)
    if device.type == "cuda":
        room = {i: int(_free_on(i) * ROOM) - probe_bytes("cuda", total_bytes(f"cuda:{i}")) for i in _gpus(device)}
        names = {f"cuda:{i}": free for i, free in room.items()}
    else:
        room, names = {}, {spec.device: int(free_bytes(spec.device) * ROOM)}
    for name, free in names.items():
        if needed <= free:
            return {"device_map": {"": name}}
    memory: dict[Any, int] = {i: max(0, free) for i, free in room.items()} if spec.device == "cuda" else {}
    if not spec.offload and needed > sum(memory.values()):
        raise TooLarge(
            f"{spec.name} needs {gigabytes(needed)} in {spec.precision} and {gigabytes(free_bytes(spec.device))} are "
            f"free on {spec.device}; choose a narrower precision (`{command_line('estimate', spec.source)}` says what "
            "fits), or give an --offload folder."
        )
    if not spec.offload:
        return {"device_map": "auto", "max_memory": memory}
    if spec.precision in QUANTIZED:
        raise TooLarge(
            f"{spec.name} does not fit in {spec.precision}, and quantized weights cannot be offloaded; offload it in "
            "bf16 instead."
        )
    return {
        "device_map": "auto",
        "max_memory": memory | {"cpu": int(free_memory() * ROOM)},
        "offload_folder": spec.offload,
    }


def main_device(hf_model: Pretrained) -> torch.device:
    """Return the device of a model's inputs and streams; for a model spread over devices, where its embeddings run."""
    spread = getattr(hf_model, "hf_device_map", None) or {}
    if computing := [place for place in spread.values() if place not in ("cpu", "disk")]:
        return torch.device(f"cuda:{computing[0]}" if isinstance(computing[0], int) else computing[0])
    parameter = next(hf_model.parameters())
    return parameter.device if parameter.device.type != "meta" else torch.device("cpu")


# ---------------------------------------------------------------- how a device multiplies


def settle_arithmetic() -> None:
    """Make torch compute full float32 products, in the whole process, before a model is loaded. TF32 keeps ten bits of
    a product's operands and breaks 1e-5; halves are summed in float32; cuDNN's attention, turned off, builds a plan for
    every new batch size, and a sweep has one at each block."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    cuda = torch.backends.cuda
    cuda.matmul.allow_fp16_reduced_precision_reduction = False
    cuda.matmul.allow_bf16_reduced_precision_reduction = False
    cuda.enable_cudnn_sdp(False)
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA context")


@contextmanager
def settled_arithmetic() -> Iterator[None]:
    """Apply `settle_arithmetic` until the block ends; then set all of torch's switches as before."""
    backends: Any = torch.backends
    cuda = backends.cuda
    with ExitStack() as stack:
        stack.callback(cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled())
        for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
            stack.callback(setattr, cuda.matmul, name, getattr(cuda.matmul, name))
        for place in (cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul):
            stack.callback(setattr, place, "fp32_precision", place.fp32_precision)
        with suppress(RuntimeError):  # set place by place, which is restored above
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        settle_arithmetic()
        yield


def certificate(device: torch.device) -> dict[str, Any]:
    """Return what a result records of its GPU: name, CUDA version, whether TF32 is on, which attention kernels may run;
    {} for other devices."""
    if device.type != "cuda":
        return {}
    cuda = torch.backends.cuda
    kernels = {
        "flash": cuda.flash_sdp_enabled(),
        "memory efficient": cuda.mem_efficient_sdp_enabled(),
        "cuDNN": cuda.cudnn_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return {
        "gpu": torch.cuda.get_device_name(device),
        "cuda": torch.version.cuda,
        "tf32": cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
        "attention_kernels": [name for name, enabled in kernels.items() if enabled],
    }
