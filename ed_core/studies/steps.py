"""Models of a study that are steps of one training, and what it comes to at each of them. Numpy and pyarrow; no torch.

A training is a series of models on one axis, its steps: a folder that was measured while a model trained, revisions of
a hub model, checkpoints of a folder. Nothing here compares two trainings: a series is one, with its one seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..depth import say
from ..depth.rules import OF_LENS
from . import tables
from .items import Folder

Rows = Sequence[Mapping[str, Any]]


def series(folder: Folder) -> dict[str, dict[int, str]]:
    """Return the labels of the models that are training steps, by training and step, in order; {} where none is."""
    by_name: dict[str, dict[int, str]] = {}
    for label, model in folder.models.items():
        if model.get("step") is not None:
            by_name.setdefault(model.get("series", ""), {})[model["step"]] = label
    return {name: dict(sorted(by_step.items())) for name, by_step in by_name.items()}


def depths(verdict: Rows, steps: Mapping[int, str], group: str) -> list[dict[str, Any]]:
    """Return the rows of `verdict` (of `tables.VERDICT`) on a set or level for one training, each with its `step`, by
    step: average depths, the turn, the papers' rules as they are. `steps`: labels by step."""
    of_label = {label: step for step, label in steps.items()}
    kept = (tables.MEAN, tables.TURN, "paper")
    rows = (row for row in verdict if row["set"] == group and row["model"] in of_label and row["variant"] in kept)
    return sorted(({**row, "step": of_label[row["model"]]} for row in rows), key=lambda row: row["step"])


def over_layers(folder: Folder, labels: Iterable[str], group: str, measure: str) -> np.ndarray:
    """Return the mean over tokens of a measure, like "contributions.layer_cos", as `[layer, step]` (of the lens
    `[depth, step]`), a column per label; NaN where a step has none, no row where all have none."""
    curves = [tables.curve(folder, label, group, measure) for label in labels]
    n = max((len(one[0]) for one in curves if one is not None), default=0)
    return (
        np.stack([np.full(n, np.nan) if one is None else one[0] for one in curves], 1) if curves else np.empty((0, 0))
    )


def course(rows: Rows) -> list[str]:
    """Return sentences on average depth at the first and the last step, and on the steps at which the cosine turns."""
    sentences = []
    for name, rule in OF_LENS.items():
        means = [r for r in rows if (r["criterion"], r["variant"]) == (name, tables.MEAN) and r["depth"] is not None]
        if len(means) > 1:
            ends = ", ".join(f"{tables.cell(row)} at step {row['step']}" for row in (means[0], means[-1]))
            sentences.append(f"Average depth by {rule.label}, of {means[0]['n_layers']} layers: {ends}.")
    turns = [row for row in rows if row["variant"] == tables.TURN]
    if switches := [str(row["step"]) for row in turns if row["depth"] is not None]:
        sentences.append(f"The layers switch from erasing to strengthening at steps {say.listed(switches)}.")
    elif turns:
        sentences.append("The layers show no clear switch from erasing to strengthening at any step.")
    return sentences
