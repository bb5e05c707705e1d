"""Sinks: tokens whose residual stream is far longer than the other tokens' where attention reads it, and who writes
them. Numpy only.

A token is *long* at a depth where `|h[l, t]| >= 5 · median over t' >= 1 of |h[l, t']|`, `l = 0..L`. The first token may
be, and mostly is; the median leaves it out. Consecutive depths at which it is long are a *span*. Layer l reads `h[l]`,
and nothing reads `h[L]`: a span of depth L alone is read by no attention, so a token that is long only there is no
sink, but *long at the end*. A sink has at least one span that begins before L, and may have several: SmolLM2's first
token is long at depths 3 to 8, written by layer 2's MLP, and from depth 12 on, written by layer 11's.

The writer of a span `a..b` is the layer behind its largest rise, `argmax over d in a..b of |h[d]| - |h[d - 1]|` (all
of `|h[0]|` at depth 0; of equals the first): layer `d - 1`, and of its two branches the one whose addition is longer.
The span's first depth is shown next to it: a norm that grows slowly crosses early, and what makes it may come late.

The attention sink (Xiao et al. 2023, arXiv 2309.17453) and the massive activations that make it (Sun et al. 2024, arXiv
2402.17762) are one thing seen twice; this finds it by its length, off `contributions`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..types import ProbeResult

FACTOR = 5.0
FEWEST = 3  # tokens of a prompt with sinks: of fewer, a single one would be the median
PROBE = "contributions"
READS = ("resid_norm", "attn_norm", "mlp_norm")
BRANCHES = ("attention", "mlp")


@dataclass(frozen=True)
class Span:
    """Consecutive depths at which a token's stream is long, `start..end`, both counted, in 0..L, and who writes it.

    `layer` (from 0) and `branch` ("attention" or "mlp"; attention, of equals; a family's third branch is not
    distinguished): the longer addition at the largest rise; at depth 0 None and "embedding". `rise`: `|h[d]| - |h[d -
    1]|` of that depth d."""

    start: int
    end: int
    layer: int | None
    branch: str
    rise: float


@dataclass(frozen=True)
class Sink:
    """One token that is an attention sink, and who makes it one.

    `pos`: its position, from 0. `ratio`: the largest ratio of its norm to the median token's, at least `FACTOR`.
    `spans`: where it is long, in order; never depth L only."""

    pos: int
    ratio: float
    spans: tuple[Span, ...]

    @property
    def depth(self) -> int:
        """The first depth at which the token is long."""
        return self.spans[0].start

    @property
    def written(self) -> Span:
        """The span that rises most; of equals the first."""
        return max(self.spans, key=lambda span: span.rise)

    @property
    def layer(self) -> int | None:
        """The layer, from 0, that writes the sink; None for the embedding."""
        return self.written.layer

    @property
    def branch(self) -> str:
        """The branch that writes the sink: "attention", "mlp" or "embedding"."""
        return self.written.branch


def times(resid_norm: ArrayLike) -> np.ndarray:
    """Return every token's norm over the median from the second token on, `[L + 1, pos]`; 0 for a median of 0."""
    stream = np.asarray(resid_norm, np.float64)
    median = np.median(stream[:, 1:], axis=1, keepdims=True)
    return np.divide(stream, median, out=np.zeros_like(stream), where=median > 0)


def runs(resid_norm: ArrayLike, factor: float = FACTOR) -> dict[int, list[tuple[int, int]]]:
    """Return by position the spans of depths (first, last) at which a token's norm is at least `factor` times the
    median.

    Other tokens are left out; {} for fewer than `FEWEST` tokens. A depth with a median of 0 counts for none."""
    stream = np.asarray(resid_norm, np.float64)
    if stream.shape[1] < FEWEST:
        return {}
    over = np.pad(times(stream) >= factor, ((1, 1), (0, 0)))
    spans: dict[int, list[tuple[int, int]]] = {}
    for pos in map(int, np.flatnonzero(over.any(0))):
        edges = np.diff(over[:, pos].astype(int))
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
        spans[pos] = list(zip(starts.tolist(), ends.tolist(), strict=True))
    return spans


def find(resid_norm: ArrayLike, attn_norm: ArrayLike, mlp_norm: ArrayLike, factor: float = FACTOR) -> tuple[Sink, ...]:
    """Return one prompt's attention sinks, by position, from the finite norms of the stream `[L + 1, pos]` and of what
    attention and MLP add `[L, pos]`; none among fewer than `FEWEST` tokens."""
    stream, *added = (np.asarray(values, np.float64) for values in (resid_norm, attn_norm, mlp_norm))
    ratio, rise, last = times(stream), np.diff(stream, axis=0, prepend=0.0), len(stream) - 1
    sinks = []
    for pos, stretches in runs(stream, factor).items():
        places = [(start, end) for start, end in stretches if start < last]
        spans = [_written(*place, rise[:, pos], *(a[:, pos] for a in added)) for place in places]
        if spans:
            most = max(ratio[span.start : span.end + 1, pos].max() for span in spans)
            sinks.append(Sink(pos, float(most), tuple(spans)))
    return tuple(sinks)


def _written(start: int, end: int, rise: np.ndarray, attn: np.ndarray, mlp: np.ndarray) -> Span:
    """Return a span with its writer, from a token's rises `[depth]` and what is added to it `[layer]`."""
    depth = start + int(rise[start : end + 1].argmax())
    if depth == 0:
        return Span(start, end, None, "embedding", float(rise[0]))
    branch = BRANCHES[int(mlp[depth - 1] > attn[depth - 1])]
    return Span(start, end, depth - 1, branch, float(rise[depth]))


def of_result(result: ProbeResult) -> tuple[Sink, ...] | None:
    """Return one prompt's attention sinks from its `contributions`; None where they are unknown: a norm is missing
    (another probe's result) or not finite (a partial one)."""
    if not all(name in result.measures for name in READS):
        return None
    stream, attn, mlp = (result[name] for name in READS)
    return find(stream, attn, mlp) if all(np.isfinite(values).all() for values in (stream, attn, mlp)) else None


def long_at_end(result: ProbeResult) -> tuple[int, ...]:
    """Return the positions of tokens that are long at depth L only, where no attention reads them."""
    if "resid_norm" not in result.measures or not np.isfinite(result["resid_norm"]).all():
        return ()
    last = result.n_layers
    return tuple(pos for pos, spans in runs(result["resid_norm"]).items() if spans == [(last, last)])
