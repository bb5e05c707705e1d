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
from test_pages import session_of
from workers import until

from ed_core import DepthCallback
from ed_core.cli import main
from ed_core.errors import ImportRefused, NotAllowed, StudyError
from ed_core.models.bundled import STUDIES
from ed_core.models.ref import ModelRef
from ed_core.studies import bundle, difficulty, items, precisions, steps, study, tables
from ed_core.studies import plan as planning
from ed_core.studies.items import open_folder
from ed_core.work.estimate import duration
from ed_ui import runs, studies

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
    return fresh("pages/studies/studies.py", study="small").run()


def dialog() -> AppTest:
    """The dialog of a new study, opened from the list."""
    test = fresh("pages/studies/studies.py").run()
    return test.button(key="studies.new").click().run()


def plotted(test: AppTest, n: int) -> dict[str, dict]:
    """The n-th figure's traces by name."""
    return traces(charts(test)[n])


def test_the_list_opens_a_report_that_plots_what_the_tables_hold(opened, computed):
    assert not opened.exception and not opened.error
    out = computed / "studies" / "small"
    rows = parquet.read_table(out / "verdict.parquet").to_pylist()
    of_set = [r for r in rows if r["set"] == "sums"]
    own, copy = (r for r in of_set if (r["criterion"], r["variant"]) == ("kl", "mean"))
    forest = plotted(opened, 0)
    assert list(numbers(forest["average depth, with its 90 % interval"]["x"])) == [own["ratio"]]
    assert list(numbers(forest["untrained copy"]["x"])) == [copy["ratio"]]
    said = studies.finding(open_folder(out), of_set)
    assert said in words(opened) and f"{abs(own['depth'] - copy['depth']):.1f} layers" in said
    listed = fresh("pages/studies/studies.py").run()
    assert not listed.exception and said in words(listed)
    listed.button(key="open.small").click().run()
    assert said in words(listed) and listed.query_params["study"] == "small"
    opened.segmented_control(key="studies.tab").set_value("Curves").run()
    summary = tables.summary(open_folder(out)).to_pylist()
    curves = plotted(opened, 1)
    for label in ("ed-demo-8", "ed-demo-8, untrained copy, seed 0"):
        own = [r for r in summary if r["set"] == "sums" and r["model"] == label and r["measure"] == "kl"]
        assert list(numbers(curves[label]["y"])) == [r["value"] for r in own] and len(own) == 9
    opened.selectbox(key="studies.set").set_value("sums/3").run()
    level = [r for r in rows if r["set"] == "sums/3" and (r["criterion"], r["variant"]) == ("kl", "mean")]
    assert list(numbers(plotted(opened, 0)["average depth, with its 90 % interval"]["x"])) == [level[0]["ratio"]]


def test_three_steps_write_the_study_that_runs_and_say_what_it_costs(opened, monkeypatch):
    test = dialog()
    test.multiselect(key="study.models").set_value(["ed-demo-8", "ed-demo-16"]).run()
    test.number_input(key="study.twins").set_value(2).run()
    test.button(key="study.next").click().run()
    test.multiselect(key="study.sets").set_value([]).run()
    assert "Choose at least one prompt set" in test.error[0].value and "parts" not in words(test)
    test.multiselect(key="study.sets").set_value(["sum_mod10", "copy"]).run()
    test.number_input(key="study.prompts").set_value(7).run()
    test.button(key="study.next").click().run()
    test.text_input(key="study.name").set_value("by hand").run()
    test.radio(key="study.preset").set_value("My own choice").run()
    test.multiselect(key="study.probes").set_value(["layer_skip"]).run()
    written = study.parse(next(code.value for code in test.code if code.language == "toml"))
    assert written.name == "by hand" and [p.name for p in written.probes] == ["layer_skip"]
    assert [(m.source, m.seed, m.control) for m in written.models if m.source == "ed-demo-16"] == [
        ("ed-demo-16", 0, ""),
        ("ed-demo-16", 0, "untrained"),
        ("ed-demo-16", 1, "untrained"),
    ]
    assert [(s.bundled, s.per_level) for s in written.sets] == [("sum_mod10", 2), ("copy", 2)]
    said = words(test)
    plan = planning.make(written, Path())
    prompts = 2 * (5 + len(plan.sets[1].levels))
    assert plan.n_prompts == prompts and f"6 models · {prompts} prompts · {plan.n_items} parts · about" in said
    assert duration(planning.seconds_of(plan)) in said
    begun = []
    monkeypatch.setattr(runs, "begin", lambda folder, title, files, *_: begun.append((folder.name, files)))
    test.button(key="studies.start").click().run()
    assert begun[0][0] == "by-hand" and study.parse(begun[0][1]["asked.toml"].decode()) == written


