"""What studies say of uncertainty against SciPy and statsmodels, which the app itself does without."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import statsmodels.api as sm
from statsmodels.regression.mixed_linear_model import MixedLM
from test_trends import made

from ed_core.depth.criteria import depths
from ed_core.statistics import ENDS, interval, percentile, student, units
from ed_core.studies import difficulty, tables, trends


def test_the_interval_of_a_token_weighted_mean_is_scipys_bootstrap():
    rng = np.random.default_rng(1)
    counts = rng.integers(5, 200, 12).astype(float)
    sums = rng.normal(1.0, 0.4, 12) * counts
    read = percentile(lambda c: c[""][:, 0], {"": sums[:, None]}, counts, units(12), 3, 20_000)
    ours = np.quantile(read, ENDS)
    theirs = scipy.stats.bootstrap(
        (sums, counts),
        lambda s, c, axis: s.sum(axis) / c.sum(axis),
        paired=True,
        n_resamples=20_000,
        confidence_level=ENDS[1] - ENDS[0],
        method="percentile",
        rng=np.random.default_rng(4),
    )
    spread = theirs.standard_error
    assert ours == pytest.approx(theirs.confidence_interval, abs=0.05 * spread)


def test_the_interval_of_a_depth_is_scipys_bootstrap(toys):
    """The whole way on real sums: forms drawn, curves made anew in every resample, the rule read off each."""
    model, name = "ed-demo-16", "look-ups"
    some = toys.sums(model, name)
    sums, counts = tables.curves(toys, some, "overlap", "paper")
    (curve,) = sums.values()
    forms = np.array([toys.sets[name]["forms"][place] for place in some.index])
    curve, counts = (np.stack([each[forms == form].sum(0) for form in np.unique(forms)]) for each in (curve, counts))
    assert len(counts) == 8

    def depth(places, axis):
        drawn = np.moveaxis(places.astype(int), axis, -1)
        flat = drawn.reshape(-1, drawn.shape[-1])
        curves = np.stack([curve[one].sum(0) / counts[one].sum() for one in flat])
        return depths("overlap", curves).reshape(drawn.shape[:-1])

    theirs = scipy.stats.bootstrap(
        (np.arange(len(counts)),),
        depth,
        n_resamples=4000,
        confidence_level=ENDS[1] - ENDS[0],
        method="percentile",
        rng=np.random.default_rng(5),
    )
    row = next(
        r
        for r in tables.stored(toys, "verdict").to_pylist()
        if (r["model"], r["set"], r["criterion"], r["variant"]) == (model, name, "overlap", "paper")
    )
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
    by_pair = [dict(zip(level.pairs, level.own)) for level in found.levels]
    pairs = [pair for pair in by_pair[0] if all(pair in of for of in by_pair)]
    told = toys.sets["look-ups"]
    form_of = dict(zip(told["pairs"], told["forms"]))
    forms = sorted(set(form_of.values()))
    of_form = [[[of[pair] for pair in pairs if form_of[pair] == form] for of in by_pair] for form in forms]
    assert all(len(level) == n_pairs / len(forms) for levels in of_form for level in levels)
    y = np.array([np.mean(level) for levels in of_form for level in levels])
    x = np.tile(np.arange(n_levels) - (n_levels - 1) / 2, len(forms))
    design = sm.add_constant(x)
    groups = np.repeat(forms, n_levels)
    theirs = MixedLM(y / y.std(), design, groups, exog_re=design).fit(method=["lbfgs", "powell", "nm"])
    assert theirs.converged
    slope = theirs.fe_params[1] * y.std()
    assert found.trend.slope == pytest.approx(slope, rel=1e-6)
    own = np.polynomial.polynomial.polyfit(x[:n_levels], y.reshape(len(forms), n_levels).T, 1)[1]
    half = scipy.stats.t.ppf(0.95, len(forms) - 1) * scipy.stats.sem(own)
    assert (found.trend.high - found.trend.low) / 2 == pytest.approx(half, rel=0.1)
    assert math.isclose((found.trend.high + found.trend.low) / 2, slope, abs_tol=0.25 * half)
