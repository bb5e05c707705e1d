"""Depth by level: made-up effects and curves whose depths are known beforehand, what the sentence may say of them, and
a naive recomputation on real sums."""

from __future__ import annotations

from dataclasses import replace

import naive
import numpy as np
import pytest

from ed_core.errors import StudyError
from ed_core.figures import study_levels
from ed_core.sources.bundled import STUDIES
from ed_core.studies import difficulty, sets, tables
from ed_core.studies.items import Folder, Sums, open_folder
from ed_core.types import Prompt

L = 8


class Made(Folder):
    """A study whose prompts each have one layer that matters: the depth score is that layer, and from that depth on the
    lens is the output, so that the mean depth is that depth."""

    def __init__(self, layers: dict[str, list[int]], pairs: bool = False, skips: bool = True, forms=()):
        flat = [(level, layer) for level, of_level in layers.items() for layer in of_level]
        one = {
            "name": "made",
            "ids": [str(i) for i in range(len(flat))],
            "levels": [level for level, _ in flat],
            "pairs": [str(i) for of_level in layers.values() for i in range(len(of_level))] if pairs else [],
        }
        one |= {"forms": list(forms)} if forms else {}
        probes = [{"name": "logit_lens"}, {"name": "layer_skip"}]
        plan = {"models": [{"label": "m"}], "sets": [one], "seed": 0, "probes": probes}
        object.__setattr__(self, "plan", plan)
        effect, output = np.zeros((len(flat), L, L)), np.zeros((len(flat), L))
        for i, (_, layer) in enumerate(flat):
            effect[i, layer, layer + 1 :] = 1.0
            output[i, layer] = 0.5
        n = np.full(len(flat), 30.0)
        far = np.array([[float(depth < layer) for depth in range(L + 1)] for _, layer in flat])
        columns = {"layer_skip.n_tokens": n, "layer_skip.effect": effect, "layer_skip.output": output}
        lens = {"kl.sum": 3 * far * n[:, None], "overlap.sum": (1 - far) * n[:, None], "n_tokens": n}
        columns |= {f"logit_lens.{name}": values for name, values in lens.items()}
        object.__setattr__(self, "made", Sums(columns if skips else {}, np.arange(len(flat))))

    def sums(self, label, name):
        return self.made


RISING = {"1": [2] * 8, "2": [3] * 8, "3": [4] * 8}


def rises(layers: dict[str, list[int]], pairs: bool, kind: str = "kl") -> difficulty.Difficulty:
    return difficulty.look(Made(layers, pairs), "m", "made", kind)


@pytest.mark.parametrize("kind", difficulty.READS)
@pytest.mark.parametrize("pairs", [True, False])
def test_depths_that_rise_by_one_a_level_are_seen_as_that(kind, pairs):
    found = rises(RISING, pairs, kind)
    assert [level.mean for level in found.levels] == [2, 3, 4]
    assert [level.maximum for level in found.levels] == pytest.approx(
        [2, 3, 4] if kind in difficulty.KINDS else [np.nan] * 3, nan_ok=True
    )
    assert [(level.low, level.high) for level in found.levels] == [(2, 2), (3, 3), (4, 4)]
    trend, over = found.trend, "8 groups (a prompt from each level)" if pairs else "8 prompts a level"
    assert (trend.first, trend.last, trend.slope, trend.low, trend.high) == (2, 4, 1, 1, 1)
    assert trend.paired == (8 if pairs else 0) and trend.over == over
    scale = "of 8" if kind in ("kl", "overlap") else "(layers 0 to 7)"
    assert f"goes from 2.00 to 4.00 {scale}" in found.sentence
    assert "a line through the levels: +1.00 a level (the same in at least 90 % of resamples of 8 " in found.sentence
    assert found.sentence.endswith("The interval lies above 0.")


@pytest.mark.parametrize("kind", ["kl", "output"])
@pytest.mark.parametrize(
    "layers, pairs, ends",
    [
        ({"1": [4] * 8, "2": [2] * 8}, True, "The interval lies below 0."),
        (
            {"1": [3] * 100, "2": [3] * 93 + [4] * 7},
            True,
            "The interval lies above 0, within 2 % of the depth a level.",
        ),
        ({"1": [2, 4] * 4, "2": [4, 2] * 4}, True, "The interval includes 0."),
        ({"1": [2, 5] * 4, "2": [2, 5, 5, 2] * 2}, False, "The interval includes 0."),
        ({"1": [3] * 8, "2": [3] * 8}, True, "The interval lies within ±2 % of the depth a level."),
        ({"1": [2] * 7, "2": [5] * 7}, False, "there is no interval, and no conclusion."),
    ],
)
def test_the_sentence_says_no_more_than_the_interval_carries(layers, pairs, ends, kind):
    assert rises(layers, pairs, kind).sentence.endswith(ends)


def test_the_ends_of_an_interval_are_told_apart():
    found = rises({"1": [4] * 8, "2": [2] * 8}, True, "kl")
    told = replace(found, trend=replace(found.trend, slope=0.513, low=0.512, high=0.5139)).sentence
    assert "+0.513 a level (5–95 %: +0.512 to +0.514 over" in told


