"""Steps of a training as a study's models: revisions of a hub model, checkpoints of a folder, what was measured while a
model trained; their order, what is said of them and how they are drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_models import byte_tokenizer, random_hf, save_random

from ed_core import DepthCallback
from ed_core.api import callback
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
PROMPTS = [f"{i} + {3 * i % 7} = " for i in range(9)]


def written(folder, source, *names):
    """A study's file over these steps, with its prompts beside it."""
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PROMPTS))
    file = folder / "steps.toml"
    file.write_text(TOML.format(source=source, names=", ".join(map(json.dumps, names))))
    return file


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The folder that a training wrote: three checkpoints, and what is none."""
    root = tmp_path_factory.mktemp("runs") / "mine"
    for seed, name in enumerate(("checkpoint-2", "checkpoint-10", "checkpoint-100")):
        save_random(root / name, seed=seed)
    (root / "runs").mkdir()
    return root


@pytest.fixture(scope="module")
def computed(checkpoints, tmp_path_factory):
    """A study of these checkpoints, named out of their order."""
    out = tmp_path_factory.mktemp("study")
    file = written(out, checkpoints, "checkpoint-100", "checkpoint-2", "checkpoint-10")
    assert main(["study", str(file), "--out", str(out / "steps")]) == 0
    return out / "steps"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step1000", 1000),
        ("step-0", 0),
        ("checkpoint-500", 500),
        ("stage1-step5-tokens9B", 5),
        ("ckpt_0040", 40),
        ("main", None),
        ("v1.5", None),
        ("step" + "9" * 13, None),
    ],
)
def test_a_name_tells_its_step(name, step):
    assert study.step_of(name) == step


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


def test_checkpoints_are_steps_in_the_order_of_their_numbers(computed, checkpoints, tmp_path):
    folder = open_folder(computed)
    labels = {2: "mine, checkpoint-2", 10: "mine, checkpoint-10", 100: "mine, checkpoint-100"}
    assert steps.series(folder) == {"mine": labels} and list(folder.models) == list(labels.values())
    alone = tmp_path / "alone.toml"
    alone.write_text(written(tmp_path, checkpoints / "checkpoint-10").read_text().replace("steps = []", 'label = "x"'))
    assert main(["study", str(alone), "--out", str(tmp_path / "alone")]) == 0
    (own,) = [
        row["depth"]
        for row in tables.verdict(open_folder(tmp_path / "alone")).to_pylist()
        if (row["criterion"], row["variant"]) == ("kl", "mean")
    ]
    rows = steps.depths(tables.verdict(folder).to_pylist(), labels, "local")
    assert [r["depth"] for r in rows if (r["step"], r["criterion"], r["variant"]) == (10, "kl", "mean")] == [own]
    assert [r["step"] for r in rows] == sorted(r["step"] for r in rows)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Measured while the weights move."""
    out, model = tmp_path_factory.mktemp("training"), random_hf("llama")
    depth = DepthCallback(PROMPTS, every=1, tokenizer=byte_tokenizer(), out=out, share=None)
    for step in (0, 1, 20):
        depth.measure(model, step)
        model.lm_head.weight.data.mul_(1.5)
    return out, depth.rows


def test_maps_and_sinks_are_the_rows_of_the_training(training):
    out, rows = training
    folder = open_folder(out)
    ((name, labels),) = steps.series(folder).items()
    assert name == "" and list(labels) == [0, 1, 20]
    for measure in callback.OF_LAYERS:
        z = steps.over_layers(folder, labels.values(), "prompts", f"contributions.{measure}")
        own = {(row.layer, row.step): row.value for row in rows if row.measure == measure}
        expected = [[own[l, step] for step in labels] for l in range(5)]
        np.testing.assert_allclose(z, expected, rtol=1e-5)
    found = [row.value for row in rows if row.measure == "sinks"]
    assert [tables.sinks(folder, label, "prompts") for label in labels.values()] == pytest.approx(found)
    assert steps.over_layers(folder, labels.values(), "prompts", "contributions.nothing").shape == (0, 3)
