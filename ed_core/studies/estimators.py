"""Every estimator of depth that a study has, on one axis, with its interval. Numpy only.

They answer different questions and are never averaged: the mean depths read the lens over all thresholds, the papers'
cosine rule what a layer writes, their KL and overlap rules what is before it, the settle depth the lens's first choice,
the depth score how much later layers lose without one."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import statistics
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
    """Of a model on a set or one of its levels, the rows of `tables.VERDICT` that are estimators, with their `label`
    and `band` (of a rule, its smallest and largest layer over nearby thresholds); and rows like them of `OTHERS`,
    whose depths are layers `0..L-1` (of the first choice, the layer before the depth from which it stays)."""
    found = tables.verdict_on(folder, label, group)
    bands = {} if found is None else {name: rule.band for name, rule in found.rules.items()}
    rows = [
        row | {"label": LABELS[of], "band": None if of[1] == tables.MEAN else bands.get(of[0])}
        for row in tables.stored(folder).to_pylist()
        if (row["model"], row["set"]) == (label, group) and (of := (row["criterion"], row["variant"])) in LABELS
    ]
    name, some = folder.some(label, group)
    if lens := some.probe("logit_lens"):
        over, n = tables.units_of(folder, name, some, "logit_lens"), lens["kl.sum"].shape[1] - 1
        settles = statistics.mean(lens["settle_depth.sum"].reshape(-1), lens["n_tokens"], over, folder.plan["seed"])
        ends = settles.bounded(0.0, float(n)).interval.ends if over.enough else None
        mean = float(lens["settle_depth.sum"].sum() / lens["n_tokens"].sum())
        rows.append(_row(SETTLE, mean - 1, [end - 1 for end in ends or ()], n, over.words))
    if skip := some.probe(difficulty.PROBE):
        over = tables.units_of(folder, name, some, difficulty.PROBE)
        for kind in difficulty.KINDS:
            level = difficulty.of_skips(group, skip[kind], kind, (), over, folder.plan["seed"])
            bounds = [level.low, level.high] if np.isfinite(level.low) else []
            rows.append(_row(kind, level.mean, bounds, skip["output"].shape[1], over.words))
    return rows


def _row(name: str, depth: float, ends: list[float], n_layers: int, over: str) -> dict[str, Any]:
    low, high = ends or (None, None)
    figures = {"depth": float(depth), "ratio": (depth + 1) / n_layers, "low": low, "high": high, "undefined": None}
    about = {"criterion": name, "variant": "", "label": OTHERS[name], "n_layers": n_layers, "over": over}
    return figures | about | {"band": None}