def test_a_file_that_is_edited_is_what_runs_and_what_is_no_study_is_refused(opened, monkeypatch):
    test = dialog()
    for _ in range(2):
        test.button(key="study.next").click().run()
    test.toggle(key="studies.by_hand").set_value(True).run()
    box = lambda text: test.text_area(key="studies.text").set_value(text).run()
    box('name = "x"\nmodle = 3\n')
    assert "has no key 'modle'" in words(test) and test.button(key="studies.start").disabled
    box(TOML.replace('"small"', '"toys"'))
    test.button(key="studies.start").click().run()
    assert "comes with the program" in test.error[0].value and not (items.home() / "toys").exists()
    box(TOML.replace("[2, 3]", "[2, 3, 4]"))
    begun = []
    monkeypatch.setattr(runs, "begin", lambda folder, title, files, *_: begun.append(files))
    test.button(key="studies.start").click().run()
    assert study.parse(begun[0]["asked.toml"].decode()).sets[0].levels == ("2", "3", "4")


@pytest.mark.process
def test_a_study_that_is_started_runs_by_itself_and_a_stopped_one_goes_on(laboratory, monkeypatch):
    many = "chunk = 2\n" + TOML.replace("[2, 3]", "[2, 3, 4]") + "\n"
    monkeypatch.setenv("ED_TEST_STEP_DELAY", "0.01")  # so that there is time to stop it
    name = runs.begin_study(many)
    out = laboratory / "studies" / name
    with pytest.raises(StudyError, match="under way already"):
        runs.begin_study(many)
    until(lambda: list(out.glob("items/*/*.parquet")))
    test = fresh("pages/studies/studies.py", study=name).run()
    assert "run.studies" not in {b.key for b in test.button}, "Cancel takes its place"
    test.button(key="cancel.studies").click().run()
    until(lambda: not runs.under_way(out))
    monkeypatch.delenv("ED_TEST_STEP_DELAY")
    assert len(list(open_folder(out).item_keys())) < 12 and studies.known()[name] == out
    test = fresh("pages/studies/studies.py", study=name).run()
    assert test.button(key="run.studies").label == "Resume" and not test.error
    test.button(key="run.studies").click().run()
    until(lambda: not runs.under_way(out))
    assert len(list(open_folder(out).item_keys())) == 12 and "measures" in runs.of(out).result
    assert (out / "report.md").is_file()


def test_a_hosted_installation_runs_no_studies_and_fits_nothing(laboratory, monkeypatch):
    monkeypatch.setenv("ED_HOSTED", "true")
    for begin in (lambda: runs.begin_study(TOML), runs.Fitted((ModelRef.parse("ed-demo-8"),), ()).begin):
        with pytest.raises(NotAllowed, match="disabled here"):
            begin()


