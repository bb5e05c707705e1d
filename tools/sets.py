"""The bundled prompt sets for studies: `python -m tools.sets` writes `sets/<task>.jsonl` and
`sets/<task>_worked.jsonl`, the same every time.

Per difficulty `EACH` prompts of each form (`tools.forms`), which take turns; the i-th of each difficulty belong
together (`pair`) and are of one form. Problems are those that training never saw, unless their kind is too small to
hold any out. The set `mixed.jsonl` beside them is written by hand."""

from __future__ import annotations

import json
import random

from transformers import AutoTokenizer

from ed_core.sources.bundled import MODELS, SETS

from . import given
from .forms import FORMS, write_prompt
from .tasks import TASKS, Task

EACH = 5


def lines(task: Task, worked: bool, tokenizer) -> list[dict]:
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
    tokenizer = AutoTokenizer.from_pretrained(next(iter(MODELS.values())))
    SETS.mkdir(exist_ok=True)
    for task in TASKS.values():
        for worked in (False, True):
            if task.rungs(worked):
                text = "".join(json.dumps(line) + "\n" for line in lines(task, worked, tokenizer))
                (SETS / f"{task.name}{'_worked' if worked else ''}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    given(__doc__)
    main()
