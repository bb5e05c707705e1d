"""Blocks left out, exchanged, run twice: every variant of one kind in one walk over the blocks.

A stretch [i, j) that is dropped means that what entered block i enters block j; one that is repeated, that what left
block j - 1 enters block i once more. So a variant joins the walk at the block it enters, with a residual of the traced
pass, and all variants that have joined go through a block as rows of one batch: all L (L + 1) / 2 stretches take about
L^3 / 6 (dropped) or L^3 / 3 (repeated) passes through a block, where one full pass each takes L^3 / 3 and 2 L^3 / 3.
Two blocks that are exchanged, i and j, share what comes before i. Where the residuals of all variants do not fit the
memory budget, there are several walks, each over a part of the variants.

Every pass through a block computes its own keys and values. In a looped model, the modules between two passes run
wherever a variant begins a pass; two blocks that are exchanged leave it in its place."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..models import modules
from ..models.identities import to_float64
from . import metrics
from .budget import even_chunks
from .staircase import LOGIT_TOKENS

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel
    from ..models.trace import Trace
    from ..types import Encoding
    from .recorder import Recorder

Pairs = list[tuple[int, int]]


@torch.no_grad()
def surgery_sweep(
    model: LanguageModel,
    encoding: Encoding,
    record: Recorder,
    kinds: Sequence[str],
    longest: int,
    seed: int,
) -> None:
    """Fill `surgery`'s measures. `kinds`: which maps, of drop, swap and repeat; `longest`: stretches of so many blocks
    at most, and exchanges over such a distance."""
    sweep = _Sweep(model, encoding, record, min(longest, model.n_layers))
    walks: dict[str, tuple[Callable[[], None], float]] = {
        "drop": (lambda: sweep.stretches("drop"), _passes(sweep.found, 1, model.n_layers)),
        "swap": (sweep.swaps, _passes(sweep.pairs, 0, model.n_layers)),
        "repeat": (lambda: sweep.repeats(seed), _passes(sweep.found, 0, model.n_layers)),
    }
    sweep.total = sum(walks[kind][1] for kind in kinds)
    sweep.whole_and_proxies()
    for kind in kinds:
        walks[kind][0]()


def _passes(variants: Pairs, enters: int, n_layers: int) -> float:
    """Passes through a block that these variants take from the block they enter, by its place in each."""
    return float(sum(n_layers - variant[enters] for variant in variants))


class _Sweep:
    """One prompt's variants: what they share, and the arrays their figures go to."""

    def __init__(self, model: LanguageModel, encoding: Encoding, record: Recorder, longest: int):
        self.model, self.record, self.longest = model, record, longest
        self.trace = model.trace(model.tensor(encoding), on_block=lambda *_: record.check(), keep=1)
        n_layers, of_kind = model.n_layers, modules.kinds(model.stack, model.config) * model.n_passes
        self.found = [(i, j) for i in range(n_layers) for j in range(i + 1, min(i + longest, n_layers) + 1)]
        apart = [(i, j) for i, j in self.found if j < n_layers]
        self.pairs = [(i, j) for i, j in apart if of_kind[i] == of_kind[j]]
        self.unlike = len(apart) - len(self.pairs)
        self.n_tokens, self.done, self.total = len(encoding), 0.0, 1.0

    def whole_and_proxies(self) -> None:
        """What the whole model loses, and what stretches are usually chosen by."""
        record, n_layers = self.record, self.model.n_layers
        record.allocate("loss_whole", ())
        self._outputs("", [()], self.trace.resid[-1])
        names = ("block_influence", "angular_distance", "update_cosine")
        for name in names:
            record.allocate(name, (n_layers, n_layers + 1))
        for i in range(n_layers):
            before = self.trace.resid[i][0].float()
            for j in (j for first, j in self.found if first == i):
                after = self.trace.after(j)[0].float()
                cosine = metrics.cosine(before, after)
                values = 1 - cosine, cosine.arccos() / math.pi, metrics.cosine(after - before, before)
                for name, value in zip(names, values):
                    record.write(name, (i, j), value.mean())
            record.check()

    def stretches(self, kind: str) -> None:
        """Every stretch [i, j) dropped, or repeated: the residual taken at one of its ends enters at the other."""
        taken, enters = (0, 1) if kind == "drop" else (1, 0)
        self._allocate(kind, (self.model.n_layers, self.model.n_layers + 1))
        variants = sorted(self.found, key=lambda stretch: stretch[enters])
        self._walk(kind, variants, [v[enters] for v in variants], [v[taken] for v in variants])

    def repeats(self, seed: int) -> None:
        """Every stretch repeated; and, for every length, as many further passes through one block drawn at random."""
        n_layers = self.model.n_layers
        self._allocate("random", (n_layers,))
        self.record.allocate("random_layer", (n_layers,))
        draw = random.Random(seed)
        random_layers = [draw.randrange(n_layers) for _ in range(n_layers)]
        variants = sorted(((n, random_layers[n - 1]) for n in range(1, self.longest + 1)), key=lambda v: v[1])
        self.record.write("random_layer", slice(0, self.longest), random_layers[: self.longest])
        after = [layer + 1 for _, layer in variants]

        def repeat(part: slice, state: Tensor) -> None:
            for row, (n, layer) in enumerate(variants[part]):
                for left in reversed(range(n)):
                    self._through(layer, state, [row], self.model.crosses(layer, layer if left else layer + 1))

        self._walk("random", [(n - 1,) for n, _ in variants], after, after, repeat, [layer for _, layer in variants])
        self.stretches("repeat")

    def swaps(self) -> None:
        """Every two blocks of one kind exchanged."""
        n_layers = self.model.n_layers
        self._allocate("swap", (n_layers, n_layers))
        if self.unlike:
            self.record.note(
                f"{self.unlike} of {self.unlike + len(self.pairs)} pairs of layers are of different kinds; they are "
                "not exchanged, and their cells are empty."
            )
        for part in self._parts(len(self.pairs)):
            pairs = self.pairs[part]
            state = torch.cat([self.trace.resid[i] for i, _ in pairs])
            firsts = [(j, self.model.crosses(i, i + 1)) for i, j in pairs]
            for block, crosses in sorted(set(firsts)):  # in the place of i
                self._through(block, state, [row for row, one in enumerate(firsts) if one == (block, crosses)], crosses)
            for layer in range(pairs[0][0], n_layers):
                self._through(layer, state, [row for row, (i, j) in enumerate(pairs) if i < layer != j])
                for row, (i, j) in enumerate(pairs):
                    if j == layer:
                        self._through(i, state, [row], self.model.crosses(j, j + 1))
                self._step(sum(i <= layer for i, _ in pairs))
            self._outputs("swap", pairs, state)

    # ---------------------------------------------------------------- the walk

    def _walk(
        self,
        kind: str,
        variants: Sequence[tuple[int, ...]],
        enters: list[int],
        taken: list[int],
        first: Callable[[slice, Tensor], None] = lambda part, state: None,
        then: list[int] | None = None,
    ) -> None:
        """Variants in the order of the blocks they enter, `taken[v]` being the depth of the residual that does, after
        what is done to it `first`, which begins with block `then[v]`; each to the output."""
        following = then or enters
        for part in self._parts(len(variants)):
            whence = zip(taken[part], following[part])
            state = torch.cat([self.model.entering(self.trace, depth, block) for depth, block in whence])
            first(part, state)
            for layer in range(enters[part][0], self.model.n_layers):
                joined = [row for row, block in enumerate(enters[part]) if block <= layer]
                self._through(layer, state, joined)
                self._step(len(joined) if kind != "random" else 0)
            self._outputs(kind, variants[part], state)

    def _parts(self, n_variants: int) -> list[slice]:
        at_once = self.record.budget.fit(self.n_tokens * self.model.d_model * self.model.dtype.itemsize)
        return even_chunks(n_variants, at_once) if n_variants else []

    def _through(self, layer: int, state: Tensor, rows: list[int], crosses: bool | None = None) -> None:
        """Take these rows of `state` through a block, and through the modules between passes where it `crosses`."""
        model, budget = self.model, self.record.budget

        def work(part: slice) -> None:
            place = metrics.to_device(state.device, rows[part])
            *_, state[place] = model.run_block(self.trace, layer, state[place], crosses=crosses)
            self.record.check()

        most = model.call_bytes(self.n_tokens)
        budget.run(len(rows), lambda: budget.rows(self.n_tokens, most), work)

    def _step(self, passes: int) -> None:
        self.done += passes
        self.record.step(min(0.99, self.done / self.total))

    # ---------------------------------------------------------------- the output

    def _allocate(self, kind: str, shape: tuple[int, ...]) -> None:
        for measure in ("loss", "kl", "top1_kept"):
            self.record.allocate(f"{kind}_{measure}", shape)

    def _outputs(self, kind: str, variants: Sequence[tuple[int, ...]], state: Tensor) -> None:
        """Mean loss, divergence and share of best tokens kept, for the last residuals `[variant, pos, d_model]`."""
        model, budget, targets = self.model, self.record.budget, self.trace.ids[0, 1:]
        sums = to_float64(torch.zeros(len(variants), 3, device=state.device))
        most = max(LOGIT_TOKENS, budget.logit_bytes // (8 * model.d_vocab))
        places = even_chunks(self.n_tokens, most)
        for place in places:
            reference = metrics.AgainstModel(model.unembed(self.trace.resid[-1][0, place]), targets[place])

            def work(rows: slice, place: slice = place, reference: metrics.AgainstModel = reference) -> slice:
                for row, figures in enumerate(reference.measures(list(model.unembed(state[rows, place]))), rows.start):
                    sums[row] += torch.stack([to_float64(values).sum() for values in figures])
                self.record.check()
                return rows

            each = place.stop - place.start
            for rows in budget.each(len(variants), lambda: max(1, (most >> budget.halvings) // each), work):
                if place is places[-1]:
                    self._write(kind, variants[rows], sums[rows])
                self.record.step(self.record.progress)

    def _write(self, kind: str, variants: Sequence[tuple[int, ...]], sums: Tensor) -> None:
        loss, kl, kept = sums[:, 0] / (self.n_tokens - 1), sums[:, 1] / self.n_tokens, sums[:, 2] / self.n_tokens
        if not kind:
            return self.record.write("loss_whole", (), loss[0])
        for name, values in (("loss", loss), ("kl", kl), ("top1_kept", kept)):
            for variant, value in zip(variants, values):
                self.record.write(f"{kind}_{name}", variant, value)
                if kind == "swap":
                    self.record.write(f"{kind}_{name}", variant[::-1], value)
        return None


# ---------------------------------------------------------------- one order


def in_order(
    model: LanguageModel, trace: Trace, order: Sequence[int], check: Callable[[], None] = lambda: None
) -> Tensor:
    """The last residual `[1, pos, d_model]` where the blocks run in this order; what it shares with the whole model's
    is not computed again. The modules between passes run wherever a pass begins (`crosses`)."""
    shared = next((place for place, block in enumerate(order) if block != place), len(order))
    around = [-1, *order, model.n_layers]
    resid = trace.after(shared)
    if model.crosses(around[shared], around[shared + 1]):
        resid = model.between(trace, resid)
    for place, block in enumerate(order[shared:], shared):
        crosses = model.crosses(around[place + 1], around[place + 2])
        *_, resid = model.run_block(trace, block, resid, crosses=crosses)
        check()
    return resid
