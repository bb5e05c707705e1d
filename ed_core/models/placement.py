"""Which device a model goes to, what is free there, and how one that is too large for a device is spread: over several
GPUs, RAM, disk."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ParameterError, TooLarge
from ..machine import ROOM, free_memory, gigabytes, probe_bytes
from ..sources.sizes import QUANTIZED
from ..types import ModelSpec, command_line
from .modules import Pretrained


def pick(device: str) -> str:
    """The device that is meant: auto is CUDA, else MPS, else the CPU. Refuses what is not there, and names what is."""
    there = devices()
    if device == "auto":
        return there[0]
    if device not in there:
        raise ParameterError(f"There is no device {device!r} here; expected auto or one of {', '.join(there)}.")
    return device


def devices() -> list[str]:
    """What models can run on here; "auto" takes the first. "cuda" means as many GPUs as it takes, "cuda:1" that one."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        *(["cuda"] if gpus else []),
        *(f"cuda:{i}" for i in range(gpus)),
        *(["mps"] if torch.backends.mps.is_available() else []),
        "cpu",
    ]


def free_bytes(device: str) -> int:
    """Bytes that are free on a device; on "cuda" over all GPUs together."""
    if device.startswith("cuda"):
        wanted = range(torch.cuda.device_count()) if device == "cuda" else [torch.device(device).index]
        return sum(_free_on(i) for i in wanted if i is not None)
    return free_memory()


def total_bytes(device: str | torch.device) -> int:
    """Bytes that a device has, "cuda" the smallest of its GPUs; 0 where it shares the host's memory."""
    device = torch.device(device)
    if device.type != "cuda":
        return 0
    wanted = range(torch.cuda.device_count()) if device.index is None else [device.index]
    return min(torch.cuda.mem_get_info(i)[1] for i in wanted)


def _free_on(gpu: int) -> int:
    """Bytes free on a GPU: what CUDA says, and what torch keeps of it without a use."""
    return torch.cuda.mem_get_info(gpu)[0] + torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)


def overview() -> dict[str, int]:
    """Bytes free on every device."""
    return {device: free_bytes(device) for device in devices()}


def totals() -> dict[str, int]:
    """Bytes that every device has of its own."""
    return {device: total_bytes(device) for device in devices()}


def plan(spec: ModelSpec, needed: int) -> dict[str, Any]:
    """Arguments for `from_pretrained` that bring `needed` bytes of weights to the spec's device, or a `TooLarge`.

    A model that fits one device goes there whole; on a GPU what a probe needs stays free beside it. One that does not
    is spread over all GPUs, and, where an offload folder is given, over RAM and that folder: its blocks are then
    fetched whenever they are called, which is slow and right."""

    def place(free: int) -> int:
        return int(free * ROOM)

    def beside_probes(gpu: int) -> int:
        """On a GPU, where a probe finds its memory too."""
        return max(0, place(_free_on(gpu)) - probe_bytes("cuda", total_bytes(f"cuda:{gpu}")))

    gpus = range(torch.cuda.device_count()) if spec.device == "cuda" else ()
    for i in gpus:
        if needed <= beside_probes(i):
            return {"device_map": {"": f"cuda:{i}"}}
    one = torch.device(spec.device)
    room = beside_probes(one.index) if one.type == "cuda" and one.index is not None else place(free_bytes(spec.device))
    if not gpus and needed <= room:
        return {"device_map": {"": spec.device}}
    memory: dict[Any, int] = {i: beside_probes(i) for i in gpus}
    if not spec.offload and needed > sum(memory.values()):
        raise TooLarge(
            f"{spec.name} needs {gigabytes(needed)} in {spec.precision} and {gigabytes(free_bytes(spec.device))} are "
            f"free on {spec.device}; "
            f"choose a narrower precision (`{command_line('estimate', spec.source)}` tells what fits), or give an "
            "--offload folder."
        )
    if spec.offload and spec.precision in QUANTIZED:
        raise TooLarge(
            f"{spec.name} does not fit in {spec.precision}, and quantized weights cannot be offloaded; offload it in "
            "bf16 instead."
        )
    if spec.offload:
        memory["cpu"] = place(free_memory())
    return {"device_map": "auto", "max_memory": memory} | ({"offload_folder": spec.offload} if spec.offload else {})


def main_device(hf_model: Pretrained) -> torch.device:
    """Where a spread model's streams are kept and its inputs are put: where its embeddings run."""
    spread = getattr(hf_model, "hf_device_map", None) or {}
    computing = [place for place in spread.values() if place not in ("cpu", "disk")]
    if computing:
        return torch.device(computing[0] if not isinstance(computing[0], int) else f"cuda:{computing[0]}")
    parameter = next(hf_model.parameters())
    return parameter.device if parameter.device.type != "meta" else torch.device("cpu")
