"""What leaving early changes and could spare: a fixed exit, a confident one and an oracle. Numpy only.

The oracle leaves each token at the first depth whose best token is the output's; no rule that keeps the output can
spare more. A fixed exit leaves all tokens at one depth; a confident one each at the first depth whose best token is
sure enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..results.aggregate import probe_of
from ..statistics import Resampled, Units, mean
from ..types import ProbeResult

TENTH = 10  # leaving early is usable where fewer than one token in so many changes
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


def written(ids: np.ndarray) -> int:
    """Return how many tokens `generation` has written so far; in `ids`, -1 marks those to come."""
    return int((ids >= 0).sum())


def text(result: ProbeResult) -> str:
    """Return the text that a `generation` result has so far."""
    ids = result["ids"]
    pieces = "".join(result.token_text.get(i, "") for i in ids[ids >= 0].tolist())
    return str(result.provenance.get("written", pieces))


@dataclass(frozen=True)
class Exits:
    """The effect on `n` tokens of leaving at the first depth of at least this confidence (`threshold`), each judged
    with the whole model's keys and values before it. `changed`: how many it would change. `depth`: the mean depth at
    which tokens leave. `settled`: the lower median of the depths from which tokens are the first choice, None where
    that was not measured. `guesses`: the tokens are given or drawn, so that the first choice changes, not the text."""

    n: int
    changed: int
    depth: float
    n_layers: int
    threshold: float
    settled: int | None = None
    guesses: bool = False

    @property
    def usable(self) -> bool:
        """Whether leaving early changes fewer than one token in `TENTH`."""
        return TENTH * self.changed < self.n


def exits(result: ProbeResult) -> Exits:
    """Return the effect of early exits on the tokens that a `generation` result has so far, at least one."""
    n, probe = written(result["ids"]), probe_of(result)
    return Exits(
        n,
        int(n - result["exit_agrees"][:n].sum()),
        float(result["exit_depth"][:n].mean()),
        result.n_layers,
        probe.threshold,  # type: ignore[attr-defined]
        int(np.sort(result["settle_depth"][:n])[(n - 1) // 2]),
        probe.temperature > 0,  # type: ignore[attr-defined]
    )


def exits_of_prompts(results: Sequence[ProbeResult], threshold: float) -> Exits:
    """Return the effect of early exits on all tokens of `early_exit` results."""
    n = sum(result.n_tokens for result in results)
    agree, depth = (sum(float(r.summary[f"exit_{name}.sum"]) for r in results) for name in ("agrees", "depth"))
    return Exits(n, round(n - agree), depth / n, results[0].n_layers, threshold, guesses=True)


@dataclass(frozen=True)
class Tokens:
    """The lens on one prompt's tokens, `[depth, token]`: the best token's probability (`confidence`), and whether it is
    the output's (`agreement`)."""

    confidence: np.ndarray
    agreement: np.ndarray

    @classmethod
    def of(cls, result: ProbeResult) -> Tokens:
        """Return the tokens of an `early_exit` result, or those that `generation` has written so far."""
        if "agreement" in result.measures:
            return cls(result["confidence"], result["agreement"] > 0)
        n, best = written(result["ids"]), result["best_ids"]
        return cls(result["confidence"][:, :n], best[:, :n] == best[-1:, :n])

    @property
    def settle(self) -> np.ndarray:
        """The first depth from which the best token stays the output's, `[token]`."""
        return np.asarray(len(self.agreement) - np.logical_and.accumulate(self.agreement[::-1]).sum(0))

    @property
    def oracle(self) -> np.ndarray:
        """The first depth at which the best token is the output's, `[token]`."""
        return np.asarray(self.agreement.argmax(0))

    def leaving(self, threshold: float) -> np.ndarray:
        """Return the first depth at which each token's confidence reaches `threshold`, else the output's, `[token]`."""
        leaves = self.confidence >= threshold
        leaves[-1] = True
        return np.asarray(leaves.argmax(0))

    def runs(self) -> np.ndarray:
        """Return the number of runs of tokens in a row that agree with the output, `[depth]`."""
        begins = self.agreement & ~np.pad(self.agreement[:, :-1], ((0, 0), (1, 0)))
        return np.asarray(begins.sum(1))


@dataclass(frozen=True)
class Headroom:
    """The layers that early exits spare over prompts, with intervals over the bootstrap units `over`; `n` tokens.

    `fixed` `[depth]`: agreement with the output of leaving at a depth; `accepted` `[depth]`: the mean length of runs of
    agreeing tokens; `confident` `[threshold, 2]`: agreement and layers spared of leaving once sure; `oracle`: layers
    spared by leaving once right; `headroom`: mean settle depth less mean oracle depth."""

    n_layers: int
    n: int
    over: Units
    fixed: Resampled
    accepted: np.ndarray
    confident: Resampled
    oracle: Resampled
    headroom: Resampled


def headroom(prompts: Sequence[Tokens], over: Units, seed: int = 0) -> Headroom:
    """Return the layers that early exits spare over prompts of one token or more, with intervals over `over`."""
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
