"""Every estimator of depth that a study has, on one axis, with its interval. Numpy only.

They answer different questions and are never averaged: the average depths read the lens over all thresholds, the
papers' cosine rule what a layer writes, their KL and overlap rules what is before it, the settle depth the lens's first
choice, the depth score how much later layers lose without one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..depth.rules import OF_LENS, RULES
from . import difficulty, tables
from .items import Folder

LABELS = {(name, tables.MEAN): f"Average depth, {rule.label}" for name, rule in OF_LENS.items()}
LABELS |= {(name, "paper"): f"{rule.heading} rule" for name, rule in RULES.items()}
SETTLE = "settle"
OTHERS = {
    SETTLE: "First choice, to stay",
    "effect": "Depth score, effect on later layers",
    "output": "Depth score, change of the prediction",
}


def estimates(folder: Folder, label: str, group: str) -> list[dict[str, Any]]:
    """Return a row for every estimator of depth of the model `label` on a set or level (`group`): the rows of
    `tables.VERDICT` that are average depths or papers' rules, then rows like them for `OTHERS`. Each has a `label` and
    a `band`: of a rule, its smallest and largest layer over nearby thresholds, else None. Depths of `OTHERS` are layers
    `0..L-1` (of the first choice, the layer before the depth from which it stays)."""
    verdict = tables.verdict_on(folder, label, group)
    bands = {} if verdict is None else {name: rule.band for name, rule in verdict.rules.items()}
    rows = [
        row | {"label": LABELS[names], "band": None if names[1] == tables.MEAN else bands.get(names[0])}
        for row in tables.stored(folder).to_pylist()
        if (row["model"], row["set"]) == (label, group) and (names := (row["criterion"], row["variant"])) in LABELS
    ]

    def add(criterion: str, depth: float, low: float, high: float, n_layers: int, over: str) -> None:
        """Append the row of an estimator of `OTHERS`; NaN where it has no interval."""
        ends = {} if np.isnan(low) else {"low": low, "high": high}
        figures = {"depth": depth, "ratio": (depth + 1) / n_layers, "low": None, "high": None, "undefined": None} | ends
        about = {"criterion": criterion, "variant": "", "label": OTHERS[criterion], "n_layers": n_layers}
        rows.append(figures | about | {"over": over, "band": None})

    lens, skips = (folder.read(label, group, probe) for probe in (difficulty.LENS, difficulty.PROBE))
    if len(lens):
        sums, tokens = lens["settle_depth.sum"].reshape(-1), lens["n_tokens"]
        n, settles = lens["kl.sum"].shape[1] - 1, lens.mean(sums, tokens)
        low, high = settles.bounded(0.0, float(n)).interval[:2] if lens.units.enough else (np.nan, np.nan)
        add(SETTLE, float(sums.sum() / tokens.sum()) - 1, low - 1, high - 1, n, lens.units.words)
    for kind in difficulty.KINDS if len(skips) else ():
        level = difficulty.level_of(group, kind, skips)
        add(kind, level.mean, level.low, level.high, skips["output"].shape[1], skips.units.words)
    return rows
