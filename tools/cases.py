"""Makes the shipped case studies of their lessons (`tools.lessons`).

`python -m tools.cases` makes them anew (with names, those only); the real model must be here
(`python -m ed_core fetch smollm2`). It must run after the model's weights, a prompt or any number changed (a test holds
it to that); `--words` writes notes and verdicts anew over the numbers that are kept. Torch runs on one thread, so that
the numbers come out the same on every machine of a kind."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from ed_core.cases import bundle, case_study
from ed_core.cases.case_study import Shown
from ed_core.cases.kept import SHIPPED, SUFFIX
from ed_core.errors import CaseError
from ed_core.types import ModelSpec

from . import given
from .lessons import LESSONS, Lesson, Results, asking, named

# 21 November 2026, and a second earlier for every further lesson: lists keep their order when they are made anew
WRITTEN = 1_795_219_200.0


def id_of(name: str) -> str:
    """The id of something shipped: always the same for the same name."""
    return base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:10]


def build(lesson: Lesson, results: Results) -> case_study.Case:
    """The case study; a `CaseError` names the claim of its notes that these results do not bear out."""
    for number, claim in enumerate(lesson.claims):
        if not claim(results):
            raise CaseError(
                f"Claim {number} of the notes of {lesson.name} does not hold: change the notes or the prompt."
            )
    selected = Shown("home", selected=asking(results))
    written = WRITTEN - LESSONS.index(lesson)
    return case_study.make(
        lesson.title,
        results.values(),
        notes=lesson.notes,
        tags=lesson.tags,
        shown=selected,
        id=id_of(lesson.name),
        now=written,
    )


def models_of(lesson: Lesson, spec: ModelSpec) -> tuple[ModelSpec, ...]:
    """What a lesson measures, in its order."""
    from ed_core.work.resolve import twin

    return (spec, twin(spec, "untrained")) if lesson.twin else (spec,)


def kept(lesson: Lesson) -> Results:
    """The numbers of a lesson's shipped case study."""
    case = bundle.drawable((SHIPPED / f"{id_of(lesson.name)}{SUFFIX}").read_bytes())
    return named(item.result for item in case.items)


def main(names: Sequence[str] = ()) -> None:
    """Compute and check all (or the lessons of these names), then replace the folder's files."""
    if list(names) == ["--words"]:
        return write([build(lesson, kept(lesson)) for lesson in LESSONS])
    import torch

    from ed_core.sources.bundled import load_prompts
    from ed_core.types import Prompt
    from ed_core.work import compute
    from ed_core.work.resolve import resolve

    torch.set_num_threads(1)
    prompts, models, made = {p["id"]: p for p in load_prompts()}, compute.Models(), []
    for lesson in (lesson for lesson in LESSONS if not names or lesson.name in names):
        prompt = Prompt(prompts[lesson.prompt]["text"], prompts[lesson.prompt]["answer"])
        results = [
            compute.run(models.get(which), probe.request(which, prompt))
            for which in models_of(lesson, resolve(lesson.model))
            for probe in lesson.probes
        ]
        made.append(build(lesson, named(results)))
    if not names:
        for old in SHIPPED.glob(f"*{SUFFIX}"):
            old.unlink()
    write(made)


def write(made: Sequence[case_study.Case]) -> None:
    SHIPPED.mkdir(exist_ok=True)
    for case in made:
        (SHIPPED / f"{case.id}{SUFFIX}").write_bytes(bundle.encode(case))
        print(f"{case.id}  {case.title}: {len(bundle.encode(case)) // 1024} KiB")


if __name__ == "__main__":
    main(given(__doc__, "--words", *(lesson.name for lesson in LESSONS)))
