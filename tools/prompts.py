"""The bundled prompts: `python -m tools.prompts` writes prompts.jsonl, the same every time.

A prompt is written in the usual form (`tools.forms`) and stops right before the answer.
"""

import json
import random
from collections.abc import Iterable
from string import ascii_lowercase

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ed_core.sources.bundled import MODELS, PROMPTS

from . import given
from .forms import write_prompt
from .tasks import TASKS, Task

INSTANCES = 2

ENGLISH = [  # for models that know English: what kind of prompt it is, title, text, answer
    (
        "two_hops",
        "Who is married to whom",
        "The performer of Thriller is Michael Jackson. The spouse of the performer of Imagine is",
        " Yoko Ono",
    ),
    (
        "fact",
        "A capital",
        "The capital of France is Paris. The capital of Italy is Rome. The capital of Japan is",
        " Tokyo",
    ),
    (
        "arithmetic",
        "A sum beyond ten",
        "Sums:\n2 + 9 + 4 + 1 + 8 + 3 = 27\n6 + 1 + 1 + 9 + 5 + 2 = 24\n5 + 7 + 5 + 3 + 1 + 7 = ",
        "28",
    ),
    (
        "question",
        "A question about a story",
        "Mary left the house with a red bag. She gave the bag to John, who went to school. The bag is now at the",
        " school",
    ),
    (
        "fact",
        "The opposite",
        "The opposite of hot is cold. The opposite of up is down. The opposite of the word old is",
        " young",
    ),
    (
        "question",
        "A question and an answer",
        "Question: Which animal gives us wool?\nAnswer: The sheep.\nQuestion: Which animal gives us milk?\nAnswer: The",
        " cow",
    ),
    (
        "two_hops",
        "The language of a city's country",
        "The language of the country in which Paris lies is French. The language of the country in which Rome lies is",
        " Italian",
    ),
    (
        "arithmetic",
        "A sum in words",
        "In words: One and one is two. Two and two is four. Three and three is six. Four and four is",
        " eight",
    ),
    (
        "plain_text",
        "A story goes on",
        "The first snow came late that year. Nobody in the village had cut enough wood, and the road to the town was",
        "",
    ),
]


def build_prompts() -> list[dict]:
    """All bundled prompts, easiest first within each task."""
    tokenizer = AutoTokenizer.from_pretrained(next(iter(MODELS.values())))
    prompts = []
    for task in TASKS.values():
        for difficulty in task.measured():
            for letter in ascii_lowercase[:INSTANCES]:
                prompts.append(_prompt(task, difficulty, letter, False, tokenizer))
            if difficulty in task.measured(worked=True):
                prompts.append(_prompt(task, difficulty, "worked", True, tokenizer))
    for number, (kind, title, text, answer) in enumerate(ENGLISH):
        prompts.append(
            {
                "id": f"english-{ascii_lowercase[number]}",
                "task": "english",
                "difficulty": 1,
                "title": title,
                "text": text,
                "answer": answer,
                "known": False,
                "kind": kind,
            }
        )
    return prompts


def _prompt(task: Task, difficulty: int, label: str, worked: bool, tokenizer: PreTrainedTokenizerBase) -> dict:
    name = f"{task.name.replace('_', '-')}-{difficulty}-{label}"
    rung = task.measured(worked)[difficulty]
    text, answer = write_prompt(task, rung, worked, random.Random(name), tokenizer)
    return {
        "id": name,
        "task": task.name,
        "difficulty": difficulty,
        "title": f"{task.title(difficulty)} ({'worked out' if worked else label})",
        "text": text,
        "answer": answer,
        "known": True,
    }


def to_jsonl(prompts: Iterable[dict]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts)


if __name__ == "__main__":
    given(__doc__)
    PROMPTS.write_text(to_jsonl(build_prompts()), encoding="utf-8")
