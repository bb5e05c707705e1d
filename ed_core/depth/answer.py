"""How the lens comes to the answer: from which depth on it says the right token, and its course there. Numpy only.

Read off `logit_lens` alone. Where an answer is known, each of its tokens is looked at where it is predicted, given
those before it; else the one token that the model itself would continue with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..prompts import answer_with_seam, exact
from ..types import ProbeResult
from .spelling import following, spelled

LEAP = 2.0  # a layer that lifts the answer by less than this factor is not named


@dataclass(frozen=True)
class Seen:
    """What the lens says of one token, at the position before it.

    `token`: its text. `given`: it belongs to the known answer; else it is the model's own next token. `best`: the
    smallest depth, 0..L, from which it is the lens's first choice through the output; None where the output's first
    choice is another one, which is then `instead`. `among`: the same for being one of the `k` best; None where it is
    none of them in the output."""

    token: str
    given: bool
    best: int | None
    among: int | None
    k: int
    n_layers: int
    instead: str = ""


def look(lens: ProbeResult) -> tuple[Seen, ...]:
    """Return a `Seen` for each token of the known answer, else for the model's own next token, from a complete
    `logit_lens`; () where it has no best tokens."""
    if "top_ids" not in lens.measures:
        return ()
    given = predicting(lens)[0] < lens.n_tokens - 1
    return tuple(_seen(lens, pos, given) for pos in predicting(lens))


def _seen(lens: ProbeResult, pos: int, given: bool) -> Seen:
    """Return what the lens says at `pos` of the token after it (`given`: of the known answer)."""
    top, text = lens["top_ids"][:, pos], lens.token_text
    output = int(top[-1, 0])
    token = lens.token_ids[pos + 1] if given else output
    best, among = top[:, 0] == token, (top == token).any(-1)
    return Seen(
        lens.tokens[pos + 1] if given else text.get(token, f"id {token}"),
        given,
        lasting(best) if best[-1] else None,
        lasting(among) if among[-1] else None,
        top.shape[-1],
        lens.n_layers,
        "" if best[-1] else text.get(output, f"id {output}"),
    )


def first_choice(seen: Sequence[Seen]) -> int | None:
    """Return the depth from which every token is the lens's first choice through the output; None if one never is."""
    depths = [one.best for one in seen if one.best is not None]
    return max(depths) if depths and len(depths) == len(seen) else None


def lasting(holds: np.ndarray) -> int:
    """Return the first depth from which a boolean array `[depth]` stays true; its last entry must be true."""
    return int(np.logical_and.accumulate(holds[::-1])[::-1].argmax())


def predicting(lens: ProbeResult) -> range:
    """Return the positions that predict the answer's tokens; the last one where no answer is known."""
    start, n = lens.answer_start, lens.n_tokens
    return range(start - 1, n - 1) if start is not None and 0 < start < n else range(n - 1, n)


def is_right(continuation: ProbeResult) -> bool | None:
    """Return whether the greedy continuation is the known answer (`prompts.exact`); None without an answer."""
    answer, start = continuation.request.prompts[0].answer, continuation.answer_start
    if not answer.strip():
        return None
    question = "".join(continuation.tokens[start:]) if start else ""
    return exact(continuation.provenance.get("continuation", ""), answer_with_seam(answer, question))


def echo(lens: ProbeResult) -> float:
    """Return the share of tokens for which the lens at depth 0 puts the token just read first, as with tied weights."""
    if "top_ids" not in lens.measures:
        return 0.0
    return float(np.mean(lens["top_ids"][0, :, 0] == np.asarray(lens.token_ids)))


@dataclass(frozen=True)
class Course:
    """How the lens comes to one token of a prompt's answer.

    `at`: the position that predicts it. `ranks` `[depth]`: from 1, of the token `word` that the output predicts there.
    `words`, `shares` `[depth]`: the lens's first choice and its probability. `expected`, `expected_ranks`: the right
    token where the output is wrong, else "", and its ranks, NaN below the `listed` best."""

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
        """Return the course of the answer's token that is decided last, or of the first wrong one; else at the end."""
        places, start, ids = predicting(lens), lens.answer_start, lens.token_ids
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
        """The depth from which the output's token stays the lens's first choice."""
        return lasting(self.ranks == 1)

    @property
    def among(self) -> int:
        """The depth from which the output's token stays among the lens's `listed` best tokens."""
        return lasting(self.ranks <= self.listed)

    @property
    def leap(self) -> int | None:
        """The depth at which the token's rank improves by the largest factor; None where that is below `LEAP`."""
        lifts = np.log(self.ranks[:-1] / self.ranks[1:])
        step = int(lifts.argmax())
        return step + 1 if lifts[step] >= math.log(LEAP) else None

    def spans(self) -> list[tuple[int, int, str]]:
        """Return the runs of equal first choices as (first depth, last depth, word)."""
        ends = [d for d in range(1, len(self.words)) if self.words[d] != self.words[d - 1]]
        return [(a, b - 1, self.words[a]) for a, b in zip([0, *ends], [*ends, len(self.words)], strict=True)]
