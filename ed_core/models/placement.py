"""Which device a model goes to, what is free there, and how one that is too large for a device is spread: over several
GPUs, RAM, disk."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ParameterError, TooLarge
from ..memory import ROOM, free_memory, gigabytes
from ..sources.precision import QUANTIZED
from ..types import ModelSpec
from .modules import Pretrained


def pick(device: str) -> str:
    """The device that is meant: auto is CUDA, else MPS, else the CPU. Refuses what is not there, and names what is."""
    there = devices()
    if device == "auto":
        return next((kind for kind in ("cuda", "mps") if kind in there), "cpu")
    if device not in there:
        raise ParameterError(f"There is no device {device!r} here; expected auto or one of {', '.join(there)}.")
    return device


def devices() -> list[str]:
    """What models can run on here. "cuda" means as many GPUs as it takes, "cuda:1" that one."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        "cpu",
        *(["cuda"] if gpus else []),
        *(f"cuda:{i}" for i in range(gpus)),
        *(["mps"] if torch.backends.mps.is_available() else []),
    ]


def free_bytes(device: str) -> int:
    """Bytes that are free on a device; on "cuda" over all GPUs together."""
    if device.startswith("cuda"):
        wanted = range(torch.cuda.device_count()) if device == "cuda" else [torch.device(device).index]
        return sum(torch.cuda.mem_get_info(i)[0] for i in wanted)
    return free_memory()


def overview() -> dict[str, int]:
    """Bytes free on every device."""
    return {device: free_bytes(device) for device in devices()}


def plan(spec: ModelSpec, needed: int) -> dict[str, Any]:
    """Arguments for `from_pretrained` that bring `needed` bytes of weights to the spec's device, or a `TooLarge`.

    A model that fits one device goes there whole. One that does not is spread over all GPUs, and, where an offload
    folder is given, over RAM and that folder: its blocks are then fetched whenever they are called, which is slow and
    right."""

    def place(free: int) -> int:
        return int(free * ROOM)

    gpus = range(torch.cuda.device_count()) if spec.device == "cuda" else ()
    for i in gpus:
        if needed <= place(torch.cuda.mem_get_info(i)[0]):
            return {"device_map": {"": f"cuda:{i}"}}
    if not gpus and needed <= place(free_bytes(spec.device)):
        return {"device_map": {"": spec.device}}
    memory: dict[Any, int] = {i: place(torch.cuda.mem_get_info(i)[0]) for i in gpus}
    if not spec.offload and needed > sum(memory.values()):
        raise TooLarge(
            f"{spec.name} needs {gigabytes(needed)} in {spec.precision} and {gigabytes(free_bytes(spec.device))} are "
            f"free on {spec.device}; "
            f"choose a narrower precision ('python -m ed_core estimate {spec.source}' tells what fits), or give an "
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
