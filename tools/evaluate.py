"""The accuracy tables of the model card, `ed_core/demo/README.md`: `python -m tools.evaluate` measures and writes them.

Questions are in prompts like the bundled ones, and ones that training never saw, unless their kind is too small to hold
any out ("all seen"). An answer counts if greedy decoding gives it token for token; a worked-out one with all its steps.
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ed_core.models.bundled import FOLDER, MODELS, WORDS

from .prompts import FORMS, USUAL, Form, write_prompt
from .tasks import TASKS, Task

CARD = FOLDER / "README.md"
BATCH = 50


@dataclass(frozen=True)
class Cell:
    """One kind of question: a task at one difficulty in one format."""

    task: Task
    difficulty: int
    worked: bool
    form: Form = USUAL

    @property
    def label(self) -> str:
        """The row's first columns in the table."""
        form = "worked out" if self.worked else "direct"
        seen = "all seen" if self.task.all_seen(self.task.measured(self.worked)[self.difficulty]) else "held out"
        return f"{self.task.title(self.difficulty)} | {form} | {seen}"


def cells() -> list[Cell]:
    """All kinds of question that are measured."""
    return [
        Cell(task, difficulty, worked)
        for task in TASKS.values()
        for worked in (False, True)
        for difficulty in task.measured(worked)
    ]


def questions(cell: Cell, count: int, tokenizer, seed: int) -> Iterator[tuple[list[int], int]]:
    """Token ids of prompt and answer, encoded jointly, and where the answer begins."""
    rng = random.Random(f"{seed} {cell.label}")
    rung = cell.task.measured(cell.worked)[cell.difficulty]
    for _ in range(count):
        text, answer = write_prompt(cell.task, rung, cell.worked, rng, tokenizer, cell.form)
        start = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        yield tokenizer(text + answer, add_special_tokens=False)["input_ids"], start


@torch.inference_mode()
def accuracy(model, tokenizer, cell: Cell, count: int, seed: int = 0) -> float:
    """The share of answers that greedy decoding would give exactly.

    It gives an answer exactly if each of its tokens is the likeliest after those before it, so one pass over prompt and
    answer decides."""
    asked = list(questions(cell, count, tokenizer, seed))
    right = 0
    for first in range(0, count, BATCH):
        part = asked[first : first + BATCH]
        width = max(len(ids) for ids, _ in part)
        rows = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in part])
        likeliest = model(input_ids=rows, use_cache=False).logits.argmax(-1)
        for row, (ids, start) in zip(likeliest.tolist(), part, strict=True):
            right += row[start - 1 : len(ids) - 1] == ids[start:]
    return right / count


def open_model(folder: Path) -> tuple:
    """Model in float32 and tokenizer of a local folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def table(opened: list[tuple], count: int) -> str:
    """A row for each kind of question, a column for each model."""
    head = f"| task | format | instances | n | {' | '.join(WORDS)} |"
    lines = [head, "|---|---|---|---|" + "---|" * len(WORDS)]
    for cell in cells():
        shares = [f"{accuracy(*pair, cell, count):.1%}" for pair in opened]
        lines.append(f"| {cell.label} | {count} | {' | '.join(shares)} |")
    return "\n".join(lines)


def forms_table(opened: list[tuple], count: int) -> str:
    """A row for each task and format, a column for each form; in a cell one figure per model, over all difficulties."""
    lines = [f"| task | format | {' | '.join(form.name for form in FORMS)} |", "|---|---|" + "---|" * len(FORMS)]
    for task in TASKS.values():
        for worked in (False, True):
            if not task.rungs(worked):
                continue
            row = []
            for form in FORMS:
                asked = [Cell(task, difficulty, worked, form) for difficulty in task.measured(worked)]
                shares = [sum(accuracy(*pair, cell, count) for cell in asked) / len(asked) for pair in opened]
                row.append(" · ".join(f"{100 * share:.0f}" for share in shares))
            lines.append(f"| `{task.name}` | {'worked out' if worked else 'direct'} | {' | '.join(row)} |")
    return "\n".join(lines)


def write(name: str, text: str) -> None:
    """Put a table between the marks of its name in the model card."""
    card, begin, end = CARD.read_text(encoding="utf-8"), f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = card.split(begin)
    after = rest.split(end)[1]
    CARD.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="questions of each kind (%(default)s)")
    count = parser.parse_args().count
    models = [open_model(MODELS[name]) for name in WORDS]
    write("accuracy", table(models, count))
    write("forms", forms_table(models, count))
