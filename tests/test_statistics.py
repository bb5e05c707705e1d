"""Intervals cover what they say they cover, templates are the units where there are enough, Holm and permutations
against what can be counted by hand. What studies say of uncertainty against SciPy and statsmodels, which the app does
without."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import statsmodels.api as sm
from statsmodels.regression.mixed_linear_model import MixedLM
from test_trends import made

from ed_core import statistics
from ed_core.depth import mean_depth
from ed_core.depth.rules import depths
from ed_core.statistics import ENDS, interval, percentile, student, units
from ed_core.studies import difficulty, tables, trends

DRAWS = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0, 0.87),
    "exponential": (lambda rng, n: rng.exponential(size=n), 1.0, 0.87),
    "lognormal": (lambda rng, n: rng.lognormal(size=n), float(np.exp(0.5)), 0.84),
}


def covered(draw, true, times, resamples, interval_of):
    """The share of made-up sets whose interval holds the truth."""
    found = (interval_of(draw(np.random.default_rng(i)), i % 41, resamples) for i in range(times))
    return sum(low <= true <= high for low, high, _ in found) / times


def of_mean(values, seed, resamples):
    return statistics.mean(values, None, units(len(values)), seed, resamples).interval


def test_the_interval_is_narrower_than_certainty_and_wider_than_nothing():
    """A quick look; more of it below."""
    assert 0.8 < covered(lambda rng: rng.normal(size=10), 0.0, 200, 200, of_mean) < 0.97


@pytest.mark.process
@pytest.mark.parametrize("n", [10, 50])
@pytest.mark.parametrize("kind", DRAWS)
def test_nine_of_ten_intervals_hold_the_mean(kind, n):
    draw, true, least = DRAWS[kind]
    found = covered(lambda rng: draw(rng, n), true, 1000, 500, of_mean)
    assert least <= found + 2 * np.sqrt(0.09 / 1000), found


@pytest.mark.process
@pytest.mark.parametrize("forms", [5, 10])
def test_templates_as_units_cover_where_prompts_as_units_do_not(forms):
    of = np.arange(50) % forms

    def drawn(rng):
        return rng.normal(size=forms)[of] + rng.normal(size=50)

    def by_form(values, seed, resamples):
        return statistics.mean(values, None, units(50, [f"{f}" for f in of]), seed, resamples).interval

    assert covered(drawn, 0.0, 1000, 500, by_form) >= 0.87
    assert covered(drawn, 0.0, 500, 500, of_mean) < 0.7


def made_up_curves(rng, n, n_layers=12):
    """Sums over tokens of curves that fall at a place of each prompt's own, and the numbers of tokens."""
    place, tokens = 5 + 2 * rng.exponential(size=n), rng.integers(5, 30, n)
    curve = 8 / (1 + np.exp((np.arange(n_layers + 1) - place[:, None]) / 1.2)) * np.exp(0.3 * rng.normal(size=(n, 1)))
    curve[:, -1] = 0
    return curve * tokens[:, None], tokens


@pytest.mark.process
def test_nine_of_ten_intervals_hold_the_mean_depth():
    sums, tokens = made_up_curves(np.random.default_rng(0), 400_000)
    true = mean_depth.of_curve("kl", sums.sum(0) / tokens.sum()).depth

    def interval_of(drawn, seed, resamples):
        return mean_depth.resampled("kl", *drawn, units(10), seed, resamples=resamples).interval

    assert covered(lambda rng: made_up_curves(rng, 10), true, 500, 500, interval_of) >= 0.87


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).exponential(size=(13, 1))
    plain = statistics.mean(values[:, 0], None, units(13), resamples=50)
    read = statistics.read_off(lambda c: c["x"][:, 0], {"x": values}, np.ones(13), units(13), resamples=50)
    assert plain.error == pytest.approx(values.std(ddof=1) / np.sqrt(13))
    for name in ("value", "error", "again", "errors", "draws"):
        np.testing.assert_allclose(getattr(read, name), getattr(plain, name), rtol=1e-9)


