"""Finding, calling, hooking and reordering the parts of a torch model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast

import numpy as np
from torch import Tensor, nn

from ..errors import ParameterError
from .architecture import Architecture

# The library's own objects: `loading` alone knows their classes, and what they hold depends on the family.
Pretrained: TypeAlias = Any
Config: TypeAlias = Any
Tokenizer: TypeAlias = Any
SEE_GUIDE = "examples/a_new_family.ipynb shows how to describe such a model"


def find_submodule(root: nn.Module, paths: tuple[str, ...]) -> nn.Module | None:
    """The module at the first of the paths that exists; None where none does."""
    for path in paths:
        with suppress(AttributeError):
            return root.get_submodule(path)
    return None


def first(output: Any) -> Any:
    """Return the tensor that a block or branch returns, by itself or at the beginning of a tuple."""
    return output[0] if isinstance(output, tuple) else output


def replace_first(output: Any, tensor: Tensor) -> Tensor | tuple[Any, ...]:
    """Return a module's output with `tensor` in place of its first tensor."""
    return (tensor, *output[1:]) if isinstance(output, tuple) else tensor


def split_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """Return a block's hidden state, its other positional arguments, and its keyword arguments. The traced pass runs
    without a cache, so none is among them."""
    if args:
        return args[0], args[1:], dict(kwargs)
    return kwargs["hidden_states"], (), {name: value for name, value in kwargs.items() if name != "hidden_states"}


# ---------------------------------------------------------------- blocks in another order

# The shuffled twin of `controls`; its identities are checked like any other's.

PLACE = ("layer_idx", "layer_id", "layer_number")  # attributes of a block's place, which stay with the place


def shuffle(hf_model: Pretrained, architecture: Architecture, seed: int) -> tuple[int, ...]:
    """Put the blocks into a seeded random order, in place, and return it: `order[l]` is the block that is now at l. The
    model keeps it as `block_order`.

    Only blocks of one kind change places (see `kinds`), so that a window, a mixer or a position scheme keeps its place.
    Refuses with a `ParameterError` where no two blocks are of one kind."""
    blocks = cast(nn.ModuleList, find_submodule(hf_model, architecture.paths("blocks")))
    of_kind = kinds(blocks, hf_model.config.get_text_config())
    order = permuted(of_kind, seed)
    places = [
        {name: getattr(m, name) for m in block.modules() for name in PLACE if hasattr(m, name)} for block in blocks
    ]
    moved = [blocks[source] for source in order]
    for place, block in enumerate(moved):
        blocks[place] = block
    for numbered, block in zip(places, moved):
        for module in block.modules():
            for name in PLACE:
                if hasattr(module, name):
                    setattr(module, name, numbered[name])
    hf_model.block_order = order
    return order


def permuted(of_kind: Sequence[Hashable], seed: int) -> tuple[int, ...]:
    """Return a seeded random order of the places 0..n-1, each taken by one of the same kind; never the original order.
    `of_kind[l]`: the kind of place l. `ParameterError` where no two are of one kind."""
    groups: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(of_kind):
        groups.setdefault(kind, []).append(place)
    if max(map(len, groups.values())) < 2:
        raise ParameterError(
            f"Of the {len(of_kind)} layers no two are of one kind, so none can change places; take the untrained copy "
            "as the control instead."
        )
    draw, order = np.random.default_rng(seed), list(range(len(of_kind)))
    while order == sorted(order):
        for group in groups.values():
            for place, source in zip(group, draw.permutation(group).tolist()):
                order[place] = source
    return tuple(order)


def kinds(blocks: nn.ModuleList, config: Config) -> list[tuple[Hashable, ...]]:
    """Return, for each block, a tuple of what distinguishes it besides its weights: classes and shapes inside, every
    plain setting but the place, and what the config lists block by block (`layer_types`, windows, position schemes)."""
    listed = {
        name: value
        for name, value in config.to_dict().items()
        if isinstance(value, (list, tuple)) and len(value) == len(blocks)
    }
    return [
        (_inside(block), tuple((name, repr(value[place])) for name, value in sorted(listed.items())))
        for place, block in enumerate(blocks)
    ]


def _inside(block: nn.Module) -> tuple[Hashable, ...]:
    """Return a block's classes, plain settings and parameter shapes."""

    def settings(module: nn.Module) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, repr(value))
            for name, value in sorted(vars(module).items())
            if name not in PLACE
            and not name.startswith("_")
            and (value is None or isinstance(value, (bool, int, float, str)))
        )

    modules = tuple((name, type(module).__qualname__, settings(module)) for name, module in block.named_modules())
    return modules, tuple((name, tuple(p.shape), str(p.dtype)) for name, p in block.named_parameters())
