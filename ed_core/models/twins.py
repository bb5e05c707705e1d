"""A model's blocks in another order: the shuffled twin of `controls`. What the sums make of it is left to the
identities."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import numpy as np
from torch import nn

from ..architectures import Architecture
from ..errors import ParameterError
from .modules import Config, Pretrained, find_submodule

POSITION = ("layer_idx", "layer_id", "layer_number")  # what modules call their block's place: it follows the place


def shuffle(hf_model: Pretrained, architecture: Architecture, seed: int) -> tuple[int, ...]:
    """Put the blocks into a seeded random order, in place; `order[l]` is the block that now stands at l. Remembered as
    `block_order`.

    Only blocks of one kind change places (see `kinds`), so that a window, a mixer or a position scheme that belongs to
    a place stays there. Refuses with a `ParameterError` where no two blocks are of one kind."""
    blocks = cast(nn.ModuleList, find_submodule(hf_model, architecture.paths("blocks")))
    of_kind = kinds(blocks, hf_model.config.get_text_config())
    order = permuted(of_kind, seed)
    places = [
        {name: getattr(m, name) for m in block.modules() for name in POSITION if hasattr(m, name)} for block in blocks
    ]
    moved = [blocks[source] for source in order]
    for place, block in enumerate(moved):
        blocks[place] = block
    for numbered, block in zip(places, moved):
        for module in block.modules():
            for name in POSITION:
                if hasattr(module, name):
                    setattr(module, name, numbered[name])
    hf_model.block_order = order
    return order


def permuted(of_kind: Sequence[Hashable], seed: int) -> tuple[int, ...]:
    """A seeded random order of the places, each taken by one of its own kind; never the order as it was."""
    groups: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(of_kind):
        groups.setdefault(kind, []).append(place)
    if max(map(len, groups.values())) < 2:
        raise ParameterError(
            f"Of the {len(of_kind)} layers no two are of one kind, so none can change places; take the untrained twin "
            "as the control instead."
        )
    draw, order = np.random.default_rng(seed), list(range(len(of_kind)))
    while order == sorted(order):
        for group in groups.values():
            for place, source in zip(group, draw.permutation(group).tolist()):
                order[place] = source
    return tuple(order)


def kinds(blocks: nn.ModuleList, config: Config) -> list[tuple[Hashable, ...]]:
    """What tells blocks apart besides their weights: classes and shapes inside, every plain setting but the place, and
    what the config lists block by block (`layer_types`, windows, position schemes)."""
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

    def settings(module: nn.Module) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, repr(value))
            for name, value in sorted(vars(module).items())
            if name not in POSITION
            and not name.startswith("_")
            and (value is None or isinstance(value, (bool, int, float, str)))
        )

    modules = tuple((name, type(module).__qualname__, settings(module)) for name, module in block.named_modules())
    return modules, tuple((name, tuple(p.shape), str(p.dtype)) for name, p in block.named_parameters())