def test_what_rounding_leaves_of_no_slope_is_none():
    found = difficulty.Trend(7.1, 7.1, 2e-16, 2e-16, 2e-16, 8, np.nan)
    assert found.verdict(L) == "The interval lies within ±2 % of the depth a level."


def test_noise_convinces_nobody_and_a_clear_rise_does():
    """Twenty pairs of three levels whose depths are noise, or rise by one a level, 200 times each."""
    rng, said = np.random.default_rng(0), {0.0: [], 1.0: []}
    for rise, told in said.items():
        for _ in range(200):
            own = rng.normal(4 + rise * np.arange(3), 1, (20, 3)).T
            marks = tuple(map(str, range(20)))
            levels = [
                difficulty.Level(str(i), np.nan, of.mean(), np.nan, np.nan, of, marks) for i, of in enumerate(own)
            ]
            told.append(difficulty.trend(levels).verdict(L))
    assert np.mean([one != "The interval includes 0." for one in said[0.0]]) < 0.16
    assert np.mean([one == "The interval lies above 0." for one in said[1.0]]) > 0.9


def test_pairs_of_one_form_are_drawn_together():
    """Ten pairs of each of six wordings that decide the slope: over pairs all is clear, over forms it is not."""
    slopes = [1, 1, -1, 1, -1, 1]
    first = [3] * 60
    second = [3 + slope for slope in slopes for _ in range(10)]
    forms = [f"form {i}" for _ in range(2) for i in range(6) for _ in range(10)]
    by_pair = rises({"1": first, "2": second}, True).trend
    by_form = difficulty.look(Made({"1": first, "2": second}, True, forms=forms), "m", "made").trend
    assert by_pair.low > 0 and by_pair.over == "60 groups (a prompt from each level)" and by_form.slope == by_pair.slope
    assert by_form.low < 0 < by_form.high and by_form.over == "60 groups (a prompt from each level) of 6 forms"
    few = difficulty.look(Made({"1": first, "2": second}, True, forms=["a"] * 120), "m", "made").trend
    assert few.over == "60 groups (a prompt from each level) of one form; other text may differ"
    assert few.low == by_pair.low
    apart = difficulty.look(Made({"1": first, "2": second}, False, forms=forms), "m", "made").trend
    assert apart.over == "60 prompts a level, of 6 forms or more" and not apart.paired


def test_pairs_that_share_a_form_on_any_level_are_of_one():
    levels = [difficulty.Level("1", 0.0, 0.0, 0.0, 0.0, np.zeros(4), ("a", "b", "c", "d")) for _ in range(2)]
    found = difficulty._forms_of_pairs(levels, [["x", "y", "z", ""], ["u", "u", "v", ""]], ["a", "b", "c", "d"])
    assert found[0] == found[1] != found[2] and found[3] == ""


def test_the_bundled_studys_mean_depths_and_their_slopes_are_those_of_plain_loops():
    folder = open_folder(STUDIES / "toys")
    for kind in difficulty.DEPTHS:
        found = difficulty.look(folder, "ed-demo-16", "look-ups", kind)
        by_pair: dict[str, list[float]] = {}
        for level in found.levels:
            some = folder.sums("ed-demo-16", "look-ups").of(folder.groups("look-ups")[f"look-ups/{level.name}"])
            lens, of_level = some.probe("logit_lens"), []
            for i, place in enumerate(some.index):
                of_level.append([value / lens["n_tokens"][i] for value in lens[f"{kind}.sum"][i]])
                mark = folder.sets["look-ups"]["pairs"][place]
                by_pair.setdefault(mark, []).append(naive.mean_depth(of_level[-1], kind))
            total = sum(lens["n_tokens"])
            whole = [sum(lens[f"{kind}.sum"][:, l]) / total for l in range(17)]
            assert level.mean == pytest.approx(naive.mean_depth(whole, kind))
            assert level.low < level.mean < level.high
        slopes = [sum((x - 1.5) * y for x, y in enumerate(of_pair)) / 5 for of_pair in by_pair.values()]
        assert len(slopes) == found.trend.paired == 24
        assert found.trend.slope == pytest.approx(sum(slopes) / 24)
        assert found.trend.low < found.trend.slope < found.trend.high


def test_a_levels_interval_ends_where_its_prompts_do():
    """Eight forms of which one is apart: resamples without it are nearly sure of themselves, and a bootstrap-t passes
    every prompt. Of levels in which nothing is passed the interval is the bootstrap's own."""
    folder, cut = open_folder(STUDIES / "toys"), 0
    for label in folder.models:
        for kind in difficulty.READS:
            for name in folder.sets:
                for level in difficulty.look(folder, label, name, kind).levels:
                    low, high = level.drawn.interval.ends
                    ends = np.clip([low, high], level.own.min(), level.own.max())
                    assert [level.low, level.high] == pytest.approx(ends)
                    cut += not level.own.min() <= low <= high <= level.own.max()
    assert cut, "no level shows it any more: take another"


