"""What leaving early could spare: a fixed exit, a confident one and an oracle. Numpy only.

The oracle leaves each token at the first depth whose best token is the output's; no rule that keeps the output can
spare more. A fixed exit leaves all tokens at one depth; a confident one each at the first depth whose best token is
sure enough.

Shapes: `confidence`, `agreement` `[depth, token]`, of `early_exit`, or of what `generation` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..statistics import Resampled, Units, mean
from ..types import ProbeResult
from .writing import written

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Tokens:
    """The tokens of one prompt."""

    confidence: np.ndarray
    agreement: np.ndarray

    @classmethod
    def of(cls, result: ProbeResult) -> Tokens:
        """Return those of a result of `early_exit`, or those that `generation` has written so far."""
        if "agreement" in result.measures:
            return cls(result["confidence"], result["agreement"] > 0)
        n, best = written(result["ids"]), result["best_ids"]
        return cls(result["confidence"][:, :n], best[:, :n] == best[-1:, :n])

    @property
    def settle(self) -> np.ndarray:
        """The first depth from which the best token stays the output's `[token]`."""
        return np.asarray(len(self.agreement) - np.logical_and.accumulate(self.agreement[::-1]).sum(0))

    @property
    def oracle(self) -> np.ndarray:
        """The first depth whose best token is the output's `[token]`."""
        return np.asarray(self.agreement.argmax(0))

    def leaving(self, threshold: float) -> np.ndarray:
        """The first depth that is sure enough, at the latest the output `[token]`."""
        leaves = self.confidence >= threshold
        leaves[-1] = True
        return np.asarray(leaves.argmax(0))

    def runs(self) -> np.ndarray:
        """How many runs of agreement there are along the text, at each depth `[depth]`."""
        begins = self.agreement & ~np.pad(self.agreement[:, :-1], ((0, 0), (1, 0)))
        return np.asarray(begins.sum(1))


@dataclass(frozen=True)
class Headroom:
    """What exits spare over prompts, each with its interval over `over`. `fixed` `[depth]`: agreement of leaving at a
    depth; `accepted` `[depth]`: the mean length of its runs of agreement; `confident` `[threshold, 2]`: agreement and
    layers spared; `oracle`: layers that the oracle spares; `headroom`: mean settle depth less mean oracle depth."""

    n_layers: int
    n: int
    over: Units
    fixed: Resampled
    accepted: np.ndarray
    confident: Resampled
    oracle: Resampled
    headroom: Resampled


def headroom(prompts: Sequence[Tokens], over: Units, seed: int = 0) -> Headroom:
    """Return what exits spare over the tokens of these prompts."""
    prompts = [one for one in prompts if one.agreement.shape[1]]
    n_layers, n = len(prompts[0].agreement) - 1, np.array([one.agreement.shape[1] for one in prompts])

    def over_tokens(sums: Sequence[np.ndarray]) -> Resampled:
        return mean(np.stack(sums), n, over, seed)

    agreeing = np.stack([one.agreement.sum(1) for one in prompts])
    runs = np.sum([one.runs() for one in prompts], 0)
    confident = []
    for one in prompts:
        exits = np.stack([one.leaving(threshold) for threshold in THRESHOLDS])
        agrees = one.agreement[exits, np.arange(exits.shape[1])]
        confident.append(np.stack([agrees.sum(1), (n_layers - exits).sum(1)], 1))
    return Headroom(
        n_layers,
        int(n.sum()),
        over,
        over_tokens(list(agreeing)),
        agreeing.sum(0) / np.maximum(runs, 1),
        over_tokens(confident),
        over_tokens([(n_layers - one.oracle).sum() for one in prompts]),
        over_tokens([(one.settle - one.oracle).sum() for one in prompts]),
    )
