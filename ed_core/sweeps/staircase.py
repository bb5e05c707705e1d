"""A staircase: many variants of one traced pass in one walk over the blocks, instead of one forward pass for each.

A variant differs from the traced pass from some block on. It joins the walk at the block it enters, with a residual of
the traced pass, and all variants that have joined go through a block as rows of one batch. That is L batched calls
instead of L forward passes for each variant, about half the arithmetic, and every weight is read once. Where the
residuals of all variants do not fit the memory budget, there are several walks, each over a part of the variants.

Shapes: state [row, pos, d_model], a row for each variant; its positions are `start..T-1`, the tokens before being as
they were."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from ..models.language_model import LanguageModel
from ..models.layouts import Resid, Rows
from ..types import Encoding
from . import metrics
from .budget import even_chunks
from .recorder import Recorder

LOGIT_TOKENS = 64  # positions unembedded at once at least: fewer would read the head's weights too often


class Staircase:
    """Runs many variants of one prompt's traced pass together, as rows of batched block calls. Each variant differs
    from the traced pass from some layer on and joins there."""

    def __init__(self, model: LanguageModel, encoding: Encoding | tuple[int, ...], record: Recorder):
        self.model, self.record, self.budget = model, record, record.budget
        self.trace = record.traced(model, encoding)
        self.n_tokens, self.targets = len(encoding), self.trace.ids[0, 1:]

    @property
    def at_once(self) -> int:
        """The number of variants with residuals that fit the memory budget together."""
        return self.budget.fit(self.n_tokens * self.model.d_model * self.model.dtype.itemsize)

    def parts(self, n_variants: int) -> list[slice]:
        """Return slices of the variants, one per walk over the layers."""
        return even_chunks(n_variants, self.at_once)

    def climb(
        self, state: Resid, enters: Sequence[int], step: Callable[[float], None], start: int = 0, alike: int = 1
    ) -> Resid:
        """Return the last residual of every row, written over `state`: row i enters layer `enters[i]`, in rising order,
        with the residual `state[i]`. `step` gets the share done after each layer; `start`: the first position in
        `state`; `alike`: see `through`."""
        first, end = enters[0], self.model.n_layers
        for layer in range(first, end):
            self.through(layer, state, range(bisect_right(enters, layer)), start, alike=alike)
            step((layer + 1 - first) / (end - first))
        return state

    def through(
        self, layer: int, state: Resid, rows: Sequence[int], start: int = 0, crosses: bool | None = None, alike: int = 1
    ) -> None:
        """Run these rows of `state` through one layer, in place, and through the modules between passes if `crosses`
        (None: as in the model). Each `alike` consecutive rows share one call."""
        model, budget, n_bytes = self.model, self.budget, self.model.call_bytes(self.n_tokens)

        def work(some: slice) -> None:
            chosen = rows[some.start * alike : some.stop * alike]
            place = (
                slice(chosen.start, chosen.stop)
                if isinstance(chosen, range)
                else metrics.to_device(model.device, chosen)
            )
            *_, state[place] = model.run_block(self.trace, layer, state[place], start=start, crosses=crosses)
            self.record.check()

        budget.run(len(rows) // alike, lambda: max(1, budget.rows(state.shape[1], n_bytes) // alike), work)

    # ---------------------------------------------------------------- predictions

    def logits(self, rows: Resid) -> Iterator[tuple[slice, Rows]]:
        """Yield slices of residuals `[row, d_model]` with their logits, as many rows at a time as memory allows."""
        for place in even_chunks(len(rows), self._logit_rows()):
            yield place, self.model.unembed(rows[place])
            self.record.check()

    def references(self) -> Iterator[tuple[slice, metrics.AgainstModel]]:
        """Yield slices of positions with the whole model's predictions there, to compare others with."""
        for place in even_chunks(self.n_tokens, self._logit_rows()):
            whole = self.model.unembed(self.trace.resid[-1][0, place])
            yield place, metrics.AgainstModel(whole, self.targets[place])

    def compared(
        self, whole: metrics.AgainstModel, place: slice, state: Resid
    ) -> Iterator[tuple[int, metrics.Changed]]:
        """Yield each row of `state`, a last residual, with its losses against the whole model at the positions
        `place`."""

        def work(rows: slice) -> list[tuple[int, metrics.Changed]]:
            figures = whole.measures(list(self.model.unembed(state[rows, place])))
            self.record.check()
            return list(enumerate(figures, rows.start))

        size = place.stop - place.start
        for some in self.budget.each(len(state), lambda: max(1, self._logit_rows() // size), work):
            yield from some

    def _logit_rows(self) -> int:
        """Return how many rows of logits fit the memory budget at once."""
        rows = max(LOGIT_TOKENS, self.budget.logit_bytes // (8 * self.model.d_vocab))
        return max(1, rows >> self.budget.halvings)
