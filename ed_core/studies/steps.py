"""Models of a study that are steps of one training, and what it comes to at each of them. Numpy and pyarrow; no torch.

A training is a series of models on one axis, its steps: a folder that was measured while a model trained, revisions of
a hub model, checkpoints of a folder. Nothing here compares two trainings: a series is one, with its one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..depth import wording
from ..depth.rules import RULES
from . import tables
from .items import Folder

Rows = Sequence[Mapping[str, Any]]


def series(folder: Folder) -> dict[str, dict[int, str]]:
    """The labels of a study's steps, by training and step, in order; empty where none of its models is one."""
    found: dict[str, dict[int, str]] = {}
    for label, model in folder.models.items():
        if model.get("step") is not None:
            found.setdefault(model.get("series", ""), {})[model["step"]] = label
    return {name: dict(sorted(of.items())) for name, of in found.items()}


def depths(verdict: Rows, steps: Mapping[int, str], group: str) -> list[dict[str, Any]]:
    """Rows of `tables.VERDICT` on a set or level with their `step`, in its order: mean depths, the turn, the papers'
    rules as they are."""
    there = {label: step for step, label in steps.items()}
    kept = (tables.MEAN, tables.TURN, "paper")
    found = [
        {**row, "step": there[row["model"]]}
        for row in verdict
        if row["set"] == group and row["model"] in there and row["variant"] in kept
    ]
    return sorted(found, key=lambda row: row["step"])


def over_layers(summary: Rows, steps: Mapping[int, str], group: str, measure: str) -> np.ndarray:
    """A mean over tokens, like "contributions.layer_cos", as `[layer, step]`, of the lens `[depth, step]`; NaN where a
    step has none, no row where all have none. `summary`: rows of `tables.SUMMARY`."""
    places = {label: i for i, label in enumerate(steps.values())}
    own = [
        row
        for row in summary
        if (row["set"], row["probe"], row["measure"]) == (group, *measure.split("."))
        and row["model"] in places
        and row["layer"] is not None
    ]
    found = np.full((max((row["layer"] + 1 for row in own), default=0), len(places)), np.nan)
    for row in own:
        found[row["layer"], places[row["model"]]] = row["value"]
    return found


def sinks(folder: Folder, steps: Mapping[int, str], group: str) -> list[float | None]:
    """Sinks a prompt at each step, the mean over prompts; None where they cannot be told."""
    return [tables.sinks(folder, label, group) for label in steps.values()]


def course(rows: Rows) -> list[str]:
    """Mean depth at the first and the last step, and between them where it was further away than both intervals; where
    the cosine turns. It says what was measured on these prompts, and nothing of another training. `rows`: as `depths`
    gives them."""
    means = [_means(rows, of) for of in ("kl", "overlap")]
    said = [_from_to(found) for found in means if len(found) > 1]
    if said:
        drawn = next((row["over"] for found in means for row in found if row["over"]), "")
        told = f"In brackets 5–95 % over {drawn}" if drawn else wording.count(rows[0]["prompts"], "prompt")
        said[-1] += f" {told}; another training run may differ."
    return said + _turns(rows)


def _means(rows: Rows, of: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if (row["criterion"], row["variant"]) == (of, tables.MEAN) and row["depth"] is not None]


def _from_to(found: Rows) -> str:
    first, last = found[0], found[-1]
    said = f"Mean depth over thresholds by {RULES[first['criterion']].label}: {_at(first)} of {first['n_layers']} "
    said += f"layers at step {first['step']}, {_at(last)} at step {last['step']}"
    apart = [row for row in found if _apart(row, first) and _apart(row, last)]
    ends = (first["depth"], last["depth"])
    for where, beyond in (
        ("lower", [row for row in apart if row["depth"] < min(ends)]),
        ("higher", [row for row in apart if row["depth"] > max(ends)]),
    ):
        if beyond:
            one = max(beyond, key=lambda row: abs(row["depth"] - ends[0]))
            said += f"; {where} than both ranges, for instance, at step {one['step']}: {_at(one)}"
    return f"{said}."


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the ranges of two depths are there and do not meet."""
    ends = (one["low"], one["high"], other["low"], other["high"])
    return None not in ends and (one["low"] > other["high"] or one["high"] < other["low"])


def _at(row: Mapping[str, Any]) -> str:
    return wording.mean_depth(row["depth"], row["low"], row["high"])


def _turns(rows: Rows) -> list[str]:
    turns = [row for row in rows if row["variant"] == tables.TURN]
    found = [row for row in turns if row["depth"] is not None]
    if not turns:
        return []
    if not found:
        return ["No cosine turn found at any step."]
    told = [f"step {row['step']}, after layer {row['depth']:.0f}" for row in found]
    where = f"A cosine turn is found at {len(found)} of {len(turns)} steps: {'; '.join(told)}"
    return [f"{where} (each tested by itself, without untrained twins)."]