def test_bootstrap_t_is_scipys_when_both_draw_the_same_prompts():
    """One prompt's resamples by hand: its own mean, its own standard error, turned around the value."""
    values, over = np.random.default_rng(3).normal(size=9), units(9)
    found = statistics.mean(values, None, over, seed=5, resamples=7)
    for times, draw in zip(statistics.counts(over.n, 7, 5).astype(int), found.draws, strict=True):
        again = np.repeat(values, times)
        error, redrawn = scipy.stats.sem(values), scipy.stats.sem(again)
        assert draw == pytest.approx(values.mean() - error * (again.mean() - values.mean()) / redrawn)


def test_ratios_weigh_prompts_by_their_tokens():
    sums, tokens = np.array([2.0, 30.0, 8.0, 1.0, 5.0, 9.0, 4.0, 7.0]), np.array([1, 10, 2, 1, 5, 3, 2, 7])
    found = statistics.mean(sums, tokens, units(8))
    assert found.value == pytest.approx(sums.sum() / tokens.sum())
    by_jackknife = statistics.read_off(lambda c: c["x"][:, 0], {"x": sums[:, None]}, tokens, units(8))
    assert found.error == pytest.approx(by_jackknife.error, rel=0.2)  # linear and jackknife errors of a ratio


def test_templates_are_units_from_five_on():
    assert units(10).n == 10 and not units(10).by_form and units(1).words == "1 prompt"
    few = units(10, ["a", "b"] * 5)
    assert (few.n, few.by_form, few.words) == (10, False, "10 prompts of 2 templates")
    many = units(10, list("abcde") * 2)
    assert (many.n, many.by_form, many.words, many.enough) == (5, True, "10 prompts of 5 templates", True)
    np.testing.assert_array_equal(many.pooled(np.arange(10)), [5, 7, 9, 11, 13])
    alone = units(8, ["a", "a", "", "", "", "", "b", "b"])
    assert (alone.n, alone.by_form) == (6, True)  # a prompt without a template is one of its own
    assert not units(7).enough and units(8).enough
    with pytest.raises(ValueError, match="a form for each of 3"):
        units(3, ["a"])


def test_many_units_are_bundled():
    values = np.random.default_rng(0).normal(size=(500, 1))
    found = statistics.read_off(lambda c: c["x"][:, 0], {"x": values}, np.ones(500), units(500), resamples=100)
    assert found.error == pytest.approx(values.std(ddof=1) / np.sqrt(500), rel=0.25)
    assert np.median(found.errors) == pytest.approx(float(found.error), rel=0.25)


def test_holm_by_hand():
    np.testing.assert_allclose(statistics.holm([0.01, 0.04, 0.03, np.nan]), [0.03, 0.06, 0.06, np.nan])
    np.testing.assert_allclose(statistics.holm([0.5, 0.6]), [1.0, 1.0])
    assert len(statistics.holm([])) == 0


def test_beyond_counts_what_lies_on_the_other_side():
    draws = np.array([1.0, 2.0, 3.0, np.nan])
    assert statistics.beyond(draws, 2.5, above=False) == (1 + 2) / 5
    assert statistics.beyond(draws, 0.0, above=True) == (1 + 1) / 5


def test_a_contrast_of_independent_parts_adds_their_variances():
    rng = np.random.default_rng(0)
    parts = [statistics.mean(rng.normal(size=20), None, units(20), seed) for seed in (1, 2)]
    found = statistics.contrast([-1, 1], parts)
    assert found.error == pytest.approx(np.hypot(parts[0].error, parts[1].error))
    assert found.value == pytest.approx(parts[1].value - parts[0].value)


def test_a_permutation_counts_the_observed_order():
    orders = np.array([[3, 2, 1], [1, 2, 3], [3, 2, 1], [2, 1, 3]])
    assert statistics.permutation_p(lambda o: o[:, 0], orders) == 2 / 4
    assert statistics.permutation_p(lambda o: np.full(len(o), np.nan), orders) == 1


def test_ranks_and_their_correlations_are_scipys():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, (40, 12)).astype(float), rng.normal(size=(40, 12))
    found = statistics.rank_correlations(a, b)
    assert np.allclose(statistics.ranks(a) + 6.5, scipy.stats.rankdata(a, axis=1))
    assert np.allclose(found, [scipy.stats.spearmanr(x, y)[0] for x, y in zip(a, b)])
    b[3], a[5, 2] = 1.0, np.nan
    assert np.isnan(statistics.rank_correlations(a, b)[[3, 5]]).all()


