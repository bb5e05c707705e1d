"""The bundled prompts and prompt sets: `python -m tools.prompts` writes `prompts.jsonl`, `sets/<task>.jsonl` and
`sets/<task>_worked.jsonl`, the same every time. What models that know English are asked is written by hand: the last
lines of `prompts.jsonl`, and the set `mixed.jsonl`.

A prompt has a *form*, which is a template: heading, solved examples, question. Prompts of one form are not independent
of each other, so each set has each of its levels in all of `FORMS`. All are forms that the bundled models answer about
as well as the one they were trained on (the table in the model card)."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_lowercase

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ed_core.models.bundled import MODELS, PROMPTS, SETS

from .tasks import TASKS, Rung, Task

INSTANCES = 2  # bundled prompts of each task and difficulty
EACH = 5  # prompts of a set for each difficulty and form

SHORT, LONG = 80, 120  # tokens; documents in training had 128 at most


@dataclass(frozen=True)
class Form:
    """What precedes a question. `examples`: the most solved ones, if they fit into `tokens` together with the rest.
    `of`: their level: the question's own ("same"), the easiest ("easiest"), from easy ones up to the question's
    ("climbing"), any ("any"), or a single example repeated ("one"). `heading`: a format of the task's own."""

    name: str
    of: str = "same"
    examples: int = 6
    tokens: int = LONG
    heading: str = "{}"


USUAL = Form("usual", tokens=SHORT)  # that of the bundled prompts
FORMS = (
    USUAL,
    Form("bare", examples=0),
    Form("easy examples", "easiest", 4),
    Form("climbing", "climbing"),
    Form("any level", "any"),
    Form("blank line", heading="{}\n"),
    Form("heading twice", heading="{0}{0}"),
    Form("same example", "one", 3),
)


def write_prompt(
    task: Task, rung: Rung, worked: bool, rng: random.Random, tokenizer: PreTrainedTokenizerBase, form: Form = USUAL
) -> tuple[str, str]:
    """The text of a prompt and its answer. The question is one that training never saw, unless its kind is too small to
    hold any out; examples are of those that training may have seen."""

    def size(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    heading = form.heading.format(task.heading(worked))
    instance = task.sample(rng, rung, held_out=True)
    (ask,) = task.line(instance, worked, rng)
    room = form.tokens - size(heading + ask.text + ask.answer)
    examples: list[str] = []
    while len(examples) < form.examples:
        if form.of != "one" or not examples:
            example = _solved(task, _rung(form, task, rung, worked, len(examples), rng), worked, instance, rng)
        room -= size(example)
        if room < 0:
            break
        examples.append(example)
    if form.of == "climbing":
        examples.reverse()
    return heading + "".join(examples) + ask.text, ask.answer


def _solved(task: Task, rung: Rung, worked: bool, instance: tuple, rng: random.Random) -> str:
    """A line with its answer, of another problem than `instance`."""
    other = instance
    while task.key(other) == task.key(instance):
        other = task.sample(rng, rung)
    (solved,) = task.line(other, worked, rng)
    return solved.text + solved.answer + "\n"


def _rung(form: Form, task: Task, rung: Rung, worked: bool, i: int, rng: random.Random) -> Rung:
    """The level of the i-th example, counted from the question upwards where they climb."""
    rungs = list(task.measured(worked).values())
    if form.of == "easiest":
        return rungs[0]
    if form.of == "climbing":
        return rungs[max(0, rungs.index(rung) - i)]
    return rng.choice(rungs) if form.of == "any" else rung


def build_prompts() -> list[dict]:
    """All bundled prompts, easiest first within each task, then those by hand."""
    tokenizer = AutoTokenizer.from_pretrained(next(iter(MODELS.values())))
    prompts = []
    for task in TASKS.values():
        for difficulty in task.measured():
            for letter in ascii_lowercase[:INSTANCES]:
                prompts.append(_prompt(task, difficulty, letter, False, tokenizer))
            if difficulty in task.measured(worked=True):
                prompts.append(_prompt(task, difficulty, "worked", True, tokenizer))
    by_hand = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    return prompts + [prompt for prompt in by_hand if prompt["task"] == "english"]


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


def set_lines(task: Task, worked: bool, tokenizer) -> list[dict]:
    """The prompts of one task, easiest first; none twice in a level where there are enough."""
    found = []
    for difficulty, rung in task.measured(worked).items():
        seen: set[str] = set()
        for i in range(EACH * len(FORMS)):
            form = FORMS[i % len(FORMS)]
            rng = random.Random(f"{task.name} {worked} {difficulty} {form.name} {i}")
            for _ in range(50):
                text, answer = write_prompt(task, rung, worked, rng, tokenizer, form)
                if (problem := text.rpartition("\n")[2]) not in seen:
                    break
            seen.add(problem)
            named = {"id": f"{difficulty}-{i}", "level": str(difficulty), "pair": str(i), "form": form.name}
            found.append(named | {"text": text, "answer": answer})
    return found


def main() -> None:
    PROMPTS.write_text(to_jsonl(build_prompts()), encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(next(iter(MODELS.values())))
    for task in TASKS.values():
        for worked in (False, True):
            if task.rungs(worked):
                file = SETS / f"{task.name}{'_worked' if worked else ''}.jsonl"
                file.write_text("".join(json.dumps(line) + "\n" for line in set_lines(task, worked, tokenizer)))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
