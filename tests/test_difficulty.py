"""Depth by level: made-up curves whose depths are known beforehand, and a naive recomputation on real sums."""

from __future__ import annotations

import naive
import numpy as np
import pytest

from ed_core.models.bundled import STUDIES
from ed_core.studies import difficulty, sets
from ed_core.studies.items import Folder, open_folder
from ed_core.studies.part import Part
from ed_core.types import Prompt

L = 8


class Made(Folder):
    """A study whose prompts each have one layer that matters: the depth score is that layer, and from that depth on the
    lens is the output, so that the mean depth is that depth."""

    def __init__(self, layers: dict[str, list[int]], pairs: bool, forms=()):
        flat = [(level, layer) for level, of_level in layers.items() for layer in of_level]
        marks = [str(i) for of_level in layers.values() for i in range(len(of_level))] if pairs else []
        one = {"name": "made", "ids": [str(i) for i in range(len(flat))], "levels": [level for level, _ in flat]}
        one |= {"pairs": marks} | ({"forms": list(forms)} if forms else {})
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
        own = tuple(level for level, _ in flat), tuple(marks), tuple(forms)
        object.__setattr__(self, "made", Part(columns, *own, index=np.arange(len(flat))))

    def sums(self, label, name):
        return self.made


def rises(layers: dict[str, list[int]], pairs: bool, kind: str = "kl", forms=()) -> difficulty.Difficulty:
    return difficulty.look(Made(layers, pairs, forms), "m", "made", kind)


@pytest.mark.parametrize("kind", difficulty.READS)
@pytest.mark.parametrize("pairs", [True, False])
def test_depths_that_rise_by_one_a_level_are_seen_as_that(kind, pairs):
    found = rises({"1": [2] * 8, "2": [3] * 8, "3": [4] * 8}, pairs, kind)
    assert [level.mean for level in found.levels] == [2, 3, 4]
    assert [(level.low, level.high) for level in found.levels] == [(2, 2), (3, 3), (4, 4)]
    trend, over = found.trend, "8 groups, one prompt per level" if pairs else "8 prompts per level"
    assert (trend.first, trend.last, trend.slope, trend.low, trend.high) == (2, 4, 1, 1, 1)
    assert trend.paired == (8 if pairs else 0) and trend.over == over
    assert "harder prompts go deeper, +1.00 a level (1.00; 8 " in found.sentence
    ends = "3.00 at level 1 to 5.00 at level 3" if kind in difficulty.KINDS else "2.00 at level 1 to 4.00 at level 3"
    assert ends in found.sentence


@pytest.mark.parametrize("kind", ["kl", "output"])
@pytest.mark.parametrize(
    "layers, pairs, says",
    [
        ({"1": [4] * 8, "2": [2] * 8}, True, "harder prompts go less deep,"),
        (
            {"1": [3] * 100, "2": [3] * 93 + [4] * 7},
            True,
            "harder prompts go deeper, by less than 2 % of the depth a level,",
        ),
        ({"1": [2, 4] * 4, "2": [4, 2] * 4}, True, "no clear change with the level,"),
        ({"1": [2, 5] * 4, "2": [2, 5, 5, 2] * 2}, False, "no clear change with the level,"),
        ({"1": [3] * 8, "2": [3] * 8}, True, "no change with the level beyond 2 % of the depth,"),
        ({"1": [2] * 7, "2": [5] * 7}, False, "no clear change with the level, +3.00 a level (no interval)"),
    ],
)
def test_the_sentence_says_no_more_than_the_interval_carries(layers, pairs, says, kind):
    assert f"m on made: {says}" in rises(layers, pairs, kind).sentence


def test_noise_convinces_nobody_and_a_clear_rise_does():
    """Twenty pairs of three levels whose depths are noise, or rise by one a level, 200 times each."""
    rng, found = np.random.default_rng(0), {0.0: [], 1.0: []}
    for rise, trends in found.items():
        for _ in range(200):
            own = rng.normal(4 + rise * np.arange(3), 1, (20, 3)).T
            marks = tuple(map(str, range(20)))
            parts = [Part({"depth": of}, pairs=marks) for of in own]
            means = [(of.mean(), np.nan, np.nan, of, part, part.mean(of)) for of, part in zip(own, parts)]
            trends.append(difficulty.trend([difficulty.Level(str(i), *mean) for i, mean in enumerate(means)]))
    margin = difficulty.MARGIN * L
    decided = [one.low > 0 or one.high < 0 or max(-one.low, one.high) < margin for one in found[0.0]]
    assert np.mean(decided) < 0.16
    assert np.mean([one.low > 0 for one in found[1.0]]) > 0.9


def test_pairs_of_one_form_are_drawn_together():
    """Ten pairs of each of six wordings that decide the slope: over pairs all is clear, over forms it is not."""
    layers = {"1": [3] * 60, "2": [3 + slope for slope in (1, 1, -1, 1, -1, 1) for _ in range(10)]}
    forms = [f"form {i}" for _ in range(2) for i in range(6) for _ in range(10)]
    by_pair, by_form = (rises(layers, True, forms=of).trend for of in ((), forms))
    assert by_pair.low > 0 and by_pair.over == "60 groups, one prompt per level" and by_form.slope == by_pair.slope
    assert by_form.low < 0 < by_form.high and by_form.over == "60 groups of 6 templates, one prompt per level"
    few = rises(layers, True, forms=["a"] * 120).trend
    assert few.over == "60 groups of 1 template, one prompt per level" and few.low == by_pair.low
    apart = rises(layers, False, forms=forms).trend
    assert apart.over == "60 prompts per level of 6 templates" and not apart.paired


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
