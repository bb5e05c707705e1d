"""Depth over training on the Studies page: what is drawn is what the study's tables hold at each step."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from charts import charts, fresh, idle, numbers, traces, words
from small_models import byte_tokenizer, random_hf

from ed_core.studies import steps, tables
from ed_core.studies.items import open_folder
from ed_core.training import DepthCallback
from ed_ui.study_panels import READING

PROMPTS = [f"{i} + {3 * i % 7} = " for i in range(9)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder with a training of three steps, and one beside it whose steps are of two trainings."""
    root, model = tmp_path_factory.mktemp("cache"), random_hf("llama")
    depth = DepthCallback(PROMPTS, every=1, tokenizer=byte_tokenizer(), out=root / "studies" / "mine", share=None)
    for step in (0, 2, 30):
        depth.measure(model, step)
        model.lm_head.weight.data.mul_(1.5)
    return root


@pytest.fixture
def opened(cache, monkeypatch):
    """The page on that training."""
    idle(monkeypatch, cache)
    return fresh("pages/studies/studies.py", study="mine").run()


def test_the_part_draws_the_tables_at_every_step_and_the_slider_chooses_one(opened, cache):
    assert not opened.exception and not opened.error
    assert opened.segmented_control(key="studies.view").value == "over training"
    folder = open_folder(cache / "studies" / "mine")
    labels = steps.series(folder)[""]
    rows = steps.depths(tables.verdict(folder).to_pylist(), labels, "prompts")
    depth, ratio, cosine, lens = charts(opened)
    means = [row["depth"] for row in rows if (row["criterion"], row["variant"]) == ("kl", "mean")]
    np.testing.assert_allclose(numbers(traces(depth)["mean depth, KL"]["y"]), means)
    assert all(said in words(opened) for said in steps.course(rows)) and len(steps.course(rows)) == 3
    assert READING in words(opened), "how to read it, behind the figure's Details"
    summary = tables.summary(folder).to_pylist()
    for chart, measure in (
        (ratio, "contributions.layer_ratio"),
        (cosine, "contributions.layer_cos"),
        (lens, "logit_lens.kl"),
    ):
        z = steps.over_layers(summary, labels, "prompts", measure)
        np.testing.assert_array_equal(numbers(chart["data"][0]["z"]), z)
        np.testing.assert_array_equal(numbers(traces(chart)["mean"]["x"]), z[:, 2])
    slider = opened.select_slider(key="studies.step")
    assert slider.value == "30" and list(slider.options) == ["0", "2", "30"]
    slider.set_value("2").run()
    z = steps.over_layers(summary, labels, "prompts", "contributions.layer_ratio")
    np.testing.assert_array_equal(numbers(traces(charts(opened)[1])["mean"]["x"]), z[:, 1])
    opened.segmented_control(key="studies.branch").set_value("attn").run()
    z = steps.over_layers(summary, labels, "prompts", "contributions.attn_cos")
    np.testing.assert_array_equal(numbers(traces(charts(opened)[2])["mean"]["x"]), z[:, 1])
    assert list(numbers(traces(charts(opened)[0])["mean depth, KL"]["x"])) == pytest.approx(
        [np.log10(2) - 0.5, np.log10(2), np.log10(30)]
    )
    opened.segmented_control(key="studies.axis").set_value("linear").run()
    assert list(numbers(traces(charts(opened)[0])["mean depth, KL"]["x"])) == [0, 2, 30]


def test_steps_stand_beside_each_other_as_models_do(opened):
    opened.segmented_control(key="studies.view").set_value("side by side").run()
    assert not opened.exception and opened.selectbox(key="studies.model").options == ["step 0", "step 2", "step 30"]
    assert not opened.get("select_slider") and opened.selectbox(key="studies.curve")


def test_a_step_in_a_link_that_is_none_gives_the_last(opened):
    opened.query_params["step"] = "7"
    opened.run()
    assert not opened.exception and opened.select_slider(key="studies.step").value == "30"


def test_two_trainings_are_chosen_between_and_other_studies_have_no_switch(opened, cache, monkeypatch, tmp_path):
    shutil.copytree(cache / "studies" / "mine", tmp_path / "studies" / "two")
    file = tmp_path / "studies" / "two" / "plan.json"
    plan = json.loads(file.read_text())
    for model, name in zip(plan["models"], ("a", "b", "b"), strict=True):
        model["series"] = name
    file.write_text(json.dumps(plan))
    monkeypatch.setenv("ED_CACHE", str(tmp_path))
    test = fresh("pages/studies/studies.py", study="two").run()
    assert not test.exception and test.selectbox(key="studies.series").options == ["a", "b"]
    assert not test.get("select_slider"), "a has one step"
    test.selectbox(key="studies.series").set_value("b").run()
    assert not test.exception and list(test.select_slider(key="studies.step").options) == ["2", "30"]
    test.selectbox(key="studies.study").set_value("toys").run()
    assert not test.exception
    with pytest.raises(KeyError):
        test.segmented_control(key="studies.view")
