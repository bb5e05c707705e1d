"""What is said of several prompts together on one model: what is seen at their answers, the mean depths and the turn
with their intervals, and the papers' rules with theirs. Numpy only.

Curves are token-weighted means over all tokens of all prompts (Hu et al. 2025); intervals are over the units that are
independent, templates where enough are known (`statistics.units`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..statistics import Interval, Units, units
from ..types import ProbeResult
from . import answer, continuous, verdict, wording
from .criteria import KL_THRESHOLD, OVERLAP_THRESHOLD, Criterion
from .wording import Twins


@dataclass(frozen=True)
class Together:
    """Several prompts' verdict. `curves`: what each criterion was read off, `[layer]`, without an entry where there is
    none. `means`: mean depths with their intervals. `seen`: of each prompt what is seen at its answer."""

    n_prompts: int
    n_tokens: int
    criteria: Mapping[str, Criterion]
    curves: Mapping[str, np.ndarray]
    intervals: Mapping[str, Interval | None]
    statements: Mapping[str, wording.Statement]
    means: Mapping[str, continuous.MeanDepth]
    turn: continuous.Turn | None
    seen: tuple[tuple[answer.Seen, ...], ...]
    over: Units
    twins: Twins

    @property
    def lead(self) -> str:
        """What can be seen at the answers."""
        return answer.over_prompts(self.seen)

    @property
    def settles(self) -> str:
        """Where the lens settles, and whether the cosine turns."""
        return wording.settles(self.means, self.turn, self.twins, over=self.over)

    @property
    def rules(self) -> str:
        """What the papers' rules give."""
        return wording.rules(self.criteria, self.statements, self.intervals)

    @property
    def reasons(self) -> list[str]:
        """A sentence for each rule, with why it is not clear."""
        return [said.sentence for said in self.statements.values()]

    @property
    def sentence(self) -> str:
        """All of it but the reasons."""
        return " ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """What is seen, where the lens settles, what the rules give, and how prompts without forms count."""
        return [line for line in (self.lead, self.settles, self.rules, self.over.alone) if line]


def of_prompts(
    contributions: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    first_token: bool = True,
    kl: float = KL_THRESHOLD,
    overlap: float = OVERLAP_THRESHOLD,
    forms: Sequence[str] = (),
    twins: Sequence[tuple[Sequence[ProbeResult], Sequence[ProbeResult]]] = (),
) -> Together:
    """The verdict over prompts, from the complete `contributions` and `logit_lens` of each, in one order. `forms`: the
    template of each prompt, where known. `twins`: the same results of untrained twins, one pair of lists a seed."""
    criteria, curves, intervals, said = {}, {}, {}, {}
    over = units(len(lens), forms)
    beside = Twins("untrained", tuple(verdict.reading(a, b, first_token, kl, overlap) for a, b in twins))
    for name, criterion, curve, interval in verdict.over_prompts(contributions, lens, first_token, kl, overlap, forms):
        criteria[name], intervals[name] = criterion, interval
        said[name] = wording.over_prompts(criterion, curve, interval, over, beside)
        if curve is not None:
            curves[name] = curve
    return Together(
        len(lens),
        sum(result.n_tokens for result in lens),
        criteria,
        curves,
        intervals,
        said,
        verdict.mean_depths(lens, forms),
        verdict.held(verdict.turn(contributions, first_token, forms), beside),
        tuple(map(answer.look, lens)),
        over,
        beside,
    )


def told(
    contributions: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    first_token: bool = True,
    forms: Sequence[str] = (),
) -> list[str]:
    """The verdict on these prompts in lines: over several what is said of them together, of one its own."""
    if len(lens) == 1:
        return [verdict.of_prompt(contributions[0], lens[0], first_token).sentence]
    found = of_prompts(contributions, lens, first_token, forms=forms)
    return [f"Over {found.n_prompts} prompts ({found.n_tokens} tokens):", *found.lines]
