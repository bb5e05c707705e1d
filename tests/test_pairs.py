"""Two results beside each other: one axis of depth, and a difference only where cells mean the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_figures import fake

from ed_core import figures
from ed_core.cases import export
from ed_core.depth import among_others, side_by_side
from ed_core.figures import View
from ed_core.probes import PROBES, Contributions, find
from ed_core.results.aggregate import summarize
from ed_core.types import Measure

VIEW = View()


def scaled(result, factor):
    """The same result, every float `factor` times as large."""
    of = lambda m: m if m.values.dtype.kind == "i" else Measure(m.spec, np.asarray(m.values * np.float32(factor)))
    return summarize(replace(result, measures={name: of(m) for name, m in result.measures.items()}))


def test_models_of_different_depth_are_matched_at_the_shallower_ones_layers():
    shallow, deep = np.array([1.0, 2.0]), np.array([10.0, 20.0, 30.0])  # at 1/2, 1 and at 1/3, 2/3, 1
    for a, b, expected in ((shallow, deep, [[1, 2], [15, 30]]), (deep, shallow, [[15, 30], [1, 2]])):
        np.testing.assert_allclose(side_by_side.matched(a, b, (len(a), len(b))), expected)
    assert [side.tolist() for side in side_by_side.matched(shallow, shallow * 3, (2, 2))] == [[1.0, 2.0], [3.0, 6.0]]


@pytest.mark.parametrize("name", [p.name for p in PROBES if p.curves])
def test_every_curve_is_the_probes_own_aggregate(name):
    a, b = fake(name), scaled(fake(name), 0.5)
    probe = find(name)()
    for found in side_by_side.pairs((probe, probe), a, b):
        mine, theirs = (among_others.curves_of(probe, [r.summary])[found.curve.name] for r in (a, b))
        np.testing.assert_array_equal(found.a, mine.astype(float))
        np.testing.assert_allclose(found.difference, theirs.astype(float) - mine, atol=1e-12)


def with_sink(result, pos, size):
    """The same contributions, one token's ratios `size` times as large."""

    def of(m):
        values = m.values.copy()
        values[..., pos] *= np.float32(size)
        return Measure(m.spec, values)

    measures = {name: of(m) if name.endswith("ratio") else m for name, m in result.measures.items()}
    return summarize(replace(result, measures=measures))


@pytest.mark.parametrize("first", [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize("sunk", [((2,), (2,)), ((2,), ()), ((2, 3), (1,))])
def test_curves_leave_out_each_sides_own_sinks_and_first_token(sunk, first):
    a, b = fake("contributions"), with_sink(fake("contributions"), 2, 50.0)
    found = side_by_side.pairs(tuple(Contributions(first_token=one) for one in first), a, b, sunk)[0]
    rows = []
    for result, out, counts in zip((a, b), sunk, first, strict=True):
        kept = [t for t in range(int(not counts), result.n_tokens) if t not in out]
        rows.append([sum(float(row[t]) for t in kept) / len(kept) for row in result["layer_ratio"]])
    np.testing.assert_allclose([found.a, found.b], rows, rtol=1e-5)
    np.testing.assert_allclose(found.difference, np.subtract(rows[1], rows[0]), rtol=1e-4, atol=1e-6)


def test_a_map_of_differences_leaves_the_sinks_out_of_range_and_strip():
    a, b = fake("contributions"), with_sink(fake("contributions"), 2, 50.0)
    z = side_by_side.difference(a, b, "layer_ratio")
    kept = [t for t in range(a.n_tokens) if t != 2]
    left = figures.difference_map(a, b, "layer_ratio", replace(VIEW, sinks=(2,)))
    strip = next(t for t in left.data if t.name == "mean")
    np.testing.assert_allclose(strip.x, z[:, kept].mean(1), atol=1e-6)
    counted = figures.difference_map(a, b, "layer_ratio", replace(VIEW, sinks=(2,), count_sinks=True))
    np.testing.assert_allclose(next(t for t in counted.data if t.name == "mean").x, z.mean(1), rtol=1e-5)
    whole = figures.difference_map(a, b, "layer_ratio", VIEW)
    assert left.data[0].zmax < whole.data[0].zmax


def test_a_difference_is_b_minus_a_around_zero():
    a, b = fake("logit_lens"), scaled(fake("logit_lens"), 0.5)
    for measure, values in (("kl", a["kl"]), ("top_probs", a["top_probs"][..., 0])):
        heatmap = figures.difference_map(a, b, measure, VIEW).data[0]
        np.testing.assert_allclose(heatmap.z, -0.5 * values, rtol=1e-6)
        assert heatmap.zmin == -heatmap.zmax


def test_no_difference_where_a_cell_would_not_mean_the_same():
    a, other_tokens = fake("contributions"), fake("contributions", tokens=("a", " b", "x", "c"))
    shorter = fake("contributions", tokens=("a", " b", "a"))
    for b, words in ((other_tokens, "4 and 4"), (shorter, "4 and 3")):
        assert words in side_by_side.no_difference(a, b, ("layer", "pos"))
        with pytest.raises(ValueError, match="no column of one|columns do not correspond"):
            figures.difference_map(a, b, "layer_ratio", VIEW)
    assert side_by_side.no_difference(a, fake("contributions"), ("layer", "pos")) == ""


def test_models_of_different_depth_differ_at_the_nearest_layers_of_the_deeper_one():
    assert side_by_side.nearest(7, 4, depths=True).tolist() == [0, 2, 3, 5, 7], "both ends, and of equals the lower"
    shallow, deep = fake("contributions"), fake("contributions", n_layers=8)
    for a, b, sign in ((shallow, deep, 1), (deep, shallow, -1)):
        fig = figures.difference_map(a, b, "layer_ratio", VIEW)
        expected = sign * (deep["layer_ratio"].astype(float)[[1, 3, 5, 7]] - shallow["layer_ratio"])
        np.testing.assert_array_equal(fig.data[0].z, expected)
        assert fig.layout.yaxis.range[1] == 4.5, "as many rows as the shallower model has layers"
    skip, deeper = fake("layer_skip"), fake("layer_skip", n_layers=8)
    expected = deeper["effect"][1::2, 1::2].astype(float) - skip["effect"]
    np.testing.assert_allclose(side_by_side.difference(skip, deeper, "effect"), expected)


def test_the_csv_holds_both_sides_with_all_digits():
    curve = among_others.Curve("c", "A curve", "unit")
    pair = side_by_side.Pair(curve, np.array([0.1, 0.2]), np.array([1 / 3]), (2, 1), None, None)
    lines = export.pair_csv(pair).splitlines()
    assert lines == ["side,layer,relative_depth,c", "A,0,0.5,0.1", "A,1,1.0,0.2", f"B,0,1.0,{1 / 3!r}"]
    a, b = fake("logit_lens"), fake("logit_lens", tokens=("x", "y"))
    lines = export.csv_of_sides({"A": a, "B": b}, "kl").splitlines()
    assert lines[0] == "side,depth,pos,token,kl" and len(lines) == 1 + a["kl"].size + b["kl"].size
    assert lines[1].startswith("A,0,0,") and lines[-1] == f'B,4,1,"""y""",{b["kl"][4, 1].item()!r}'
    assert [line.removeprefix("A,") for line in lines[1 : 1 + a["kl"].size]] == export.csv(a, "kl").splitlines()[1:]
