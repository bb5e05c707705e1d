"""One recorded forward pass, and blocks replayed from a position on.

Shapes: resid and what a branch adds, [batch, pos, d_model]; keys and values, [batch, heads, pos, d_head]."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .layouts import Ids, Logits, Resid


@dataclass
class BlockCall:
    """The arguments a block was called with besides the residual: masks, rotary embeddings, positions. No cache."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Trace:
    """A recorded forward pass, on the model's device and in its dtype. `resid[l]` enters block l, `resid[L]` the final
    norm; a looped model's blocks are counted pass by pass.

    `other_out[l]`: what a third branch adds, float32; None where there is none. `left[l]`: the stream after l blocks at
    the end of a pass, before what happens between two passes. `keys_values[l]`: of block l, once a suffix was asked
    for. `ends[n]` `[start, pos, d_model]`: the last residual without n blocks from each `start` on, once computed."""

    ids: Ids
    resid: list[Resid] = field(default_factory=list)
    attn_out: list[Resid] = field(default_factory=list)
    mlp_out: list[Resid] = field(default_factory=list)
    other_out: list[Resid | None] = field(default_factory=list)
    left: dict[int, Resid] = field(default_factory=dict)
    calls: list[BlockCall] = field(default_factory=list)
    logits: Logits | None = None
    keys_values: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    ends: dict[int, Resid] = field(default_factory=dict)

    def update(self, layer: int) -> Resid:
        """Return what block `layer` adds, `a[l] + m[l]` and a third branch's addition, summed in float32."""
        update, other = self.attn_out[layer].float() + self.mlp_out[layer].float(), self.other_out[layer]
        return update if other is None else update + other

    def after(self, depth: int) -> Resid:
        """Return the stream as `depth` blocks left it: `resid[depth]`, at the end of a pass `left[depth]`."""
        return self.left.get(depth, self.resid[depth])

    @property
    def bytes(self) -> int:
        """Bytes of all tensors that the trace keeps."""
        tensors = [*self.resid, *self.attn_out, *self.mlp_out, *self.other_out, *self.left.values(), self.logits]
        tensors += [*self.ends.values(), *(x for pair in self.keys_values.values() for x in pair)]
        return sum(x.numel() * x.element_size() for x in tensors if x is not None)


# ---------------------------------------------------------------- blocks replayed from a position on

# The tokens before it are keys and values only, and are not computed again. A block is called as in the traced pass,
# with an object in place of its cache that puts the prefix's keys and values in front, and with the rows of masks and
# positions that belong to the suffix. Nothing here knows a family; whether it is right is measured when a model opens
# (`identities.suffix`), and a family where it is not replays whole sequences.

CACHES = ("past_key_values", "past_key_value", "layer_past")  # what families call a block's cache
POSITIONS_LAST = ("position_ids", "cache_position")


class Prefix:
    """A substitute for a cache in one call of one block: puts `before` in front of the new keys and values, and keeps
    the new ones as `seen`."""

    def __init__(self, before: tuple[Tensor, Tensor] | None = None):
        self.before = before
        self.seen: tuple[Tensor, Tensor] | None = None

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keep the new keys and values, and return them with the earlier ones in front."""
        self.seen = keys, values
        if self.before is None:
            return keys, values
        joined = [
            torch.cat([old.expand(len(new), *old.shape[1:]), new], dim=-2)
            for old, new in zip(self.before, (keys, values))
        ]
        return joined[0], joined[1]

    def get_seq_length(self, *_: Any) -> int:
        """Return the number of positions before the new ones."""
        return 0 if self.before is None else self.before[0].shape[-2]


def named_arguments(block: nn.Module, call: BlockCall) -> dict[str, Any]:
    """Return a block's arguments besides the residual, by name, whichever way the model passed them."""
    (_, _), *arguments = (
        inspect.signature(block.forward).bind_partial(None, *call.args, **call.kwargs).arguments.items()
    )
    named = {name: value for name, value in arguments if name != "kwargs"}
    return named | {name: value for key, value in arguments if key == "kwargs" for name, value in value.items()}


def with_cache(named: dict[str, Any], cache: Prefix) -> dict[str, Any]:
    """Return a block's named arguments with `cache` as its cache; a KeyError where the block takes none."""
    name = next((name for name in CACHES if name in named), None)
    if name is None:
        raise KeyError(f"the layer takes none of {', '.join(CACHES)}")
    return named | {name: cache}


def from_position(named: dict[str, Any], start: int, n_tokens: int, device: torch.device) -> dict[str, Any]:
    """Return a block's named arguments for positions `start..T-1` with all T keys (T is `n_tokens`): rows of the mask,
    positions, and rotary embeddings."""
    named = {name: _cut(name, value, start, n_tokens) for name, value in named.items()}
    if named.get("attention_mask", 0) is None:  # causal where queries and keys begin together, which they no longer do
        mask = torch.ones(n_tokens - start, n_tokens, dtype=torch.bool, device=device).tril(start)
        named["attention_mask"] = mask[None, None]
    return named


def _cut(name: str, value: Any, start: int, n_tokens: int) -> Any:
    """Return the rows of one argument for positions `start..T-1`; unchanged where it has no row per position."""
    if isinstance(value, tuple):
        return tuple(_cut(name, part, start, n_tokens) for part in value)
    if not isinstance(value, Tensor):
        return value
    if name in POSITIONS_LAST:
        return value[..., start:]
    if name == "position_embeddings" or (value.dim() == 4 and value.shape[-2:] == (n_tokens, n_tokens)):
        return value[..., start:, :]
    return value
