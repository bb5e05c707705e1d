"""Effective depth over several models: lines and differences of made-up points whose answer is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open

from ed_core.depth import mean_depth
from ed_core.depth.sample import Curves
from ed_core.figures import study_sizes
from ed_core.models.bundled import MODELS, STUDIES
from ed_core.statistics import units
from ed_core.studies import points, tables, trends
from ed_core.studies.items import open_folder
from ed_core.studies.points import MEASURED, PUBLISHED, Point

SIZES = (1_500_000_000, 7_600_000_000, 14_800_000_000, 32_800_000_000)
APART = 1.25  # times the size before


def point(model, ratio, parameters=1_000_000_000, where="s", kind=PUBLISHED, layers=28, drawn=(), **more):
    given = dict(model=model, ratio=ratio, parameters=parameters, set=where, source=kind, n_layers=layers, low=np.nan)
    given |= dict(training="", of="", criterion="kl", units=units(9 * bool(len(drawn))), drawn=np.array(drawn, float))
    return Point(**(given | more))


def made(slope, noise=0.0, seed=0, sets=("a", "b"), each=3):
    """Models of twelve sizes on a line of that slope, a height of its own for each set."""
    drawn = np.random.default_rng(seed)
    sizes = {f"m{i}{j}": n * APART**j for i, n in enumerate(SIZES) for j in range(each)}
    own = {model: slope * math.log10(n / 1e9) + drawn.normal(0, noise) for model, n in sizes.items()}
    return [
        point(model, 0.4 + 0.2 * k + own[model], round(n), where)
        for k, where in enumerate(sets)
        for model, n in sizes.items()
    ]


def test_measured_points_are_the_cells_of_the_verdict_with_their_ranges():
    folder = open_folder(STUDIES / "toys")
    named = {"mean": "mean_", "paper": ""}
    cells = [r for r in tables.stored(folder).to_pylist() if r["variant"] in named]
    rows = {(r["model"], r["set"], named[r["variant"]] + r["criterion"]): r for r in cells}
    for group in ("sums", "sums/3"):
        found = points.measured_points(folder, group)
        assert len(found) == 10 and {p.criterion for p in found[:2]} == set(points.MEANS)
        for p in found:
            row = rows[p.model, group, p.criterion]
            depth = np.nan if row["depth"] is None else row["depth"]
            assert p.depth == pytest.approx(depth, nan_ok=True) and len(p.units.of) == row["prompts"]
            for end in ("low", "high"):
                layer = p.criterion not in points.MEANS
                expected = np.nan if row[end] is None else (row[end] + layer) / row["n_layers"]
                assert getattr(p, end) == pytest.approx(expected, nan_ok=True)
            with safe_open(next(MODELS[p.model].glob("*.safetensors")), "np") as weights:
                sizes = [math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118
            assert p.parameters == sum(sizes) and p.of == "" and p.source == MEASURED


def test_models_are_compared_on_the_prompts_that_all_of_them_have_been_through(monkeypatch):
    folder = open_folder(STUDIES / "toys")
    whole = folder.sums
    fewer = lambda self, label, name: whole(label, name).of(np.arange(40 if label == "ed-demo-8" else 96))
    monkeypatch.setattr(type(folder), "sums", fewer)
    assert {len(p.units.of) for p in points.measured_points(folder, "sums")} == {40}
    assert {len(p.units.of) for p in points.measured_points(folder, "sums", ["ed-demo-16"])} == {96}


def test_a_published_entry_stands_in_the_row_of_the_model_that_was_measured():
    measured = [point("Qwen2.5-7B-Instruct", 0.5, where="mine", of="gsm8k", kind=MEASURED, low=0.5, high=13 / 28)]
    rows = points.side_by_side(measured, points.published_points())
    own = {where: row for (model, where), row in rows.items() if model == "Qwen2.5-7B-Instruct"}
    assert list(own) == ["mine", "hellaswag", "aime24"] and len(rows) == 36
    assert own["mine"]["kl measured"].depth == 13 and own["mine"]["kl published"].depth == 25
    assert "kl measured" not in own["hellaswag"] and own["hellaswag"]["kl published"].depth == 25


@pytest.mark.parametrize("true", [-0.1, 0.0, 0.07])
def test_the_slope_is_the_one_the_points_were_made_with_and_polyfits(true):
    found = trends.slope(made(true))
    assert found.slope == pytest.approx(true, abs=1e-12) and found.sizes == 12
    assert found.start == (SIZES[0], pytest.approx(0.5 + true * math.log10(1.5)))
    noisy = made(true, 0.05)
    by_model = {p.parameters: [q.ratio for q in noisy if q.model == p.model] for p in noisy}
    expected = np.polyfit(np.log10([*by_model]), [np.mean(ratios) for ratios in by_model.values()], 1)
    line = trends.slope(noisy)
    assert line.slope == pytest.approx(expected[0])
    assert line.end[1] == pytest.approx(np.polyval(expected, math.log10(SIZES[-1] * APART**2)))


def test_a_trend_is_what_the_interval_supports():
    line = trends.slope(made(0.1))
    assert math.isnan(line.low) and not line.trend, "published points have no interval"
    for low, high, trend, words in ((0.05, 0.15, 1, "rises"), (-0.15, -0.05, -1, "falls"), (-0.1, 0.2, 0, "no clear")):
        found = replace(line, low=low, high=high)
        assert found.trend == trend and words in found.sentence
    assert replace(line, low=0.001, high=0.002).small, "less than one layer"
    assert not replace(line, low=0.001, high=0.002, sizes=2).trend, "two sizes show no trend"


def test_the_model_on_which_a_conclusion_rests_is_named():
    some = [point(f"m{i}{j}", 0.7, n, "a") for i, n in enumerate(SIZES) for j in range(3)]
    some[0] = replace(some[0], ratio=0.1)
    found = trends.slope(some)
    assert set(found.models) - set(found.without.models) == {"m00"} and found.without.slope == pytest.approx(0)
    resting = replace(found, low=0.01, high=0.1)
    assert resting.trend and "This rests on m00: without it, " in resting.sentence
    kl = trends.slope(p for p in points.published_points() if p.criterion == "kl")
    assert set(kl.models) - set(kl.without.models) == {"DeepSeek-R1-Distill-Qwen-1.5B"}
    assert kl.slope > 1.5 * kl.without.slope


def lens(model, depths, parameters=SIZES[0], layers=12, forms=()):
    """A measured mean depth: each prompt's lens is the output from a depth of its own on, over three tokens."""
    far = np.array([[float(l < depth) for l in range(layers + 1)] for depth in depths])
    curves = Curves({"kl": 3 * far}, np.full(len(depths), 3.0), tuple(forms))
    ratio = mean_depth.of_curve("kl", far.mean(0)).ratio
    more = dict(kind=MEASURED, layers=layers, criterion="mean_kl", units=curves.units, lens=curves)
    return point(model, ratio, parameters, **more)


