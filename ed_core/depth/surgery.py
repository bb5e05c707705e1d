"""What prunings and layer surgery come to: which stretch costs least and the list to keep; the cheapest variant of
every length, what the proxies would have chosen, and the controls. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from ..types import ProbeResult


def best_stretch(kl: ArrayLike, n: int) -> list[int]:
    """Return the `n` blocks in a row, from 0, of the least divergence `kl` by first block; NaN never wins."""
    start = int(np.argmin(np.nan_to_num(np.asarray(kl, np.float64), nan=np.inf)))
    return list(range(start, start + n))


def whole_passes(n: int, pruned: ProbeResult) -> bool:
    """Return whether every stretch of n blocks is whole passes of a looped model, which leave the same layers."""
    passes = int(pruned.provenance.get("passes", 1))
    return passes > 1 and n * passes % pruned.n_layers == 0


def costs(curves: Mapping[str, np.ndarray], start: int | None) -> dict[str, float]:
    """Return what removing layers costs: KL (nats), share of first choices kept, and perplexity before and after
    (missing without a loss).

    `curves`: the aggregates of `prune`. `start`: the stretch's first block, None for the chosen set."""
    cost = {
        name: curves[name][start] if start is not None else curves[f"drop_{name}"]
        for name in ("kl", "top1_kept", "nll")
    }
    figures = {"kl": float(cost["kl"]), "top1_kept": float(cost["top1_kept"])}
    if np.isnan(curves["nll_whole"]):
        return figures
    return figures | {"perplexity": float(np.exp(cost["nll"])), "perplexity_whole": float(np.exp(curves["nll_whole"]))}


Curves = Mapping[str, np.ndarray]
KINDS = ("drop", "swap", "repeat")
PROXIES = {  # proxy: what it is called, and whether it takes the largest value
    "angular_distance": ("angular distance", False),
    "block_influence": ("block influence", False),
    "update_cosine": ("update's cosine", True),
}


@dataclass(frozen=True)
class Choice:
    """One way to change the model's layers, and its figures over the prompts.

    `kind`: "drop" or "repeat" the blocks `[i, j)`, or "swap" i and j. `loss`, `kl`: nats per token."""

    kind: str
    i: int
    j: int
    loss: float
    kl: float
    top1_kept: float

    def order(self, n_layers: int) -> list[int]:
        """Return the indices of the layers in the order in which they then run."""
        every = list(range(n_layers))
        if self.kind == "drop":
            return every[: self.i] + every[self.j :]
        if self.kind == "repeat":
            return every[: self.j] + every[self.i :]
        every[self.i], every[self.j] = self.j, self.i
        return every


@dataclass(frozen=True)
class Row:
    """All changes of one length (for swaps, distance) compared.

    `best`: the one that costs least; `median`: the median loss over all `n`; `chosen`: for drops, what each proxy
    chooses; `random_loss`: for repeats, the loss with as many passes through `random_layer`."""

    length: int
    n: int
    best: Choice
    median: float
    chosen: Mapping[str, Choice] = field(default_factory=dict)
    random_loss: float = float("nan")
    random_layer: int = -1


def kinds_of(curves: Curves) -> list[str]:
    """Return the kinds of change ("drop", "swap", "repeat") with all three figures in the aggregates."""
    return [kind for kind in KINDS if all(f"{kind}_{name}" in curves for name in ("loss", "kl", "top1_kept"))]


def rows(curves: Curves, kind: str, random_layer: Sequence[int] = ()) -> list[Row]:
    """Return the changes by length, without lengths of no finite loss. `random_layer`: a control's, by length."""
    loss, cheapest = np.asarray(curves[f"{kind}_loss"], np.float64), []
    for length in range(1, len(loss) + 1):
        places = [(i, i + length) for i in range(len(loss)) if i + length < loss.shape[1]]
        values = np.array([loss[place] for place in places])
        finite = np.isfinite(values)
        if not finite.any():
            continue
        best = choice(curves, kind, *places[int(np.nanargmin(values))])
        chosen = {}
        for name, (_, largest) in PROXIES.items() if kind == "drop" else ():
            proxy = np.array([curves[name][place] for place in places]) * (-1 if largest else 1)
            chosen[name] = choice(curves, kind, *places[int(np.argmin(proxy))])
        at_random, layer = float("nan"), -1
        if kind == "repeat":
            at_random = float(curves["random_loss"][length - 1])
            layer = int(random_layer[length - 1]) if len(random_layer) >= length else -1
        n, median = int(finite.sum()), float(np.median(values[finite]))
        cheapest.append(Row(length, n, best, median, chosen, at_random, layer))
    return cheapest


def choice(curves: Curves, kind: str, i: int, j: int) -> Choice:
    """Return one change of the layers and what it costs, from the aggregates `[i, j]`."""
    return Choice(kind, i, j, *(float(curves[f"{kind}_{name}"][i, j]) for name in ("loss", "kl", "top1_kept")))


def added(curves: Curves, kind: str, found: Sequence[Row]) -> dict[str, np.ndarray]:
    """Return by name the loss above the whole model's by length, `[length]` from 0: of the cheapest change, the median
    one, and those that the proxies choose, or the random layer."""
    n, baseline = max((row.length for row in found), default=0) + 1, float(curves["loss_whole"])
    lines: dict[str, np.ndarray] = {}
    for row in found:
        losses = {"least": row.best.loss, "median": row.median}
        for name in ("angular_distance", "update_cosine") if row.chosen else ():  # block influence is nearly the angle
            losses[PROXIES[name][0]] = row.chosen[name].loss
        if kind == "repeat":
            losses["random layer"] = row.random_loss
        for name, loss in losses.items():
            lines.setdefault(name, np.append(0.0, np.full(n - 1, np.nan)))[row.length] = loss - baseline
    return lines
