"""The shipped case studies of their lessons (`tools.lessons`): `python -m tools.cases` makes them.

The real model must be here (`python -m ed_core fetch smollm2`). Run it after weights,
prompts or numbers changed. `--words` writes only words: notes and verdicts of case studies, and reports of the bundled
studies, over the numbers they hold. Torch runs on one thread, so that the numbers are the same on every machine of a
kind."""

from __future__ import annotations

import argparse
import base64
import hashlib
from collections.abc import Sequence

import torch

from ed_core.cases import bundle, case_study
from ed_core.cases.case_study import Shown
from ed_core.cases.kept import SHIPPED, SUFFIX
from ed_core.errors import CaseError
from ed_core.models.bundled import STUDIES, load_prompts
from ed_core.models.ref import ModelRef
from ed_core.studies import report
from ed_core.types import ModelSpec, Prompt
from ed_core.work import compute

from .lessons import LESSONS, Lesson, Results, asking, named

# 21 November 2026, and a second earlier for every further lesson: so lists keep their order
WRITTEN = 1_795_219_200.0


def id_of(name: str) -> str:
    """The id of a shipped case study, always the same for the same name."""
    return base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:10]


def build(lesson: Lesson, results: Results) -> case_study.Case:
    """The case study; raises `CaseError` if a claim of its notes does not hold for these results."""
    for number, claim in enumerate(lesson.claims):
        if not claim(results):
            raise CaseError(f"Claim {number} of notes/{lesson.name}.md does not hold: change the notes or the prompt.")
    title, notes = lesson.words
    return case_study.make(
        title,
        results.values(),
        notes=notes,
        tags=lesson.tags,
        shown=Shown("home", selected=asking(results)),
        id=id_of(lesson.name),
        now=WRITTEN - LESSONS.index(lesson),
    )


def models_of(lesson: Lesson, spec: ModelSpec) -> tuple[ModelSpec, ...]:
    """The models that a lesson measures, in its order."""
    return (spec, spec.twin("untrained")) if lesson.twin else (spec,)


def shipped_results(lesson: Lesson) -> Results:
    """The results in a lesson's shipped case study."""
    case = bundle.drawable((SHIPPED / f"{id_of(lesson.name)}{SUFFIX}").read_bytes())
    return named(item.result for item in case.items)


def main() -> None:
    """Compute and check all, then replace the folder's files."""
    torch.set_num_threads(1)
    prompts, models, made = {p["id"]: p for p in load_prompts()}, compute.Models(), []
    for lesson in LESSONS:
        prompt = Prompt(prompts[lesson.prompt]["text"], prompts[lesson.prompt]["answer"])
        results = [
            compute.run(models.get(spec), probe.request(spec, prompt))
            for spec in models_of(lesson, ModelRef.parse(lesson.model))
            for probe in lesson.probes
        ]
        made.append(build(lesson, named(results)))
    for file in SHIPPED.glob(f"*{SUFFIX}"):
        file.unlink()
    write(made)


def write(made: Sequence[case_study.Case]) -> None:
    SHIPPED.mkdir(exist_ok=True)
    for case in made:
        (SHIPPED / f"{case.id}{SUFFIX}").write_bytes(bundle.encode(case))
        print(f"{case.id}  {case.title}: {len(bundle.encode(case)) // 1024} KiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", action="store_true", help="write words alone")
    if parser.parse_args().words:
        write([build(lesson, shipped_results(lesson)) for lesson in LESSONS])
        for plan in sorted(STUDIES.glob("*/plan.json")):
            report.write(plan.parent)
    else:
        main()
