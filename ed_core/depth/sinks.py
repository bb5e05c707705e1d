"""Sinks: tokens whose residual stream is far longer than the other tokens', who writes them, and which means they
carry. Numpy only.

A token is a sink where `|h[l, t]| >= 5 · median over t' >= 1 of |h[l, t']|` at some depth `l = 0..L`. The first token
may be one, and mostly is; the median leaves it out. The attention sink (Xiao et al. 2023, arXiv 2309.17453) and the
massive activations that make it (Sun et al. 2024, arXiv 2402.17762) are one thing seen twice; this finds it by its
length. All is read off `contributions`, so results stored earlier have their sinks too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike

from ..types import ProbeResult

FACTOR = 5.0
FEWEST = 3  # tokens of a prompt with sinks: of fewer, a single one would be the median
PROBE = "contributions"
MEANING = f"tokens whose norm in the stream reaches {FACTOR:g} times the median token's, and who writes them"
READS = ("resid_norm", "attn_norm", "mlp_norm")
BRANCHES = ("attention", "mlp")
WRITERS = {"attention": "attention", "mlp": "MLP"}


@dataclass(frozen=True)
class Sink:
    """One token that is a sink, and who makes it one.

    `pos`: its position, from 0. `depth`: the first depth, 0..L, at which its norm reaches the threshold. `ratio`: the
    largest of its norm over the median token's, over all depths whose median is above 0; at least `FACTOR`.

    The writer: among the depths at which the token is above the threshold, the one to which its norm rises most, by
    `|h[d]| - |h[d - 1]|` (all of `|h[0]|` at depth 0); of equals the first. That addition is block `d - 1`'s: `layer`
    is its index and `branch` whose addition is the longer one there, "attention" or "mlp" (attention, of equals; a
    family's third branch is not told apart). At depth 0 it is the embedding: `layer` None, `branch` "embedding".

    `norm`: `|h|` of the token at that depth. `written`: length of the addition that made it (the embedding's norm).
    `stream_share`, `branch_share`: the token's share, in [0, 1], of the sum of `norm` and of `written` over all tokens
    of the prompt: as much of these means is this one token."""

    pos: int
    depth: int
    ratio: float
    layer: int | None
    branch: str
    norm: float
    written: float
    stream_share: float
    branch_share: float

    @property
    def writer(self) -> str:
        """Who makes it one, in words."""
        return "the embedding" if self.layer is None else f"layer {self.layer}'s {WRITERS[self.branch]}"


def times(resid_norm: ArrayLike) -> np.ndarray:
    """Every token's norm over the median token's (of those from the second on), `[L + 1, pos]`; 0 where that median is
    0. At least two tokens."""
    stream = np.asarray(resid_norm, np.float64)
    median = np.median(stream[:, 1:], axis=1, keepdims=True)
    return np.divide(stream, median, out=np.zeros_like(stream), where=median > 0)


def find(resid_norm: ArrayLike, attn_norm: ArrayLike, mlp_norm: ArrayLike, factor: float = FACTOR) -> tuple[Sink, ...]:
    """The sinks of one prompt, by position, from the norms of stream `[L + 1, pos]` and additions `[L, pos]`.

    None among fewer than `FEWEST` tokens. A depth whose median is 0 has no threshold. `ValueError` for shapes that do
    not go together and for values that are not finite (a partial result, or a stream beyond its precision's range)."""
    stream, *added = (np.asarray(values, np.float64) for values in (resid_norm, attn_norm, mlp_norm))
    shapes = [values.shape for values in (stream, *added)]
    if stream.ndim != 2 or len(set(shapes[1:])) > 1 or shapes[1] != (len(stream) - 1, stream.shape[1]):
        raise ValueError(f"norms of shape (L + 1, pos), (L, pos) and (L, pos) are expected, found {shapes}")
    if not all(np.isfinite(values).all() for values in (stream, *added)):
        raise ValueError("finite norms are expected: is the result complete?")
    if stream.shape[1] < FEWEST:
        return ()
    ratio = times(stream)
    over = ratio >= factor
    rise = np.where(over, np.diff(stream, axis=0, prepend=0.0), -np.inf)
    sinks = []
    for pos in map(int, np.flatnonzero(over.any(0))):
        at = int(rise[:, pos].argmax())
        branch = 0 if at == 0 else int(added[1][at - 1, pos] > added[0][at - 1, pos])
        written = stream[0] if at == 0 else added[branch][at - 1]
        sinks.append(
            Sink(
                pos=pos,
                depth=int(over[:, pos].argmax()),
                ratio=float(ratio[:, pos].max()),
                layer=None if at == 0 else at - 1,
                branch="embedding" if at == 0 else BRANCHES[branch],
                norm=float(stream[at, pos]),
                written=float(written[pos]),
                stream_share=float(share(stream[at], [pos])),
                branch_share=float(share(written, [pos])),
            )
        )
    return tuple(sinks)


def of_result(result: ProbeResult) -> tuple[Sink, ...] | None:
    """The sinks of one prompt, from its `contributions`; None where they cannot be told: a norm is missing (another
    probe's result) or not finite (a partial one)."""
    if not all(name in result.measures for name in READS):
        return None
    norms = [result[name] for name in READS]
    return find(*norms) if all(np.isfinite(values).all() for values in norms) else None


def columns(sinks: Sequence[Sink]) -> dict[str, np.ndarray]:
    """The figures of some sinks as columns of numbers `[sink]`, by name: int32 and float32. `branch` is 0 for attention
    and 1 for the MLP; it and `layer` are -1 where the embedding writes the sink."""
    values = {f.name: [getattr(s, f.name) for s in sinks] for f in fields(Sink)}
    values["layer"] = [-1 if layer is None else layer for layer in values["layer"]]
    values["branch"] = [BRANCHES.index(branch) if branch in BRANCHES else -1 for branch in values["branch"]]
    return {f.name: np.asarray(values[f.name], np.float32 if f.type == "float" else np.int32) for f in fields(Sink)}


def share(values: np.ndarray, positions: Collection[int]) -> np.ndarray:
    """Share of the sum over tokens (the last axis) that these tokens have, `[…]` in [0, 1]; 0 where the sum is 0."""
    total = np.asarray(values, np.float64).sum(-1)
    part = np.asarray(values, np.float64)[..., list(positions)].sum(-1)
    return np.divide(part, total, out=np.zeros_like(total), where=total != 0)


def carried(
    results: Sequence[ProbeResult], sinks: Sequence[Sequence[Sink]], first_token: bool = True
) -> dict[str, np.ndarray]:
    """Which means the sinks carry: by measure, their share of its mean over all tokens of all prompts, per layer or
    depth, in [0, 1] (0 where that mean is 0). Only measures that are never negative: of others there are no shares.

    `sinks`: those of each result. `first_token` False: the means leave the first token out, sink or not."""
    start, out = int(not first_token), {}
    begins = accumulate((result.n_tokens - start for result in results[:-1]), initial=-start)
    at = [begin + s.pos for begin, found in zip(begins, sinks, strict=True) for s in found if s.pos >= start]
    for name, measure in results[0].measures.items():
        spec = measure.spec
        if spec.reduce != "token_mean" or spec.low != 0 or spec.dims[1:] != ("pos",):
            continue
        per_token = np.concatenate([result[name][:, start:] for result in results], axis=1)
        out[name] = share(per_token, at)
    return out


def sentence(sinks: Sequence[Sink], tokens: Sequence[str]) -> str:
    """The sinks of one prompt in words, the largest first; says so where there are none."""
    if not sinks:
        return f"No token's norm reaches {FACTOR:g} times the median token's at any depth: no sinks."
    return " ".join(
        f"Token {s.pos} ({tokens[s.pos]!r}) is a sink, first at depth {s.depth}: up to {s.ratio:.3g} times the median "
        f"token's norm, written by {s.writer} (norm {s.written:.3g}); behind it {s.stream_share:.0%} of the "
        "stream's mean norm is this token's."
        for s in sorted(sinks, key=lambda s: -s.ratio)
    )


def brief(sinks: Sequence[Sink], tokens: Sequence[str]) -> str:
    """Which tokens are sinks and why that matters, in one line; "" where there are none."""
    return brief_of([(s.pos, s.ratio) for s in sinks], tokens)


def brief_of(found: Sequence[tuple[int, float]], tokens: Sequence[str]) -> str:
    """The same of positions and how many times the median norm each has."""
    if not found:
        return ""
    named = ", ".join(f"{pos} ({tokens[pos]!r}, up to {ratio:.3g} times the median norm)" for pos, ratio in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    s, it = ("s", "them") if len(found) > 1 else ("", "it")
    return f"Sink{s}: token{s} {named}{more}; what is measured there tells of {it} alone."


def summary(sinks: Sequence[Sequence[Sink] | None]) -> str:
    """The sinks of several prompts in one line: how many, how large, who writes them, the most frequent first."""
    every = [s for found in sinks for s in found or ()]
    if not every:
        return f"no sinks in {len(sinks)} prompts"
    writers = ", ".join(f"{writer} ({n})" for writer, n in Counter(s.writer for s in every).most_common())
    return (
        f"{len(every)} sinks in {sum(map(bool, sinks))} of {len(sinks)} prompts, up to "
        f"{max(s.ratio for s in every):.3g} times the median token's norm, written by {writers}"
    )
