"""Rules, mean depth and turn on curves drawn by hand and against plain loops; samples and their verdicts; made-up data:
noise does not convince, a clear effect does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ed_core.depth import lenses, mean_depth, sinks, turn, verdict
from ed_core.depth.rules import OF_LENS, RULES, depths, reason
from ed_core.depth.sample import CURVES, READS, Sample, prompt_sums
from ed_core.probes import Contributions, Lenses, LogitLens
from ed_core.statistics import units
from ed_core.types import ProbeResult, Prompt, Request


def reached(contributions, lens, kl=0.5, overlap=0.3, **how):
    return verdict.verdict(Sample.of(contributions, lens, **how), kl, overlap)


@pytest.mark.parametrize(
    "name, curve, depth, stable",
    [
        ("cosine", [-1, 0, 0, 0], 0, 0),  # 0 counts as having come back up
        ("cosine", [-1, 1, -1, 1, 1], 2, 2),  # the last crossing, not the first
        ("cosine", [-1, 1, 1, -1, -1], 0, None),  # falls again for good: the paper's rule still names block 0
        ("kl", [8, 10, 5, 4.9, 1], 3, 3),  # half of the largest, not of the first; exactly half is not below
        ("kl", [10, 4, 8, 3, 1], 1, 3),  # a dip decides the paper's rule, not the stable one
        ("kl", [10, 4, 8, 8, 1], 1, None),  # holds through the last only in the last block, which does not count
        ("overlap", [0.3, 0.2, 0.31, 0.6], 2, 2),  # exactly the threshold is not above it
        ("overlap", [0.4, 0.1, 0.5, 0.6], 0, 2),
    ],
)
def test_a_rule_takes_the_papers_layer_and_the_one_from_which_it_holds(name, curve, depth, stable):
    assert RULES[name].layers(curve) == (depth, stable)


@pytest.mark.parametrize(
    "name, curve, why",
    [
        ("cosine", [0.3, 0.0, 0.2], "never below 0"),
        ("cosine", [-0.3, -0.1, -0.2], "below 0 in every layer"),
        ("cosine", [0.3, -0.1, -0.2], "stays there"),
        ("cosine", [0.3, 0.1, -0.2], "below 0 in the last layer only"),
        ("kl", [0, 0, 0], "never reached"),
        ("kl", [3, np.nan, 1], "not finite"),
        ("overlap", [0.0, 0.0, 0.9], "before the last layer only"),
    ],
)
def test_a_rule_without_a_layer_says_why(name, curve, why):
    assert RULES[name].layers(curve) == (None, None)
    assert reason(name, np.array(curve, float), RULES[name].threshold).endswith(why)


@pytest.mark.parametrize(
    "curve, paper, expected, stable",
    [
        ([15, 7, 6, 6, 6, 3, 3, 1], 1, 5, 5),  # tied embeddings: depth 0 is the maximum, and the rule holds at once
        ([15, 7, 3, 6, 6, 3.4, 3, 1], 1, 2, 5),
        ([1, 10, 8, 8, 4, 4, 4, 1], 0, 4, 4),  # from l = 1 on, so a low first row is no answer
        ([15, 7, 7, 7, 7, 7, 7, 1], 1, None, None),
        ([15, 7], None, None, None),  # two blocks: no l with 1 <= l < L - 1
    ],
)
def test_kl_from_depth_1_leaves_row_0_out_of_maximum_and_rule(curve, paper, expected, stable):
    assert RULES["kl"].layers(curve)[0] == paper
    assert RULES["kl"].layers(curve, "from_depth_1") == (expected, stable)


def test_the_cosine_curve_is_the_mean_of_the_three():
    curves = {"attn_cos": [0.0, 0.5], "mlp_cos": [0.3, -0.5], "layer_cos": [-0.6, 0.3], "io_cos": [1.0, 1.0]}
    assert RULES["cosine"].curve({k: np.float32(v) for k, v in curves.items()}) == pytest.approx([-0.1, 0.1])


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=6, max_size=6), min_size=1, max_size=4), st.sampled_from(list(RULES))
)
def test_many_curves_at_once_are_those_of_plain_loops(rows, name):
    """Every rule and variant, read layer by layer."""
    curves = np.asarray(rows, float) if name == "cosine" else (np.asarray(rows, float) + 3) / 6
    for variant in RULES[name].variants:
        found = depths(name, curves, variant)
        assert [None if np.isnan(d) else int(d) for d in found] == [by_loop(name, list(c), variant) for c in curves]


def by_loop(name, c, variant):
    last = len(c) - 1
    if name == "cosine":
        below = [l for l in range(len(c)) if c[l] < 0]
        if variant == "stable":
            return below[-1] if below and below[-1] != last else None
        return next((l for l in reversed(below) if l < last and c[l + 1] >= 0), None)
    start = int(variant == "from_depth_1")

    def holds(l):
        return l >= start and (c[l] > 0.3 + 1e-6 if name == "overlap" else c[l] < 0.5 * max(c[start:]))

    lasting = variant == "stable"
    return next((l for l in range(last) if holds(l) and (not lasting or all(map(holds, range(l, len(c)))))), None)


# ---------------------------------------------------------------- samples and their verdicts


def test_a_verdict_leaves_out_the_output_row_of_the_lens():
    """Rows 0..L-1 count; row L is the output itself, with divergence 0 and overlap 1."""
    cosines, lens = results([[-0.2, -0.1, 0.1, 0.2]], [[8, 6, 5, 3, 0]], [[0.0, 0.1, 0.2, 0.4, 1.0]])
    found = reached(cosines, lens)
    assert found.layers == {"cosine": 1, "kl": None, "overlap": None}
    assert [rule.band for rule in found.rules.values()] == [(1, 1), (2, 2), (2, 2)]
    found = reached(cosines, lens, 0.7, 0.15)
    assert found.layers == {"cosine": 1, "kl": 2, "overlap": 2} and found.rules["kl"].ratio == 0.75


def test_the_verdict_over_prompts_weighs_tokens():
    """One prompt of 30 tokens against seven of 2: it decides, and it is not in every resample."""
    early, late = [-0.3, 0.1, 0.2, 0.3], [-0.3, -0.2, -0.1, 0.3]
    fast, slow = [9, 2, 2, 2, 0], [9, 9, 2, 2, 0]
    cosines, lens = results([early] + 7 * [late], [fast] + 7 * [slow], 8 * [[0.0] * 4 + [1.0]], n_tokens=[30] + 7 * [2])
    found = reached(cosines, lens).rules
    assert found["cosine"].depth == 0 and found["kl"].depth == 1
    assert found["cosine"].interval == (0, 2, 0) and found["kl"].interval == (1, 2, 0)
    low, high, undefined = found["overlap"].interval
    assert found["overlap"].depth is None and np.isnan([low, high]).all() and undefined == 1
    assert {verdict.INTERVAL} <= set(found["cosine"].doubts)


def test_the_first_token_can_be_left_out_of_the_cosine():
    cosines, lens = results(
        [[-0.2, 0.1, 0.1, 0.2]], [[8, 2, 2, 2, 0]], [[0.0] * 5], n_tokens=[4], first=[-0.2, 5.0, 0.1, 0.2]
    )
    assert reached(cosines, lens).layers["cosine"] == 0
    assert reached(cosines, lens, first_token=False).layers["cosine"] == 1


@pytest.mark.parametrize("forms", [(), ("a", "a", "b", "c", "d", "e", "e", "e", "e")])
def test_results_and_their_stored_sums_give_the_same_verdict(model_of, measure, forms):
    """What a study keeps of prompts is enough: every number, twins and sinks included."""
    prompts = [Prompt(text) for text in ("abc", "b a c", "cab b", "aabbcc", "c", "bb", "ccab", "a b", "bca")]
    of = [[measure(model_of("llama"), probe, prompt) for prompt in prompts] for probe in (Contributions(), LogitLens())]
    twin = [list(reversed(results)) for results in of]
    for first_token in (True, False):
        mine = Sample.of(*of, first_token=first_token, forms=forms, twins=[tuple(twin)])
        stored = [sums_of(part, forms, first_token) for part in (of, twin)]
        theirs = Sample.of_sums(**stored[0], twins=[Sample.of_sums(**stored[1])])
        a, b = verdict.verdict(mine), verdict.verdict(theirs)
        assert (a.sample.n_prompts, a.means, a.turn) == (b.sample.n_prompts, b.means, b.turn)
        assert len(a.twins) == 1 and a.twins[0].means.keys() == {"kl", "overlap"}
        for name, rule in a.rules.items():
            for kind in ("layers", "band", "range", "intervals", "twins", "doubts"):
                assert repr(getattr(rule, kind)) == repr(getattr(b.rules[name], kind)), (name, kind)


def sums_of(of, forms, first_token):
    """What a study keeps of these results."""
    at = [{s.pos for s in sinks.of_result(result)} for result in of[0]]
    columns = {}
    for probe, results in zip(READS, of, strict=True):
        columns[probe] = {name: np.stack([r.summary[name] for r in results]) for name in results[0].summary}
        sums, counts = prompt_sums(results, CURVES[probe], True, at)
        columns[probe] |= {f"{name}.no_sinks": values for name, values in sums.items()}
        columns[probe] |= {"n_no_sinks": counts, "first_is_sink": [0 in found for found in at]}
    return dict(columns=columns, forms=dict.fromkeys(READS, forms), first_token=first_token)


def test_a_verdict_is_read_for_any_tokens(model_of, measure):
    """For all, for half of the answer's tokens, for one: the sums are those of plain loops over these tokens."""
    prompt = Prompt("a b c ", "cab")
    written, lens = (measure(model_of("llama"), probe, prompt) for probe in (Contributions(), LogitLens()))
    start = lens.answer_start
    pair = (start - 1, start)
    for of, at in (("answer", range(start - 1, lens.n_tokens - 1)), (pair, pair), (2, (2,))):
        found = verdict.verdict(Sample.of(written, lens, of=of))
        kl = sum(lens["kl"][:, t].astype(float) for t in at) / len(at)
        assert found.means["kl"].depth == pytest.approx(mean_depth.of_curve("kl", kl).depth)
        assert found.layers["kl"] == RULES["kl"].layers(kl[:-1])[0]
    with pytest.raises(ValueError, match="positions from 0"):
        Sample.of(written, lens, of=lens.n_tokens)


