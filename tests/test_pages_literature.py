"""The Studies page beside what is published: what it lists, draws and says is what the table and the study hold."""

from __future__ import annotations

import pytest
from charts import charts, fresh, numbers, words
from streamlit.testing.v1 import AppTest

from ed_core.sources.bundled import STUDIES
from ed_core.sources.catalogue import PAIRS
from ed_core.studies import points, trends
from ed_core.studies.items import open_folder
from ed_ui.study_panels import CRITERIA


@pytest.fixture
def opened(laboratory):
    """The page on the bundled study."""
    return fresh("pages/studies/studies.py", study="toys").run()


def drawn(test: AppTest) -> list[dict]:
    """The traces of the figure against size."""
    specs = charts(test)
    return next(spec["data"] for spec in specs if "parameters" in spec["layout"]["xaxis"]["title"]["text"])


def test_the_published_table_stands_beside_what_was_measured(opened):
    assert not opened.exception and not opened.error
    frame = opened.dataframe[0].value
    assert len(frame) == 2 + 36 and "2512.14064" in words(opened) and "stray dip" in words(opened)
    row = frame[(frame["model"] == "Qwen2.5-7B-Instruct") & (frame["set"] == "gsm8k")].iloc[0]
    assert [row[f"papers: {rule}, published"] for rule in ("cosine", "KL", "overlap")] == ["20", "25", "26"]
    measured = points.measured_points(open_folder(STUDIES / "toys"), "sums")
    for p in measured:
        own = frame[(frame["model"] == p.model) & (frame["set"] == "sums")].iloc[0]
        assert own[f"{CRITERIA[p.criterion]}, measured"] == points.in_words(p)


def test_what_is_chosen_is_what_is_listed_drawn_and_spoken_of(opened):
    assert "Published depths exist for the papers' rules alone" in words(opened)
    opened.segmented_control(key="studies.criterion").set_value("overlap")
    opened.selectbox(key="studies.published_set").set_value("aime24")
    opened.selectbox(key="studies.training").set_value("instruct")
    opened.selectbox(key="studies.size").set_value("3B to 10B").run()
    frame = opened.dataframe[0].value
    assert [(r["model"], r["set"]) for _, r in frame.iterrows()] == [("Qwen2.5-7B-Instruct", "aime24")]
    opened.selectbox(key="studies.size").set_value("all").run()
    some = [
        p for p in points.published_points() if (p.set, p.training, p.criterion) == ("aime24", "instruct", "overlap")
    ]
    marks, line = drawn(opened)
    assert list(numbers(marks["x"])) == [p.parameters for p in some]
    assert list(numbers(marks["y"])) == [p.ratio for p in some]
    found = trends.slope(some)
    assert list(numbers(line["y"])) == [found.start[1], found.end[1]] and found.sentence in words(opened)


def test_every_rule_has_its_own_sentences_on_size_and_pairs(opened):
    for criterion in ("cosine", "kl"):
        opened.segmented_control(key="studies.criterion").set_value(criterion).run()
        own = [p for p in points.published_points() if p.criterion == criterion]
        assert trends.slope(own).sentence in words(opened)
        told = trends.over_pairs(own, PAIRS, "the base model", "the long-chain-of-thought model")
        assert told.sentence in words(opened)
        assert all(trends.difference(own, *pair).sentence in words(opened) for pair in PAIRS)
    opened.segmented_control(key="studies.criterion").set_value("mean_kl").run()
    measured = [p for p in points.measured_points(open_folder(STUDIES / "toys"), "sums") if p.criterion == "mean_kl"]
    assert trends.slope(measured).sentence in words(opened)
    assert trends.difference(measured, "ed-demo-8", "ed-demo-16").sentence in words(opened)
    opened.selectbox(key="studies.base").set_value("ed-demo-16").run()
    assert trends.difference(measured, "ed-demo-16", "ed-demo-8").sentence in words(opened)


def test_scores_stand_against_layers_with_size_and_width_held_equal_or_not(opened):
    from ed_core.studies import leaderboard

    def of_figure(test):
        return next(
            c["data"]
            for c in charts(test)
            if c["layout"]["xaxis"]["title"]["text"] == "layers"
            and any(t.get("name") == "in the fits" for t in c["data"])
        )

    every = leaderboard.entries()
    sized = leaderboard.fit(every, "average", (leaderboard.SIZE,))
    assert sized.sentence.replace("−", "-") in words(opened).replace("−", "-")
    assert "2505.13898" in words(opened) and "not published" in words(opened)
    shown = {t["name"]: t for t in of_figure(opened)}
    assert len(numbers(shown["in the fits"]["x"])) == 102 and "size held fixed" in shown
    opened.segmented_control(key="studies.held").set_value("both").run()
    assert not opened.exception and "Interval and bootstrap do not both exclude 0" in words(opened)
    opened.segmented_control(key="studies.held").set_value("none").run()
    assert not any("held fixed" in t["name"] for t in of_figure(opened))
    opened.selectbox(key="studies.score").set_value("math_lvl5").run()
    assert leaderboard.fit(every, "math_lvl5").sentence in words(opened)
