"""Depth while a model trains: what loggers and a study get, what it costs, and that the training stays the same."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import byte_tokenizer, random_hf
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

import ed_core
from ed_core import DepthCallback
from ed_core.api import callback
from ed_core.api.callback import rows
from ed_core.depth.sample import Sample
from ed_core.depth.verdict import verdict
from ed_core.errors import ParameterError, RefusedFamily, StudyError
from ed_core.probes import Contributions, LogitLens
from ed_core.studies import bundle, tables
from ed_core.studies import steps as study_steps
from ed_core.studies.items import open_folder

TOKENIZER = byte_tokenizer()
PROMPTS = [f"{i} + {3 * i % 7} = " for i in range(9)]


class Logger(TrainerCallback):
    """As the library's own loggers are: it has what the trainer logs, and when."""

    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, **more):
        self.seen.append((state.global_step, dict(logs)))


def steps(folder):
    return study_steps.series(folder).get("", {})


def trained(out, callbacks, **more):
    torch.manual_seed(1)
    model = random_hf("llama", attention_dropout=0.2)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 200, (12, 8), generator=torch.manual_seed(0))]
    settings = dict(max_steps=6, logging_steps=2, per_device_train_batch_size=2, save_strategy="no", use_cpu=True)
    args = TrainingArguments(str(out), **settings | {"report_to": [], "disable_tqdm": True, "seed": 5} | more)
    more = dict(processing_class=TOKENIZER, data_collator=default_data_collator, callbacks=callbacks)
    trainer = Trainer(model, args, train_dataset=data, **more)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training of six steps, measured at every second."""
    out, logger = tmp_path_factory.mktemp("run"), Logger()
    depth = DepthCallback(PROMPTS, every=2)
    return SimpleNamespace(out=out, logger=logger, depth=depth, trainer=trained(out, [logger, depth]))


def test_loggers_get_every_measurement_at_its_step_and_their_own_figures_too(run):
    ours = {step: logs for step, logs in run.logger.seen if "depth/mean_depth.kl" in logs}
    assert list(ours) == [0, 2, 4, 6]
    assert [step for step, logs in run.logger.seen if "loss" in logs] == [2, 4, 6], "the trainer's own"
    for step, logs in ours.items():
        of_step = [row for row in run.depth.rows if row.step == step and row.layer is None]
        told = {callback.logged_name(row): row.value for row in of_step}
        assert {name: value for name, value in logs.items() if name.startswith("depth/")} == told
        assert all(isinstance(value, float) for value in told.values())
        assert {"depth/mean_depth.kl.low", "depth/mean_depth.overlap", "depth/turn.p", "depth/sinks"} <= set(told)
    history = [entry["step"] for entry in run.trainer.state.log_history if "depth/mean_depth.kl" in entry]
    assert history == [0, 2, 4, 6]


def test_a_training_that_is_measured_ends_where_it_would_have(run, tmp_path):
    logger = Logger()
    trainer = trained(tmp_path, [logger])
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, run.trainer.model.get_parameter(name)), name
    plain, measured = (
        [(step, logs["loss"], logs["grad_norm"]) for step, logs in one.seen if "loss" in logs]
        for one in (logger, run.logger)
    )
    assert plain == measured and len(plain) == 3


def test_rows_are_what_the_probes_give(run):
    """The last step's, against the trained model opened again."""
    held = ed_core.open(run.trainer.model, TOKENIZER)
    lens, written = (held.run(probe, PROMPTS) for probe in (LogitLens(), Contributions()))
    found = {(row.measure, row.layer): row.value for row in run.depth.rows if row.step == 6}
    means = verdict(Sample.of(lens=lens)).means
    assert found["mean_depth.kl", None] == means["kl"].depth
    assert found["mean_depth.overlap.high", None] == means["overlap"].interval.high
    curve = np.concatenate([r.layer_cos for r in written], 1).mean(1)
    np.testing.assert_allclose([found["layer_cos", l] for l in range(5)], curve, rtol=1e-5)
    assert found["sinks", None] == np.mean([len(r.sinks) for r in written])


