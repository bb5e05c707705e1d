"""One forward pass, recorded: what entered each block, what attention and the MLP added, and how the block was
called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor


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
