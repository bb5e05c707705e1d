"""The Studies page: what it plots is what the study's tables hold, of one study, beside what is published, and over a
training's steps; a study is written, checked, started and stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from charts import charts, fresh, idle, numbers, traces, words
from pyarrow import parquet
from small_models import byte_tokenizer, random_hf
from streamlit.testing.v1 import AppTest
from workers import until

from ed_core.cli import main
from ed_core.errors import ImportRefused, NotAllowed, StudyError
from ed_core.models import tokens
from ed_core.models.bundled import STUDIES
from ed_core.studies import bundle, difficulty, items, precisions, steps, study, tables
from ed_core.studies import plan as planning
from ed_core.studies.items import open_folder
from ed_core.training import DepthCallback
from ed_core.work.estimate import duration
from ed_ui import runs, studies
from ed_ui.study_panels import READING

TOML = (
    'name = "small"\nmodels = ["ed-demo-8", {source = "ed-demo-8", control = "untrained"}]\n'
    'probes = ["contributions", "logit_lens"]\n[[sets]]\nname = "sums"\nbundled = "sum_mod10"\nlevels = [2, 3]\n'
    "per_level = 4\n"
)


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A cache folder with one study."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "small.toml").write_text(TOML, encoding="utf-8")
    assert main(["study", str(cache / "small.toml"), "--out", str(cache / "studies" / "small")]) == 0
    return cache


@pytest.fixture
def opened(computed, monkeypatch):
    """The page on that study."""
    idle(monkeypatch, computed)
    return fresh("pages/studies/studies.py").run()


def table(test: AppTest, column: str):
    """The table that has this column."""
    return next(one.value for one in test.dataframe if column in one.value)


def plotted(test: AppTest, n: int) -> dict[str, dict]:
    """The n-th figure's traces by name."""
    return traces(charts(test)[n])


def test_the_page_plots_what_the_tables_hold(opened, computed):
    assert not opened.exception and not opened.error
    assert opened.selectbox(key="studies.study").options[0] == "small"
    rows = parquet.read_table(computed / "studies" / "small" / "verdict.parquet").to_pylist()
    whole = [r for r in rows if r["set"] == "sums" and r["variant"] in ("mean", "paper")]
    found = plotted(opened, 0)
    for criterion, called in {"cosine": "cosine", "kl": "KL", "overlap": "overlap"}.items():
        expected = [r for r in whole if r["criterion"] == criterion and r["ratio"] is not None]
        assert list(numbers(found[called]["x"])) == [r["ratio"] for r in expected]
        ends = numbers(found[called]["error_x"]["array"]) if expected else []
        assert list(ends) == pytest.approx(
            [(r["high"] + (r["variant"] == "paper")) / r["n_layers"] - r["ratio"] for r in expected]
        )
    summary = tables.summary(open_folder(computed / "studies" / "small")).to_pylist()
    curves = plotted(opened, 2)
    for label in ("ed-demo-8", "ed-demo-8, untrained twin, seed 0"):
        own = [r for r in summary if r["set"] == "sums" and r["model"] == label and r["measure"] == "kl"]
        assert list(numbers(curves[label]["y"])) == [r["value"] for r in own] and len(own) == 9
    opened.selectbox(key="studies.set").set_value("sums/3").run()
    level = [r for r in rows if r["set"] == "sums/3" and r["variant"] in ("mean", "paper") and r["criterion"] == "kl"]
    assert list(numbers(plotted(opened, 0)["KL"]["x"])) == [r["ratio"] for r in level]
    assert level[0]["prompts"] == 4


def toml(test: AppTest) -> study.Study:
    return study.parse(next(code.value for code in test.code if code.language == "toml"))


