"""A GPU that is not there: tensors that say they are on a device of their own and hold CPU data. An operation that
mixes them with tensors of the host is refused, as CUDA refuses it, and where the host waits for the device is counted:
what it reads of it, and what it hands over without saying that it will not wait.

What it cannot show is speed, memory, another order of summation, and kernels that CUDA lacks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

GPU = torch.device("cpu:1")  # a device that torch needs no library for, and that is not "cpu"
aten = torch.ops.aten
WAITS = {  # whose result the host must know
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_dim.default,
}
HANDED_OVER = {"tensor", "as_tensor"}
TO_HOST = {"__bool__", "__float__", "__int__", "__index__", "item", "tolist", "cpu"}
INSIDE = {"quantile", "nanquantile", "new_tensor"}  # which make a tensor where nobody sees it
MIXES = {aten.copy_.default, aten._to_copy.default}  # which may take tensors of both

ROOT = str(Path(__file__).parent.parent)
reads: Counter[str] = Counter()  # waits, by the line of this project that asks for them


def waited() -> None:
    """Count a wait."""
    frame = sys._getframe(1)
    while frame.f_back and not (
        frame.f_code.co_filename.startswith(f"{ROOT}/ed_core") and "beartype" not in frame.f_code.co_filename
    ):
        frame = frame.f_back
    reads[f"{frame.f_code.co_filename.removeprefix(ROOT + '/')}:{frame.f_lineno}"] += 1


def is_gpu(device: Any) -> bool:
    return device is not None and str(device).startswith("cpu:1")


class OnGpu(torch.Tensor):
    """A tensor of the emulated device; `held` is its data."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, requires_grad: bool = False) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
            requires_grad=requires_grad,
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnGpu({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is aten._to_copy.default and "device" in kwargs and not is_gpu(kwargs["device"]):
            waited()
            return func(args[0].held, **kwargs)
        if func is aten.copy_.default and not isinstance(args[0], OnGpu):
            waited()
            return func(args[0], args[1].held, **kwargs)
        if func in WAITS or func in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
            waits = func in WAITS or any(
                isinstance(index, torch.Tensor)
                and (index.dtype == torch.bool or (index.dim() and not isinstance(index, OnGpu)))
                for index in args[1]
                if index is not None
            )
            if waits:
                waited()
        elif func not in MIXES:
            check(func, args, kwargs)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        with torch.utils._python_dispatch._disable_current_modes():
            found = func(*tree_map(inner, args), **tree_map(inner, kwargs))
        if func in (aten._local_scalar_dense.default, aten.equal.default):
            return found
        return same_again(func, args, kwargs, tree_map(outer, found))


def same_again(func, args, kwargs, found):
    """What an operation in place gives is the tensor that was given."""
    return torch.utils._python_dispatch.return_and_correct_aliasing(func, args, kwargs, found)


def inner(value: Any) -> Any:
    return value.held if isinstance(value, OnGpu) else value


def outer(value: Any) -> Any:
    return OnGpu(value) if isinstance(value, torch.Tensor) and not isinstance(value, OnGpu) else value


def check(func: Any, args: Any, kwargs: Any) -> None:
    flat = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    host = [x for x in flat if not isinstance(x, OnGpu) and x.dim()]
    if host:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got some on both")


class Factories(TorchFunctionMode):
    """What makes tensors on the device, or moves them there, before torch looks for one."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if args and isinstance(args[0], OnGpu) and name in TO_HOST:
            waited()
            return func(args[0].held.detach(), *args[1:], **kwargs)
        if name in INSIDE and isinstance(args[0], OnGpu):
            return OnGpu(func(*map(inner, args), **kwargs))
        if is_gpu(kwargs.get("device")):
            if name == "to":
                args, kwargs = (args[0], GPU, *args[1:]), {k: v for k, v in kwargs.items() if k != "device"}
            else:
                made = func(*args, **{**kwargs, "device": "cpu"})
                if name in HANDED_OVER and made.numel():
                    waited()
                return made if isinstance(made, OnGpu) else OnGpu(made)
        if name == "to" and len(args) > 1:
            where = args[1].device if isinstance(args[1], torch.Tensor) else args[1]
            if isinstance(where, torch.device | str) and is_gpu(where):
                like = (args[1].dtype,) if isinstance(args[1], torch.Tensor) else args[2:]
                if not isinstance(args[0], OnGpu) and not kwargs.get("non_blocking"):
                    waited()
                held = args[0] if isinstance(args[0], OnGpu) else put(args[0])
                return held.to(*like, **kwargs) if like or kwargs else held
        return func(*args, **kwargs)


def put(value: torch.Tensor) -> OnGpu:
    return OnGpu(value.detach().clone(), value.requires_grad)


def move(module: torch.nn.Module) -> torch.nn.Module:
    """A model's parameters and buffers on the device."""
    shared: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, one in list(part._parameters.items()):
            if one is not None:
                made = shared.setdefault(id(one), torch.nn.Parameter(OnGpu(one.data.clone()), one.requires_grad))
                part._parameters[name] = made
        for name, one in list(part._buffers.items()):
            if one is not None:
                part._buffers[name] = OnGpu(one.clone())
    return module


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """What the host reads meanwhile."""
    reads.clear()
    with Factories():
        yield reads