def test_pairs_see_what_prompts_of_unlike_depth_hide():
    """Every pair rises by one layer, and pairs differ by far more: only the paired interval leaves 0 out."""
    layers = {"1": [0, 0, 1, 2, 3, 4, 5, 5], "2": [1, 1, 2, 3, 4, 5, 6, 6]}
    paired, apart = (difficulty.look(Made(layers, pairs), "m", "made", "output") for pairs in (True, False))
    assert (paired.trend.slope, paired.trend.low, paired.trend.high) == (1, 1, 1)
    assert apart.trend.slope == pytest.approx(1) and apart.trend.low < 0 < apart.trend.high
    assert np.isnan(apart.trend.size) and "over 8 prompts a level)" in apart.sentence
    assert "8 groups (a prompt from each level)" in paired.sentence and "matched" not in paired.sentence


def test_only_pairs_with_a_prompt_on_every_level_count():
    layers = {"1": [2] * 10, "2": [3] * 8}
    assert difficulty.look(Made(layers, True), "m", "made").trend.paired == 8


def test_a_mark_that_stands_twice_on_a_level_is_no_pair():
    """Ten marks of two prompts on level 1 and none on level 2, and eight of one on each."""
    marks = [*"abcdefghij"] * 2 + [*"ABCDEFGH"], [*"ABCDEFGH"]
    levels = [
        difficulty.Level(str(i), np.nan, 2.0 + i, np.nan, np.nan, np.full(len(of), 2.0 + i), tuple(of))
        for i, of in enumerate(marks)
    ]
    assert list(difficulty._complete_pairs(levels)) == [*"ABCDEFGH"]
    assert difficulty.trend(levels).over == "8 groups (a prompt from each level)"


def test_levels_keep_their_names_and_prompts_without_one_are_of_none():
    found = rises({"1/2": [2] * 8, "": [7] * 8, "2/2": [3] * 8}, False)
    assert [level.name for level in found.levels] == ["1/2", "2/2"] and found.trend.slope == 1
    assert "from level 1/2 to 2/2 of made" in found.sentence
    assert list(Made({"1": [2], "": [3]}).groups("made")) == ["made", "made/1"]


@pytest.mark.parametrize(
    "order, named",
    [("21", "12"), ("213", "123"), (["10", "9", "-1.5"], ["-1.5", "9", "10"]), ("ba", "ba"), ("2b", "2b")],
)
def test_levels_that_are_numbers_are_in_their_order(order, named):
    """Depths rise with the level, in whatever order the set has them."""
    layers = {level: [2 + named.index(level)] * 8 for level in order}
    found = rises(layers, True)
    assert [level.name for level in found.levels] == [*named] and found.trend.slope == 1
    told = [sets.Example(Prompt("a"), level) for level in order]
    assert sets.PromptSet("s", tuple(told)).levels == tuple(named)


def test_a_study_that_cannot_say_is_refused_with_the_reason():
    with pytest.raises(StudyError, match="has no levels to compare"):
        difficulty.look(Made({"1": [2] * 6}), "m", "made")
    with pytest.raises(StudyError, match="has no layer_skip of m on made"):
        difficulty.look(Made(RISING, skips=False), "m", "made", "effect")


def test_the_bundled_studys_levels_are_the_scores_of_its_tables():
    folder = open_folder(STUDIES / "toys")
    found = difficulty.look(folder, "ed-demo-8", "look-ups", "effect")
    rows = [r for r in tables.summary(folder).to_pylist() if r["model"] == "ed-demo-8" and r["probe"] == "layer_skip"]
    assert [level.name for level in found.levels] == ["1", "2", "3", "4"] and found.trend.paired == 24
    for level in found.levels:
        own = {r["measure"]: r for r in rows if r["set"] == f"look-ups/{level.name}"}
        assert level.maximum == pytest.approx(own["depth_score"]["value"], rel=1e-6)
        assert level.mean == pytest.approx(own["depth_score_mean"]["value"], rel=1e-6)
        assert level.low <= level.mean <= level.high and len(level.own) == 24


def test_the_figure_stands_on_shares_of_the_depth():
    level = {"name": "1", "mean": 3.5, "low": 2.8, "high": 4.2, "own": np.array([3.0, np.nan])}
    fig = study_levels({"a<b>": [level, {**level, "name": "2", "mean": 7.0}]}, {"a<b>": 8})
    line = next(t for t in fig.data if t.name == "a&lt;b&gt;")
    assert list(line.y) == [0.5, 1.0] and line.error_y.array[0] == pytest.approx(0.1)
    assert list(fig.layout.xaxis.ticktext) == ["1", "2"] and "3.50 of 8 layers" in line.text[0]
    dots = next(t for t in fig.data if t.name.startswith("prompts"))
    assert [round(y, 4) for y in dots.y] == [0.4286, 0.4286]
    assert fig.layout.yaxis.range[0] < 0.4 and fig.layout.yaxis.range[1] > 1
    between = study_levels({"m": [level]}, {"m": 8}, "mean depth by KL", True)
    assert next(t for t in between.data if t.name == "m").y[0] == 3.5 / 8
    assert "mean depth by KL 3.50 of 8<br>" in next(t for t in between.data if t.name == "m").text[0]
