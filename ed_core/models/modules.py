"""Finding, calling and hooking the parts of a torch model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

# The library's own objects: `loading` alone knows their classes, and what they hold depends on the family.
Pretrained: TypeAlias = Any
Config: TypeAlias = Any
Tokenizer: TypeAlias = Any
SEE_GUIDE = "docs/adding-a-model-family.md tells how to describe such a model"


def submodule(root: nn.Module, path: str) -> nn.Module:
    return reduce(getattr, path.split("."), root)


def find_submodule(root: nn.Module, paths: tuple[str, ...]) -> nn.Module | None:
    """The module at the first of the paths that exists; None where none does."""
    for path in paths:
        try:
            return submodule(root, path)
        except AttributeError:
            continue
    return None


def first(output: Any) -> Any:
    """Blocks and sub-layers return a tensor or a tuple that begins with it."""
    return output[0] if isinstance(output, tuple) else output


def replace_first(output: Any, tensor: Tensor) -> Tensor | tuple[Any, ...]:
    return (tensor, *output[1:]) if isinstance(output, tuple) else tensor


def split_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """A block's hidden state apart from its other arguments. The traced pass runs without a cache, so none is among
    them."""
    if args:
        return args[0], args[1:], dict(kwargs)
    return kwargs["hidden_states"], (), {name: value for name, value in kwargs.items() if name != "hidden_states"}


@contextmanager
def hooked(handle: RemovableHandle) -> Iterator[RemovableHandle]:
    """A hook that is gone when the block ends, whatever happens inside."""
    try:
        yield handle
    finally:
        handle.remove()
