"""One driver for every fit: accumulate sums over prompts, solve for the maps, evaluate them on held-out prompts.

A *source* is what a map reads: a depth, a tap or a layer. Sources are fitted in groups that fit into memory; each group
that is finished is a partial result, and a fit that was stopped resumes from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from ..models.language_model import LanguageModel
from ..types import Prompt
from .checkpoint import Checkpoint, Rows, Summed, checkpoint_file
from .least_squares import Sums
from .measured import Plan
from .streams import FOR_R2, Streams, require_same_tokens, require_tokens, split

S = TypeVar("S", bound=Summed)  # the sums of one source
M = TypeVar("M")  # the maps of some sources
R = TypeVar("R")  # the result
Tick = Callable[[float], None]
"""Takes the share that is done; an exception of it ends the fit."""


class Read(Protocol):
    """Takes how many prompts were read, and whether the sums hold all of them."""

    def __call__(self, prompts: float, added: bool = True) -> None: ...


def silent(share: float) -> None:
    """Report nothing."""


class Fitting(Generic[S, M, R]):
    """A kind of fit: how it accumulates, solves and evaluates.

    `on`, `test`: the streams it is fitted and judged on, one per model. `plan`: its sources, and how many are summed at
    once. `about`: everything that can change a number. `rows`: shape and type of each array of results, without the
    axis of the sources. `summing`: about the share of the time that sums take."""

    plan: Plan
    about: dict[str, Any]
    rows: Mapping[str, tuple[tuple[int, ...], DTypeLike]]
    summing: ClassVar[float]
    needs: ClassVar[int] = FOR_R2  # held-out tokens

    def __init__(self, *models: LanguageModel, prompts: Sequence[Prompt], test: Sequence[Prompt] | None, first: Any):
        """`test`: a fifth of the forms by default; `first`: the tokens of each prompt that are read, None for all."""
        used, held_out = split(prompts, test)
        if len(models) == 2:
            require_same_tokens(*models, [*used, *held_out])
        self.on, self.test = ([Streams(model, some, first) for model in models] for some in (used, held_out))
        self.model, self.n_prompts = models[0], len(used)
        self.tokens = sum(self.on[0].lengths())
        self.test_tokens = require_tokens(self.test[0], False, self.needs)

    def sums(self, sources: Sequence[int]) -> list[S]:
        """Empty sums for these sources."""
        return [cast(S, Sums(self.plan.d_x, self.plan.d_y, self.model.device)) for _ in sources]

    def accumulate(self, sources: Sequence[int], sums: Sequence[S], begin: int, read: Read) -> None:
        """Add the prompts from number `begin` on to the sums."""
        raise NotImplementedError

    def solve(self, sources: Sequence[int], sums: Sequence[S]) -> M:
        """The maps of these sources."""
        raise NotImplementedError

    def evaluate(self, sources: Sequence[int], maps: M, tick: Tick) -> Mapping[str, np.ndarray]:
        """By name the `rows` of these sources: the maps' figures on held-out prompts, or the maps themselves."""
        raise NotImplementedError

    def result(self, rows: Mapping[str, np.ndarray]) -> R:
        """The result of all rows, or a partial one where some are NaN."""
        raise NotImplementedError

    def write(self, out: Path, rows: Mapping[str, np.ndarray], result: R) -> None:
        """Write the finished fit."""
        raise NotImplementedError

    def fit(self, out: Path | None = None, tick: Tick = silent, partial: Callable[[R], None] | None = None) -> R:
        """Fit, and write to `out` where it is given. `partial` takes the result after every group but the last."""
        kept = Checkpoint(checkpoint_file(out) if out else None, self.about)
        rows = Rows(kept, self.plan, self.rows)
        for sources in rows.groups():
            rows.finish(sources, self._group(sources, rows, tick))
            if partial and not rows.finished.all():
                partial(self.result(rows.arrays))
        result = self.result(rows.arrays)
        if out:
            self.write(out, rows.arrays, result)
        kept.remove()
        tick(1.0)
        return result

    def _group(self, sources: Sequence[int], rows: Rows, tick: Tick) -> Mapping[str, np.ndarray]:
        """The rows of these sources."""
        sums = self.sums(sources)

        def read(prompts: float, added: bool = True) -> None:
            tick(rows.share(sources, self.summing * prompts / self.n_prompts))
            if added:
                rows.keep(sources, sums, int(prompts))

        def judged(share: float) -> None:
            tick(rows.share(sources, self.summing + (1 - self.summing) * share))

        self.accumulate(sources, sums, rows.restore(sources, sums), read)
        return self.evaluate(sources, self.solve(sources, sums), judged)