def made_up(step, seed, noise=0.05, n=12, layers=16):
    """A sample whose cosine, divergence and overlap all step at a layer; no step: noise alone."""
    rng = np.random.default_rng(seed)
    at = np.arange(layers + 1)
    before = (at <= step) if step is not None else np.full(layers + 1, 0.5)
    shapes = {"attn_cos": 0.2 - 0.4 * before[:-1], "kl": 0.2 + 4 * before, "overlap": 0.9 - 0.85 * before}
    shapes |= dict.fromkeys(("mlp_cos", "layer_cos"), shapes["attn_cos"])
    sums = {f"{k}.sum": 10 * (v + noise * rng.normal(size=(n, len(v)))) for k, v in shapes.items()} | {
        "n_tokens": np.full(n, 10)
    }
    return Sample.of_sums(dict.fromkeys(READS, sums))


def with_copies(own, *copies):
    """The verdict on a sample beside copies made of (step, seed)."""
    return verdict.verdict(replace(own, twins=tuple(made_up(*copy) for copy in copies)))


def test_a_clear_effect_is_robust_and_a_copy_of_it_takes_that_away():
    for seed in range(2):
        own = made_up(8, seed)
        found = with_copies(own, *((2, 100 + i) for i in range(5)))
        assert {name: rule.depth for name, rule in found.rules.items()} == {"cosine": 8, "kl": 9, "overlap": 9}
        assert all(rule.clear for rule in found.rules.values()) and found.turn.layer == 8
        few = with_copies(own, *((2, 100 + i) for i in range(4)))
        assert all(rule.so_far and not rule.clear for rule in few.rules.values())
        shared = with_copies(own, (8, 200), (8, 201), (8, 202), (2, 300), (2, 301))
        assert all(rule.doubts == (verdict.TWINS,) for rule in shared.rules.values())
        assert shared.turn.failed == "twins"