def test_draws_over_layers_are_students_t_over_blocks_of_layers():
    values = np.random.default_rng(1).normal(3, 1, 32)
    blocks = values.reshape(8, 4).mean(1)
    draws = statistics.over_layers(lambda at, v: float(v.mean()), 32, values)
    expected = scipy.stats.t.interval(0.9, 7, values.mean(), blocks.std(ddof=1) / np.sqrt(8))
    assert np.allclose(np.quantile(draws, (0.05, 0.95)), expected, atol=0.02)
    alike = statistics.over_layers(lambda at, v: float(v.mean()), 32, values, mean=True)
    assert np.ptp(alike) > 1.2 * np.ptp(draws), "blocks next to each other have something in common"
    assert np.isnan(statistics.over_layers(lambda at, v: float(v.mean()), 8, np.ones(2))).all(), "one block"


def test_of_many_places_the_surest_pays_for_all_and_the_least_sure_decides():
    t, freedom = np.array([-6.0, -1.0, 0.0, 2.0, 5.0]), 9
    found = statistics.student_p(t, np.ones(5), 0.0, freedom, True)
    assert np.allclose(found, scipy.stats.t.sf(t, freedom), atol=1e-5)
    exact = statistics.student_p(np.array([1.0, -1.0, 0.0, np.nan]), np.zeros(4), 0.0, freedom, True)
    assert exact == pytest.approx([0.0, 1.0, 0.5, 1.0])
    over, rng = statistics.units(10), np.random.default_rng(0)
    drawn = [statistics.mean(rng.normal(0, 1, (10, 20)), None, over) for _ in range(300)]
    assert np.mean([statistics.some_below(one, 0.0, over) <= 0.05 for one in drawn]) <= 0.08
    noise = rng.normal(0, 0.1, (10, 2))
    curve = statistics.mean(np.array([1.0, 2.0]) + noise - noise.mean(0), None, over)
    assert statistics.all_above(curve, 0.5, over) < 0.001 < 0.49 < statistics.all_above(curve, 1.0, over)
    assert statistics.some_below(curve, 1.5, over) < 0.001 < 0.9 < statistics.some_below(curve, 0.5, over)


@pytest.mark.parametrize("shape", [(40,), (40, 3), (40, 2, 3)])
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_ends_leave_out_what_is_not_defined(shape):
    values = np.random.default_rng(3).normal(size=shape)
    np.testing.assert_array_equal(statistics.ends(values), np.quantile(values, (0.05, 0.95), axis=0))
    values[np.random.default_rng(4).random(shape) < 0.3] = np.nan
    if len(shape) > 1:
        values[:, 0] = np.nan
    found = statistics.ends(values)
    assert found.shape == (2, *shape[1:])
    np.testing.assert_array_equal(found, np.nanquantile(values, (0.05, 0.95), axis=0))
    whole = values.reshape(len(values), -1)[:, -1]
    low, high, undefined = statistics.interval(whole)
    assert (low, high) == tuple(np.nanquantile(whole, (0.05, 0.95)))
    assert undefined == pytest.approx(np.isnan(whole).mean())


# ---------------------------------------------------------------- what studies say


PERCENTILE = dict(confidence_level=ENDS[1] - ENDS[0], method="percentile")  # as SciPy is asked


def test_the_interval_of_a_token_weighted_mean_is_scipys_bootstrap():
    rng = np.random.default_rng(1)
    counts = rng.integers(5, 200, 12).astype(float)
    sums = rng.normal(1.0, 0.4, 12) * counts
    ours = np.quantile(percentile(lambda c: c[""][:, 0], {"": sums[:, None]}, counts, units(12), 3, 20_000), ENDS)
    theirs = scipy.stats.bootstrap(
        (sums, counts),
        lambda s, c, axis: s.sum(axis) / c.sum(axis),
        paired=True,
        n_resamples=20_000,
        rng=np.random.default_rng(4),
        **PERCENTILE,
    )
    assert ours == pytest.approx(theirs.confidence_interval, abs=0.05 * theirs.standard_error)