def test_difficulty_says_what_is_computed(laboratory):
    for kind in difficulty.READS:
        test = fresh("pages/studies/studies.py", study="toys", tab="Difficulty", effect=kind).run()
        assert not test.exception
        found = [difficulty.look(open_folder(STUDIES / "toys"), m, "sums", kind) for m in ("ed-demo-8", "ed-demo-16")]
        for one in found:
            line = plotted(test, 1)[one.label]
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
    assert not test.error and session_of(test).inputs["studies.study"] == "small"
    there = open_folder(laboratory / "studies" / "small")
    assert there.digest() == open_folder(computed / "studies" / "small").digest()
    with pytest.raises(ImportRefused, match="is a study small here already"):
        studies.take_in(data)


def test_the_published_table_stands_beside_what_was_measured(laboratory):
    test = fresh("pages/studies/studies.py", study="toys", tab="Published").run()
    assert not test.exception and not test.error
    frame = next(one.value for one in test.dataframe if "training" in one.value)
    assert len(frame) == 2 + 36 and "2512.14064" in words(test)
    row = frame[(frame["model"] == "Qwen2.5-7B-Instruct") & (frame["set"] == "gsm8k")].iloc[0]
    assert [row[f"{rule} rule, published"] for rule in ("Cosine", "KL", "Overlap")] == ["20", "25", "26"]
    rows = {
        (r["model"], r["criterion"], r["variant"]): r
        for r in tables.stored(open_folder(STUDIES / "toys")).to_pylist()
        if r["set"] == "sums"
    }
    for model in ("ed-demo-8", "ed-demo-16"):
        own = frame[(frame["model"] == model) & (frame["set"] == "sums")].iloc[0]
        assert own["average depth, KL, measured"] == tables.cell(rows[model, "kl", "mean"])
        assert own["KL rule, measured"] == tables.cell(rows[model, "kl", "paper"])


def test_estimators_are_drawn_where_a_rule_gives_a_layer_at_nearby_thresholds_only(laboratory):
    test = fresh("pages/studies/studies.py", study="toys", tab="Estimators", models="ed-demo-16", set="sums").run()
    assert not test.exception and not test.error
    assert "Three published rules say no layer, layer 7 and layer 5" in words(test)


def test_precisions_are_shown_where_a_study_has_several(laboratory):
    text = TOML.replace('{source = "ed-demo-8", control = "untrained"}', '{source = "ed-demo-8", precision = "bf16"}')
    (laboratory / "s.toml").write_text(text.replace("small", "two"), encoding="utf-8")
    assert main(["study", str(laboratory / "s.toml"), "--out", str(laboratory / "studies" / "two")]) == 0
    test = fresh("pages/studies/studies.py", study="two", tab="Precisions").run()
    found = precisions.shifts(open_folder(laboratory / "studies" / "two"), "sums")
    assert not test.exception and len(found) == 10 and precisions.sentence(found) in words(test)
    assert any("against" in one.value for one in test.dataframe)


def test_the_part_draws_the_tables_at_every_step_and_the_slider_chooses_one(laboratory):
    model, nine = random_hf("llama"), [f"{i} + {3 * i % 7} = " for i in range(9)]
    depth = DepthCallback(nine, every=1, tokenizer=byte_tokenizer(), out=laboratory / "studies" / "mine")
    for step in (0, 2, 30):
        depth.measure(model, step)
        model.lm_head.weight.data.mul_(1.5)
    training = fresh("pages/studies/studies.py", study="mine").run()
    assert not training.exception and not training.error
    folder = open_folder(laboratory / "studies" / "mine")
    labels = steps.series(folder)[""]
    rows = steps.depths(tables.verdict(folder).to_pylist(), labels, "prompts")
    depth, ratio, cosine, lens = charts(training)[:4]
    means = [row["depth"] for row in rows if (row["criterion"], row["variant"]) == ("kl", "mean")]
    np.testing.assert_allclose(numbers(traces(depth)["average depth, KL"]["y"]), means)
    assert all(said in words(training) for said in steps.course(rows)) and len(steps.course(rows)) == 3

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
    training.segmented_control(key="studies.axis").set_value("linear").run()
    assert list(numbers(traces(charts(training)[0])["average depth, KL"]["x"])) == [0, 2, 30]
