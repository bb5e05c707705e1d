"""The forms in which a problem is put to a model: what stands before the open question.

A form is a template: heading, solved examples, question. Prompts of one form are not independent of each other, so each
bundled set has each of its levels in all of `FORMS`, and says which (`Prompt.form`). All are forms that the bundled
models answer about as well as the one they were trained on (the table in the model card); many a task without its
heading, or under another, they do not."""

from __future__ import annotations

import random
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from .tasks import Rung, Task

SHORT, LONG = 80, 120  # tokens; documents in training had 128 at most


@dataclass(frozen=True)
class Form:
    """What stands before a question. `examples`: solved ones at most, as many as fit into `tokens` together with all
    else. `of`: which they are: of the question's own level ("same"), of the easiest ("easiest"), from easy ones up to
    the question's ("climbing"), of any ("any"), or one again and again ("one"). `heading`: what is made of the task's
    own."""

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
