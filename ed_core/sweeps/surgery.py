"""Blocks left out, exchanged, run twice: every variant of one kind in one walk over the blocks.

A stretch [i, j) that is dropped means that what entered block i enters block j; one that is repeated, that what left
block j - 1 enters block i once more. All L (L + 1) / 2 stretches take about L^3 / 6 (dropped) or L^3 / 3 (repeated)
passes through a block, where one full pass each takes L^3 / 3 and 2 L^3 / 3. Two blocks that are exchanged, i and j,
share what comes before i.

Every pass through a block computes its own keys and values. In a looped model, the modules between two passes run
wherever a variant begins a pass; two blocks that are exchanged leave it in its place."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from ..models import modules
from ..models.identities import to_float64
from ..models.language_model import LanguageModel
from ..models.layouts import Resid
from ..types import Encoding
from .dropping import proxies
from .recorder import Recorder
from .staircase import Staircase

Pairs = list[tuple[int, int]]


@torch.no_grad()
def surgery_sweep(
    model: LanguageModel, encoding: Encoding, record: Recorder, kinds: Sequence[str], longest: int, seed: int
) -> None:
    """Fill the measures of the probe `surgery`. `kinds`: of "drop", "swap" and "repeat"; `longest`: the most layers of
    a stretch, and distance of an exchange; `seed`: of the random layers that control the repeats."""
    sweep = _Sweep(model, encoding, record, min(longest, model.n_layers))
    walks: dict[str, tuple[Callable[[], None], int]] = {
        "drop": (lambda: sweep.stretches("drop"), sum(model.n_layers - j for _, j in sweep.found)),
        "swap": (sweep.swaps, sum(model.n_layers - i for i, _ in sweep.pairs)),
        "repeat": (lambda: sweep.repeats(seed), sum(model.n_layers - i for i, _ in sweep.found)),
    }
    sweep.passes = max(1, sum(walks[kind][1] for kind in kinds))
    sweep.whole_and_proxies()
    for kind in kinds:
        walks[kind][0]()


class _Sweep(Staircase):
    """One prompt's variants. `found`: the stretches (i, j), layers i to j - 1; `pairs`: the layers that can be
    exchanged; `unlike`: how many pairs cannot."""

    def __init__(self, model: LanguageModel, encoding: Encoding, record: Recorder, longest: int):
        super().__init__(model, encoding, record)
        n_layers, of_kind = model.n_layers, modules.kinds(model.stack, model.config) * model.n_passes
        self.longest = longest
        self.found = [(i, j) for i in range(n_layers) for j in range(i + 1, min(i + longest, n_layers) + 1)]
        apart = [(i, j) for i, j in self.found if j < n_layers]
        self.pairs = [(i, j) for i, j in apart if of_kind[i] == of_kind[j]]
        self.unlike = len(apart) - len(self.pairs)
        self.done, self.passes = 0, 1  # through a block

    def whole_and_proxies(self) -> None:
        """Write the whole model's loss, and the proxies of every stretch, mean over tokens."""
        self.record.allocate("loss_whole", "block_influence", "angular_distance", "update_cosine")
        self._outputs("", [()], self.trace.resid[-1])
        for i, j in self.found:
            for name, values in proxies(self.trace, i, j).items():
                self.record.write(name, (i, j), values.mean())
            self.record.check()

    def stretches(self, kind: str) -> None:
        """Write the figures of every stretch [i, j) dropped, or repeated (`kind`): the residual taken at one end enters
        at the other."""
        taken, enters = (0, 1) if kind == "drop" else (1, 0)
        self._allocate(kind)
        variants = sorted(self.found, key=lambda stretch: stretch[enters])
        for part in self.parts(len(variants)):
            some = variants[part]
            state = torch.cat([self.model.entering(self.trace, v[taken], v[enters]) for v in some])
            self._climb(kind, some, state, [v[enters] for v in some])

    def repeats(self, seed: int) -> None:
        """Write the figures of every stretch repeated and, as a control for every length, of as many further passes
        through one random layer."""
        n_layers, crosses = self.model.n_layers, self.model.crosses
        self._allocate("random")
        self.record.allocate("random_layer", length=n_layers)
        draw = random.Random(seed)
        drawn = [draw.randrange(n_layers) for _ in range(n_layers)][: self.longest]
        self.record.write("random_layer", slice(0, self.longest), drawn)
        variants = sorted(enumerate(drawn, 1), key=lambda variant: variant[1])  # length, layer
        for part in self.parts(len(variants)):
            some = variants[part]
            state = torch.cat([self.model.entering(self.trace, layer + 1, layer) for _, layer in some])
            for row, (n, layer) in enumerate(some):
                for left in reversed(range(n)):
                    self.through(layer, state, [row], crosses=crosses(layer, layer if left else layer + 1))
            self._climb("random", [(n - 1,) for n, _ in some], state, [layer + 1 for _, layer in some])
        self.stretches("repeat")

    def swaps(self) -> None:
        """Write the figures of every exchange of two layers of one kind."""
        n_layers, crosses = self.model.n_layers, self.model.crosses
        self._allocate("swap")
        if self.unlike:
            self.record.note(
                f"{self.unlike} of {self.unlike + len(self.pairs)} pairs of layers are of different kinds; they are "
                "not exchanged, and their cells are empty."
            )
        for part in self.parts(len(self.pairs)):
            pairs = self.pairs[part]
            state = torch.cat([self.trace.resid[i] for i, _ in pairs])
            firsts = [(j, crosses(i, i + 1)) for i, j in pairs]
            for first in sorted(set(firsts)):  # in the place of i
                self.through(first[0], state, [row for row, one in enumerate(firsts) if one == first], crosses=first[1])
            for layer in range(pairs[0][0], n_layers):
                self.through(layer, state, [row for row, (i, j) in enumerate(pairs) if i < layer != j])
                for row, (i, j) in enumerate(pairs):
                    if j == layer:
                        self.through(i, state, [row], crosses=crosses(j, j + 1))
                self._step(sum(i <= layer for i, _ in pairs))
            self._outputs("swap", pairs, state)

    def _climb(self, kind: str, variants: Sequence[tuple[int, ...]], state: Resid, enters: list[int]) -> None:
        """Run the variants to the output and write their figures; row i of `state` enters layer `enters[i]`."""
        begun, passes = self.done, sum(self.model.n_layers - block for block in enters)
        self.climb(state, enters, lambda share: self._step(begun + round(share * passes) - self.done))
        self._outputs(kind, variants, state)

    def _step(self, passes: int) -> None:
        """Record that so many more passes through a layer are done."""
        self.done += passes
        self.record.step(min(0.99, self.done / self.passes))

    def _allocate(self, kind: str) -> None:
        """Create the three measures of one kind of change."""
        self.record.allocate(*(f"{kind}_{name}" for name in ("loss", "kl", "top1_kept")), length=self.model.n_layers)

    def _outputs(self, kind: str, variants: Sequence[tuple[int, ...]], state: Resid) -> None:
        """Write mean loss, divergence and share of best tokens kept of these last residuals. `variants`: the index of
        each in the measures; `kind` "" is the whole model, loss only."""
        sums = to_float64(torch.zeros(len(variants), 3, device=state.device))
        for place, whole in self.references():
            for row, changed in self.compared(whole, place, state):
                sums[row] += torch.stack([to_float64(values).sum() for values in changed])
            self.record.step(self.record.progress)
        loss, kl, kept = sums[:, 0] / (self.n_tokens - 1), sums[:, 1] / self.n_tokens, sums[:, 2] / self.n_tokens
        if not kind:
            self.record.write("loss_whole", (), loss[0])
            return
        for name, values in (("loss", loss), ("kl", kl), ("top1_kept", kept)):
            for variant, value in zip(variants, values):
                self.record.write(f"{kind}_{name}", variant, value)
                if kind == "swap":
                    self.record.write(f"{kind}_{name}", variant[::-1], value)
