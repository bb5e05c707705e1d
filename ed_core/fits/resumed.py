"""A fit over many sources, some at once: what is done already, and the sums of those under way. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import shards
from .checkpoint import Checkpoint
from .measured import Plan

if TYPE_CHECKING:
    from .grams import Sums

KEPT_BYTES = 2 << 30  # of sums under way; larger ones are not kept: writing them would take longer than summing


class Rows:
    """Arrays with a row per source, filled group by group; stopped anywhere, the fit goes on from what was kept, in
    whatever groups. NaN where a row is not done. `prompts`: what is summed up; `added`: the sums that shards have made
    of them."""

    def __init__(
        self,
        kept: Checkpoint,
        planned: Plan,
        shapes: Mapping[str, tuple[int, ...]],
        prompts: range,
        added: shards.Added | None = None,
    ):
        self.kept, self.planned, self.prompts, self.added = kept, planned, prompts, added
        self.arrays = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        self.done = np.zeros(planned.n_taps, bool)
        self._found: Mapping[str, np.ndarray] = kept.read() or {}
        if self._found:
            self.done = self._found["done"].astype(bool)
            self.arrays = {name: self._found[f"row.{name}"].copy() for name in shapes}

    def groups(self) -> Iterator[tuple[int, ...]]:
        """The sources that are not done, as many at once as planned; a group is done when the next is asked for."""
        for taps in self.planned.groups(np.flatnonzero(~self.done).tolist()):
            yield taps
            self.done[list(taps)] = True
            self._write({}, now=True)

    def share(self, taps: Sequence[int], within: float) -> float:
        """How much of all sources is done, `within` of these."""
        return float(self.done.sum() + within * len(taps)) / len(self.done)

    def restore(self, taps: Sequence[int], sums: Sequence[Sums]) -> int:
        """Fill the sums of a group with what was kept; returns the prompt to go on from."""
        found: Mapping[str, np.ndarray] | shards.Added
        if self.added is not None:
            found = self.added
        else:
            found, self._found = self._found, {}
            if "taps" not in found or found["taps"].tolist() != list(taps):
                return 0
        shards.fill(taps, sums, found)
        return int(found["next"])

    def keep(self, taps: Sequence[int], sums: Sequence[Sums], following: int) -> None:
        """The sums of a group up to the prompt before `following`."""
        if self.planned.bytes > KEPT_BYTES:
            return
        if self.kept.due():
            more = {"taps": np.asarray(taps), "next": np.asarray(following)}
            self._write(shards.arrays(taps, sums) | more)

    def _write(self, more: Mapping[str, np.ndarray], now: bool = False) -> None:
        rows = {f"row.{name}": values for name, values in self.arrays.items()}
        self.kept.write(rows | {"done": self.done} | dict(more), now)
