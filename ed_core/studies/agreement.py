"""Do the estimators of depth agree? Every one of them on one axis, with its interval, what other thresholds give, and
what sets them apart. Numpy only.

They answer different questions and are never averaged: the mean depths read the lens over all thresholds, the papers'
cosine rule what a layer writes, their KL and overlap rules what stands before it, the settle depth the lens's best
guess, the depth score how much later layers lose without one. All are layers here, `0..L-1`, with the ratio `(depth +
1) / L`; a depth between layers stands at the layer before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import statistics
from ..depth.continuous import TENTH
from ..depth.rules import BEST, OF_LENS, RULES, depths
from ..depth.wording import AT_NONE, again, level, listed, of_best, over_what
from ..statistics import FEWEST, FEWEST_FORMS, Units
from . import difficulty, tables
from .items import Folder, Sums

MEANS = {f"mean_{name}": f"Mean depth, {rule.label}" for name, rule in OF_LENS.items()}
OTHERS = {
    "settle": "Settle depth",
    "effect": "Depth score, effect on later layers",
    "output": "Depth score, change of the prediction",
}
INSTEAD = {
    "stable": "for good only from layer {}",
    "from_depth_1": "without depth 0 it gives layer {}",
    "without_sinks": "without the sinks it gives layer {}",
}
NOWHERE = {
    "stable": AT_NONE,
    "from_depth_1": "without depth 0 it gives no layer",
    "without_sinks": "without the sinks it gives no layer",
}


@dataclass(frozen=True)
class Estimate:
    """One estimator of depth on one model and set. `depth`, `low`, `high`: layers, None where there is none; `over`:
    what the interval is over; `thresholds`: the smallest and largest depth that other thresholds give (`Rule.band`),
    None for an estimator without one, `nowhere`: whether some of them give none. `instead`: what variants of a rule
    give, by their name, None where one is not defined; `again`: of the cosine rule, what stands in its place.
    `best`: of how many best tokens an overlap is."""

    name: str
    depth: float | None
    low: float | None
    high: float | None
    n_layers: int
    prompts: int
    thresholds: tuple[float, float] | None = None
    instead: Mapping[str, float | None] | None = None
    over: str | None = None
    nowhere: bool = False
    again: str = ""
    best: int = BEST

    @property
    def label(self) -> str:
        return f"{RULES[self.name].label} rule" if self.name in RULES else (MEANS | OTHERS)[self.name]

    @property
    def ratio(self) -> float | None:
        """`(depth + 1) / L`."""
        return None if self.depth is None else (self.depth + 1) / self.n_layers


def estimates(folder: Folder, label: str, group: str, verdict: Sequence[Mapping[str, Any]]) -> list[Estimate]:
    """Every estimator that a study has of a model on a set or one of its levels. `verdict`: rows of its table."""
    name, some = folder.some(label, group)
    own = [row for row in verdict if row["model"] == label and row["set"] == group]
    found = []
    for row in own:
        if row["variant"] == tables.MEAN:
            depth, low, high = (None if row[key] is None else row[key] - 1 for key in ("depth", "low", "high"))
            more = {"over": row["over"]}
            found.append(
                Estimate(f"mean_{row['criterion']}", depth, low, high, row["n_layers"], row["prompts"], **more)
            )
    for criterion in RULES:
        by_variant = {row["variant"]: row for row in own if row["criterion"] == criterion}
        if paper := by_variant.get("paper"):
            instead = {variant: by_variant[variant]["depth"] for variant in INSTEAD if variant in by_variant}
            curve = _curve(folder, some, criterion)
            ends, none = (None, False) if curve is None else _at_thresholds(curve, criterion)
            depth, low, high, n, prompts = (paper[key] for key in ("depth", "low", "high", "n_layers", "prompts"))
            below = "" if curve is None or criterion != "cosine" else again(curve)
            rest = (ends, instead, paper["over"], none, below, tables.best_of(folder, RULES[criterion]))
            found.append(Estimate(criterion, depth, low, high, n, prompts, *rest))
    if lens := some.probe("logit_lens"):
        found.append(_settle(folder, lens, tables.units_of(folder, name, some, "logit_lens")))
    if skip := some.probe(difficulty.PROBE):
        over = tables.units_of(folder, name, some, difficulty.PROBE)
        for kind in difficulty.KINDS:
            level = difficulty.of_skips(group, skip[kind], kind, (), over, folder.plan["seed"])
            depth, low, high = (None if np.isnan(v) else float(v) for v in (level.mean, level.low, level.high))
            found.append(Estimate(kind, depth, low, high, skip["output"].shape[1], len(over.of), over=over.words))
    return found


def sentences(found: Sequence[Estimate]) -> list[str]:
    """Where the papers' three rules disagree, and what moves each; what the other estimators give."""
    rules = [one for one in found if one.name in RULES]
    there = sorted(((one.depth, one) for one in rules if one.depth is not None), key=lambda found: found[0])
    told = [_apart(there, len(there) == len(rules))] if len(there) > 1 else []
    for one in rules:
        moved = _moved(one)
        if one.depth is None:
            told.append(f"The {one.label} gives no layer{''.join(f'; {one}' for one in moved)}.")
        elif moved:
            told.append(f"The {one.label} gives layer {_layer(one.depth)}; {'; '.join(moved)}.")
    for one in found:
        if one.name in OTHERS and one.depth is not None:
            settles, n = one.name == "settle", one.n_layers  # depths count from 0 to n, layers to n - 1
            ends = ""
            if one.low is not None and one.high is not None:
                drawn = level(one.low + settles, one.high + settles, 1)
                ends = f" ({over_what(drawn, one.over) if one.over else drawn})"
            if settles:
                found_at = f"{one.depth + 1:.1f} of {n}{ends}"
                told.append(f"{one.label}, from where the lens's best guess is final: mean over tokens {found_at}.")
            else:
                told.append(f"{one.label}: layer {one.depth:.1f}{ends}, of layers 0 to {n - 1}.")
    return told


