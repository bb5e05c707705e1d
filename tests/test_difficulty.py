"""Depth scores by level: made-up effects whose scores are known beforehand, and what the sentence may say of them."""

from __future__ import annotations

import numpy as np
import pytest

from ed_core.errors import StudyError
from ed_core.figures import study_levels
from ed_core.sources.bundled import STUDIES
from ed_core.studies import difficulty, tables
from ed_core.studies.folder import Folder, Sums, open_folder

L = 8


class Made(Folder):
    """A study whose prompts each have one layer that matters: the depth score is that layer."""

    def __init__(self, layers: dict[str, list[int]], pairs: bool = False, skips: bool = True):
        flat = [(level, layer) for level, of_level in layers.items() for layer in of_level]
        one = {
            "name": "made",
            "ids": [str(i) for i in range(len(flat))],
            "levels": [level for level, _ in flat],
            "pairs": [str(i) for of_level in layers.values() for i in range(len(of_level))] if pairs else [],
        }
        plan = {"models": [{"label": "m"}], "sets": [one], "seed": 0, "probes": [{"name": "layer_skip"}]}
        object.__setattr__(self, "plan", plan)
        effect, output = np.zeros((len(flat), L, L)), np.zeros((len(flat), L))
        for i, (_, layer) in enumerate(flat):
            effect[i, layer, layer + 1 :] = 1.0
            output[i, layer] = 0.5
        n = np.full(len(flat), 30.0)
        columns = {"layer_skip.n_tokens": n, "layer_skip.effect": effect, "layer_skip.output": output}
        object.__setattr__(self, "made", Sums(columns if skips else {}, np.arange(len(flat))))

    def sums(self, label, name):
        return self.made


RISING = {"1": [2] * 6, "2": [3] * 6, "3": [4] * 6}


@pytest.mark.parametrize("kind", difficulty.KINDS)
@pytest.mark.parametrize("pairs", [True, False])
def test_scores_that_rise_by_a_layer_a_level_are_seen_as_that(kind, pairs):
    found = difficulty.look(Made(RISING, pairs), "m", "made", kind)
    assert [level.mean for level in found.levels] == [level.maximum for level in found.levels] == [2, 3, 4]
    assert [(level.low, level.high) for level in found.levels] == [(2, 2), (3, 3), (4, 4)]
    trend = found.trend
    assert (trend.first, trend.last, trend.slope, trend.low, trend.high) == (2, 4, 1, 1, 1)
    assert trend.paired == (6 if pairs else 0)
    assert "goes from 2.00 to 4.00 of 8 layers" in found.sentence and "has +1.00 a level" in found.sentence
    assert found.sentence.endswith("Harder prompts go deeper here.")


@pytest.mark.parametrize(
    "layers, pairs, ends, never",
    [
        ({"1": [4] * 6, "2": [2] * 6}, True, "Harder prompts go less deep here.", "deeper here"),
        (
            {"1": [3] * 20, "2": [3] * 14 + [4] * 6},
            True,
            "go deeper here, by less than one layer from the first level to the last.",
            "cannot be told",
        ),
        ({"1": [2, 4] * 4, "2": [4, 2] * 4}, True, "cannot be told from these.", "deeper here"),
        ({"1": [2, 5] * 4, "2": [2, 5, 5, 2] * 2}, False, "cannot be told from these.", "deeper here"),
        ({"1": [2] * 4, "2": [5] * 4}, False, "there is no interval, and no conclusion.", "deeper here"),
    ],
)
def test_the_sentence_says_no_more_than_the_interval_carries(layers, pairs, ends, never):
    said = difficulty.look(Made(layers, pairs), "m", "made").sentence
    assert said.endswith(ends) and never not in said


def test_pairs_see_what_prompts_of_unlike_depth_hide():
    """Every pair rises by one layer, and pairs differ by far more: only the paired interval leaves 0 out."""
    layers = {"1": [0, 1, 2, 3, 4, 5], "2": [1, 2, 3, 4, 5, 6]}
    paired, apart = (difficulty.look(Made(layers, pairs), "m", "made", "output") for pairs in (True, False))
    assert (paired.trend.slope, paired.trend.low, paired.trend.high) == (1, 1, 1)
    assert apart.trend.slope == pytest.approx(1) and apart.trend.low < 0 < apart.trend.high
    assert np.isnan(apart.trend.size) and "6 pairs" in paired.sentence and "pairs" not in apart.sentence


def test_only_pairs_with_a_prompt_on_every_level_count():
    layers = {"1": [2] * 7, "2": [3] * 5}
    assert difficulty.look(Made(layers, True), "m", "made").trend.paired == 5


def test_a_study_that_cannot_say_is_refused_with_the_reason():
    with pytest.raises(StudyError, match="has no levels to compare"):
        difficulty.look(Made({"1": [2] * 6}), "m", "made")
    with pytest.raises(StudyError, match="has no layer_skip of m on made"):
        difficulty.look(Made(RISING, skips=False), "m", "made")


def test_the_bundled_studys_levels_are_the_scores_of_its_tables():
    folder = open_folder(STUDIES / "toys")
    found = difficulty.look(folder, "ed-demo-8", "look-ups")
    rows = [r for r in tables.summary(folder).to_pylist() if r["model"] == "ed-demo-8" and r["probe"] == "layer_skip"]
    assert [level.name for level in found.levels] == ["1", "2", "3", "4"] and found.trend.paired == 20
    for level in found.levels:
        own = {r["measure"]: r for r in rows if r["set"] == f"look-ups/{level.name}"}
        assert level.maximum == pytest.approx(own["depth_score"]["value"], rel=1e-6)
        assert level.mean == pytest.approx(own["depth_score_mean"]["value"], rel=1e-6)
        assert level.low <= level.mean <= level.high and len(level.own) == 20


def test_the_figure_stands_on_shares_of_the_depth():
    level = {"name": "1", "mean": 3.5, "low": 2.8, "high": 4.2, "own": np.array([3.0, np.nan])}
    fig = study_levels({"a<b>": [level, {**level, "name": "2", "mean": 7.0}]}, {"a<b>": 8})
    line = next(t for t in fig.data if t.name == "a&lt;b&gt;")
    assert list(line.y) == [0.5, 1.0] and line.error_y.array[0] == pytest.approx(0.1)
    assert list(fig.layout.xaxis.ticktext) == ["1", "2"] and "3.50 of 8 layers" in line.text[0]
    dots = next(t for t in fig.data if t.name.startswith("prompts"))
    assert [round(y, 4) for y in dots.y] == [0.4286, 0.4286]
