"""What leaving early would change in tokens that are written or given. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..results.aggregate import Summary, probe_of
from ..types import ProbeResult

UNUSABLE = 0.1  # share of the tokens that change from which on leaving early is not usable
ROUNDING = 1e-9  # of a share that was subtracted


@dataclass(frozen=True)
class Exits:
    """What leaving at the first depth that is sure enough does to `n` tokens, each judged with the whole model's keys
    and values before it. `changed`: how many it would change, `at_0`: how many of these leave at depth 0. `depth`: the
    mean depth at which tokens leave, of `n_layers`. `settled`: the lower median of the depths from which tokens are the
    first choice, None where that was not measured. `guesses`: the tokens are given or drawn, so that the first choice
    changes, not the text. `threshold`: the confidence."""

    n: int
    changed: int
    at_0: int
    depth: float
    n_layers: int
    threshold: float
    settled: int | None = None
    guesses: bool = False

    @property
    def usable(self) -> bool:
        return usable(self.n, self.changed)


def exits(result: ProbeResult) -> Exits:
    """Of a result of `generation`, over the tokens written so far."""
    n, probe = written(result["ids"]), probe_of(result)
    if not n:
        return Exits(0, 0, 0, 0.0, result.n_layers, probe.threshold)  # type: ignore[attr-defined]
    return Exits(
        n,
        int(n - result["exit_agrees"][:n].sum()),
        lost_at_0(result, n),
        float(result["exit_depth"][:n].mean()),
        result.n_layers,
        probe.threshold,  # type: ignore[attr-defined]
        int(np.sort(result["settle_depth"][:n])[(n - 1) // 2]),
        probe.temperature > 0,  # type: ignore[attr-defined]
    )


def exits_of_prompts(results: Sequence[ProbeResult], threshold: float) -> Exits:
    """Of `early_exit`'s results, over all tokens of all prompts."""
    n, changed, depth = summed([result.summary for result in results])
    at_0 = sum(lost_at_0(result, result.n_tokens) for result in results)
    return Exits(n, changed, at_0, depth, results[0].n_layers, threshold, guesses=True)


def summed(summaries: Sequence[Summary]) -> tuple[int, int, float]:
    """Of `early_exit`'s summaries: how many tokens there are, how many first choices leaving early changes, and the
    mean depth at which tokens leave."""
    n = sum(int(s["n_tokens"]) for s in summaries)
    agree, depth = (sum(float(s[f"exit_{name}.sum"]) for s in summaries) for name in ("agrees", "depth"))
    return n, round(n - agree), depth / n


def lost_at_0(values: Mapping[str, np.ndarray] | ProbeResult, n: int) -> int:
    """How many of the first `n` tokens leave at depth 0 with another best token than the output's."""
    return int(((values["exit_depth"][:n] == 0) & (values["exit_agrees"][:n] == 0)).sum())


def usable(n: int, changed: float | int) -> bool:
    """Whether leaving early changes few enough of `n` tokens to be of use: fewer than `UNUSABLE`."""
    return changed < UNUSABLE * n - ROUNDING


def written(ids: np.ndarray) -> int:
    """How many tokens there are so far, of `generation`'s ids."""
    return int((ids >= 0).sum())


def text(result: ProbeResult) -> str:
    """What is written so far."""
    ids = result["ids"]
    pieces = "".join(result.token_text.get(i, "") for i in ids[ids >= 0].tolist())
    return str(result.provenance.get("written", pieces))
