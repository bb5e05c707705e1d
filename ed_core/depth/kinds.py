"""Which tokens go deep: depths by the kind of the token that the model says. Numpy only.

Everything is read from a stored logit lens. A position counts by the output's best token there, which is the one that
its settle depth is about: `KINDS` part all positions by its text, `RANKS` by its id (ids of a BPE vocabulary follow its
merges, so that they order by frequency), and `PLACES` are the positions that predict the answer's tokens.

Shapes: sums by kind `[measure, kind]`, measures as in `MEASURES`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..statistics import Resampled, Units, read_off
from ..types import ProbeResult
from .mean_depth import mean_depth_kl

KINDS = ("whitespace", "punctuation", "digits", "function word", "first piece of a word", "later piece")
PLACES = ("first token of the answer", "later token of the answer")
RANKS = ("id below 1,000", "id from 1,000", "id from 10,000")
ALL = (*KINDS, *PLACES, *RANKS)
MEASURES = ("tokens", "settle depth", "average depth", "first choices", "flips", "oracle depth")
TOKENS, SETTLE, DEPTH, GUESSES, FLIPS, ORACLE = range(len(MEASURES))
SURE = 2.0  # times the runner-up's probability, from which a best token counts as a guess
_ENGLISH = (
    "a about above after again against all am an and any are as at be because been before being below between "
    "both but by can could did do does doing down during each few for from had has have having he her here "
    "hers him his how i if in into is it its just may me might more most must my no nor not of off on once "
    "only or other our out over own same shall she should so some such than that the their theirs them then "
    "there these they this those through to too under until up upon us very was we were what when where which "
    "while who whom whose why will with would you your yours"
)
FUNCTION_WORDS = {"en": frozenset(_ENGLISH.split())}  # by language


def kind_of(text: str, before: str = "") -> str:
    """Return the kind of a token, one of `KINDS`, by its text and that of the token before it."""
    word = text.strip()
    if not word:
        return KINDS[0]
    if re.fullmatch(r"<.+>", word) or not any(char.isalnum() for char in word):
        return KINDS[1]
    if not any(char.isalpha() for char in word):
        return KINDS[2]
    if text[0].isalnum() and before[-1:].isalpha():
        return KINDS[5]
    return KINDS[3] if any(word.lower() in words for words in FUNCTION_WORDS.values()) else KINDS[4]


def kinds_at(lens: ProbeResult) -> np.ndarray:
    """Return the kinds of token (`ALL`) that each position predicts, `[kind, pos]`, by the output's best token."""
    ids, n = lens["top_ids"][-1, :, 0], lens.n_tokens
    texts = [lens.token_text.get(int(token), "") for token in ids]
    member = np.zeros((len(ALL), n), bool)
    member[[KINDS.index(kind_of(text, before)) for text, before in zip(texts, lens.tokens)], np.arange(n)] = True
    if lens.answer_start:
        member[len(KINDS), lens.answer_start - 1] = True
        member[len(KINDS) + 1, lens.answer_start : n - 1] = True
    member[-3:] = [ids < 1_000, (ids >= 1_000) & (ids < 10_000), ids >= 10_000]
    return member


def sums(lens: ProbeResult) -> np.ndarray:
    """Return the sums `[measure, kind]` over a prompt's tokens of each kind, from its logit lens; measures as in
    `MEASURES`.

    A token's mean depth is that of its KL curve (1, the least, where its curve is 0 throughout); its first guess is the
    best token at the first depth from 1 on at which that is `SURE` times as probable as the next; a flip is a first
    guess that is not the output's; its oracle depth is the first at which the best token is the output's."""
    member = kinds_at(lens)
    best, probs = lens["top_ids"][..., 0], lens["top_probs"]
    same = best == best[-1]
    likely = probs[..., 0] >= SURE * probs[..., 1] if probs.shape[-1] > 1 else np.zeros(best.shape, bool)
    likely[0] = False
    first, guesses = likely.argmax(0), likely.any(0)
    flips = guesses & ~same[first, np.arange(lens.n_tokens)]
    depth = np.nan_to_num(mean_depth_kl(lens["kl"].T), nan=1.0)
    rows = np.stack([np.ones(lens.n_tokens), lens["settle_depth"], depth, guesses, flips, same.argmax(0)])
    return np.asarray(rows @ member.T.astype(float))


def over_kinds(by_kind: np.ndarray) -> np.ndarray:
    """Return the sums over all tokens `[…, measure]`, from the sums by kind `[…, measure, kind]`."""
    return np.asarray(by_kind[..., : len(KINDS)].sum(-1))


@dataclass(frozen=True)
class Mix:
    """A prompt's mean depth next to that expected from its mix of token kinds.

    `depth`: the prompt's; `expected`: with each kind at its mean over `n` other prompts; `others`: the mean of those
    prompts."""

    depth: float
    expected: float
    others: float
    n: int


def mix(own: np.ndarray, others: np.ndarray, n: int, measure: int = SETTLE) -> Mix:
    """Return a prompt's `Mix`, from its sums by kind (`sums`) and those of `n` other prompts added up."""
    tokens, depth = others[TOKENS, : len(KINDS)], others[measure, : len(KINDS)]
    mean, mine = (float(over_kinds(one)[measure] / over_kinds(one)[TOKENS]) for one in (others, own))
    shares = own[TOKENS, : len(KINDS)] / over_kinds(own)[TOKENS]
    return Mix(mine, float(shares @ np.where(tokens > 0, depth / np.maximum(tokens, 1), mean)), mean, n)


def by_prompt(sums: np.ndarray, measure: int = SETTLE) -> tuple[np.ndarray, np.ndarray]:
    """Return each prompt's mean depth `[prompt]`, and the depth `[prompt]` expected from its mix of token kinds by the
    other prompts. `sums`: `[prompt, measure, kind]`."""
    total = sums.sum(0)
    mixes = [mix(one, total - one, len(sums) - 1, measure) for one in sums]
    return np.array([one.depth for one in mixes]), np.array([one.expected for one in mixes])


def equal_mix(a: np.ndarray, b: np.ndarray, over: Units, seed: int = 0, measure: int = SETTLE) -> Resampled:
    """Return by how many layers b's tokens go deeper than a's when the mix of token kinds is equal: kind by kind,
    weighted by the kind's tokens in both. `a`, `b`: `[prompt, measure, kind]`, of the same prompts."""

    def read(means: Mapping[str, np.ndarray]) -> np.ndarray:
        n_a, n_b, d_a, d_b = np.moveaxis(means[""].reshape(len(means[""]), 4, -1), 1, 0)
        weights = np.where((n_a > 0) & (n_b > 0), n_a + n_b, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = np.where(weights > 0, d_b / n_b - d_a / n_a, 0.0)
        return np.asarray((weights * apart).sum(-1) / weights.sum(-1))

    parts = [one[:, which, : len(KINDS)] for which in (TOKENS, measure) for one in (a, b)]
    return read_off(read, {"": np.concatenate(parts, 1)}, np.ones(len(a)), over, seed)


def table(by_kind: np.ndarray) -> list[tuple[str, int, float, float, float]]:
    """Return rows of kind, tokens, mean settle depth, mean depth and flip rate (NaN without a guess)."""
    return [
        (kind, int(n), settle / n, depth / n, flips / guesses if guesses else float("nan"))
        for kind, (n, settle, depth, guesses, flips, _) in zip(ALL, by_kind.T)
        if n
    ]
