"""One forward pass, recorded: what entered each block, what attention and the MLP added, and how the block was
called; and blocks replayed from a position on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass
class BlockCall:
    """The arguments a block was called with besides the residual: masks, rotary embeddings, positions. No cache."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Trace:
    """Everything on the model's device, in the model's dtype. `resid[l]` enters block l; `resid[L]` is before the final
    norm. Of a looped model l counts its blocks pass by pass."""

    ids: Int[Tensor, "batch pos"]
    resid: list[Float[Tensor, "batch pos d_model"]] = field(default_factory=list)
    attn_out: list[Float[Tensor, "batch pos d_model"]] = field(default_factory=list)
    mlp_out: list[Float[Tensor, "batch pos d_model"]] = field(default_factory=list)
    other_out: list[Float[Tensor, "batch pos d_model"] | None] = field(
        default_factory=list
    )  # a third branch, float32; None where there is none
    left: dict[int, Float[Tensor, "batch pos d_model"]] = field(
        default_factory=dict
    )  # behind so many blocks, at the end of a pass, before what stands between it and the next
    calls: list[BlockCall] = field(default_factory=list)
    logits: Float[Tensor, "batch kept d_vocab"] | None = None
    keys_values: dict[int, tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )  # of the traced pass, per block, where a suffix was asked for

    def after(self, depth: int) -> Float[Tensor, "batch pos d_model"]:
        """The stream as `depth` blocks left it: `resid[depth]`, but at the end of a pass without what stands between
        it and the next."""
        return self.left.get(depth, self.resid[depth])

    ends: dict[int, Float[Tensor, "start pos d_model"]] = field(
        default_factory=dict
    )  # by n: the last residual without n blocks from each on, where somebody walked there and there was room

    @property
    def bytes(self) -> int:
        """What the streams, what the branches add and what was kept beside them take."""
        held = [*self.resid, *self.attn_out, *self.mlp_out, *self.other_out, *self.left.values(), self.logits]
        held += [*self.ends.values(), *(part for pair in self.keys_values.values() for part in pair)]
        return sum(x.numel() * x.element_size() for x in held if x is not None)

    def update(self, layer: int) -> Float[Tensor, "batch pos d_model"]:
        """`D[l] = a[l] + m[l]`, and what a third branch adds where the family has one; summed in float32."""
        update, other = self.attn_out[layer].float() + self.mlp_out[layer].float(), self.other_out[layer]
        return update if other is None else update + other


# ---------------------------------------------------------------- blocks replayed from a position on

# What stands before it is there as keys and values only, and is not computed again. A block is called as in the traced
# pass, with an object in the place of its cache that puts the prefix's keys and values in front, and with the rows of
# masks and positions that belong to the suffix. Nothing here knows a family; whether it is right is measured when a
# model opens (`identities`), and a family where it is not falls back to whole sequences.

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


def named_arguments(block: nn.Module, call: BlockCall) -> dict[str, Any]:
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