def test_noise_does_not_convince():
    """Sixty models of noise, each with five copies of noise: a robust layer or a turn is rare."""
    noise = [[made_up(None, 6 * s + i, n=1) for i in range(6)] for s in range(60)]
    found = [verdict.verdict(replace(own, twins=tuple(copies))) for own, *copies in noise]
    assert sum(rule.clear for one in found for rule in one.rules.values()) <= 2  # of 180
    assert sum(one.turn is not None and one.turn.layer is not None for one in found) <= 1


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


def test_a_verdict_without_a_token_or_with_one_block_is_not_defined_with_its_reason(model_of, measure):
    """Nothing left to average, nothing to compare with: never a number, never an error."""
    probes = (Contributions(), LogitLens())
    one_token = reached(*(measure(model_of("llama"), probe, Prompt("a")) for probe in probes), first_token=False)
    assert one_token.rules["cosine"].reason == "no token is left to count" and one_token.layers["cosine"] is None
    shallow = model_of("llama", num_hidden_layers=1)
    one_block = reached(*(measure(shallow, probe, Prompt("ab")) for probe in probes))
    assert set(one_block.layers.values()) == {None}
    assert {rule.reason for rule in one_block.rules.values()} == {"the model has one layer only"}
    read = lenses.by_lens([measure(shallow, Lenses(), Prompt("ab"))])
    assert {v.layers[name] for v in read.verdicts.values() for name in OF_LENS} == {None}


