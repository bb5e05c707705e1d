"""Devices: which one a model goes to, what is free there, how one that is too large for a device is spread over several
GPUs, RAM and disk; and how a device multiplies, which a result's certificate tells, and how fast."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import ParameterError, TooLarge
from ..machine import ROOM, free_memory, gigabytes, installed, probe_bytes
from ..types import ModelSpec, command_line
from . import quantized
from .modules import Pretrained
from .sizes import QUANTIZED


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


# ---------------------------------------------------------------- how a device multiplies


def settle_arithmetic() -> None:
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
def settled_arithmetic() -> Iterator[None]:
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
        settle_arithmetic()
        yield
    finally:
        if whole:
            torch.set_float32_matmul_precision(whole)
        for place, precision in zip(places, per_place):
            place.fp32_precision = precision
        of_cuda.matmul.allow_fp16_reduced_precision_reduction = halves
        of_cuda.matmul.allow_bf16_reduced_precision_reduction = narrow
        of_cuda.enable_cudnn_sdp(plans)


def certificate(device: torch.device) -> dict[str, Any]:
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


# ---------------------------------------------------------------- how fast it multiplies

# A short measurement, kept for the torch-free estimate (`work.estimate`).

WIDTH = {"cpu": 1024}  # elsewhere 8192, whose weights stay in no cache
# Tokens of the two calls: one is all reading (or unpacking), the other nearly all multiplying. On a GPU fewer than
# 8 192 would measure how long a launch takes.
FEW, MANY = 8, {"cpu": 384}
ROUNDS = 5


@torch.no_grad()
def measure_rates(device: str = "cpu") -> dict[str, tuple[float, float]]:
    """`{precision: (a, b)}`: seconds per weight and call, and per weight and token; the fastest of a few rounds. About
    a second on a CPU."""
    kind = device.partition(":")[0]
    width, most = WIDTH.get(kind, 8192), MANY.get(kind, 8192)
    weights = torch.randn(width, width, device=device) / width**0.5
    found = {}
    for precision, call in _maps(weights).items():
        dtype = {"fp32": torch.float32, "fp16": torch.float16}.get(precision, torch.bfloat16)
        few, many = (_seconds(call, torch.randn(n, width, device=device, dtype=dtype)) for n in (FEW, most))
        multiply = max(many - few, 0.1 * many) / (most - FEW)
        found[precision] = (max(few - FEW * multiply, 0.0) / width**2, multiply / width**2)
    return found


def _maps(weights: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """The same linear map in every precision that is installed."""
    plain = {"fp32": weights, "bf16": weights.bfloat16(), "fp16": weights.half()}

    def times(w: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: x @ w.T

    maps: dict[str, Callable[[Tensor], Tensor]] = {name: times(w) for name, w in plain.items()}
    if not installed("bitsandbytes"):
        return maps
    quantized.prepare()
    import bitsandbytes as bnb
    from bitsandbytes.nn.modules import Int8Params, Linear8bitLt

    packed, state = bnb.functional.quantize_4bit(plain["bf16"], quant_type="nf4", compress_statistics=True)
    inputs, outputs = weights.shape
    int8 = Linear8bitLt(inputs, outputs, bias=False, has_fp16_weights=False, threshold=6.0)
    int8.weight = Int8Params(weights.cpu(), requires_grad=False, has_fp16_weights=False)
    int8 = int8.to(weights.device)
    return maps | {"int8": int8, "4bit": lambda x: bnb.matmul_4bit(x, packed.t(), quant_state=state)}  # type: ignore[attr-defined]  # public


def _seconds(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The fastest of a few calls, the first one not counted."""
    waits: dict[str, Callable[[], None]] = {
        "cuda": lambda: torch.cuda.synchronize(x.device),
        "mps": lambda: torch.mps.synchronize(),
    }
    wait = waits.get(x.device.type, lambda: None)
    best = float("inf")
    for i in range(ROUNDS + 1):
        begun = time.perf_counter()
        call(x)
        wait()
        if i:
            best = min(best, time.perf_counter() - begun)
    return best
