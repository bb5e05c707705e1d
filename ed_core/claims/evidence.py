"""What claims are read off: parts, each one probe on a set's prompts, as a study's folder holds them. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .. import statistics
from ..depth.surgery import worse_than_uniform
from ..errors import StudyError
from ..studies.folder import Folder
from ..studies.points import Point


@dataclass(frozen=True)
class Part:
    """One probe's sums over a set's prompts: `columns` `[prompt, …]` under the names of its summary; of every prompt
    its level, its mark (prompts of different levels with one mark belong together), its place in the set, and the
    form (template) it was written in."""

    columns: Mapping[str, np.ndarray]
    levels: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    index: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    forms: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @cached_property
    def units(self) -> statistics.Units:
        """What is drawn anew for an interval: templates where enough are known, else prompts."""
        return statistics.units(len(self), self.forms)

    def keep(self, chosen: np.ndarray) -> Part:
        """Some of the prompts, by a mask or by their numbers."""
        at = np.arange(len(self))[chosen]
        levels, pairs, forms = (tuple(m[i] for i in at) if m else () for m in (self.levels, self.pairs, self.forms))
        columns = {name: values[at] for name, values in self.columns.items()}
        return Part(columns, levels, pairs, self.index[at] if len(self.index) else self.index, forms)


@dataclass(frozen=True)
class Evidence:
    """What was measured of one model on one prompt set. `troubles`: why a part is not there; `models`: the model and
    those of its family beside it; `points`: their depths, with resamples over prompts that all share. `twins`: the
    contributions of untrained twins. `answers`: every prompt has a known answer; `answered`: enough of them have one.
    `worked`: whether the set has a worked-out counterpart. `passes`: how often the layers run. `d_vocab`: tokens
    that the model knows, None where nobody says."""

    n_layers: int
    parts: Mapping[str, Part]
    answers: bool = True
    level_names: tuple[str, ...] = ()
    models: tuple[str, ...] = ("",)
    points: tuple[Point, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    twins: tuple[Part, ...] = ()
    worked: bool = False
    answered: bool = False
    passes: int = 1
    d_vocab: int | None = None

    def of_loss(self, whole: float) -> str:
        """What is to be said of claims that rest on a loss, where the whole model's is above a uniform guess's."""
        return worse_than_uniform(whole, self.d_vocab)


def part_of(folder: Folder, label: str, name: str, probe: str) -> Part:
    """A part as a study's folder holds it. `StudyError` where it holds nothing of that model."""
    some, one = folder.sums(label, name), folder.sets[name]
    columns = some.probe(probe)
    if not columns:
        raise StudyError(f"The study in {folder.out} has no {probe} of {label} yet; run it to its end.")
    ran = some.index[np.isfinite(some.columns[f"{probe}.n_tokens"])]

    def of(marks: Sequence[object] | np.ndarray) -> tuple[str, ...]:
        return tuple(str(marks[i]) for i in ran) if len(marks) else ()

    return Part(columns, of(one["levels"]), of(one["pairs"]), ran, of(folder.forms(name)))
