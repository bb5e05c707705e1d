"""What a `numerics` result comes to, in words: whether the sums hold, what of a miss is rounding, whether the first
token is a sink. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..results.aggregate import aggregate, probe_of
from ..types import ProbeResult
from . import criteria, sinks
from .verdict import COSINES

SINK = sinks.FACTOR
LIMITED = {  # figures on logits, and what a large one would mean
    "closure": "what is read as the final norm and head is not all the model does after the last block",
    "replay": "blocks called by hand do something else than in the model",
    "detour": "blocks hand each other something past the stream",
    "suffix": "",  # never a reason to refuse: erasure then computes whole sequences
}


@dataclass(frozen=True)
class Said:
    """A sentence, and whether what it is about is so."""

    holds: bool
    text: str


@dataclass(frozen=True)
class Row:
    """A criterion's curve and depth with the first token counted and without it."""

    name: str
    with_first: np.ndarray
    without: np.ndarray
    depth_with: int | None
    depth_without: int | None

    @property
    def label(self) -> str:
        return "KL" if self.name == "kl" else self.name


def sums(result: ProbeResult) -> Said:
    """Whether every block's sum holds on every token, and whether its miss is more than rounding."""
    limits, miss, rounding = result.provenance["limits"], result["miss"], result["rounding"]
    layer, token = np.unravel_index(np.argmax(np.nan_to_num(miss, nan=np.inf)), miss.shape)
    worst, share = float(miss[layer, token]), float(np.max(miss / np.maximum(rounding, 1e-30)))
    slopes = np.concatenate([result["slope_attn"], result["slope_mlp"]])
    off = float(np.nanmax(np.abs(slopes - 1), initial=0.0))
    place = f"the largest miss is {_small(worst)} (block {layer}, token {token})"
    if not worst <= limits["miss"] or off > limits["slope"]:
        beyond = (
            f"beyond the limit of {limits['miss']:.0e} or with slopes off by {_small(off)} (limit {limits['slope']:g})"
        )
        return Said(False, f"The sums do not hold on this prompt: {place}, {beyond}; no curve here can be trusted.")
    held = f"The sums hold on every token: {place}"
    if share > 1:
        more = (
            f"within the limit of {limits['miss']:.0e}, but up to {share:.1f} times what the additions alone can "
            "lose: beyond rounding"
        )
        return Said(True, f"{held}, {more}.")
    return Said(
        True, f"{held}, nowhere more than {share:.0%} of what rounding can cause. Nothing a block adds is left unread."
    )


def logits(result: ProbeResult) -> Said:
    """Whether logits made by hand are the model's own."""
    limit, values = result.provenance["limits"]["miss"], {name: float(result[name]) for name in LIMITED}
    bad = [
        f"{name} misses by {_small(values[name])}: {why}"
        for name, why in LIMITED.items()
        if why and not values[name] <= limit
    ]
    if bad:
        return Said(False, f"By hand the logits are not the model's own ({'; '.join(bad)}; limit {limit:.0e}).")
    told = "cannot be replayed without what stands before, so erasure computes whole sequences"
    if values["suffix"] <= limit:
        told = f"can be replayed alone (misses by {_small(values['suffix'])})"
    misses = ", ".join(f"{name} {_small(values[name])}" for name, why in LIMITED.items() if why)
    return Said(
        True,
        f"By hand the logits are the model's own: {misses} (limit {limit:.0e}). The second half of the prompt {told}.",
    )


def sink(result: ProbeResult) -> Said:
    """Whether the first token's stream dwarfs the others', and which other tokens' does."""
    times = sinks.times(result["resid_norm"])
    first, massive = times[:, 0], [f"token {t}" for t in range(1, times.shape[1]) if times[:, t].max() >= SINK]
    more = f" Massive besides: {', '.join(massive[:6])}{' …' * (len(massive) > 6)}." if massive else ""
    largest = int(first.argmax())
    if first[largest] < SINK:
        told = f"at most {first[largest]:.1f} times the median token's norm (depth {largest})"
        return Said(False, f"The first token is no attention sink here: {told}.{more}")
    begins = int(np.argmax(first >= SINK))
    told = f"{SINK:g} times as long as the median token's or more, at most {first[largest]:.0f} times (depth {largest})"
    return Said(True, f"The first token is an attention sink: from depth {begins} on its stream is {told}.{more}")


def _small(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def without_first(contributions: ProbeResult, lens: ProbeResult) -> list[Row]:
    """The three criteria's curves and depths with and without the first token, from the stored sums."""

    def of_result(result, first):
        return aggregate(probe_of(result), [result.summary], first)

    curves = [of_result(contributions, first) | of_result(lens, first) for first in (True, False)]
    rules = {
        "cosine": (lambda c: np.mean([c[name] for name in COSINES], axis=0), criteria.by_cosine),
        "kl": (lambda c: c["kl"], lambda curve: criteria.by_kl(curve[:-1])),
        "overlap": (lambda c: c["overlap"], lambda curve: criteria.by_overlap(curve[:-1])),
    }
    return [
        Row(name, *(of(c) for c in curves), *(rule(of(c)).depth for c in curves)) for name, (of, rule) in rules.items()
    ]


def change(rows: Sequence[Row]) -> str:
    """What leaving out the first token changes of the verdict."""

    def say(depth):
        return "not defined" if depth is None else str(depth)

    moved = [
        f"{row.label}: {say(row.depth_with)} with it, {say(row.depth_without)} without"
        for row in rows
        if row.depth_with != row.depth_without
    ]
    if moved:
        return f"Counting the first token decides the depth ({'; '.join(moved)}): say which you used."
    return (
        "The depths do not depend on the first token "
        f"({', '.join(f'{row.label} {say(row.depth_with)}' for row in rows)})."
    )
