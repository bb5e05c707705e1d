"""The estimators of depth side by side: each equals what its own place says, no sentence claims more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ed_core.depth.rules import RULES, by_kl, by_overlap
from ed_core.studies import agreement, difficulty, tables
from ed_core.studies.agreement import Estimate

MODEL, SET = "ed-demo-16", "sums"


@pytest.fixture(scope="module")
def found(toys):
    rows = tables.stored(toys, "verdict").to_pylist()
    return {one.name: one for one in agreement.estimates(toys, MODEL, SET, rows)}


def value(toys, measure: str) -> dict:
    rows = tables.stored(toys, "summary").to_pylist()
    return next(r for r in rows if (r["model"], r["set"], f"{r['probe']}.{r['measure']}") == (MODEL, SET, measure))


def curve(toys, name: str) -> np.ndarray:
    """The aggregated curve from the summary, without the output."""
    rows = tables.stored(toys, "summary").to_pylist()
    own = [r for r in rows if (r["model"], r["set"], r["probe"], r["measure"]) == (MODEL, SET, "logit_lens", name)]
    return np.array([r["value"] for r in sorted(own, key=lambda r: r["layer"])])[:-1]


@pytest.mark.parametrize("name, rule", [("kl", by_kl), ("overlap", by_overlap)])
def test_a_band_holds_what_the_rule_gives_at_each_threshold(toys, found, name, rule):
    given = [rule(curve(toys, name), at).depth for at in RULES[name].band]
    given = [depth for depth in given if depth is not None]
    assert found[name].thresholds == (min(given), max(given)) and min(given) < max(given)
    assert found[name].depth == rule(curve(toys, name)).depth


def test_what_variants_give_is_the_tables(toys, found):
    for row in tables.stored(toys, "verdict").to_pylist():
        if (row["model"], row["set"]) == (MODEL, SET) and row["variant"] not in ("paper", "mean", "turn"):
            assert found[row["criterion"]].instead[row["variant"]] == row["depth"]


def test_mean_depths_come_first_and_stand_at_the_layer_before(toys, found):
    assert list(found)[:2] == ["mean_kl", "mean_overlap"]
    for row in tables.stored(toys, "verdict").to_pylist():
        if (row["model"], row["set"], row["variant"]) == (MODEL, SET, "mean"):
            one = found[f"mean_{row['criterion']}"]
            assert (one.depth, one.low, one.high) == (row["depth"] - 1, row["low"] - 1, row["high"] - 1)
            assert one.ratio == pytest.approx(row["depth"] / 16) and one.over == "96 prompts of 8 forms"


def test_the_settle_depths_mark_is_the_layer_before_it(toys, found):
    settle, row = found["settle"], value(toys, "logit_lens.settle_depth")
    assert settle.depth == pytest.approx(row["value"] - 1) and settle.n_layers == 16
    assert (settle.low, settle.high) == pytest.approx((row["low"] - 1, row["high"] - 1))
    assert settle.ratio == pytest.approx(row["value"] / 16)


def test_depth_scores_are_the_effects_centre(toys, found):
    columns = toys.sums(MODEL, SET).probe("layer_skip")
    output, effect = columns["output"].mean(0), columns["effect"].mean(0)
    later = [sum(effect[s][s + 1 :]) / max(15 - s, 1) for s in range(16)]
    for name, e in (("output", output), ("effect", np.array(later))):
        centre = sum(s * e[s] for s in range(16)) / sum(e)
        assert found[name].depth == pytest.approx(centre, rel=1e-6)
        assert found[name].low < found[name].depth < found[name].high
    assert set(difficulty.KINDS) == {"effect", "output"}


def rule(name, depth, low=None, high=None, layers=30, **more) -> Estimate:
    numbers = [None if n is None else float(n) for n in (depth, low, high)]
    return Estimate(name, *numbers, layers, 20, **more)


@pytest.mark.parametrize(
    "given, says, never",
    [
        (
            [rule("cosine", 20), rule("kl", 18), rule("overlap", 21)],
            ["differ by at most a tenth of the 30 layers"],
            ["up to"],
        ),
        ([rule("kl", 5, 5, 5, 8), rule("overlap", 4, 4, 4, 8)], ["differ by at most one layer of 8:"], ["up to"]),
        (
            [rule("cosine", 20, 19, 21), rule("kl", 7, 6, 8), rule("overlap", 19, 18, 21)],
            ["by up to 13 of 30 layers: KL rule 7, overlap rule 19 and cosine rule 20", "are apart"],
            ["by at most", "rule overlap"],
        ),
        (
            [rule("cosine", 20, 12, 22), rule("kl", 12, 7, 15)],
            ["8 of 30", "the KL rule and the cosine rule meet."],
            ["are apart"],
        ),
        ([rule("cosine", 20), rule("kl", 7)], ["give no ranges"], ["meet", "apart"]),
        (
            [rule("cosine", None), rule("kl", 7, 7, 7), rule("overlap", 8, 8, 8)],
            ["The papers' rules that give a layer differ by at most", "The cosine rule gives no layer."],
            ["cosine rule gives layer", "The papers' rules differ"],
        ),
        (
            [rule("kl", 7, thresholds=(3.0, 13.0))],
            ["gives layer 7; other thresholds tried give 3 to 13."],
            ["differ"],
        ),
        ([rule("kl", 7, thresholds=(5.0, 9.0))], [], ["thresholds"]),
        ([rule("kl", None, thresholds=(4.0, 4.0))], ["gives no layer; other thresholds tried give 4."], ["to"]),
        (
            [rule("kl", 7, instead={"stable": None, "from_depth_1": 16.0, "without_sinks": 8.0})],
            ["not for good", "without depth 0 it gives layer 16"],
            ["sinks"],
        ),
        (
            [rule("cosine", 20, instead={"stable": None}, again="below 0 again in the last 2 layers")],
            ["The cosine rule gives layer 20; below 0 again in the last 2 layers."],
            ["for good"],
        ),
        (
            [replace(rule("settle", 23.8, 23.1, 24.2), over="50 prompts")],
            ["is final: mean over tokens 24.8 of 30 (5–95 %: 24.1 to 25.2 over 50 prompts)."],
            ["rule"],
        ),
    ],
)
def test_sentences(given, says, never):
    told = " ".join(agreement.sentences(given))
    assert all(one in told for one in says), told
    assert not any(one in told for one in never), told
