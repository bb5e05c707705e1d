"""Published prompt sets: where they are had, their columns, and how the papers write a prompt of them.

Sources: [C25] Csordás et al. 2025 (arXiv 2505.13898), [H25] Hu et al. 2025 (arXiv 2512.14064). The question and the
answer are encoded jointly, so what stands between them belongs to the answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
ASK = (
    "Given the following problem, reason and give a final answer to the problem.\n"
    'Problem: {}\nYour response should end with "{}" where [answer] is the response to the problem.\n'
)


@dataclass(frozen=True)
class Format:
    """A set on the hub and its prompts. `write`: a row → (text, answer, level). `columns`: what it reads.
    `prompts`: how many of its first prompts H25 takes."""

    hub: str
    split: str
    columns: tuple[str, ...]
    write: Callable[[Row], tuple[str, str, str]]
    source: str
    config: str = ""
    prompts: int = 10


def gsm8k(row: Row) -> tuple[str, str, str]:
    """[H25] The rationale keeps its `<<…>>` marks."""
    rationale, marks, number = row["answer"].rpartition("####")
    if not marks:
        raise ValueError("an answer without ####")
    text = ASK.format(row["question"], "The final answer is [answer]")
    return text, f"\n{rationale}The final answer is {number.strip()}", ""


def hellaswag(row: Row) -> tuple[str, str, str]:
    """[H25] The right ending, behind a space unless it begins with a comma."""
    ending = row["endings"][int(row["label"])]
    return row["ctx"], ("" if ending.startswith(",") else " ") + ending, ""


def aime24(row: Row) -> tuple[str, str, str]:
    """[H25]"""
    return ASK.format(row["Problem"], r"\boxed{[answer]}"), f"\n{row['Solution']}", ""


def math(row: Row) -> tuple[str, str, str]:
    """[C25 §5] Levels 1 to 5."""
    return f"Problem: {row['problem']}\nAnswer:", f" {row['solution']}", str(row["level"]).removeprefix("Level ")


def mquake(row: Row) -> tuple[str, str, str]:
    """[C25 §5] The level is the number of hops."""
    triples = row["orig"]["triples"] if "orig_triples" not in row else row["orig_triples"]
    return f"Question: {row['questions'][0]}\nAnswer:", f" {row['answer']}", str(len(triples))


FORMATS: dict[str, Format] = {
    "gsm8k": Format("openai/gsm8k", "test", ("question", "answer"), gsm8k, "H25", "main"),
    "hellaswag": Format("Rowan/hellaswag", "validation", ("ctx", "endings", "label"), hellaswag, "H25"),
    "aime24": Format("Maxwell-Jia/AIME_2024", "train", ("Problem", "Solution"), aime24, "H25", prompts=5),
    "math": Format(
        "EleutherAI/hendrycks_math",
        "test",
        ("problem", "solution", "level"),
        math,
        "C25 §5",
        "intermediate_algebra",
        20,
    ),
    "mquake": Format("henryzhongsc/MQuAKE-Remastered", "CF3k", ("questions", "answer"), mquake, "C25 §5", prompts=20),
}
ARITHMETIC = {"direct_addition": "+", "direct_multiplication": "*"}  # made here, by number of digits [H25]
DIGITS = ("1", "2", "3", "4", "5")
EACH = 100  # made of each number of digits


def arithmetic(name: str) -> Iterator[tuple[str, str, str]]:
    """Sums or products of two numbers of n digits, operands in `[10^(n-1), 10^n - 1]`; the same every time."""
    sign = ARITHMETIC[name]
    for digits in DIGITS:
        drawn, n = random.Random(f"{name} {digits}"), int(digits)
        for _ in range(EACH):
            a, b = (drawn.randint(10 ** (n - 1), 10**n - 1) for _ in range(2))
            yield f"Give the answer directly: {a} {sign} {b} =", f" {a + b if sign == '+' else a * b}", digits


def split_points(how: str, answer_start: int, n_tokens: int) -> tuple[int, ...]:
    """[C25 §5] The split points of a prompt by its answer: "answer" its first token; "within_answer" the first four of
    `range(0, A - 4, 4)` shuffled (seed 12345), counted from it, A being the answer's length; () where A is at most 4:
    such prompts are left out."""
    if how == "answer":
        return (answer_start,)
    length = n_tokens - answer_start
    if length <= 4:
        return ()
    drawn = list(range(0, length - 4, 4))
    random.Random(12345).shuffle(drawn)
    return tuple(answer_start + at for at in drawn[:4])
