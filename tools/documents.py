"""Training documents: lines of one lesson packed under their header, as token ids with marks."""

import random
from collections.abc import Iterable
from functools import lru_cache

import torch
from transformers import PreTrainedTokenizerBase

from .curriculum import Lesson

GIVEN, ANSWER, COUNTED = 0, 1, 2
ASKS = 6
"""Questions a line of facts gets at most in training; prompts and evaluation ask one."""
EASIER = 0.4
"""Share of lines taken from any rung up to the lesson's: so no answer is at a fixed distance."""


class Writer:
    """Writes documents of at most `length` tokens with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, length: int):
        self.length = length
        self.end = tokenizer.eos_token_id
        self._ids = lru_cache(maxsize=20_000)(
            lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        )

    def document(self, lesson: Lesson, rng: random.Random) -> tuple[list[int], list[int]]:
        """Token ids and their marks; at least one line, then as many as fit."""
        ids, marks = self.pieces([(lesson.task.heading(lesson.worked), GIVEN)])
        while True:
            more, more_marks = self.line(lesson, rng)
            if len(ids) + len(more) > self.length:
                return ids, marks
            ids += more
            marks += more_marks

    def line(self, lesson: Lesson, rng: random.Random) -> tuple[list[int], list[int]]:
        """One line of the lesson's rung, or of an easier one, which does not count."""
        rung = lesson.rung
        if rng.random() < EASIER:
            rungs = lesson.task.rungs(lesson.worked)
            rung = rng.choice(rungs[: rungs.index(rung) + 1])
        instance = lesson.task.sample(rng, rung)
        parts = []
        for ask in lesson.task.line(instance, lesson.worked, rng, asks=rng.randint(1, ASKS)):
            counts = ask.counts and rung == lesson.rung
            parts += [(ask.text, GIVEN), (ask.answer, COUNTED if counts else ANSWER)]
        return self.pieces([*parts, ("\n", GIVEN)])

    def pieces(self, parts: Iterable[tuple[str, int]]) -> tuple[list[int], list[int]]:
        """Token ids of marked pieces of text; pieces meet at token boundaries."""
        ids, marks = [], []
        for text, mark in parts:
            new = self._ids(text)
            ids += new
            marks += [mark] * len(new)
        return ids, marks

    def batch(self, documents: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and marks as tensors, padded at the right to the full length; padding is marked -1."""
        rows = [ids + [self.end] * (self.length - len(ids)) for ids, _ in documents]
        marks = [m + [-1] * (self.length - len(m)) for _, m in documents]
        return torch.tensor(rows), torch.tensor(marks)


def score(right: torch.Tensor, marks: torch.Tensor) -> tuple[int, int]:
    """How many of a document's counted answers are right in every token, and how many there are.

    `right` says of each token whether it was predicted; an answer is a run of marked tokens.
    """
    hits = asked = 0
    inside = good = False
    for ok, mark in zip(right.tolist() + [False], marks.tolist() + [GIVEN], strict=True):
        if mark == COUNTED:
            good = ok and (good or not inside)
            inside = True
        elif inside:
            hits, asked, inside = hits + good, asked + 1, False
    return hits, asked