def test_a_form_writes_the_study_that_runs_and_says_what_it_costs(opened, monkeypatch):
    model = opened.multiselect(key="study.models").value[0]
    assert toml(opened).models[0].source == model and not opened.error
    opened.multiselect(key="study.models").set_value(["ed-demo-8", "ed-demo-16"]).run()
    opened.multiselect(key="study.sets").set_value(["sum_mod10", "copy"]).run()
    opened.number_input(key="study.prompts").set_value(7).run()
    opened.number_input(key="study.twins").set_value(2).run()
    opened.text_input(key="study.name").set_value("by hand").run()
    opened.multiselect(key="study.probes").set_value(["layer_skip"]).run()
    written = toml(opened)
    assert written.name == "by hand" and [p.name for p in written.probes] == ["layer_skip"]
    assert [(m.source, m.seed, m.control) for m in written.models if m.source == "ed-demo-16"] == [
        ("ed-demo-16", 0, ""),
        ("ed-demo-16", 0, "untrained"),
        ("ed-demo-16", 1, "untrained"),
    ]
    assert [(s.bundled, s.per_level) for s in written.sets] == [("sum_mod10", 2), ("copy", 2)]
    told = words(opened)
    plan = planning.make(written, Path())
    prompts = 2 * (5 + len(plan.sets[1].levels))
    assert plan.n_prompts == prompts and f"6 models · {prompts} prompts · {plan.n_items} parts · about" in told
    assert duration(planning.seconds_of(plan)[0]) in told
    lengths = [len(tokens.preview(plan.usable[0].known, e.prompt)) for e in plan.sets[0].examples]
    assert f"10 prompts of 5 levels of {min(lengths)} to {max(lengths)} tokens" in told
    shown = [code.value for code in opened.code]
    assert f"{plan.sets[1].examples[0].prompt.text}▸{plan.sets[1].examples[0].prompt.answer}" in shown
    begun = []
    monkeypatch.setattr(runs, "begin", lambda folder, title, files, *_: begun.append((folder.name, files)))
    opened.button(key="studies.start").click().run()
    assert begun[0][0] == "by-hand" and study.parse(begun[0][1]["asked.toml"].decode()) == written


def edited(test: AppTest, text: str) -> AppTest:
    """The page with the study's file written by hand."""
    if not test.toggle(key="studies.by_hand").value:
        test.toggle(key="studies.by_hand").set_value(True).run()
    return test.text_area(key="studies.text").set_value(text).run()


def test_a_file_that_is_edited_is_what_runs(opened, monkeypatch):
    opened.multiselect(key="study.sets").set_value(["copy"]).run()
    opened.toggle(key="studies.by_hand").set_value(True).run()
    assert study.parse(opened.text_area(key="studies.text").value).sets[0].bundled == "copy", "it begins as the form's"
    assert opened.multiselect(key="study.sets").disabled
    edited(opened, TOML.replace("[2, 3]", "[2, 3, 4]"))
    assert any("A study small is here already" in c.value.replace("\\", "") for c in opened.caption)
    begun = []
    monkeypatch.setattr(runs, "begin", lambda folder, title, files, *_: begun.append(files))
    opened.button(key="studies.start").click().run()
    assert study.parse(begun[0]["asked.toml"].decode()).sets[0].levels == ("2", "3", "4")


def test_a_text_that_is_no_study_is_refused_on_the_page(opened):
    edited(opened, 'name = "x"\nmodle = 3\n')
    assert "has no key 'modle'" in opened.error[0].value.replace("\\", "")
    assert opened.button(key="studies.start").disabled
    edited(opened, TOML.replace("sum_mod10", "sum_mod11"))
    assert "did you mean 'sum_mod10'?" in opened.error[0].value.replace("\\", "")
    edited(opened, TOML.replace('"small"', '"toys"'))
    opened.button(key="studies.start").click().run()
    assert "comes with the program" in opened.error[0].value and not (items.home() / "toys").exists()


