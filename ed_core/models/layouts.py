"""The layouts of tensors, by name: "batch" is rows of one call, "pos" the tokens 0..T-1, "kept" the last of them whose
logits are asked for, "v" the vocabulary, and "row" one variant of a sweep or one token at one depth."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float, Int
from torch import Tensor

Ids = Int[Tensor, "batch pos"]
Resid = Float[Tensor, "batch pos d_model"]  # the stream, and what a branch adds to it
Stream = Float[Tensor, "pos d_model"]  # of one prompt at one depth
Logits = Float[Tensor, "batch kept v"]
Rows = Float[Tensor, "row v"]  # logits, or log-probabilities
PerRow = Float[Tensor, " row"]  # one number of each
PerToken = Float[Tensor, " pos"]
TokenMask = Bool[Tensor, "row pos"]
Edit = Callable[[Tensor], Tensor]  # what a branch adds → what is added instead
