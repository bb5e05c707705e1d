"""What is said of several prompts together on one model: what is seen at their answers, and each criterion with its
interval over prompts and its variants. Numpy only.

Curves are token-weighted means over all tokens of all prompts (Hu et al. 2025); the interval is a bootstrap with
prompts as clusters (`criteria.bootstrap`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..types import ProbeResult
from . import answer, verdict, wording
from .criteria import KL_THRESHOLD, OVERLAP_THRESHOLD, Criterion, Interval


@dataclass(frozen=True)
class Together:
    """Several prompts' verdict. `curves`: what each criterion was read off, `[layer]`, without an entry where there is
    none. `seen`: of each prompt what is seen at its answer."""

    n_prompts: int
    n_tokens: int
    criteria: Mapping[str, Criterion]
    curves: Mapping[str, np.ndarray]
    intervals: Mapping[str, Interval | None]
    statements: Mapping[str, wording.Statement]
    seen: tuple[tuple[answer.Seen, ...], ...]

    @property
    def lead(self) -> str:
        """What can be seen at the answers."""
        return answer.over_prompts(self.seen)

    @property
    def sentence(self) -> str:
        """All of it."""
        return " ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """What is seen, then what each criterion says."""
        return [line for line in (self.lead, *(said.sentence for said in self.statements.values())) if line]


def of_prompts(
    contributions: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    first_token: bool = True,
    kl: float = KL_THRESHOLD,
    overlap: float = OVERLAP_THRESHOLD,
) -> Together:
    """The verdict over prompts, from the complete `contributions` and `logit_lens` of each, in one order."""
    criteria, curves, intervals, said = {}, {}, {}, {}
    n_tokens = sum(result.n_tokens for result in lens)
    k = dict(lens[0].request.parameters).get("k", 5)
    echo = sum(answer.echo(result) * result.n_tokens for result in lens) / n_tokens
    for name, criterion, curve, interval in verdict.over_prompts(contributions, lens, first_token, kl, overlap):
        criteria[name], intervals[name] = criterion, interval
        said[name] = wording.over_prompts(criterion, curve, interval, k=k, echo=echo)
        if curve is not None:
            curves[name] = curve
    return Together(len(lens), n_tokens, criteria, curves, intervals, said, tuple(map(answer.look, lens)))


def told(contributions: Sequence[ProbeResult], lens: Sequence[ProbeResult], first_token: bool = True) -> list[str]:
    """The verdict on these prompts in lines: over several what is said of them together, of one its own."""
    if len(lens) == 1:
        return [verdict.of_prompt(contributions[0], lens[0], first_token).sentence]
    found = of_prompts(contributions, lens, first_token)
    return [f"Over {found.n_prompts} prompts ({found.n_tokens} tokens):", *found.lines]