@pytest.mark.process
def test_a_study_that_is_started_runs_by_itself_and_a_stopped_one_goes_on(laboratory, monkeypatch):
    many = "chunk = 2\n" + TOML.replace("[2, 3]", "[2, 3, 4]") + "\n"
    monkeypatch.setenv("ED_TEST_STEP_DELAY", "0.01")  # so that there is time to stop it
    name = runs.begin_study(many)
    out = laboratory / "studies" / name
    with pytest.raises(StudyError, match="under way already"):
        runs.begin_study(many)
    until(lambda: list(out.glob("items/*/*.parquet")))
    test = fresh("pages/studies/studies.py").run()
    assert not test.button(key="cancel.studies").disabled and test.button(key="run.studies").disabled
    test.button(key="cancel.studies").click().run()
    until(lambda: not runs.under_way(out))
    monkeypatch.delenv("ED_TEST_STEP_DELAY")
    assert len(list(open_folder(out).item_keys())) < 12 and studies.known()[name] == out
    test = fresh("pages/studies/studies.py").run()
    assert test.button(key="run.studies").label == "Resume" and not test.error
    test.button(key="run.studies").click().run()
    until(lambda: not runs.under_way(out))
    assert len(list(open_folder(out).item_keys())) == 12 and "measures" in runs.of(out).result
    assert (out / "report.md").is_file()


def test_a_hosted_installation_runs_no_studies(laboratory, monkeypatch):
    monkeypatch.setenv("ED_HOSTED", "true")
    with pytest.raises(NotAllowed, match="disabled here"):
        runs.begin_study(TOML)


def test_depth_and_difficulty_opens_on_the_bundled_study_and_says_what_is_computed(opened):
    test = opened.switch_page("pages/studies/difficulty.py").run()
    assert not test.exception and test.selectbox(key="difficulty.study").options == ["small", "toys"]
    kinds = test.segmented_control(key="difficulty.kind")
    assert kinds.options == ["KL", "overlap"] and kinds.value == "kl", "the small one skips no layers"
    test.selectbox(key="difficulty.study").set_value("toys").run()
    for kind in difficulty.READS:
        test.segmented_control(key="difficulty.kind").set_value(kind).run()
        found = [difficulty.look(open_folder(STUDIES / "toys"), m, "sums", kind) for m in ("ed-demo-8", "ed-demo-16")]
        for one in found:
            line = plotted(test, 0)[one.label]
            most = one.n_layers - (kind in difficulty.KINDS)
            assert list(numbers(line["y"])) == pytest.approx([level.mean / most for level in one.levels])
            assert one.sentence in words(test)


def test_a_study_of_somebody_elses_is_opened_and_a_damaged_one_refused(computed, laboratory):
    data = bundle.packed(computed / "studies" / "small")
    test = fresh("pages/studies/studies.py").run()
    box = test.file_uploader(key="studies.bundle")
    box.set_value(("small.edstudy", data[:-50], "application/zip")).run()
    assert "not a study of this program" in test.error[0].value and not list(laboratory.glob("studies/*"))
    test.file_uploader(key="studies.bundle").set_value(("small.edstudy", data, "application/zip")).run()
    assert not test.error and test.selectbox(key="studies.study").value == "small"
    there = open_folder(laboratory / "studies" / "small")
    assert there.digest() == open_folder(computed / "studies" / "small").digest()
    with pytest.raises(ImportRefused, match="is a study small here already"):
        studies.take_in(data)


# ---------------------------------------------------------------- beside what is published


@pytest.fixture
def toys(laboratory):
    """The page on the bundled study."""
    return fresh("pages/studies/studies.py", study="toys").run()


def test_the_published_table_stands_beside_what_was_measured(toys):
    assert not toys.exception and not toys.error
    frame = table(toys, "training")
    assert len(frame) == 2 + 36 and "2512.14064" in words(toys) and "stray dip" in words(toys)
    row = frame[(frame["model"] == "Qwen2.5-7B-Instruct") & (frame["set"] == "gsm8k")].iloc[0]
    assert [row[f"papers: {rule}, published"] for rule in ("cosine", "KL", "overlap")] == ["20", "25", "26"]
    rows = {
        (r["model"], r["criterion"], r["variant"]): r
        for r in tables.stored(open_folder(STUDIES / "toys")).to_pylist()
        if r["set"] == "sums"
    }
    for model in ("ed-demo-8", "ed-demo-16"):
        own = frame[(frame["model"] == model) & (frame["set"] == "sums")].iloc[0]
        assert own["mean depth, KL, measured"] == tables.cell(rows[model, "kl", "mean"])
        assert own["papers: KL, measured"] == tables.cell(rows[model, "kl", "paper"])