def test_the_folder_opens_as_a_study_whose_models_are_steps(run, tmp_path):
    out = run.out / "depth"
    folder = open_folder(out)
    assert steps(folder) == {0: "step 0", 2: "step 2", 4: "step 4", 6: "step 6"}
    assert all(of == (2, 2) for of in folder.progress().values())
    assert len({model["digest"] for model in folder.models.values()}) == 4
    table = tables.verdict(folder).to_pylist()
    means = {row["model"]: row["depth"] for row in table if (row["criterion"], row["variant"]) == ("kl", "mean")}
    own = {f"step {r.step}": r.value for r in run.depth.rows if r.measure == "mean_depth.kl"}
    assert means == pytest.approx(own, rel=1e-6)
    labels = study_steps.series(folder)[""].values()
    for measure in callback.OF_LAYERS:
        own = {(row.layer, row.step): row.value for row in run.depth.rows if row.measure == measure}
        z = study_steps.over_layers(folder, labels, "prompts", f"contributions.{measure}")
        np.testing.assert_allclose(z, [[own[l, step] for step in range(0, 7, 2)] for l in range(5)], rtol=1e-5)
    found = [row.value for row in run.depth.rows if row.measure == "sinks"]
    assert [tables.sinks(folder, label, "prompts") for label in labels] == pytest.approx(found)
    assert [row for row in rows(out) if row[1] != "seconds"] == [r for r in run.depth.rows if r.measure != "seconds"]
    with open(out / "rows.csv", encoding="utf-8") as file:
        assert next(csv.reader(file)) == ["step", "measure", "layer", "value"]
    (tmp_path / "t.edstudy").write_bytes(bundle.packed(out))
    assert bundle.unpack(tmp_path / "t.edstudy", tmp_path / "again")
    assert list(steps(open_folder(tmp_path / "again"))) == [0, 2, 4, 6]
    assert not [p for p in out.rglob("*") if p.is_file() and PROMPTS[3].encode() in p.read_bytes()], "no prompt's text"


def test_a_training_that_goes_on_keeps_the_steps_before(tmp_path):
    model = random_hf("llama", num_hidden_layers=2)
    for first, last in ((0, 2), (1, 3)):
        depth = DepthCallback(np.array(PROMPTS[:2]), tokenizer=TOKENIZER, out=tmp_path, every=1)
        for step in np.arange(first, last):
            depth.measure(model, step)
            with torch.no_grad():
                model.model.norm.weight.mul_(1.01)
    assert list(steps(open_folder(tmp_path))) == [0, 1, 2]
    assert sorted({row[0] for row in rows(tmp_path)}) == [0, 1, 2]
    with pytest.raises(StudyError, match="measured on other prompts"):
        DepthCallback(["other"], tokenizer=TOKENIZER, out=tmp_path).measure(model, 9)


@pytest.mark.process
def test_a_trainer_that_trains_again_is_measured_again_in_a_folder_of_its_own(tmp_path):
    depth = DepthCallback(PROMPTS[:2], every=2)
    trainer = trained(tmp_path, [depth], save_strategy="steps", save_steps=3)
    trainer.train()
    measured = [row.step for row in depth.rows if row.measure == "seconds"]
    assert measured == [0, 2, 4, 6, 0, 2, 4, 6]
    for name in ("depth", "depth-2"):
        assert list(steps(open_folder(tmp_path / name))) == [0, 2, 4, 6]
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [row.step for row in depth.rows if row.measure == "seconds"][8:] == [3, 5]
    assert list(steps(open_folder(tmp_path / "depth-2"))) == [0, 2, 3, 5]
    assert list(steps(open_folder(tmp_path / "depth"))) == [0, 2, 4, 6], "the first one's stay"


def test_what_fails_later_is_logged_and_the_training_goes_on(caplog):
    model = random_hf("llama")
    depth = DepthCallback(PROMPTS[:2], every=1, tokenizer=TOKENIZER)
    assert depth.measure(model, 0)
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] = float("nan")
    assert depth.measure(model, 1) == []
    assert "not measured at step 1" in caplog.text and "NaN or infinite" in caplog.text
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] = 0.0
    assert depth.measure(model, 2)


def test_what_cannot_be_measured_is_refused_before_the_first_step(tmp_path):
    depth = DepthCallback(PROMPTS)
    with pytest.raises(RefusedFamily, match="has no head"):
        depth.measure(random_hf("llama").model, 0)
    with pytest.raises(ParameterError, match="tokenizer"):
        depth.measure(random_hf("llama"), 0)
    for prompts, more in (([], {}), ("a", {}), (PROMPTS, {"every": 0})):
        with pytest.raises(ParameterError, match="expected"):
            DepthCallback(prompts, **more)