def _apart(there: Sequence[tuple[float | int, Estimate]], all_of_them: bool) -> str:
    """Of the rules that give a depth, by depth."""
    which = "Rules" if any(of_best(one.name, one.best) for _, one in there) else "The papers' rules"
    which += "" if all_of_them else " that give a layer"
    (begin, first), (end, last) = there[0], there[-1]
    places = listed([f"{one.label} {_layer(depth)}" for depth, one in there])
    if end - begin <= _far(first):
        within = "a tenth of the {} layers" if _far(first) > 1 else "one layer of {}"
        return f"{which} differ by at most {within.format(first.n_layers)}: {places}."
    said = f"{which} differ by up to {_layer(end - begin)} of {first.n_layers} layers: {places}."
    if first.high is None or last.low is None:
        return f"{said} Fewer than {FEWEST} prompts, or {FEWEST_FORMS} forms, give no ranges."
    meet = "are apart" if first.high < last.low else "meet"
    return f"{said} The ranges over prompts of the {first.label} and the {last.label} {meet}."


def _far(one: Estimate) -> float:
    """What counts as another place: a tenth of the layers, at least one layer (the cosine reads what a layer writes,
    the others what stands before it: they are one apart by definition)."""
    return max(TENTH * one.n_layers, 1.0)


def _moved(one: Estimate) -> list[str]:
    """What gives another place than the rule itself."""
    said = []
    if one.thresholds and (one.depth is None or max(abs(end - one.depth) for end in one.thresholds) > _far(one)):
        low, high = map(_layer, one.thresholds)
        where = low if low == high else f"{low} to {high}"
        said.append(f"other thresholds tried give {where}{' or none' if one.nowhere else ''}")
    elif one.nowhere and one.depth is not None:
        said.append("some other thresholds tried give none")
    for variant, depth in (one.instead or {}).items():
        if depth is None:
            told = one.again if (variant, one.name) == ("stable", "cosine") else NOWHERE[variant]
            said += [told] if one.depth is not None else []
        elif one.depth is None or abs(depth - one.depth) > _far(one):
            said.append(INSTEAD[variant].format(_layer(depth)))
    return said


def _curve(folder: Folder, some: Sums, criterion: str) -> np.ndarray | None:
    """What a rule reads, over all prompts; None where there is nothing."""
    read = tables.curves(folder, some, criterion, "paper")
    return None if read is None or not read[1].sum() else tables.curve_of(*read)


def _at_thresholds(curve: np.ndarray, criterion: str) -> tuple[tuple[float, float] | None, bool]:
    """The smallest and the largest layer, and whether some threshold gives none."""
    others = RULES[criterion].others()
    given = np.array([depths(criterion, curve[None], threshold=float(at))[0] for at in others])
    defined = given[np.isfinite(given)]
    ends = (float(defined.min()), float(defined.max())) if len(defined) else None
    return ends, len(defined) < len(given)


def _settle(folder: Folder, lens: Mapping[str, np.ndarray], over: Units) -> Estimate:
    """The layer after which the lens's best guess no longer changes: the mean over tokens of `settle_depth`, less one;
    -1 means that nothing is left to do from the start."""
    sums, counts = lens["settle_depth.sum"], lens["n_tokens"]
    low = high = None
    if over.enough:
        found = statistics.mean(sums.reshape(len(sums)), counts, over, folder.plan["seed"])
        if (ends := found.bounded(0.0, lens["kl.sum"].shape[1] - 1.0).interval.ends) is not None:
            low, high = (float(end) - 1 for end in ends)
    depth = float(sums.sum() / counts.sum()) - 1
    return Estimate("settle", depth, low, high, lens["kl.sum"].shape[1] - 1, len(counts), over=over.words)


def _layer(depth: float) -> str:
    return f"{depth:.0f}" if depth == round(depth) else f"{depth:.1f}"
