"""Two results beside each other: one axis of depth, one colour scale, and a difference only where cells mean the
same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_figures import fake

from ed_core import figures
from ed_core.cases import export
from ed_core.depth import among_others, side_by_side
from ed_core.depth.side_by_side import Pair
from ed_core.figures import View
from ed_core.probes import PROBES, Contributions, find
from ed_core.results.aggregate import summarize
from ed_core.types import Measure

CURVE = among_others.Curve("c", "A curve", "unit")
VIEW = View()


def pair(a, b, n_layers=None, curve=CURVE) -> Pair:
    a, b = np.asarray(a, float), np.asarray(b, float)
    n_layers = n_layers or (len(a), len(b))
    m, t = side_by_side.matched(a, b, n_layers)
    return Pair(curve, a, b, n_layers, t - m, among_others.likeness_of(curve, m, t))


def scaled(result, factor):
    """The same result, every float `factor` times as large."""
    of = lambda m: m if m.values.dtype.kind == "i" else Measure(m.spec, np.asarray(m.values * np.float32(factor)))
    return summarize(replace(result, measures={name: of(m) for name, m in result.measures.items()}))


# ---------------------------------------------------------------- relative depth


def test_relative_depth_is_the_effective_depths_ratio():
    assert side_by_side.relative_depth(4, 4).tolist() == [0.25, 0.5, 0.75, 1.0]
    assert side_by_side.relative_depth(5, 4).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_models_of_different_depth_are_matched_at_the_shallower_ones_layers():
    shallow, deep = np.array([1.0, 2.0]), np.array([10.0, 20.0, 30.0])  # at 1/2, 1 and at 1/3, 2/3, 1
    for a, b in ((shallow, deep), (deep, shallow)):
        a, b = side_by_side.matched(a, b, (len(a), len(b)))
        assert {tuple(a), tuple(b.round(9))} == {(1.0, 2.0), (15.0, 30.0)} or {tuple(a.round(9)), tuple(b)} == {
            (1.0, 2.0),
            (15.0, 30.0),
        }
    same = side_by_side.matched(shallow, shallow * 3, (2, 2))
    assert same[0] is shallow and same[1].tolist() == [3.0, 6.0]


# ---------------------------------------------------------------- what differs, in words


@pytest.mark.parametrize("name", [p.name for p in PROBES if p.curves])
def test_every_curve_is_the_probes_own_aggregate(name):
    a, b = fake(name), scaled(fake(name), 0.5)
    probe = find(name)()
    for found in side_by_side.pairs((probe, probe), a, b):
        mine, theirs = (among_others.curves_of(probe, [r.summary])[found.curve.name] for r in (a, b))
        np.testing.assert_array_equal(found.a, mine.astype(float))
        np.testing.assert_allclose(found.difference, theirs.astype(float) - mine, atol=1e-12)


def test_each_side_has_its_own_way_of_counting_the_first_token():
    result = fake("contributions")
    ratio = side_by_side.pairs((Contributions(), Contributions(first_token=False)), result, result)[0]
    np.testing.assert_allclose(ratio.a, result["layer_ratio"].mean(1), rtol=1e-6)
    np.testing.assert_allclose(ratio.b, result["layer_ratio"][:, 1:].mean(1), rtol=1e-6)


# ---------------------------------------------------------------- sinks


def with_sink(result, pos, size):
    """The same contributions, one token's ratios `size` times as large."""

    def of(m):
        values = m.values.copy()
        values[..., pos] *= np.float32(size)
        return Measure(m.spec, values)

    return summarize(
        replace(result, measures={n: of(m) if n.endswith("ratio") else m for n, m in result.measures.items()})
    )


@pytest.mark.parametrize("first_token", [True, False])
@pytest.mark.parametrize("sunk", [((2,), (2,)), ((2,), ()), ((2, 3), (1,))])
def test_curves_leave_each_sides_own_sinks_out(sunk, first_token):
    a, b = fake("contributions"), with_sink(fake("contributions"), 2, 50.0)
    probe = Contributions(first_token=first_token)
    found = side_by_side.pairs((probe, probe), a, b, sunk)[0]
    rows = []
    for result, out in zip((a, b), sunk, strict=True):
        kept = [t for t in range(int(not first_token), result.n_tokens) if t not in out]
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


