"""`mean_depth` and the turn against curves whose answer is known, and against thresholds drawn one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ed_core.depth import continuous
from ed_core.statistics import units

L = 20
KL_LINE, OVERLAP_LINE = 1 - np.arange(L + 1) / L, np.arange(L + 1) / L


def step(at, high=1.0, low=0.0):
    return np.where(np.arange(L + 1) < at, high, low)


@pytest.mark.parametrize(
    ("name", "curve", "depth"),
    [
        ("kl", KL_LINE, 1 + L / 2),
        ("kl", step(7), 7.0),
        ("kl", step(L), float(L)),  # never falls before the output
        ("kl", np.where(np.arange(L + 1) == 9, 0.0, step(15)), 15.0),  # falls and rises again
        ("kl", np.append(50.0, KL_LINE[1:]), 1 + L / 2),  # depth 0 does not count
        ("kl", step(1), None),  # the output from depth 1 on
        ("overlap", OVERLAP_LINE, (L + 1) / 2),
        ("overlap", 1 - step(7), 7.0),
        ("overlap", 1 - step(L), float(L)),
        ("overlap", np.where(np.arange(L + 1) == 3, 1.0, 1 - step(15)), 15.0),
        ("overlap", np.ones(L + 1), None),
    ],
)
def test_curves_whose_mean_depth_is_known(name, curve, depth):
    found = continuous.of_curve(name, curve)
    assert found.depth == (None if depth is None else pytest.approx(depth))
    assert found.ratio == (None if depth is None else pytest.approx(depth / L))


@given(st.lists(st.floats(0, 20), min_size=4, max_size=12), st.booleans())
def test_it_is_the_mean_of_the_lasting_rule_over_all_thresholds(values, kl):
    """Ten thousand thresholds, each with the smallest depth from which the curve stays below (or above) it."""
    curve = np.append(values, 0.0) if kl else np.append(np.asarray(values) / 20, 1.0)
    missing = curve / curve[1:].max() if kl and curve[1:].max() > 0 else 1 - curve
    start, n = int(kl), len(curve)
    if (kl and not curve[1:].max() > 1e-6) or not missing[start:].max() > 1e-6:
        return
    thresholds = (np.arange(10_000) + 0.5) / 10_000
    lasting = []
    for at in thresholds:
        above = [l for l in range(start, n) if missing[l] > at]
        lasting.append(above[-1] + 1 if above else start)
    found = continuous.of_curve("kl" if kl else "overlap", curve).depth
    assert found == pytest.approx(np.mean(lasting), abs=1e-3)


def test_over_prompts_it_is_read_off_the_mean_curve_with_an_interval():
    sums, tokens = np.stack([step(a) * 3 for a in range(4, 14)]), np.full(10, 3)
    found = continuous.over_prompts("kl", sums, tokens, units(10))
    assert found.depth == pytest.approx(continuous.of_curve("kl", sums.sum(0) / 30).depth)
    assert 4 < found.interval.low < found.depth < found.interval.high < 14
    assert continuous.over_prompts("kl", sums[:7], tokens[:7], units(7)).interval is None
    assert continuous.over_prompts("kl", sums * 0, tokens, units(10)).depth is None


def naive_split(curve):
    """The split of least squared error around two means."""
    errors = []
    for k in range(len(curve) - 1):
        parts = curve[: k + 1], curve[k + 1 :]
        errors.append(sum(((part - part.mean()) ** 2).sum() for part in parts))
    return int(np.argmin(errors))


def test_the_split_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    for _ in range(50):
        curve = rng.normal(size=rng.integers(3, 40))
        assert continuous.best_split(curve[None])[0] == naive_split(curve)


def noisy(curve, seed=0):
    return np.asarray(curve) + 0.02 * np.random.default_rng(seed).normal(size=len(curve))


@pytest.mark.parametrize("n", [16, 30])
def test_a_step_is_a_turn_and_what_only_looks_like_one_is_not(n):
    layer = np.arange(n)
    turn = continuous.fit(noisy(np.where(layer < n // 2, -0.2, 0.2)))
    assert (turn.layer, turn.failed) == (n // 2 - 1, "") and turn.p <= 0.05
    zigzag = continuous.fit(noisy(np.where(layer % 2, 0.2, -0.2)))
    assert zigzag.layer is None
    dip = continuous.fit(noisy(np.where(layer == n // 2, -0.3, 0.3)))
    assert (dip.layer, dip.failed) == (None, "sign")
    falls = continuous.fit(noisy(np.where(layer < n // 2, 0.2, -0.2)))
    assert (falls.layer, falls.failed) == (None, "sign")
    both_positive = continuous.fit(noisy(np.where(layer < n // 2, 0.1, 0.4)))
    assert (both_positive.layer, both_positive.failed) == (None, "sign")
    assert continuous.fit([0.1, 0.2]) is None and continuous.fit([0.1, np.nan, 0.2]) is None


def test_noise_turns_rarely():
    rng = np.random.default_rng(0)
    assert sum(continuous.fit(0.1 * rng.normal(size=30)).layer is not None for _ in range(100)) <= 10


def test_over_prompts_each_level_must_lie_apart_from_zero():
    """Ten prompts whose mean curve turns; where they disagree on the first level's sign, there is no turn."""
    layer = np.arange(16)
    sure = np.stack([noisy(np.where(layer < 8, -0.2, 0.2), seed) for seed in range(10)])
    unsure = sure + np.where(layer < 8, np.where(np.arange(10) % 2, 0.9, -0.9)[:, None], 0.0)
    names = ("attn_cos", "mlp_cos", "layer_cos")
    turn = continuous.fit_over_prompts(dict.fromkeys(names, sure), np.ones(10), units(10))
    assert turn.layer == 7 and turn.before_ends[1] < 0 < turn.after_ends[0]
    apart = continuous.fit_over_prompts(dict.fromkeys(names, unsure), np.ones(10), units(10))
    assert (apart.layer, apart.failed) == (None, "sign")


def test_twins_that_turn_there_too_take_the_turn_away():
    turn = continuous.fit(noisy(np.where(np.arange(16) < 8, -0.2, 0.2)))
    elsewhere = continuous.fit(noisy(np.where(np.arange(16) < 3, -0.2, 0.2)))
    none = continuous.fit(noisy(np.full(16, 0.2)))
    assert continuous.against_twins(turn, [turn, turn, elsewhere, none, none]).layer == 7
    taken = continuous.against_twins(turn, [turn, turn, turn, elsewhere, none])
    assert (taken.layer, taken.failed) == (None, "twins")
    assert continuous.against_twins(turn, []).layer == 7
