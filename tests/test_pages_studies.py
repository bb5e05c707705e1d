"""The Studies page: what it plots is what the study's tables hold, of one study, beside what is published, and over a
training's steps; a study is written, checked, started and stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from charts import charts, fresh, idle, numbers, traces, words
from pyarrow import parquet
from small_models import byte_tokenizer, random_hf
from streamlit.testing.v1 import AppTest
from workers import until

from ed_core.commands import main
from ed_core.errors import ImportRefused, NotAllowed, StudyError
from ed_core.figures import study_curves, study_depths, study_levels
from ed_core.figures.studies import LINES, THRESHOLD
from ed_core.sources import tokens
from ed_core.sources.bundled import STUDIES
from ed_core.sources.catalogue import CAVEATS, CITATION, PAIRS, published, published_marks
from ed_core.studies import bundle, difficulty, items, leaderboard, points, steps, study, tables, trends
from ed_core.studies import plan as planning
from ed_core.studies.form import levels_of
from ed_core.studies.items import open_folder
from ed_core.training import DepthCallback
from ed_core.work.estimate import duration
from ed_ui import runs, show, studies
from ed_ui.study_panels import CRITERIA, READING

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
    summary = parquet.read_table(computed / "studies" / "small" / "summary.parquet").to_pylist()
    curves = plotted(opened, 2)
    for label in ("ed-demo-8", "ed-demo-8, untrained twin, seed 0"):
        own = [r for r in summary if r["set"] == "sums" and r["model"] == label and r["measure"] == "kl"]
        assert list(numbers(curves[label]["y"])) == [r["value"] for r in own] and len(own) == 9
    opened.selectbox(key="studies.set").set_value("sums/3").run()
    level = [r for r in rows if r["set"] == "sums/3" and r["variant"] in ("mean", "paper") and r["criterion"] == "kl"]
    assert list(numbers(plotted(opened, 0)["KL"]["x"])) == [r["ratio"] for r in level]
    assert level[0]["prompts"] == 4


def test_a_study_without_depths_shows_its_curves(laboratory):
    """It said that nothing was computed yet."""
    (laboratory / "skips.toml").write_text(TOML.replace('["contributions", "logit_lens"]', '["layer_skip"]'))
    assert main(["study", str(laboratory / "skips.toml"), "--out", str(laboratory / "studies" / "small")]) == 0
    page = fresh("pages/studies/studies.py").run()
    assert not page.exception and not page.info and "layer_skip.output" in page.selectbox(key="studies.curve").options


def test_whose_estimates_stand_there_is_in_the_link(opened):
    first, *_, last = opened.selectbox(key="studies.model").options
    opened.selectbox(key="studies.model").set_value(last).run()
    assert opened.query_params["models"] == last != first
    other = fresh("pages/studies/studies.py", models=last)
    assert not other.run().exception and other.selectbox(key="studies.model").value == last


def test_published_depths_stand_beside_with_what_they_are_worth(opened):
    model = published()[0].model.rsplit("/", 1)[-1]
    opened.selectbox(key="studies.published").set_value(model).run()
    found, marks = plotted(opened, 0), published_marks(model)
    crosses = [x for name in ("cosine", "kl", "overlap") for x in numbers(found[f"published {name}"]["x"])]
    assert sorted(crosses) == sorted(ratio for *_, ratio, _ in marks) and crosses
    worth = f"Published: {CITATION}. {' '.join(CAVEATS)}"
    assert [caption.value for caption in opened.caption].count(worth) == 2, "at these marks, and at the table"


def form(test: AppTest) -> dict[str, object]:
    """What the boxes of the form for a new study hold."""
    found = {box.key: box.value for kind in ("multiselect", "number_input", "text_input") for box in test.get(kind)}
    return {name: found[f"study.{name}"] for name in ("name", "models", "twins", "sets", "prompts", "probes")}


def toml(test: AppTest) -> study.Study:
    return study.parse(test.text_area(key="studies.text").value)


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
    prompts = 2 * (5 + levels_of("copy"))
    assert plan.n_prompts == prompts and f"6 models · {prompts} prompts · {plan.n_items} parts · about" in told
    assert duration(planning.seconds_of(plan)[0]) in told
    assert f"{planning.bytes_of(plan) / 1e6:.1f} MB on the disk" in told
    lengths = [len(tokens.preview(plan.usable[0].known, e.prompt)) for e in plan.sets[0].examples]
    assert f"10 prompts of 5 levels of {min(lengths)} to {max(lengths)} tokens" in told
    shown = [code.value for code in opened.code]
    assert f"{plan.sets[1].examples[0].prompt.text}▸{plan.sets[1].examples[0].prompt.answer}" in shown
    begun = []
    monkeypatch.setattr(runs, "begin", lambda folder, title, files, *_: begun.append((folder.name, files)))
    opened.button(key="studies.start").click().run()
    assert begun[0][0] == "by-hand" and study.parse(begun[0][1]["asked.toml"].decode()) == written


def test_a_file_fills_the_form_and_says_what_the_form_does_not_show(opened):
    opened.text_area(key="studies.text").set_value(TOML.replace("[2, 3]", "[2, 3, 4]")).run()
    assert form(opened) == {
        "name": "small",
        "models": ["ed-demo-8"],
        "twins": 1,
        "sets": ["sum_mod10"],
        "prompts": 12,
        "probes": ["contributions", "logit_lens"],
    }
    told = [c.value.replace("\\", "") for c in opened.caption]
    assert "The form does not show, and keeps: levels of the set sums." in told
    assert any("A study small is here already" in one for one in told)
    opened.number_input(key="study.prompts").set_value(30).run()
    assert toml(opened).sets[0].levels == ("2", "3", "4") and toml(opened).sets[0].per_level == 10


def test_a_form_without_a_choice_leaves_the_file_and_does_not_run(opened):
    before = toml(opened)
    opened.multiselect(key="study.sets").set_value([]).run()
    assert toml(opened) == before and opened.button(key="studies.start").disabled
    assert any("Choose at least one prompt set" in one.value for one in opened.info)
    opened.multiselect(key="study.sets").set_value(["copy"]).run()
    assert toml(opened).sets[0].bundled == "copy" and not opened.button(key="studies.start").disabled
    assert not opened.info


def test_sets_of_the_hub_are_not_asked_for_before_the_study_runs(opened, monkeypatch):
    monkeypatch.setattr(planning, "make", lambda *_: pytest.fail("a set of the hub was looked for"))
    opened.multiselect(key="study.sets").set_value(["gsm8k"]).run()
    assert toml(opened).sets[0].hub == "gsm8k" and not opened.exception and not opened.error
    assert "gsm8k: read from the hub when it runs, not counted here" in words(opened)


def test_a_text_that_is_no_study_is_refused_on_the_page(opened):
    opened.text_area(key="studies.text").set_value('name = "x"\nmodle = 3\n').run()
    assert "has no key 'modle'" in opened.error[0].value.replace("\\", "")
    assert opened.button(key="studies.start").disabled and opened.multiselect(key="study.sets").disabled
    opened.text_area(key="studies.text").set_value(TOML.replace("sum_mod10", "sum_mod11")).run()
    assert "did you mean 'sum_mod10'?" in opened.error[0].value.replace("\\", "")
    opened.text_area(key="studies.text").set_value(TOML.replace('"small"', '"toys"')).run()
    opened.button(key="studies.start").click().run()
    assert "comes with the program" in opened.error[0].value and not (items.home() / "toys").exists()


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
    there = len(list(out.glob("items/*/*.parquet")))
    assert there < 12 and studies.known()[name] == out
    test = fresh("pages/studies/studies.py").run()
    assert test.button(key="run.studies").label == "Resume" and not test.error
    test.button(key="run.studies").click().run()
    until(lambda: not runs.under_way(out))
    assert len(list(out.glob("items/*/*.parquet"))) == 12 and "measures" in runs.of(out).result
    assert (out / "report.md").is_file()


@pytest.mark.parametrize("file", ["asked.toml", "plan.json"])
def test_a_study_takes_no_other_ones_folder(computed, laboratory, file):
    out = laboratory / "studies" / "my-study"
    shutil.copytree(computed / "studies" / "small", out)
    mine, other = (TOML.replace('"small"', f'"{name}"') for name in ("my study", "my-study"))
    plan = json.loads((out / "plan.json").read_text()) | {"name": "my-study"}
    for one in ("asked.toml", "plan.json"):
        (out / one).unlink(missing_ok=True)
    (out / file).write_text({"asked.toml": other, "plan.json": json.dumps(plan)}[file])
    before = {one.name: one.read_bytes() for one in out.iterdir() if one.is_file()}
    with pytest.raises(StudyError, match="The study 'my-study' lies in the folder my-study, as this one would"):
        runs.begin_study(mine)
    assert before == {one.name: one.read_bytes() for one in out.iterdir() if one.is_file()}


def test_a_study_made_here_stands_before_a_shipped_one_of_its_name(laboratory):
    assert "toys" in studies.known()
    own = laboratory / "studies" / "toys"
    own.mkdir(parents=True)
    (own / "plan.json").write_text("{}")
    assert studies.known()["toys"] == own


def test_an_installation_may_run_no_studies_and_keeps_to_its_models(laboratory, monkeypatch):
    monkeypatch.setenv("ED_STUDIES", "false")
    with pytest.raises(NotAllowed, match="disabled here"):
        runs.begin_study(TOML)
    monkeypatch.delenv("ED_STUDIES")
    monkeypatch.setenv("ED_MODELS", "ed-demo-16")
    out = laboratory / "studies" / runs.begin_study(TOML)
    until(lambda: not runs.under_way(out))
    assert not list(out.glob("items/*/*")) and "No model of" in str(runs.of(out).error)


def test_a_study_is_read_anew_only_where_something_was_added(computed, monkeypatch):
    monkeypatch.setenv("ED_CACHE", str(computed))
    out = computed / "studies" / "small"
    assert studies.read(out) is studies.read(out)
    before = studies.read(out)
    file = next(out.glob("items/*/*.parquet"))
    aside = file.rename(file.with_suffix(".aside"))
    try:
        assert studies.read(out) is not before
    finally:
        aside.rename(file)


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


def test_marks_stand_at_the_ratio_and_say_what_is_not_defined():
    row = {"model": "m<b>", "set": "s", "variant": "paper", "prompts": 9, "n_layers": 10, "undefined": 0.2}
    rows = [
        row | {"criterion": "kl", "depth": 4.0, "ratio": 0.5, "low": 3.0, "high": 6.0},
        row | {"criterion": "cosine", "depth": None, "ratio": None, "low": None, "high": None},
        row | {"criterion": "kl", "variant": "stable", "depth": 5.0, "ratio": 0.6, "low": None, "high": None},
        row | {"criterion": "kl", "variant": "mean", "depth": 4.5, "ratio": 0.45, "low": 4.0, "high": 5.0},
    ]
    fig = study_depths(rows, "model")
    kl = next(t for t in fig.data if t.name == "KL")
    assert list(kl.x) == [0.5, 0.6, 0.45] and kl.error_x.array[0] == pytest.approx(0.2)
    assert kl.error_x.arrayminus[0] == pytest.approx(0.1) and kl.error_x.array[1] == 0
    assert kl.marker.color[0] != kl.marker.color[1] == "rgba(0,0,0,0)"
    assert kl.error_x.array[2] == pytest.approx(0.05) == kl.error_x.arrayminus[2], "a depth is no layer"
    assert list(kl.marker.symbol) == ["diamond", "diamond", "circle"] and "depth 4.5 of 10, 0.45" in kl.text[2]
    assert "layer 4 of 10" in kl.text[0] and "3 to 6" in kl.text[0] and "20 %" in kl.text[0]
    assert "&lt;b&gt;" in kl.text[0]
    assert [a.text for a in fig.layout.annotations] == ["m&lt;b&gt; · cosine: not defined"]


def test_curves_of_models_of_unequal_depth_stand_on_relative_depth():
    nothing = np.full(5, np.nan)
    fig = study_curves(
        {"a": (np.arange(5.0), nothing, nothing), "b": (np.arange(3.0), np.arange(3.0) - 1, np.arange(3.0) + 1)},
        {"a": 4, "b": 2},
        "nats",
    )
    by_name = {t.name: t for t in fig.data}
    assert list(by_name["a"].x) == [0, 0.25, 0.5, 0.75, 1] and list(by_name["b"].x) == [0, 0.5, 1]
    assert "range a" not in by_name and list(by_name["range b"].y) == [1, 2, 3, 1, 0, -1]


def test_twins_are_thin_and_grey_behind_the_models_and_have_one_name():
    one = (np.arange(5.0),) * 3
    layers = {"a": 4, "b": 4}
    twins = {"a": np.arange(5.0) + 1, "b": np.arange(5.0) + 2}
    fig = study_curves({"a": one, "b": one}, layers, "nats", twins=twins)
    grey, models = fig.data[:2], [t for t in fig.data if t.name in layers]
    assert [list(t.y) for t in grey] == [list(values) for values in twins.values()], "behind: drawn first"
    assert all(t.line.width < model.line.width for t in grey for model in models)
    named = [t.name for t in fig.data if t.showlegend is not False]
    assert set(named) == {"untrained twins", "a", "b"} and {t.legendgroup for t in grey} == {"untrained twins"}
    assert [t.text[0].partition("<br>")[0] for t in grey] == ["untrained twin of a", "untrained twin of b"]
    many = {f"model {i}": one for i in range(len(LINES))}
    drawn = study_curves(many, dict.fromkeys(many, 4), "nats", twins={name: np.arange(5.0) for name in many})
    lines = [t.line.color for t in drawn.data if t.name in many]
    assert lines[: len(LINES) - 1] == [colour for colour in LINES if colour != THRESHOLD], "every other colour, in turn"


def test_a_legend_of_many_lines_makes_its_own_room():
    """On a phone every name takes a row: the figure grows by that many, and no name is longer than a row."""
    name = "a name that goes on and on, longer than anybody wants it to be"
    curves = {f"{i} {name}": (np.arange(5.0),) * 3 for i in range(8)}
    level = {"name": "1", "mean": 1.0, "low": 0.5, "high": 1.5, "own": []}
    for fig, height in (
        (study_curves(curves, dict.fromkeys(curves, 4), "nats"), 340),
        (study_levels(dict.fromkeys(curves, [level]), dict.fromkeys(curves, 4)), 360),
    ):
        assert fig.layout.margin.autoexpand and fig.layout.height == height + 6 * 19
        told = [t.name for t in fig.data if t.showlegend is None]
        assert len(told) == 8 and all(t.startswith(f"{i} a name") and len(t) == 44 for i, t in enumerate(told))
    two = study_curves(dict(list(curves.items())[:2]), dict.fromkeys(curves, 4), "nats")
    assert two.layout.height == 340


def test_a_study_of_somebody_elses_is_opened_and_a_damaged_one_refused(computed, laboratory):
    data = bundle.packed(computed / "studies" / "small")
    test = fresh("pages/studies/studies.py").run()
    box = test.file_uploader(key="studies.bundle")
    box.set_value(("small.edstudy", data[:-50], "application/zip")).run()
    assert "not a study as this program writes it" in test.error[0].value and not list(laboratory.glob("studies/*"))
    test.file_uploader(key="studies.bundle").set_value(("small.edstudy", data, "application/zip")).run()
    assert not test.error and test.selectbox(key="studies.study").value == "small"
    there = open_folder(laboratory / "studies" / "small")
    assert items.digest(there.out, there.keys()) == items.digest(computed / "studies" / "small", there.keys())
    with pytest.raises(ImportRefused, match="is a study small here already"):
        studies.take_in(data)


def test_a_place_that_runs_no_studies_takes_none_in(computed, laboratory, monkeypatch):
    monkeypatch.setenv("ED_STUDIES", "false")
    with pytest.raises(NotAllowed, match="takes no studies from the browser"):
        studies.take_in(bundle.packed(computed / "studies" / "small"))


# ---------------------------------------------------------------- beside what is published


@pytest.fixture
def toys(laboratory):
    """The page on the bundled study."""
    return fresh("pages/studies/studies.py", study="toys").run()


def test_a_link_to_a_model_or_curve_that_a_study_has_not_says_so(laboratory):
    test = fresh("pages/studies/studies.py", study="toys", models="a, b", curve="logit_lens.none").run()
    told = " ".join(w.value for w in test.warning)
    assert "the model 'a, b', which is not here" in told and show.plain("the curve 'logit_lens.none'") in told
    test = fresh("pages/studies/studies.py", study="toys", models="ed-demo-16", curve="contributions.layer_cos").run()
    assert not test.warning and not test.exception


def against_size(test: AppTest) -> list[dict]:
    """The traces of the figure against size."""
    specs = charts(test)
    return next(spec["data"] for spec in specs if "parameters" in spec["layout"]["xaxis"]["title"]["text"])


def test_the_published_table_stands_beside_what_was_measured(toys):
    assert not toys.exception and not toys.error
    frame = toys.dataframe[0].value
    assert len(frame) == 2 + 36 and "2512.14064" in words(toys) and "stray dip" in words(toys)
    row = frame[(frame["model"] == "Qwen2.5-7B-Instruct") & (frame["set"] == "gsm8k")].iloc[0]
    assert [row[f"papers: {rule}, published"] for rule in ("cosine", "KL", "overlap")] == ["20", "25", "26"]
    measured = points.measured_points(open_folder(STUDIES / "toys"), "sums")
    for p in measured:
        own = frame[(frame["model"] == p.model) & (frame["set"] == "sums")].iloc[0]
        assert own[f"{CRITERIA[p.criterion]}, measured"] == points.in_words(p)


def test_what_is_chosen_is_what_is_listed_drawn_and_spoken_of(toys):
    assert "Published depths exist for the papers' rules alone" in words(toys)
    toys.segmented_control(key="studies.criterion").set_value("overlap")
    toys.selectbox(key="studies.published_set").set_value("aime24")
    toys.selectbox(key="studies.training").set_value("instruct")
    toys.selectbox(key="studies.size").set_value("3B to 10B").run()
    frame = toys.dataframe[0].value
    assert [(r["model"], r["set"]) for _, r in frame.iterrows()] == [("Qwen2.5-7B-Instruct", "aime24")]
    toys.selectbox(key="studies.size").set_value("all").run()
    some = [
        p for p in points.published_points() if (p.set, p.training, p.criterion) == ("aime24", "instruct", "overlap")
    ]
    marks, line = against_size(toys)
    assert list(numbers(marks["x"])) == [p.parameters for p in some]
    assert list(numbers(marks["y"])) == [p.ratio for p in some]
    found = trends.slope(some)
    assert list(numbers(line["y"])) == [found.start[1], found.end[1]] and found.sentence in words(toys)


def test_every_rule_has_its_own_sentences_on_size_and_pairs(toys):
    for criterion in ("cosine", "kl"):
        toys.segmented_control(key="studies.criterion").set_value(criterion).run()
        own = [p for p in points.published_points() if p.criterion == criterion]
        assert trends.slope(own).sentence in words(toys)
        told = trends.over_pairs(own, PAIRS, "the base model", "the long-chain-of-thought model")
        assert told.sentence in words(toys)
        assert all(trends.difference(own, *pair).sentence in words(toys) for pair in PAIRS)
    toys.segmented_control(key="studies.criterion").set_value("mean_kl").run()
    measured = [p for p in points.measured_points(open_folder(STUDIES / "toys"), "sums") if p.criterion == "mean_kl"]
    assert trends.slope(measured).sentence in words(toys)
    assert trends.difference(measured, "ed-demo-8", "ed-demo-16").sentence in words(toys)
    toys.selectbox(key="studies.base").set_value("ed-demo-16").run()
    assert trends.difference(measured, "ed-demo-16", "ed-demo-8").sentence in words(toys)


def test_scores_stand_against_layers_with_size_and_width_held_equal_or_not(toys):
    def of_figure(test):
        return next(
            c["data"]
            for c in charts(test)
            if c["layout"]["xaxis"]["title"]["text"] == "layers"
            and any(t.get("name") == "in the fits" for t in c["data"])
        )

    every = leaderboard.entries()
    sized = leaderboard.fit(every, "average", (leaderboard.SIZE,))
    assert sized.sentence.replace("−", "-") in words(toys).replace("−", "-")
    assert "2505.13898" in words(toys) and "not published" in words(toys)
    shown = {t["name"]: t for t in of_figure(toys)}
    assert len(numbers(shown["in the fits"]["x"])) == 102 and "size held fixed" in shown
    toys.segmented_control(key="studies.held").set_value("both").run()
    assert not toys.exception and "Interval and bootstrap do not both exclude 0" in words(toys)
    toys.segmented_control(key="studies.held").set_value("none").run()
    assert not any("held fixed" in t["name"] for t in of_figure(toys))
    toys.selectbox(key="studies.score").set_value("math_lvl5").run()
    assert leaderboard.fit(every, "math_lvl5").sentence in words(toys)


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
    summary = tables.summary(folder).to_pylist()
    for chart, measure in (
        (ratio, "contributions.layer_ratio"),
        (cosine, "contributions.layer_cos"),
        (lens, "logit_lens.kl"),
    ):
        z = steps.over_layers(summary, labels, "prompts", measure)
        np.testing.assert_array_equal(numbers(chart["data"][0]["z"]), z)
        np.testing.assert_array_equal(numbers(traces(chart)["mean"]["x"]), z[:, 2])
    slider = training.select_slider(key="studies.step")
    assert slider.value == "30" and list(slider.options) == ["0", "2", "30"]
    slider.set_value("2").run()
    z = steps.over_layers(summary, labels, "prompts", "contributions.layer_ratio")
    np.testing.assert_array_equal(numbers(traces(charts(training)[1])["mean"]["x"]), z[:, 1])
    training.segmented_control(key="studies.branch").set_value("attn").run()
    z = steps.over_layers(summary, labels, "prompts", "contributions.attn_cos")
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


def test_a_step_in_a_link_that_is_none_gives_the_last(training):
    training.query_params["step"] = "7"
    training.run()
    assert not training.exception and training.select_slider(key="studies.step").value == "30"


def test_two_trainings_are_chosen_between_and_other_studies_have_no_switch(training, trained, monkeypatch, tmp_path):
    shutil.copytree(trained / "studies" / "mine", tmp_path / "studies" / "two")
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