# ---------------------------------------------------------------- maps


def test_a_difference_is_b_minus_a_around_zero():
    a, b = fake("logit_lens"), scaled(fake("logit_lens"), 0.5)
    for measure, values in (("kl", a["kl"]), ("top_probs", a["top_probs"][..., 0])):
        heatmap = figures.difference_map(a, b, measure, VIEW).data[0]
        np.testing.assert_allclose(heatmap.z, -0.5 * values, rtol=1e-6)
        assert heatmap.zmin == -heatmap.zmax
        assert heatmap.colorscale[len(heatmap.colorscale) // 2][0] == 0.5, "0 in the middle"
    told = figures.difference_map(a, b, "kl", VIEW).data[0].text[0][0]
    assert "B − A" in told and "A " in told


def test_no_difference_where_a_cell_would_not_mean_the_same():
    a, other_tokens = fake("contributions"), fake("contributions", tokens=("a", " b", "x", "c"))
    shorter = fake("contributions", tokens=("a", " b", "a"))
    for b, words in ((other_tokens, "4 and 4"), (shorter, "4 and 3")):
        assert words in side_by_side.no_difference(a, b, ("layer", "pos"))
        with pytest.raises(ValueError, match="no column of one|columns do not correspond"):
            figures.difference_map(a, b, "layer_ratio", VIEW)
    assert side_by_side.no_difference(a, fake("contributions"), ("layer", "pos")) == ""


def test_models_of_different_depth_differ_at_the_nearest_layers_of_the_deeper_one():
    assert side_by_side.nearest(6, 3).tolist() == [1, 3, 5] and side_by_side.nearest(3, 3).tolist() == [0, 1, 2]
    assert side_by_side.nearest(7, 4, depths=True).tolist() == [0, 2, 3, 5, 7], "both ends, and of equals the lower"
    shallow, deep = fake("contributions"), fake("contributions", n_layers=8)
    for a, b, sign in ((shallow, deep, 1), (deep, shallow, -1)):
        fig = figures.difference_map(a, b, "layer_ratio", VIEW)
        expected = sign * (deep["layer_ratio"].astype(float)[[1, 3, 5, 7]] - shallow["layer_ratio"])
        np.testing.assert_array_equal(fig.data[0].z, expected)
        assert fig.layout.yaxis.range[1] == 4.5, "as many rows as the shallower model has layers"
    lens = side_by_side.difference(fake("logit_lens"), fake("logit_lens", n_layers=8), "kl")
    np.testing.assert_allclose(lens[-1], fake("logit_lens", n_layers=8)["kl"][-1] - fake("logit_lens")["kl"][-1])
    skip, deeper = fake("layer_skip"), fake("layer_skip", n_layers=8)
    np.testing.assert_allclose(
        side_by_side.difference(skip, deeper, "effect"), deeper["effect"][1::2, 1::2].astype(float) - skip["effect"]
    )


# ---------------------------------------------------------------- ruler, names, CSV


def test_the_csv_holds_both_sides_with_all_digits():
    lines = export.pair_csv(pair([0.1, 0.2], [1 / 3])).splitlines()
    assert lines == ["side,layer,relative_depth,c", "A,0,0.5,0.1", "A,1,1.0,0.2", f"B,0,1.0,{1 / 3!r}"]
    a, b = fake("logit_lens"), fake("logit_lens", tokens=("x", "y"))
    lines = export.csv_of_sides({"A": a, "B": b}, "kl").splitlines()
    assert lines[0] == "side,depth,pos,token,kl" and len(lines) == 1 + a["kl"].size + b["kl"].size
    assert lines[1].startswith("A,0,0,") and lines[-1] == f'B,4,1,"""y""",{b["kl"][4, 1].item()!r}'
    assert [line.removeprefix("A,") for line in lines[1 : 1 + a["kl"].size]] == export.csv(a, "kl").splitlines()[1:]
