"""The shipped case studies are what the present weights, prompts and engine give, and what their notes say is so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ed_core.cases import bundle, case_study
from ed_core.cases.kept import SHIPPED, Kept
from ed_core.errors import CaseError
from ed_core.service import compute
from ed_core.service.resolve import resolve
from ed_core.sources import hub
from ed_core.sources.bundled import load_prompts
from ed_core.types import Prompt
from tools.cases import build, id_of, models_of
from tools.lessons import LESSONS, REAL, named

HINT = "run python -m tools.cases"


def shipped(lesson) -> case_study.Case:
    return bundle.drawable((SHIPPED / f"{id_of(lesson.name)}.edcase").read_bytes())


def test_the_folder_holds_the_lessons_and_nothing_else(tmp_path):
    assert {file.stem for file in SHIPPED.iterdir()} == {id_of(lesson.name) for lesson in LESSONS}, HINT
    cards = Kept(tmp_path).cards("start here")
    assert [card.title for card in cards] == [LESSONS[0].title]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_what_the_notes_say_is_so(lesson):
    kept = shipped(lesson)
    results = named(item.result for item in kept.items)
    assert build(lesson, results) == kept, HINT  # checks every claim, and that the verdict is today's
    assert "/" not in results["logit_lens"].request.models[0].source


def test_a_note_that_is_not_so_is_not_written():
    easy, hard = LESSONS[0], shipped(LESSONS[1])
    with pytest.raises(CaseError, match="Claim"):
        build(easy, named(item.result for item in hard.items))


@pytest.fixture(scope="module")
def models():
    return compute.Models()


@pytest.mark.parametrize(
    "lesson",
    [pytest.param(l, marks=[pytest.mark.real] * (l.model == REAL), id=l.name) for l in LESSONS],
)
def test_the_numbers_are_what_a_run_gives(lesson, models):
    prompt = next(Prompt(p["text"], p["answer"]) for p in load_prompts() if p["id"] == lesson.prompt)
    by_name = named(item.result for item in shipped(lesson).items)
    if lesson.model == REAL and not hub.is_here(resolve(REAL)):
        pytest.skip("smollm2 is not here: no registry had it, or REAL_MODEL=0")
    for spec in models_of(lesson, resolve(lesson.model)):
        for probe in lesson.probes:
            request = probe.request(spec, prompt)
            (name,) = named([replace(by_name[probe.name], request=request)])
            assert by_name[name].request.key == request.key, HINT
            for measure, values in compute.run(models.get(spec), request).measures.items():
                largest = np.nanmax(np.abs(values.values))
                assert np.nanmax(np.abs(by_name[name][measure] - values.values)) <= 1e-3 * max(largest, 1e-3), (
                    f"{name}.{measure}"
                )


def test_the_set_teaches_what_it_is_there_for():
    """An easy and a hard sum, a look-up in three hops, criteria that disagree, a prompt outside what the model knows,
    an untrained twin; on a real model criteria that disagree, a sink, and a KL rule that holds near the input."""
    assert [lesson.name for lesson in LESSONS] == [
        "easy-sum",
        "hard-sum",
        "three-hops",
        "criteria-disagree",
        "outside",
        "untrained-twin",
        "real-disagree",
        "real-sink",
        "real-kl",
    ]
    verdicts = shipped(LESSONS[5]).verdict.splitlines()
    assert len(verdicts) == 2 and "untrained twin, seed 0" in verdicts[1] and "twin" not in verdicts[0]


def test_what_was_kept_under_other_rules_says_so():
    lesson = LESSONS[0]
    kept = shipped(lesson)
    now = replace(kept, verdict=case_study.verdict_text(kept))
    assert case_study.of_its_time(now) == "" == case_study.of_its_time(replace(kept, verdict=""))
    former = case_study.of_its_time(replace(now, verdict="The mean cosine turns after layer 3 of 8."))
    assert former == "Notes as kept on 2026-11-21, by the rules of that time."
