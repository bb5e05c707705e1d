"""The estimators of depth side by side: each equals what its own place says."""

from __future__ import annotations

import numpy as np
import pytest

from ed_core.depth.rules import RULES
from ed_core.studies import estimators, tables

MODEL, SET = "ed-demo-16", "sums"


@pytest.fixture(scope="module")
def found(toys):
    rows = estimators.estimates(toys, MODEL, SET)
    return {row["criterion"] if row["variant"] != "mean" else f"mean_{row['criterion']}": row for row in rows}


@pytest.mark.parametrize("name", ["kl", "overlap"])
def test_a_band_holds_what_the_rule_gives_at_each_threshold(toys, found, name):
    (along, *_), rule = tables.curve(toys, MODEL, SET, f"logit_lens.{name}"), RULES[name]
    given = [rule.layers(along[:-1], threshold=at)[0] for at in rule.band]
    given = [depth for depth in given if depth is not None]
    assert found[name]["band"] == (min(given), max(given)) and min(given) < max(given)
    assert found[name]["depth"] == rule.layers(along[:-1])[0]


def test_the_first_choice_is_drawn_at_the_layer_before_it(toys, found):
    settle, row = found["settle"], tables.aggregates(toys, MODEL, SET, "logit_lens")["settle_depth"]
    assert [settle[name] for name in ("depth", "low", "high")] == pytest.approx([float(value) - 1 for value in row])
    assert settle["n_layers"] == 16 and settle["ratio"] == pytest.approx(float(row[0]) / 16)
    assert list(found)[:2] == ["mean_kl", "mean_overlap"]


def test_depth_scores_are_the_effects_centre(toys, found):
    columns = toys.sums(MODEL, SET).probe("layer_skip")
    output, effect = columns["output"].mean(0), columns["effect"].mean(0)
    later = [sum(effect[s][s + 1 :]) / max(15 - s, 1) for s in range(16)]
    for name, e in (("output", output), ("effect", np.array(later))):
        centre = sum(s * e[s] for s in range(16)) / sum(e)
        assert found[name]["depth"] == pytest.approx(centre, rel=1e-6)
        assert found[name]["low"] < found[name]["depth"] < found[name]["high"]
