"""A study's form: what it shows of a file, and that it changes of a file only what was chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ed_core.errors import StudyError
from ed_core.models.bundled import STUDIES
from ed_core.studies import study
from ed_core.studies.form import ALL, Form, hidden, levels_of, of, study_of

FORM = Form("mine", ("ed-demo-8", "ed-demo-16"), 2, ("sum_mod10", "mixed", "gsm8k"), 12, ("logit_lens", "layer_skip"))
LONG = """
name = "long"
note = "of two models"
seed = 3
models = [{source = "ed-demo-8", precision = "bf16", label = "a"}, {source = "ed-demo-8", control = "shuffled"},
  {source = "ed-demo-16", control = "untrained", seed = 4}]
probes = ["continuation", {name = "layer_skip", limit = 3, mode = "future"}]
pairs = [{base = "a", other = "ed-demo-16, untrained twin, seed 4"}]
[[sets]]
name = "two"
bundled = "sum_mod10"
levels = ["2", "3"]
per_level = 4
[[sets]]
name = "own"
file = "own.jsonl"
limit = 7
"""


def test_a_form_is_a_study_and_comes_back_from_its_text():
    found = study_of(FORM)
    assert of(study.parse(study.write(found))) == FORM and hidden(found) == []
    assert [(m.source, m.control, m.seed) for m in found.models] == [
        ("ed-demo-8", "", 0),
        *(("ed-demo-8", "untrained", seed) for seed in (0, 1)),
        ("ed-demo-16", "", 0),
        *(("ed-demo-16", "untrained", seed) for seed in (0, 1)),
    ]
    sums, mixed, gsm8k = found.sets
    assert levels_of("sum_mod10") == 5 and levels_of("mixed") == 0
    assert (sums.bundled, sums.per_level, sums.limit) == ("sum_mod10", 3, None), "12 over five levels, rounded up"
    assert (mixed.bundled, mixed.limit) == ("mixed", 12) and (gsm8k.hub, gsm8k.limit) == ("gsm8k", 12)


@pytest.mark.parametrize("text", [LONG, *((STUDIES / name / "study.toml").read_text() for name in ("toys", "gsm8k"))])
def test_a_file_that_is_shown_and_not_changed_stays_as_it_is(text):
    written = study.parse(text)
    assert study_of(of(written), written) == written


def test_what_a_form_does_not_show_is_named_and_kept():
    written = study.parse(LONG)
    shown = of(written)
    assert shown == Form("long", ("ed-demo-8",), 0, ("sum_mod10",), 8, ("layer_skip",))
    assert hidden(written) == [
        "note",
        "seed",
        "pairs",
        "precision, label of ed-demo-8",
        "ed-demo-8, shuffled layers, seed 0",
        "ed-demo-16, untrained twin, seed 4",
        "levels of the set two",
        "the prompts of the set own",
        "continuation",
        "limit, mode of layer_skip",
    ]
    changed = study_of(
        replace(shown, twins=1, prompts=20, sets=("sum_mod10", "copy"), probes=("contributions", "layer_skip")), written
    )
    assert [(m.source, m.control, m.precision) for m in changed.models] == [
        ("ed-demo-8", "", "bf16"),
        ("ed-demo-8", "shuffled", "fp32"),
        ("ed-demo-16", "untrained", "fp32"),
        ("ed-demo-8", "untrained", "bf16"),
    ], "a twin has its model's precision"
    assert [(s.name, s.per_level, s.limit) for s in changed.sets] == [
        ("two", 10, None),
        ("own", None, 7),
        ("copy", 5, None),
    ]
    assert [p.name for p in changed.probes] == ["continuation", "layer_skip", "contributions"]
    assert (changed.note, changed.seed, changed.pairs) == (written.note, written.seed, written.pairs)
    assert dict(changed.probes[1].parameters) == {"mode": "future"} and changed.probes[1].limit == 3
    gone = study_of(replace(shown, models=("ed-demo-16",), sets=("copy",)), written)
    assert [(m.source, m.control) for m in gone.models] == [("ed-demo-16", "")], "its twins are what the form says"
    assert [s.name for s in gone.sets] == ["own", "copy"]


def test_numbers_that_are_not_one_are_left_open_and_stay():
    text = 'name = "x"\nmodels = ["a", "b", {source = "b", control = "untrained"}]\nprobes = ["logit_lens"]\n'
    sets = '[[sets]]\nname = "{0}"\nbundled = "{0}"\nlimit = {1}\n'
    written = study.parse(text + sets.format("mixed", 5) + sets.format("copy", 7))
    shown = of(written)
    assert shown.twins is None and shown.prompts is None
    assert hidden(written) == ["b, untrained twin, seed 0", "limit of the set mixed", "limit of the set copy"]
    more = study_of(replace(shown, models=("a", "b", "c"), sets=("mixed", "copy", "addition")), written)
    assert [(m.source, m.control) for m in more.models] == [("a", ""), ("b", ""), ("b", "untrained"), ("c", "")]
    assert [s.limit for s in more.sets] == [5, 7, None]
    more = text.replace("}]", '}, {source = "b", control = "untrained", precision = "bf16"}]')
    for one in (more, more.replace('"a", ', "")):
        twice = study.parse(one + sets.format("copy", 7))
        assert study_of(of(twice), twice) == twice, "twins of one seed in two precisions"
    whole = study_of(replace(shown, prompts=ALL), written)
    assert [(s.limit, s.per_level) for s in whole.sets] == [(None, None)] * 2 and of(whole).prompts == ALL


def test_steps_are_revisions_of_the_hub_and_checkpoints_of_folders():
    form = replace(FORM, models=("ed-demo-8", "org/model", "/runs/mine"), steps=("checkpoint-5", "checkpoint-10"))
    made = study_of(form)
    assert study.parse(study.write(made)) == made and of(made) == form and hidden(made) == []
    plain = {m.source: (m.revisions, m.checkpoints) for m in made.models if not m.control}
    assert plain == {"ed-demo-8": ((), ()), "org/model": (form.steps, ()), "/runs/mine": ((), form.steps)}
    assert not any(m.revisions or m.checkpoints for m in made.models if m.control), "a twin has learned nothing"
    whole = study_of(replace(form, steps=()), made)
    assert not any(one.revisions or one.checkpoints for one in whole.models) and len(whole.models) == len(made.models)
    one = study_of(replace(form, steps=("step1",)))
    mixed = one.model_copy(update={"models": (*one.models, *study_of(replace(FORM, models=("a/b",))).models)})
    shown = of(mixed)
    assert shown.steps is None and study_of(shown, mixed) == mixed
    assert {"revisions of org/model", "checkpoints of /runs/mine"} <= set(hidden(mixed))
    with pytest.raises(StudyError, match="the form: .* whose names tell their step, .*; 'main' does not"):
        study_of(replace(form, steps=("main",)))
