"""Steps of a training as a study's models: revisions, checkpoints, and what was measured while a model trained."""

from __future__ import annotations

import json

import pytest
from small_models import save_random

from ed_core.cli import main
from ed_core.errors import StudyError
from ed_core.studies import steps, study, tables
from ed_core.studies.items import open_folder

TOML = """
name = "steps"
models = [{{source = "{source}", steps = [{names}]}}]
probes = ["contributions", "logit_lens"]
[[sets]]
name = "local"
file = "prompts.jsonl"
"""


def written(folder, source, *names):
    """A study's file over these steps, with its prompts beside it."""
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"text": f"{i} + {3 * i % 7} = "}) for i in range(9)))
    file = folder / "steps.toml"
    file.write_text(TOML.format(source=source, names=", ".join(map(json.dumps, names))))
    return file


def test_a_name_tells_its_step():
    steps = {"step1000": 1000, "step-0": 0, "checkpoint-500": 500, "stage1-step5-tokens9B": 5, "ckpt_0040": 40}
    none = ("main", "v1.5", "step" + "9" * 13)
    assert {name: study.step_of(name) for name in (*steps, *none)} == steps | dict.fromkeys(none)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('steps = ["main"]', "names like step1000 or checkpoint-5; found 'main'"),
        ('steps = ["step1", "other-step1"]', "another one has that of 'step1'"),
        ('steps = ["../step1"]', "found '../step1'"),
        ('steps = ["step1"], control = "untrained"', "steps of a plain model; a control"),
        ('steps = "step1"', "steps is 'step1': expected"),
        ('step = ["step1"]', "did you mean 'steps'"),
    ],
)
def test_steps_that_cannot_be_are_refused_in_one_sentence(entry, says):
    text = TOML.replace("steps = [{names}]", entry).replace("{{", "{").replace("}}", "}")
    with pytest.raises(StudyError) as caught:
        study.parse(text.replace("{source}", "org/model"))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_study_keeps_its_steps_when_it_is_written(tmp_path):
    one = study.parse(TOML.format(source="org/model", names='"step10", "step2"'))
    assert study.parse(study.write(one)) == one
    assert [entry.source for entry in one.entries] == ["org/model@step2", "org/model@step10"]
    assert [entry.label for entry in one.entries] == ["model, step2", "model, step10"]


def test_checkpoints_are_steps_in_the_order_of_their_numbers(tmp_path):
    checkpoints, names = tmp_path / "mine", ("checkpoint-100", "checkpoint-2", "checkpoint-10")
    for seed, name in enumerate(names):
        save_random(checkpoints / name, seed=seed)
    (checkpoints / "runs").mkdir()
    assert main(["study", str(written(tmp_path, checkpoints, *names)), "--out", str(tmp_path / "steps")]) == 0
    folder = open_folder(tmp_path / "steps")
    labels = {2: "mine, checkpoint-2", 10: "mine, checkpoint-10", 100: "mine, checkpoint-100"}
    assert steps.series(folder) == {"mine": labels} and list(folder.models) == list(labels.values())
    alone = tmp_path / "alone.toml"
    alone.write_text(written(tmp_path, checkpoints / "checkpoint-10").read_text().replace("steps = []", 'label = "x"'))
    assert main(["study", str(alone), "--out", str(tmp_path / "alone")]) == 0
    rows = steps.depths(tables.verdict(folder).to_pylist(), labels, "local")
    mean = lambda rows: [r["depth"] for r in rows if (r["criterion"], r["variant"]) == ("kl", "mean")]
    alone = tables.verdict(open_folder(tmp_path / "alone")).to_pylist()
    assert mean(r for r in rows if r["step"] == 10) == mean(alone) and len(mean(alone)) == 1
    assert [r["step"] for r in rows] == sorted(r["step"] for r in rows)