def test_a_line_through_mean_depths_draws_their_prompts_together():
    """Prompts differ by far more than models do: only what is drawn together tells that the larger one is deeper."""
    depths = np.array([2, 3, 4, 5, 6, 7, 8, 3, 4, 5, 6, 7])
    of_model = [depths + i + np.random.default_rng(i).integers(0, 2, 12) for i in range(3)]
    some = [lens(name, own, size) for own, name, size in zip(of_model, "abc", SIZES)]
    found = trends.slope(some)
    expected = np.polyfit(np.log10(SIZES[:3]), [p.ratio for p in some], 1)[0]
    assert found.slope == pytest.approx(expected) and 0 < found.low < found.slope < found.high
    assert found.over == "12 prompts" and "rises with size" in found.sentence
    alone = trends.slope([some[0], replace(some[1], lens=None), some[2]])
    assert math.isnan(alone.low) and "no clear trend" in alone.sentence and "(no interval)" in alone.sentence
    forms = [f"form {i % 2}" for i in range(12)]
    few = trends.slope([lens(name, own, size, forms=forms) for own, name, size in zip(of_model, "abc", SIZES)])
    assert "12 prompts of 2 templates" in few.sentence


def test_two_mean_depths_are_compared_over_the_same_prompts():
    rng = np.random.default_rng(3)
    depths = rng.integers(2, 8, 30)
    a, b = lens("a", depths), lens("b", depths + (np.arange(30) % 3 == 0))  # less than prompts differ by
    found = trends.difference([a, b], "a", "b")
    assert found.difference == pytest.approx(b.ratio - a.ratio) and 0 < found.low < found.high < 0.2
    assert "b is deeper" in found.sentence and "30 prompts" in found.sentence
    other = lens("b", rng.permutation(depths))
    assert "no clear difference" in trends.difference([a, other], "a", "b").sentence
    without = lambda p, i: mean_depth.of_curve("kl", np.delete(p.lens.sums["kl"], i, 0).sum(0) / (3 * 29)).ratio
    leave_one_out = [without(other, i) - without(a, i) for i in range(30)]
    error = math.sqrt(29 / 30 * sum((x - np.mean(leave_one_out)) ** 2 for x in leave_one_out))
    assert points.combined([other, a], [1.0, -1.0]).error == pytest.approx(error)


def test_measured_models_are_compared_resample_by_resample():
    rng = np.random.default_rng(0)
    shared = rng.normal(0.5, 0.1, 1000)
    a = point("a", 0.50, kind=MEASURED, drawn=shared, layers=28)
    b = point("b", 0.53, kind=MEASURED, drawn=shared + 0.03 + rng.normal(0, 0.001, 1000), layers=36)
    found = trends.difference([a, b], "a", "b")
    assert 0.027 < found.low < 0.03 < found.high < 0.033 and found.n_layers is None and "b is deeper" in found.sentence
    apart = trends.difference([a, replace(b, drawn=rng.permutation(b.drawn))], "a", "b")
    assert apart.low < 0 < apart.high and "no clear difference" in apart.sentence
    fewer = trends.difference([a, replace(b, units=units(4))], "a", "b")
    assert math.isnan(fewer.low) and "no clear difference" in fewer.sentence and "(no interval)" in fewer.sentence


def test_points_stand_at_their_size_and_ratio_and_lines_at_their_ends():
    rows = [
        dict(model="m<b>", parameters=1e9, ratio=0.5, low=0.4, high=0.7, training="base", set="s", source=MEASURED),
        dict(model="n", parameters=1e10, ratio=0.6, low=np.nan, high=np.nan, training="", set="s", source=PUBLISHED),
    ]
    fig = study_sizes(rows, {PUBLISHED: ((1e9, 0.5), (1e10, 0.6))})
    measured, published, line = fig.data
    assert (measured.meta, list(measured.x), list(measured.y)) == (MEASURED, [1e9], [0.5])
    assert measured.error_y.array[0] == pytest.approx(0.2) and measured.error_y.arrayminus[0] == pytest.approx(0.1)
    assert published.error_y.array[0] == 0 and "range" not in published.text[0]
    assert "&lt;b&gt;" in measured.text[0] and "0.40 to 0.70" in measured.text[0]
    assert list(line.x) == [1e9, 1e10] and list(line.y) == [0.5, 0.6]
