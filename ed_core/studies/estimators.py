"""Every estimator of depth that a study has, on one axis, with its interval. Numpy only.

They answer different questions and are never averaged: the mean depths read the lens over all thresholds, the papers'
cosine rule what a layer writes, their KL and overlap rules what is before it, the settle depth the lens's first choice,
the depth score how much later layers lose without one. All are layers here, `0..L-1`, with the ratio `(depth + 1) / L`;
a depth between layers is drawn at the layer before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .. import statistics
from ..depth.rules import OF_LENS, RULES
from ..depth.verdict import Verdict
from . import difficulty, tables
from .items import Folder

OTHERS = {
    "settle": "First choice, to stay",
    "effect": "Depth score, effect on later layers",
    "output": "Depth score, change of the prediction",
}
LABELS = {f"mean_{name}": f"Average depth, {rule.label}" for name, rule in OF_LENS.items()}
LABELS |= {name: f"{rule.heading} rule" for name, rule in RULES.items()} | OTHERS


@dataclass(frozen=True)
class Estimate:
    """One estimator of depth on one model and set. `depth`, `low`, `high`: layers, None where there is none; `over`:
    what the interval is over. `band`: the smallest and largest layer over a rule's thresholds."""

    name: str
    depth: float | None
    low: float | None
    high: float | None
    n_layers: int
    over: str
    band: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        return LABELS[self.name]

    @property
    def ratio(self) -> float | None:
        """`(depth + 1) / L`."""
        return None if self.depth is None else (self.depth + 1) / self.n_layers


def estimates(folder: Folder, label: str, group: str) -> list[Estimate]:
    """Every estimator that a study has of a model on a set or one of its levels."""
    found = tables.verdict_on(folder, label, group)
    own = [] if found is None else list(_of_verdict(found))
    name, some = folder.some(label, group)
    if lens := some.probe("logit_lens"):
        over, n = tables.units_of(folder, name, some, "logit_lens"), lens["kl.sum"].shape[1] - 1
        settles = statistics.mean(lens["settle_depth.sum"].reshape(-1), lens["n_tokens"], over, folder.plan["seed"])
        ends = settles.bounded(0.0, float(n)).interval.ends if over.enough else None
        mean = float(lens["settle_depth.sum"].sum() / lens["n_tokens"].sum())
        own.append(_estimate("settle", mean - 1, ends and (ends[0] - 1, ends[1] - 1), n, over.words))
    if skip := some.probe(difficulty.PROBE):
        over = tables.units_of(folder, name, some, difficulty.PROBE)
        for kind in difficulty.KINDS:
            level = difficulty.of_skips(group, skip[kind], kind, (), over, folder.plan["seed"])
            ends = (level.low, level.high) if np.isfinite(level.low) else None
            own.append(_estimate(kind, level.mean, ends, skip["output"].shape[1], over.words))
    return own


def _of_verdict(found: Verdict) -> Iterator[Estimate]:
    over = found.units.words
    for name, mean in found.means.items():
        ends = mean.interval.ends if mean.interval else None
        depth = np.nan if mean.depth is None else mean.depth - 1
        yield _estimate(f"mean_{name}", depth, ends and (ends[0] - 1, ends[1] - 1), mean.n_layers, over)
    for name, rule in found.rules.items():
        ends = rule.interval.ends if rule.interval else None
        yield _estimate(name, np.nan if rule.depth is None else rule.depth, ends, rule.n_layers, over, rule.band)


def _estimate(
    name: str,
    depth: float,
    ends: tuple[float, float] | None,
    n_layers: int,
    over: str,
    band: tuple[float, float] | None = None,
) -> Estimate:
    low, high = ends or (None, None)
    return Estimate(name, float(depth) if np.isfinite(depth) else None, low, high, n_layers, over, band)
