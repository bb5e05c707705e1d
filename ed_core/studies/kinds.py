"""Which tokens go deep, over a set: depths by the kind of token for each model, and how much deeper one model's tokens
settle than another's with the mix of kinds held equal. Numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from ..depth import kinds, say
from ..depth.kinds import COLUMN
from ..statistics import units
from .items import Folder


def table(folder: Folder, name: str) -> list[list[str]]:
    """Return the rows of a table of depths by model and kind of token on the set `name`, the head first; [] where not
    measured."""
    rows = []
    for label in folder.models:
        some = folder.sums(label, name)
        if COLUMN in some.columns and len(some):
            for kind, n, settle, depth, flips in kinds.table(np.nansum(some.columns[COLUMN], 0)):
                rows.append(
                    [label, kind, str(n), say.number(settle, ".1f"), say.number(depth, ".1f"), say.number(flips, ".2f")]
                )
    return [["model", "token", "tokens", "settle depth", "average depth, KL", "flip rate"], *rows] if rows else []


def differences(folder: Folder, name: str) -> Iterator[str]:
    """Yield a sentence for each two trained models with equally many layers: how much deeper the second one's tokens
    settle, at an equal mix of kinds of tokens."""
    measured = [
        label
        for label, m in folder.models.items()
        if not m.get("control") and m.get("step") is None and COLUMN in folder.sums(label, name).columns
    ]
    for a, b in combinations(measured, 2):
        if folder.models[a].get("n_layers") != folder.models[b].get("n_layers"):
            continue
        one, two = (folder.sums(label, name) for label in (a, b))
        shared = np.intersect1d(one.ran("logit_lens"), two.ran("logit_lens"))
        one, two = one.of(shared), two.of(shared)
        over = units(len(shared), [str(form) for form in folder.forms(name)[shared]])
        if over.enough:
            apart = kinds.equal_mix(one.columns[COLUMN], two.columns[COLUMN], over, folder.plan["seed"])
            low, high = apart.interval[:2]
            ends = say.interval(low, high, 1, over.words)
            deeper = f"{say.number(float(apart.value), '+.1f')} ({ends}) layers deeper"
            yield f"With the mix of kinds held equal, tokens of {b} settle {deeper} than those of {a}."
