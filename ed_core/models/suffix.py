"""Blocks replayed from a position on: what stands before it is there as keys and values only, and is not computed
again.

A block is called as in the traced pass, with an object in the place of its cache that puts the prefix's keys and values
in front, and with the rows of masks and positions that belong to the suffix. Nothing here knows a family; whether it is
right is measured when a model opens (`identities`), and a family where it is not falls back to whole sequences."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .trace import BlockCall

CACHES = ("past_key_values", "past_key_value", "layer_past")  # what families call a block's cache
POSITIONS_LAST = ("position_ids", "cache_position")


class Prefix:
    """In the place of a cache during one call of one block. Without `before` it only remembers what attention hands
    over to be kept."""

    def __init__(self, before: tuple[Tensor, Tensor] | None = None):
        self.before = before
        self.seen: tuple[Tensor, Tensor] | None = None

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.seen = keys, values
        if self.before is None:
            return keys, values
        joined = [
            torch.cat([old.expand(len(new), *old.shape[1:]), new], dim=-2)
            for old, new in zip(self.before, (keys, values))
        ]
        return joined[0], joined[1]

    def get_seq_length(self, *_: Any) -> int:
        return 0 if self.before is None else self.before[0].shape[-2]


def arguments(block: nn.Module, call: BlockCall) -> dict[str, Any]:
    """A block's arguments besides the residual, by name, whichever way the model passed them."""
    bound = inspect.signature(block.forward).bind_partial(None, *call.args, **call.kwargs)
    (_, _), *named = bound.arguments.items()
    return {
        name: value for key, value in named for name, value in (value.items() if key == "kwargs" else ((key, value),))
    }


def with_cache(named: dict[str, Any], cache: Prefix) -> dict[str, Any]:
    """The same arguments with `cache` in the cache's place; a KeyError where the block takes none."""
    name = next((name for name in CACHES if name in named), None)
    if name is None:
        raise KeyError(f"the layer takes none of {', '.join(CACHES)}")
    return named | {name: cache}


def from_position(named: dict[str, Any], start: int, n_tokens: int) -> dict[str, Any]:
    """The arguments for positions `start..T-1` with all T keys: rows of the mask, positions, and rotary embeddings."""
    named = {name: _cut(name, value, start, n_tokens) for name, value in named.items()}
    if (
        named.get("attention_mask", 0) is None
    ):  # "no mask" means causal where queries and keys begin together, which they no longer do
        first = next(value for value in _tensors(named))
        named["attention_mask"] = torch.ones(n_tokens - start, n_tokens, dtype=torch.bool, device=first.device).tril(
            start
        )[None, None]
    return named


def _cut(name: str, value: Any, start: int, n_tokens: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_cut(name, part, start, n_tokens) for part in value)
    if not isinstance(value, Tensor):
        return value
    if name in POSITIONS_LAST:
        return value[..., start:]
    if name == "position_embeddings" or (value.dim() == 4 and value.shape[-2:] == (n_tokens, n_tokens)):
        return value[..., start:, :]
    return value


def _tensors(named: dict[str, Any]) -> Iterator[Tensor]:
    for value in named.values():
        yield from (part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Tensor))
