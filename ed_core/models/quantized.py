"""What quantized models need after loading, and the bytes of their weights. bitsandbytes is imported only for them."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

os.environ["USE_HUB_KERNELS"] = "NO"  # before transformers looks, which it does when parts of a model are imported


@contextmanager
def no_kernels() -> Iterator[None]:
    """Run the block without the package `kernels`, by which libraries fetch compiled code from a hub: bitsandbytes when
    it is imported, transformers when a model's family or its config asks for it."""
    before = {name: sys.modules[name] for name in ("kernels",) if name in sys.modules}
    sys.modules["kernels"] = None  # type: ignore[assignment]  # which makes its import fail
    try:
        yield
    finally:
        del sys.modules["kernels"]
        sys.modules.update(before)


def prepare() -> None:
    """Import bitsandbytes quietly, and without letting it fetch compiled code."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if "bitsandbytes" not in sys.modules:
        with no_kernels():
            importlib.import_module("bitsandbytes")


def cure(hf_model: nn.Module) -> None:
    """Turn off a defect of bitsandbytes, before a model's first forward pass: on a CPU with avx512_bf16, the first 4bit
    pass without gradients repacks every map in place; input gradients are then silently wrong (cosine 0.02 to the true
    ones on the bundled model) and odd shapes raise."""
    for module in hf_model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]  # no tensor, but a flag of theirs


def held_bytes(hf_model: nn.Module) -> int:
    """Return the bytes of the weights in memory, every storage once, with quantization constants."""
    sizes: dict[tuple[torch.device, int], int] = {}
    for parameter in hf_model.parameters():
        for tensor in (parameter.data, *_constants(parameter)):
            if tensor.device.type != "meta":
                sizes[tensor.device, tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    for module in hf_model.modules():
        state = getattr(module, "state", None)  # int8 moves its constants here in the first pass
        if isinstance(scale := getattr(state, "SCB", None), Tensor):
            sizes[scale.device, scale.data_ptr()] = scale.numel() * scale.element_size()
    return sum(sizes.values())


def _constants(parameter: nn.Parameter) -> Iterator[Tensor]:
    """Yield the tensors that a quantized parameter has besides its data."""
    state, scale = getattr(parameter, "quant_state", None), getattr(parameter, "SCB", None)
    if isinstance(scale, Tensor):
        yield scale
    while state is not None:
        yield from (value for value in (state.absmax, state.code, state.offset) if isinstance(value, Tensor))
        state = state.state2


def weight(module: nn.Module) -> Tensor:
    """A linear map's weights `[out, in]` in float32, unpacked where they are quantized."""
    packed: Any = module.weight  # with the library's own fields where it is packed
    if (state := getattr(packed, "quant_state", None)) is not None:
        from bitsandbytes.functional import dequantize_4bit

        unpacked: Tensor = dequantize_4bit(packed.data, state).float()
    elif packed.dtype == torch.int8:
        owner: Any = packed if packed.SCB is not None else module.state
        unpacked = packed.data.float() * (owner.SCB / 127).unsqueeze(1)
    else:
        unpacked = packed.float()
    return unpacked
