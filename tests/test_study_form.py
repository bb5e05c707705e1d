"""A study's form gives the study that it shows."""

from __future__ import annotations

import pytest

from ed_core.errors import StudyError
from ed_core.studies import study
from ed_core.studies.form import ALL, study_of

FORM = dict(
    name="mine",
    models=("ed-demo-8", "ed-demo-16"),
    twins=2,
    sets=("sum_mod10", "mixed", "gsm8k"),
    prompts=12,
    probes=("logit_lens", "layer_skip"),
)


def test_a_form_is_a_study():
    found = study_of(**FORM)
    assert study.parse(study.write(found)) == found
    assert [(m.source, m.control, m.seed) for m in found.models] == [
        ("ed-demo-8", "", 0),
        *(("ed-demo-8", "untrained", seed) for seed in (0, 1)),
        ("ed-demo-16", "", 0),
        *(("ed-demo-16", "untrained", seed) for seed in (0, 1)),
    ]
    sums, mixed, gsm8k = found.sets
    assert (sums.bundled, sums.per_level, sums.limit) == ("sum_mod10", 3, None), "12 over five levels, rounded up"
    assert (mixed.bundled, mixed.limit) == ("mixed", 12) and (gsm8k.hub, gsm8k.limit) == ("gsm8k", 12)
    whole = study_of(**FORM | dict(prompts=ALL))
    assert {(one.limit, one.per_level) for one in whole.sets} == {(None, None)}


def test_steps_are_of_every_model_that_can_have_some():
    found = study_of(**FORM | dict(models=("a/b", "ed-demo-8"), steps=("step5",), twins=0)).models
    assert [m.steps for m in found] == [("step5",), ()]
    with pytest.raises(StudyError, match="names like step1000"):
        study_of(**FORM | dict(models=("a/b",), steps=("main",)))
