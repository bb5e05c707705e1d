"""What ships with the product: five small language models, prompts they know the answers to, results and case studies
made of them. Two models read words, three read characters: a looped one, a plain one with as many parameters, and a
plain one as deep."""

from __future__ import annotations

import json
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "demo"
# by what their tokenizers read
WORDS, CHARACTERS = ("ed-demo-16", "ed-demo-8"), ("ed-loop-4x4", "ed-plain-4", "ed-plain-16")
MODELS: dict[str, Path] = {name: FOLDER / "models" / name for name in (*WORDS, *CHARACTERS)}
# the prompts whose results are shipped, what the first page shows: for models that read words, for those that read
# characters, and for a real one
EXAMPLE, CHARACTERS_EXAMPLE, ENGLISH_EXAMPLE = "sum-mod10-5-a", "chains-4-alone", "english-b"
# one of each other kind for a real model: of these, what Home shows is shipped
KINDS = {"question": "english-d", "two_hops": "english-a", "arithmetic": "english-c", "plain_text": "english-i"}
PROMPTS: Path = FOLDER / "prompts.jsonl"
OF_CHARACTERS: Path = FOLDER / "prompts_of_characters.jsonl"
SETS: Path = FOLDER / "sets"  # prompts of each task by difficulty, and mixed ones: one `.jsonl` each
MIXED = "mixed"  # the set for models that know English: ten kinds of text
STUDIES: Path = FOLDER / "studies"  # one folder each
CARDS: Path = FOLDER / "cards"  # depth cards of the bundled models and of a real one: one `.json` each
FITS: Path = FOLDER / "fits"  # fitted lenses of the bundled models and of a real one


def set_names() -> list[str]:
    """Return the sorted names of the bundled prompt sets."""
    return sorted(file.stem for file in SETS.glob("*.jsonl"))


def reads_characters(model: str) -> bool:
    """Return whether `model` is the name or folder of a bundled model with one token per character."""
    return model in CHARACTERS or Path(model) in (MODELS[name] for name in CHARACTERS)


def default_set(model: str) -> str:
    """Return the bundled prompt set on which a model is measured unless another is named: a task that a bundled model
    was taught, `MIXED` for any other. `model`: its name or folder."""
    if reads_characters(model):
        return "chains"
    return "sum_mod10" if model in MODELS or Path(model) in MODELS.values() else MIXED


def example_of(model: str) -> str:
    """The id of the bundled prompt that a model's pages open on."""
    if reads_characters(model):
        return CHARACTERS_EXAMPLE
    return EXAMPLE if model in MODELS else ENGLISH_EXAMPLE


def load_prompts(model: str = "") -> list[dict[str, Any]]:
    """Return the bundled prompts in the order of their file: those for models that read characters where `model` (a
    name or folder) is one of these, else those in words."""
    return [dict(prompt) for prompt in _prompts(OF_CHARACTERS if reads_characters(model) else PROMPTS)]


@cache
def _prompts(file: Path) -> tuple[dict[str, Any], ...]:
    """Return the prompts of a `.jsonl` file, read once per process."""
    return tuple(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())


def mixed_prompts(n: int, model: str = "") -> list[dict[str, Any]]:
    """Return at most `n` prompts that the bundled models were taught, spread evenly over tasks and difficulties.
    `model`: a name or folder, which decides between characters and words as in `load_prompts`."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for prompt in load_prompts(model):
        if prompt["known"]:
            groups.setdefault((prompt["task"], prompt["difficulty"]), []).append(prompt)
    rounds = [prompt for row in zip_longest(*groups.values()) for prompt in row if prompt]
    return rounds[:n] if n > len(groups) else [rounds[i * len(groups) // n] for i in range(n)]