L = 20
KL_LINE, OVERLAP_LINE = 1 - np.arange(L + 1) / L, np.arange(L + 1) / L


def step(at):
    return np.where(np.arange(L + 1) < at, 1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "curve", "depth"),
    [
        ("kl", KL_LINE, 1 + L / 2),
        ("kl", step(7), 7.0),
        ("kl", np.where(np.arange(L + 1) == 9, 0.0, step(15)), 15.0),  # falls and rises again
        ("kl", np.append(50.0, KL_LINE[1:]), 1 + L / 2),  # depth 0 does not count
        ("kl", step(1), None),  # the output from depth 1 on
        ("overlap", OVERLAP_LINE, (L + 1) / 2),
        ("overlap", 1 - step(L), float(L)),  # never before the output
        ("overlap", np.ones(L + 1), None),
    ],
)
def test_curves_whose_mean_depth_is_known(name, curve, depth):
    found = mean_depth.of_curve(name, curve)
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
    found = mean_depth.of_curve("kl" if kl else "overlap", curve).depth
    assert found == pytest.approx(np.mean(lasting), abs=1e-3)


def test_over_prompts_it_is_read_off_the_mean_curve_with_an_interval():
    sums, tokens = np.stack([step(a) * 3 for a in range(4, 14)]), np.full(10, 3)
    found = mean_depth.of_prompts("kl", sums, tokens, units(10))
    assert found.depth == pytest.approx(mean_depth.of_curve("kl", sums.sum(0) / 30).depth)
    assert 4 < found.interval.low < found.depth < found.interval.high < 14
    assert mean_depth.of_prompts("kl", sums[:7], tokens[:7], units(7)).interval is None
    assert mean_depth.of_prompts("kl", sums * 0, tokens, units(10)).depth is None


def noisy(curve, seed=0):
    return np.asarray(curve) + 0.02 * np.random.default_rng(seed).normal(size=len(curve))


@pytest.mark.parametrize("n", [16, 30])
def test_a_step_is_a_turn_and_what_only_looks_like_one_is_not(n):
    layer = np.arange(n)
    half = n // 2
    found = turn.fit(noisy(np.where(layer < half, -0.2, 0.2)))
    assert (found.layer, found.failed) == (half - 1, "") and found.p <= 0.05
    assert turn.fit(noisy(np.where(layer % 2, 0.2, -0.2))).layer is None, "a zigzag"
    dip, fall, both_positive = (layer == half, -0.3, 0.3), (layer < half, 0.2, -0.2), (layer < half, 0.1, 0.4)
    for curve in (dip, fall, both_positive):
        found = turn.fit(noisy(np.where(*curve)))
        assert (found.layer, found.failed) == (None, "sign")
    assert turn.fit([0.1, 0.2]) is None and turn.fit([0.1, np.nan, 0.2]) is None


@pytest.mark.parametrize("n", range(8, 49))
def test_a_clear_step_is_a_turn_wherever_it_lies(n):
    """Also where it lies between two of the blocks that random orders move."""
    steps = [k for k in range(1, n) if 0.35 < k / n < 0.75]
    assert [k for k in steps if turn.fit([-0.3] * k + [0.3] * (n - k)).layer != k - 1] == []


def test_over_prompts_each_level_must_lie_apart_from_zero():
    """Ten prompts whose mean curve turns; where they disagree on the first level's sign, there is no turn."""
    layer = np.arange(16)
    sure = np.stack([noisy(np.where(layer < 8, -0.2, 0.2), seed) for seed in range(10)])
    unsure = sure + np.where(layer < 8, np.where(np.arange(10) % 2, 0.9, -0.9)[:, None], 0.0)
    names = ("attn_cos", "mlp_cos", "layer_cos")
    found = turn.fit_over_prompts(dict.fromkeys(names, sure), np.ones(10), units(10))
    assert found.layer == 7
    apart = turn.fit_over_prompts(dict.fromkeys(names, unsure), np.ones(10), units(10))
    assert (apart.layer, apart.failed) == (None, "sign")


def test_twins_that_turn_there_too_take_the_turn_away():
    found = turn.fit(noisy(np.where(np.arange(16) < 8, -0.2, 0.2)))
    elsewhere = turn.fit(noisy(np.where(np.arange(16) < 3, -0.2, 0.2)))
    none = turn.fit(noisy(np.full(16, 0.2)))
    assert turn.against_twins(found, [found, found, elsewhere, none, none]).layer == 7
    taken = turn.against_twins(found, [found, found, found, elsewhere, none])
    assert (taken.layer, taken.failed) == (None, "twins")
    assert turn.against_twins(found, []).layer == 7