def test_precisions_are_shown_where_a_study_has_several(laboratory):
    text = TOML.replace('{source = "ed-demo-8", control = "untrained"}', '{source = "ed-demo-8", precision = "bf16"}')
    (laboratory / "s.toml").write_text(text.replace("small", "two"), encoding="utf-8")
    assert main(["study", str(laboratory / "s.toml"), "--out", str(laboratory / "studies" / "two")]) == 0
    test = fresh("pages/studies/studies.py", study="two").run()
    found = precisions.shifts(open_folder(laboratory / "studies" / "two"), "sums")
    assert not test.exception and len(found) == 10 and precisions.sentence(found) in words(test)
    assert list(table(test, "against")["of"])[:2] == ["average depth (KL)", "average depth (overlap)"]


# ---------------------------------------------------------------- over training


NINE = [f"{i} + {3 * i % 7} = " for i in range(9)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A cache folder with a training of three steps, and one beside it whose steps are of two trainings."""
    root, model = tmp_path_factory.mktemp("cache"), random_hf("llama")
    depth = DepthCallback(NINE, every=1, tokenizer=byte_tokenizer(), out=root / "studies" / "mine", share=None)
    for step in (0, 2, 30):
        depth.measure(model, step)
        model.lm_head.weight.data.mul_(1.5)
    return root


@pytest.fixture
def training(trained, monkeypatch):
    """The page on that training."""
    idle(monkeypatch, trained)
    return fresh("pages/studies/studies.py", study="mine").run()


def test_the_part_draws_the_tables_at_every_step_and_the_slider_chooses_one(training, trained):
    assert not training.exception and not training.error
    assert training.segmented_control(key="studies.view").value == "over training"
    folder = open_folder(trained / "studies" / "mine")
    labels = steps.series(folder)[""]
    rows = steps.depths(tables.verdict(folder).to_pylist(), labels, "prompts")
    depth, ratio, cosine, lens = charts(training)
    means = [row["depth"] for row in rows if (row["criterion"], row["variant"]) == ("kl", "mean")]
    np.testing.assert_allclose(numbers(traces(depth)["mean depth, KL"]["y"]), means)
    assert all(said in words(training) for said in steps.course(rows)) and len(steps.course(rows)) == 3
    assert READING in words(training), "how to read it, behind the figure's Details"
    for chart, measure in (
        (ratio, "contributions.layer_ratio"),
        (cosine, "contributions.layer_cos"),
        (lens, "logit_lens.kl"),
    ):
        z = steps.over_layers(folder, labels.values(), "prompts", measure)
        np.testing.assert_array_equal(numbers(chart["data"][0]["z"]), z)
        np.testing.assert_array_equal(numbers(traces(chart)["mean"]["x"]), z[:, 2])
    slider = training.select_slider(key="studies.step")
    assert slider.value == "30" and list(slider.options) == ["0", "2", "30"]
    slider.set_value("2").run()
    z = steps.over_layers(folder, labels.values(), "prompts", "contributions.layer_ratio")
    np.testing.assert_array_equal(numbers(traces(charts(training)[1])["mean"]["x"]), z[:, 1])
    training.segmented_control(key="studies.branch").set_value("attn").run()
    z = steps.over_layers(folder, labels.values(), "prompts", "contributions.attn_cos")
    np.testing.assert_array_equal(numbers(traces(charts(training)[2])["mean"]["x"]), z[:, 1])
    assert list(numbers(traces(charts(training)[0])["mean depth, KL"]["x"])) == pytest.approx(
        [np.log10(2) - 0.5, np.log10(2), np.log10(30)]
    )
    training.segmented_control(key="studies.axis").set_value("linear").run()
    assert list(numbers(traces(charts(training)[0])["mean depth, KL"]["x"])) == [0, 2, 30]


def test_steps_stand_beside_each_other_as_models_do(training):
    training.segmented_control(key="studies.view").set_value("side by side").run()
    assert not training.exception
    assert training.selectbox(key="studies.model").options == [
        "step 0",
        "step 2",
        "step 30",
    ]
    assert not training.get("select_slider") and training.selectbox(key="studies.curve")