def test_the_interval_of_a_depth_is_scipys_bootstrap(toys):
    """The whole way on real sums: forms drawn, curves made anew in every resample, the rule read off each."""
    model, name = "ed-demo-16", "look-ups"
    some, lens = toys.sums(model, name), tables.sample(toys, model, name).curves["logit_lens"]
    curve, counts = lens.sums["overlap"][:, :-1], lens.tokens
    forms = np.array([toys.sets[name]["forms"][place] for place in some.index])
    curve, counts = (np.stack([each[forms == form].sum(0) for form in np.unique(forms)]) for each in (curve, counts))
    assert len(counts) == 8

    def depth(places, axis):
        drawn = np.moveaxis(places.astype(int), axis, -1)
        flat = drawn.reshape(-1, drawn.shape[-1])
        curves = np.stack([curve[one].sum(0) / counts[one].sum() for one in flat])
        return depths("overlap", curves).reshape(drawn.shape[:-1])

    rng = np.random.default_rng(5)
    theirs = scipy.stats.bootstrap((np.arange(len(counts)),), depth, n_resamples=4000, rng=rng, **PERCENTILE)
    wanted = dict(model=model, set=name, criterion="overlap", variant="paper")
    row = next(row for row in tables.stored(toys).to_pylist() if wanted.items() <= row.items())
    low, high, undefined = interval(theirs.bootstrap_distribution)
    assert (row["low"], row["high"]) == (low, high) and row["low"] < row["high"]
    assert row["undefined"] == pytest.approx(undefined, abs=0.02)


@pytest.mark.parametrize("df", [1, 2, 3, 7, 30])
def test_students_t_is_scipys(df):
    assert student(df, trends.LEVEL) == pytest.approx(scipy.stats.t.ppf(0.95, df), rel=1e-9)
    values = np.random.default_rng(df).normal(0.1, 1, df + 1)
    theirs = scipy.stats.t.interval(0.9, df, loc=values.mean(), scale=scipy.stats.sem(values))
    assert trends.around(values) == pytest.approx(theirs)


def test_the_line_against_size_is_the_one_of_least_squares_with_a_height_for_each_set():
    some = made(0.07, noise=0.05, seed=8, sets=("a", "b", "c"))
    x = np.log10([p.parameters for p in some])
    heights = np.array([[p.set == name for name in "abc"] for p in some], float)
    theirs = sm.OLS(np.array([p.ratio for p in some]), np.column_stack([x, heights])).fit()
    assert trends.slope(some).slope == pytest.approx(theirs.params[0], rel=1e-9)


@pytest.mark.filterwarnings("ignore::statsmodels.tools.sm_exceptions.ConvergenceWarning")  # pairs differ hardly
@pytest.mark.parametrize("kind", difficulty.KINDS)
def test_the_trend_over_pairs_is_that_of_a_mixed_model(toys, kind):
    """A random line for each form: its mean slope is the mean of the forms' own. The interval is that of Student's t
    over the forms' own slopes; the mixed model's is wider where its variance stands at 0."""
    found = difficulty.look(toys, "ed-demo-8", "look-ups", kind)
    n_levels, n_pairs = len(found.levels), found.trend.paired
    assert n_pairs >= 10
    by_pair = [dict(zip(level.part.pairs, level.own)) for level in found.levels]
    pairs = [pair for pair in by_pair[0] if all(pair in of for of in by_pair)]
    told = toys.sets["look-ups"]
    form_of = dict(zip(told["pairs"], told["forms"]))
    forms = sorted(set(form_of.values()))
    of_form = [[[of[pair] for pair in pairs if form_of[pair] == form] for of in by_pair] for form in forms]
    assert all(len(level) == n_pairs / len(forms) for levels in of_form for level in levels)
    y = np.array([np.mean(level) for levels in of_form for level in levels])
    x = np.tile(np.arange(n_levels) - (n_levels - 1) / 2, len(forms))
    design, groups = sm.add_constant(x), np.repeat(forms, n_levels)
    theirs = MixedLM(y / y.std(), design, groups, exog_re=design).fit(method=["lbfgs", "powell", "nm"])
    assert theirs.converged
    slope = theirs.fe_params[1] * y.std()
    assert found.trend.slope == pytest.approx(slope, rel=1e-6)
    own = np.polynomial.polynomial.polyfit(x[:n_levels], y.reshape(len(forms), n_levels).T, 1)[1]
    half = scipy.stats.t.ppf(0.95, len(forms) - 1) * scipy.stats.sem(own)
    assert (found.trend.high - found.trend.low) / 2 == pytest.approx(half, rel=0.1)
    assert math.isclose((found.trend.high + found.trend.low) / 2, slope, abs_tol=0.25 * half)
