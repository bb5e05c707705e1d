"""A study's form gives the study that it shows."""

from __future__ import annotations

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
    kinds = (("", 0), ("untrained", 0), ("untrained", 1))
    expected = [(name, *kind) for name in FORM["models"] for kind in kinds]
    assert [(m.source, m.control, m.seed) for m in found.models] == expected
    sums, mixed, gsm8k = found.sets
    assert (sums.bundled, sums.per_level, sums.limit) == ("sum_mod10", 3, None), "12 over five levels, rounded up"
    assert (mixed.bundled, mixed.limit) == ("mixed", 12) and (gsm8k.hub, gsm8k.limit) == ("gsm8k", 12)
    whole = study_of(**FORM | dict(prompts=ALL))
    assert {(one.limit, one.per_level) for one in whole.sets} == {(None, None)}


def test_steps_are_of_every_model_that_can_have_some():
    found = study_of(**FORM | dict(models=("a/b", "ed-demo-8"), steps=("step5",), twins=0)).models
    assert [m.steps for m in found] == [("step5",), ()]
