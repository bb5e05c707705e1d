"""What can be seen at the answer: from which depth on the lens puts the right token first for good. Numpy only.

Read off `logit_lens` alone, so results stored earlier say it too. Where an answer is known, its tokens are looked at,
each where it is predicted, given those before it; else the one token that the model itself would go on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..types import ProbeResult

LONGEST = 40  # characters of a token that a sentence repeats
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Seen:
    """One token in the lens at the position before it.

    `pos`: the position whose prediction is read. `token`: its text. `given`: it belongs to the known answer; else it is
    the model's own next token. `best`: the smallest depth, 0..L, from which it is the lens's best token through the
    output; None where the output's best token is another one, which is then `instead`. `among`: the same for being one
    of the `k` best; None where it is none of them in the output. `first_best`, `first_among`: the smallest depth at
    which it is so at all, whether or not it stays; None where it never is."""

    pos: int
    token: str
    given: bool
    best: int | None
    among: int | None
    k: int
    n_layers: int
    instead: str = ""
    first_best: int | None = None
    first_among: int | None = None


def look(lens: ProbeResult) -> tuple[Seen, ...]:
    """What is seen at the answer of one prompt, from its complete `logit_lens`; at the last position where none is
    known, nothing where the result does not hold the best tokens."""
    if "top_ids" not in lens.measures:
        return ()
    start, ids = lens.answer_start, lens.token_ids
    if start is not None and 0 < start < len(ids):
        return tuple(_seen(lens, pos - 1, ids[pos], True) for pos in range(start, len(ids)))
    last = len(ids) - 1
    return (_seen(lens, last, int(lens["top_ids"][-1, last, 0]), False),)


def echo(lens: ProbeResult) -> float:
    """Share of the tokens, in [0, 1], for which the lens at depth 0 puts the token just read first, as with tied
    embedding and head: its divergence there says nothing of what the model works out. 0 where the result does not hold
    the best tokens."""
    if "top_ids" not in lens.measures:
        return 0.0
    return float(np.mean(lens["top_ids"][0, :, 0] == np.asarray(lens.token_ids)))


def sentence(seen: Sequence[Seen]) -> str:
    """What is seen, in words; "" for nothing."""
    if not seen:
        return ""
    return _of_one(seen[0]) if len(seen) == 1 else _of_several(seen)


def beside(seen: Sequence[Seen]) -> str:
    """From where a single token is among the best few, in words; "" where that says nothing more."""
    if len(seen) != 1 or (seen[0].best is not None and seen[0].among == seen[0].best):
        return ""
    one = seen[0]
    if one.among is None:
        where = f"among the model's best {number(one.k)}" if one.k > 1 else "the model's best guess"
        return f"{_quoted(one.token)} is not {where}."
    return f"{_quoted(one.token)} is among the lens's best {number(one.k)} {_since(one.among, one.first_among, one)}."


def over_prompts(looks: Sequence[Sequence[Seen]]) -> str:
    """What is seen at the answers of several prompts, in words; "" for nothing. A prompt counts as answered where every
    token of its answer is the best guess in the output; for good from the largest of their depths."""
    known = [look for look in looks if look and look[0].given]
    own = [one for look in looks for one in look if not one.given]
    said = [_answered(known, len(known) < len(looks))] if known else []
    if own:
        which = f"For {len(own)} prompt{'s' * (len(own) > 1)} without an answer the" if known else "The"
        since = _middle([one.best for one in own if one.best is not None], own[0].n_layers)
        said.append(f"{which} model's own next token is the lens's best guess for good from depth {since}.")
    return " ".join(said)


def _answered(known: Sequence[Sequence[Seen]], more: bool) -> str:
    """For how many of the prompts with an answer the model has it, and from which depth on. `more`: there are prompts
    without one."""
    n, what = len(known), "every token of the answer" if max(map(len, known)) > 1 else "the answer"
    bests = [[one.best for one in look if one.best is not None] for look in known]
    depths = [max(found) for look, found in zip(known, bests) if len(found) == len(look)]
    count = ("both" if n == 2 else f"all {n}") if len(depths) == n > 1 else f"{len(depths)} of {n}"
    which = f"{count} prompt{'s' * (n > 1)}{' with an answer' * more}"
    one = f"the {'one ' * more}prompt{' with an answer' * more}"
    if not depths and n == 1:
        return f"In {one} {'the answer is not' if what == 'the answer' else f'not {what} is'} the model's best guess."
    if not depths:
        return f"In none of {n} prompts{' with an answer' * more} is {what} the model's best guess."
    since = _middle(depths, known[0][0].n_layers)
    who = one if n == 1 else which
    return f"For {who} {what} is the model's best guess, and the lens's for good from depth {since}."


def _middle(depths: Sequence[int], n_layers: int) -> str:
    """Where several depths lie: their median, and from where to where."""
    low, middle, high = min(depths), float(np.median(depths)), max(depths)
    spread = "" if len(depths) == 1 else " each time" if low == high else f" (median; least {low}, most {high})"
    return f"{middle:g} of {n_layers}{spread}"


def _seen(lens: ProbeResult, pos: int, token: int, given: bool) -> Seen:
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
        _first(best),
        _first(among),
    )


def _quoted(token: str) -> str:
    """A token in quotation marks; of a stranger's text nothing that would move or hide other words."""
    return f"“{''.join(c if c.isprintable() else repr(c)[1:-1] for c in token[:LONGEST])}”"


def _lasting(holds: np.ndarray) -> int | None:
    """The first entry from which it holds through the last; None where it does not hold there."""
    return int(np.logical_and.accumulate(holds[::-1])[::-1].argmax()) if holds[-1] else None


def _first(holds: np.ndarray) -> int | None:
    """The first entry at which it holds; None where it never does."""
    return int(holds.argmax()) if holds.any() else None


def _since(depth: int, first: int | None, one: Seen) -> str:
    """From which depth on it is so for good, and at which it was so first where that is another one."""
    if depth == 0:
        return "at every depth"
    earlier = first is not None and first < depth
    return (
        f"for good from depth {depth} of {one.n_layers} (first at {first})"
        if earlier
        else f"for good from depth {depth} of {one.n_layers}"
    )


def _of_one(one: Seen) -> str:
    token = _quoted(one.token)
    if one.best is None:
        return f"The answer {token} is not the model's best guess, which is {_quoted(one.instead)}."
    what = f"{token} is the" if one.given else f"Next token {token}:"
    if one.best == one.n_layers and one.first_best == one.best:
        return f"{what} best guess only at the output (depth {one.best})."
    return f"{what} best guess {_since(one.best, one.first_best, one)}."


def _of_several(seen: Sequence[Seen]) -> str:
    right, n = [one.best for one in seen if one.best is not None], len(seen)
    if not right:
        return f"Given the right tokens before each, none of the answer's {n} tokens is the model's best guess."
    if len(right) == n:
        latest = max(right)
        if min(right) < latest:
            since = f"for good from depth {latest} of {seen[0].n_layers}, the earliest from {min(right)}"
        else:
            since = _since(latest, None, seen[0])
        return f"Each answer token is the best guess at its position, {since}."
    wrong, be = next(one for one in seen if one.best is None), "is" if len(right) == 1 else "are"
    return (
        f"Given the right tokens before each, {len(right)} of the answer's {n} tokens {be} the model's best guess; "
        f"the first that is not is {_quoted(wrong.token)}, where the model says {_quoted(wrong.instead)}."
    )


def number(n: int) -> str:
    """A small number as a word."""
    return WORDS[n] if n < len(WORDS) else str(n)
