"""How the lens comes to the answer of one prompt, layer by layer. Numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..types import ProbeResult
from .sample import ANSWER, positions
from .spelling import following, spelled

LEAP = 2.0  # a layer that lifts the answer by less than this factor is not named


@dataclass(frozen=True)
class Course:
    """How the lens of one prompt comes to a token: `at` is the position whose prediction is read, `ranks` `[depth]` of
    the token that the output predicts there, `words` `[depth]` what the lens predicts. `expected`: the token that was
    expected in its place, with its ranks, NaN below the best tokens listed; "" where the output is right."""

    at: int
    ranks: np.ndarray
    words: tuple[str, ...]
    shares: np.ndarray
    word: str
    expected: str
    expected_ranks: np.ndarray
    listed: int

    @classmethod
    def of(cls, lens: ProbeResult) -> Course:
        """At the token that is decided last, at the first wrong one where the answer is wrong, else at the end."""
        places, start, ids = sorted(positions(lens, ANSWER) or ()), lens.answer_start, lens.token_ids
        wrong = [pos for pos in places if start and int(lens["top_ids"][-1, pos, 0]) != ids[pos + 1]]
        pos = wrong[0] if wrong else max(places, key=lambda pos: lasting(lens["rank"][:, pos] == 1))
        best, before = lens["top_ids"][:, pos], lens.tokens[: pos + 1]

        def name(token: int) -> str:
            if start and token == ids[pos + 1]:
                return spelled(lens.tokens)[pos + 1]
            return following(before, lens.token_text.get(token, f"id {token}"))

        wanted = ids[pos + 1] if wrong else -1
        wanted_ranks = np.where((best == wanted).any(1), (best == wanted).argmax(1) + 1.0, np.nan)
        return cls(
            pos,
            np.asarray(lens["rank"][:, pos], float),
            tuple(name(int(i)) for i in best[:, 0]),
            np.asarray(lens["top_probs"][:, pos, 0], float),
            name(int(best[-1, 0])),
            spelled(lens.tokens)[pos + 1] if wrong else "",
            wanted_ranks,
            best.shape[1],
        )

    @property
    def first(self) -> int:
        """The depth from which the output's token is the first choice."""
        return lasting(self.ranks == 1)

    @property
    def among(self) -> int:
        """The depth from which it stays among the best tokens that are `listed`."""
        return lasting(self.ranks <= self.listed)

    @property
    def leap(self) -> int | None:
        """The depth that lifts the token most, by the logarithm of its rank; None where none lifts it much."""
        lifts = np.log(self.ranks[:-1] / self.ranks[1:])
        step = int(lifts.argmax())
        return step + 1 if lifts[step] >= math.log(LEAP) else None

    def spans(self) -> list[tuple[int, int, str]]:
        """The words with their first and last depth, where they change."""
        ends = [d for d in range(1, len(self.words)) if self.words[d] != self.words[d - 1]]
        return [(a, b - 1, self.words[a]) for a, b in zip([0, *ends], [*ends, len(self.words)], strict=True)]


def lasting(holds: np.ndarray) -> int:
    """The first depth from which it holds through the output, where it holds there."""
    return int(np.logical_and.accumulate(holds[::-1])[::-1].argmax())
