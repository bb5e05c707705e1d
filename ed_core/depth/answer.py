"""From which depth on the lens puts the right token first. Numpy only.

Read off `logit_lens` alone. Where an answer is known, each of its tokens is looked at where it is predicted, given
those before it; else the one token that the model itself would continue with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..prompts import answer_with_seam, exact
from ..types import ProbeResult


@dataclass(frozen=True)
class Seen:
    """One token in the lens at the position before it.

    `pos`: the position whose prediction is read. `token`: its text. `given`: it belongs to the known answer; else it is
    the model's own next token. `best`: the smallest depth, 0..L, from which it is the lens's first choice through the
    output; None where the output's first choice is another one, which is then `instead`. `among`: the same for being
    one of the `k` best; None where it is none of them in the output."""

    pos: int
    token: str
    given: bool
    best: int | None
    among: int | None
    k: int
    n_layers: int
    instead: str = ""


def look(lens: ProbeResult) -> tuple[Seen, ...]:
    """What is seen at the answer of one prompt, from its complete `logit_lens`; at the last position where none is
    known, nothing where the result does not hold the best tokens."""
    if "top_ids" not in lens.measures:
        return ()
    start, ids = lens.answer_start, lens.token_ids
    if start is not None and 0 < start < len(ids):
        return tuple(_seen_token(lens, pos - 1, ids[pos], True) for pos in range(start, len(ids)))
    last = len(ids) - 1
    return (_seen_token(lens, last, int(lens["top_ids"][-1, last, 0]), False),)


def first_choice(seen: Sequence[Seen]) -> int | None:
    """The depth from which every token is the first choice through the output; None where one is not, or for none."""
    depths = [one.best for one in seen if one.best is not None]
    return max(depths) if depths and len(depths) == len(seen) else None


def is_right(continuation: ProbeResult) -> bool | None:
    """Whether the greedy continuation is the known answer (`prompts.exact`); None without an answer."""
    answer, start = continuation.request.prompts[0].answer, continuation.answer_start
    if not answer.strip():
        return None
    question = "".join(continuation.tokens[start:]) if start else ""
    return exact(continuation.provenance.get("continuation", ""), answer_with_seam(answer, question))


def echo(lens: ProbeResult) -> float:
    """Share of the tokens, in [0, 1], for which the lens at depth 0 puts the token just read first, as with tied
    embedding and head: its divergence there says nothing of what the model works out. 0 where the result does not hold
    the best tokens."""
    if "top_ids" not in lens.measures:
        return 0.0
    return float(np.mean(lens["top_ids"][0, :, 0] == np.asarray(lens.token_ids)))


def _seen_token(lens: ProbeResult, pos: int, token: int, given: bool) -> Seen:
    top = lens["top_ids"][:, pos]
    best, among = top[:, 0] == token, (top == token).any(-1)
    text, output = lens.token_text, int(top[-1, 0])
    return Seen(
        pos,
        lens.tokens[pos + 1] if given else text.get(token, f"id {token}"),
        given,
        _lasting(best),
        _lasting(among),
        top.shape[-1],
        lens.n_layers,
        "" if best[-1] else text.get(output, f"id {output}"),
    )


def _lasting(holds: np.ndarray) -> int | None:
    """The first entry from which it holds through the last; None where it does not hold there."""
    return int(np.logical_and.accumulate(holds[::-1])[::-1].argmax()) if holds[-1] else None
