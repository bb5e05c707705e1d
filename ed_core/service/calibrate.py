"""How long a linear map takes here, per precision: a short measurement made once, kept for the torch-free estimate
(`ed_core.service.estimate`)."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from .. import machine
from ..models import quantized
from .estimate import Rates, save_rates

WIDTH = {"cpu": 1024}  # elsewhere 8192, whose weights stay in no cache
# Tokens of the two calls: one is all reading (or unpacking), the other nearly all multiplying. On a GPU fewer than
# 8 192 would measure how long a launch takes.
FEW, MANY = 8, {"cpu": 384}
ROUNDS = 5


@torch.no_grad()
def measure(device: str = "cpu") -> Rates:
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


def calibrate(device: str = "cpu") -> Rates:
    """Measure and keep."""
    rates = measure(device)
    save_rates(device.partition(":")[0], rates)
    return rates


def _maps(weights: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """The same linear map in every precision that is installed."""
    plain = {"fp32": weights, "bf16": weights.bfloat16(), "fp16": weights.half()}

    def times(w: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: x @ w.T

    maps: dict[str, Callable[[Tensor], Tensor]] = {name: times(w) for name, w in plain.items()}
    if not machine.installed("bitsandbytes"):
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
