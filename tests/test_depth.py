"""The three criteria on curves drawn by hand, with every reason for "not defined"; the published ratios; the
bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ed_core import statistics
from ed_core.depth import among_others, continuous, criteria, exactness, lenses
from ed_core.depth import old_verdict as verdict
from ed_core.probes import Contributions, Lenses, LogitLens
from ed_core.statistics import units
from ed_core.types import ProbeResult, Prompt, Request


@pytest.mark.parametrize(
    "curve, expected, stable",
    [
        ([-1, -1, 1, 1], 1, 1),
        ([-1, 1, 1, 1], 0, 0),
        ([-1, 0, 0, 0], 0, 0),  # 0 counts as having come back up
        ([1, -1, 1, 1], 1, 1),
        ([-1, 1, -1, 1, 1], 2, 2),  # the last crossing, not the first
        (
            [-1, 1, 1, -1, -1],
            0,
            None,
        ),  # falls again for good: the paper's rule still names block 0, the stable one nothing
        ([0.1, -0.1, 0.2, -1e-9, 0.0], 3, 3),
        ([-1, 1], 0, 0),
    ],
)
def test_cosine_takes_the_last_upward_crossing(curve, expected, stable):
    found = criteria.by_cosine(curve)
    assert (found.depth, found.stable, found.reason) == (expected, stable, "")


@pytest.mark.parametrize(
    "curve, reason",
    [
        ([0.3, 0.0, 0.2], "never below 0"),
        ([-0.3, -0.1, -0.2], "negative in every layer"),
        ([0.3, -0.1, -0.2], "never comes back up"),
        ([0.3, 0.1, -0.2], "below 0 in the last layer alone"),
    ],
)
def test_cosine_without_a_crossing_is_not_defined_and_says_why(curve, reason):
    found = criteria.by_cosine(curve)
    assert found.depth is found.stable is found.ratio is None and reason in found.reason


def test_the_cosine_curve_is_the_mean_of_the_three():
    curves = {
        "attn_cos": np.float32([0.0, 0.5]),
        "mlp_cos": np.float32([0.3, -0.5]),
        "layer_cos": np.float32([-0.6, 0.3]),
        "io_cos": np.ones(2),
    }
    assert criteria.RULES["cosine"].curve(curves) == pytest.approx([-0.1, 0.1])


@pytest.mark.parametrize(
    "curve, expected, stable",
    [
        ([10, 8, 4, 3, 1], 2, 2),
        ([8, 10, 5, 4.9, 1], 3, 3),  # half of the largest, not of the first; exactly half is not below
        ([10, 4, 8, 3, 1], 1, 3),  # a dip decides the paper's rule, not the stable one
        ([10, 4, 8, 8, 1], 1, None),  # holds through the last only in the last block, which does not count
        ([10, 4, 4, 9, 9], 1, None),
        ([1, 1, 1, 10, 1], 0, None),  # the largest may come late
    ],
)
def test_kl_takes_the_first_block_below_half_of_the_largest(curve, expected, stable):
    found = criteria.by_kl(curve)
    assert (found.depth, found.stable, found.threshold, found.reason) == (expected, stable, 0.5, "")


@pytest.mark.parametrize("curve", [[10, 9, 8, 7], [10, 9, 8, 1], [0, 0, 0]])
def test_kl_that_falls_in_the_last_block_or_never_is_not_defined(curve):
    found = criteria.by_kl(curve)
    assert found.depth is found.stable is found.ratio is None and "at least 0.5" in found.reason


@pytest.mark.parametrize(
    "curve, expected, stable",
    [
        ([0.1, 0.2, 0.4, 0.6], 2, 2),
        ([0.3, 0.2, 0.31, 0.6], 2, 2),  # exactly the threshold is not above it
        ([0.4, 0.1, 0.5, 0.6], 0, 2),
        ([0.4, 0.1, 0.5, 0.1], 0, None),
    ],
)
def test_overlap_takes_the_first_block_above_the_threshold(curve, expected, stable):
    found = criteria.by_overlap(curve)
    assert (found.depth, found.stable, found.threshold) == (expected, stable, 0.3)


@pytest.mark.parametrize("curve", [[0.1, 0.2, 0.3], [0.0, 0.0, 0.9]])
def test_overlap_that_rises_in_the_last_block_or_never_is_not_defined(curve):
    found = criteria.by_overlap(curve)
    assert found.depth is found.stable is None and "at most 0.3" in found.reason and "0.3" in found.reason


def test_thresholds_move_the_lens_criteria():
    assert [criteria.by_kl([10, 7, 4, 2, 1], t).depth for t in (0.8, 0.5, 0.25, 0.1)] == [1, 2, 3, None]
    assert [criteria.by_overlap([0.1, 0.3, 0.5, 0.9], t).depth for t in (0.05, 0.2, 0.4, 0.6)] == [0, 1, 2, None]
    assert criteria.threshold_band(criteria.by_kl, [10, 7, 4, 2, 1], (0.1, 0.25, 0.5, 0.8)) == (1, 3)
    assert criteria.threshold_band(criteria.by_kl, [10, 9, 9], (0.1, 0.2)) is None


def test_a_verdict_leaves_out_the_output_row_of_the_lens():
    """Rows 0..L-1 count; row L is the output itself, with divergence 0 and overlap 1."""
    cosines, lens = results([[-0.2, -0.1, 0.1, 0.2]], [[8, 6, 5, 3, 0]], [[0.0, 0.1, 0.2, 0.4, 1.0]])
    found = verdict.of_prompt(cosines[0], lens[0])
    assert found.lines == {"cosine": 1, "kl": None, "overlap": None}
    assert found.bands == {"cosine": (1, 1), "kl": (2, 2), "overlap": (2, 2)}
    found = verdict.of_prompt(cosines[0], lens[0], kl=0.7, overlap=0.15)
    assert found.lines == {"cosine": 1, "kl": 2, "overlap": 2} and found.criteria["kl"].ratio == 0.75


def test_the_verdict_over_prompts_weighs_tokens():
    """One prompt of 30 tokens against seven of 2: it decides, and it is not in every resample."""
    early, late = [-0.3, 0.1, 0.2, 0.3], [-0.3, -0.2, -0.1, 0.3]
    fast, slow = [9, 2, 2, 2, 0], [9, 9, 2, 2, 0]
    cosines, lens = results([early] + 7 * [late], [fast] + 7 * [slow], 8 * [[0.0] * 4 + [1.0]], n_tokens=[30] + 7 * [2])
    found = {name: (criterion.depth, interval) for name, criterion, interval in verdict.verdicts(cosines, lens)}
    assert found["cosine"][0] == 0 and found["kl"][0] == 1
    assert found["cosine"][1] == (0, 2, 0) and found["kl"][1] == (1, 2, 0)
    depth_by_overlap, (low, high, undefined) = found["overlap"]
    assert depth_by_overlap is None and np.isnan([low, high]).all() and undefined == 1


def test_the_first_token_can_be_left_out_of_the_cosine():
    cosines, lens = results(
        [[-0.2, 0.1, 0.1, 0.2]], [[8, 2, 2, 2, 0]], [[0.0] * 5], n_tokens=[4], first=[-0.2, 5.0, 0.1, 0.2]
    )
    assert verdict.of_prompt(cosines[0], lens[0]).lines["cosine"] == 0
    assert verdict.of_prompt(cosines[0], lens[0], first_token=False).lines["cosine"] == 1


@pytest.mark.parametrize(
    "blocks, effective_depth, ratio",
    # Hu, Zhou, Zhang 2025 (arXiv 2512.14064): DeepSeek-R1-Distill-Qwen-1.5B on HellaSwag and GSM8K,
    # Qwen2.5-1.5B-Instruct on AIME24
    [
        (28, 17, 0.64),
        (28, 1, 0.07),
        (28, 23, 0.86),
        (28, 19, 0.71),
    ],
)
def test_the_ratio_is_the_published_one(blocks, effective_depth, ratio):
    assert round(criteria.Criterion("cosine", effective_depth, None, blocks).ratio, 2) == ratio


def results(cosines, kl, overlap, n_tokens=None, first=None):
    """Complete results with the given curves (means over tokens), one of each probe for every prompt."""
    n_tokens = n_tokens or [10] * len(cosines)

    def result(probe, n, curves):
        summary = {"n_tokens": np.asarray(n)} | {f"{name}.sum": n * np.float64(c) for name, c in curves.items()}
        summary |= {f"{name}.first": np.float64(curve if first is None else first) for name, curve in curves.items()}
        return ProbeResult(Request((), (), probe), {}, ("x",) * n, (0,) * n, None, 4, complete=True, summary=summary)

    names = ("attn_cos", "mlp_cos", "layer_cos")
    contributions = [result("contributions", n, dict.fromkeys(names, curve)) for n, curve in zip(n_tokens, cosines)]
    return contributions, [result("logit_lens", n, {"kl": a, "overlap": b}) for n, a, b in zip(n_tokens, kl, overlap)]


# ---------------------------------------------------------------- bootstrap


def sums_and_counts(n, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(5, 50, n)
    return {"kl": np.sort(rng.uniform(0, 10, (n, 12)))[:, ::-1] * counts[:, None]}, counts


def by_kl(curves):
    return criteria.depths("kl", curves["kl"])


def test_the_percentiles_are_seeded_and_bracket_the_verdict():
    sums, counts = sums_and_counts(8)
    first, again, other = (statistics.percentile(by_kl, sums, counts, statistics.units(8), seed) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    low, high, undefined = statistics.interval(first)
    whole = criteria.by_kl(sums["kl"].sum(0) / counts.sum()).depth
    assert low <= whole <= high and low < high and undefined == 0


def test_the_percentiles_draw_whole_prompts_with_replacement_and_weigh_tokens():
    """Prompt p's sum is 1 in column p and 0 elsewhere: a resample's curve tells how often each prompt was drawn."""
    seen, counts = [], np.arange(1, 7)

    def read(curves):
        seen.append(curves["which"])
        return np.zeros(len(curves["which"]))

    statistics.percentile(read, {"which": np.eye(6)}, counts, statistics.units(6), resamples=200)
    drawn = np.array([6 * curve / curve.sum() for curve in seen[0]])
    np.testing.assert_allclose(drawn, drawn.round(), atol=1e-9)
    np.testing.assert_allclose(seen[0], drawn / (drawn @ counts)[:, None])
    assert len(drawn) == 200 and drawn.max() >= 3 and drawn.min() == 0 and abs(drawn.mean(0) - 1).max() < 0.3


def test_quantiles_are_over_the_defined_resamples_and_the_rest_is_counted():
    low, high, undefined = statistics.interval([np.nan] * 25 + list(range(75)))
    assert (low, high, undefined) == pytest.approx((0.05 * 74, 0.95 * 74, 0.25))


@pytest.mark.parametrize(("n", "enough"), [(1, False), (7, False), (8, True)])
def test_there_is_no_interval_below_eight_prompts(n, enough):
    assert statistics.units(n).enough == enough


def test_a_verdict_without_a_token_or_with_one_block_is_not_defined_with_its_reason(model_of, measure):
    """Nothing left to average, nothing to compare with: never a number, never an error."""
    probes = (Contributions(), LogitLens())
    one_token = verdict.of_prompt(
        *(measure(model_of("llama"), probe, Prompt("a")) for probe in probes), first_token=False
    )
    assert one_token.lines["cosine"] is None and "first is not counted" in one_token.criteria["cosine"].reason
    shallow = model_of("llama", num_hidden_layers=1)
    one_block = verdict.of_prompt(*(measure(shallow, probe, Prompt("ab")) for probe in probes))
    assert set(one_block.lines.values()) == {None} and "one layer" in one_block.reasons[-1]

    probe = Contributions(first_token=False)
    of = {text: measure(model_of("llama"), probe, Prompt(text)).summary for text in ("a", "ab", "abc", "abcd", "b a")}
    for text, own in of.items():  # as the one shown, and among the others
        rest = [summary for other, summary in of.items() if other != text]
        assert ("gives no layer for this prompt" in among_others.sentence(probe, own, rest, False)) == (text == "a")
    shallow_one = measure(shallow, probe, Prompt("ab"))
    assert "gives no layer" in among_others.sentence(probe, shallow_one.summary, [shallow_one.summary] * 4, True)
    lens = measure(shallow, Lenses(), Prompt("ab"))
    assert {one.depth for of_rule in lenses.by_lens([lens]).criteria.values() for one in of_rule.values()} == {None}
    rows = exactness.without_first(shallow_one, measure(shallow, LogitLens(), Prompt("ab")))
    assert {row.depth_with for row in rows} == {None}


# ---------------------------------------------------------------- without a threshold


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
    above = missing[start:, None] > thresholds
    lasting = np.where(above.any(0), n - above[::-1].argmax(0), start)
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


@pytest.mark.parametrize("n", range(8, 49))
def test_a_clear_step_is_a_turn_wherever_it_lies(n):
    """Also where it lies between two of the blocks that random orders move."""
    steps = [k for k in range(1, n) if 0.35 < k / n < 0.75]
    assert [k for k in steps if continuous.fit([-0.3] * k + [0.3] * (n - k)).layer != k - 1] == []


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
