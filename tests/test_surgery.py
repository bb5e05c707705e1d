"""Layers left out, exchanged and run twice against one forward pass per variant, and on models where the answer is
known."""

import naive
import numpy as np
import pytest
from small_models import random_model

from ed_core.models import modules
from ed_core.probes import Surgery
from ed_core.results.aggregate import aggregate
from ed_core.types import Prompt

PROMPT = Prompt("5 + 7 + 5 = ", "17")
LOOPED = {"looped": {"n_loops": 2}, "looped_input": {"n_loops": 2}}  # two blocks, with something between passes or not


@pytest.fixture(params=("qwen3", "gpt2", "gemma2", "granite", *LOOPED))
def model(request, model_of):
    return model_of(request.param, **LOOPED.get(request.param, {}))


def stretches(n_layers):
    return [(i, j) for i in range(n_layers) for j in range(i + 1, n_layers + 1)]


def test_every_variant_is_measured_as_if_it_ran_alone(model, measure):
    """All stretches dropped and repeated, all exchanges, and the control of the repeats."""
    found, n = measure(model, Surgery(seed=3), PROMPT), model.n_layers
    every, hf = list(range(n)), naive.plain(model.hf)

    def close(kind, place, order):
        expected = naive.surgery(hf, found.token_ids, order)
        for name in ("loss", "kl", "top1_kept"):
            miss = abs(found[f"{kind}_{name}"][place] - expected[name])
            assert miss <= 1e-4 * max(1e-2, abs(expected[name])), (kind, place, name)

    for i, j in stretches(n):
        if (i, j) != (0, n):  # transformers runs no model without a block
            close("drop", (i, j), every[:i] + every[j:])
        close("repeat", (i, j), every[:j] + every[i:])
    of_kind = modules.kinds(model.stack, model.config) * model.n_passes
    for i in range(n):
        for j in range(n):
            if i == j or of_kind[i] != of_kind[j]:
                assert np.isnan(found["swap_loss"][i, j])
                continue
            order = list(every)
            order[i], order[j] = j, i
            close("swap", (i, j), order)
    for length, layer in enumerate(found["random_layer"].tolist(), 1):
        close("random", length - 1, sorted(every + [layer] * length))
    assert abs(found["loss_whole"] - naive.surgery(hf, found.token_ids, every)["loss"]) <= 1e-4


def test_two_equal_layers_change_places_unnoticed(measure):
    model = random_model("llama")
    model.blocks[3].load_state_dict(model.blocks[1].state_dict())
    found = measure(model, Surgery("swap"), PROMPT)
    assert found["swap_kl"][1, 3] <= 1e-6 and found["swap_top1_kept"][1, 3] == 1
    assert found["swap_kl"][1, 2] > 1e-4, "the others are not equal"
    assert np.array_equal(found["swap_loss"], found["swap_loss"].T, equal_nan=True)
    score = Surgery.derive(aggregate(Surgery("swap"), [found.summary]))["swap_score"]
    expected = abs(found["loss_whole"] - found["swap_loss"][0, 4]) / found["loss_whole"]
    assert score[0, 4] == pytest.approx(expected, rel=1e-4) and score[1, 3] <= 1e-5


def test_only_stretches_up_to_the_longest_are_measured(model_of, measure):
    model = model_of("qwen3")
    few, all_of_them = measure(model, Surgery(longest=2, seed=5), PROMPT), measure(model, Surgery(seed=5), PROMPT)
    for kind in ("drop", "repeat"):
        there = np.isfinite(few[f"{kind}_loss"])
        assert sorted(zip(*np.nonzero(there))) == [(i, j) for i, j in stretches(5) if j - i <= 2]
        assert np.allclose(few[f"{kind}_loss"][there], all_of_them[f"{kind}_loss"][there], atol=1e-6)
    assert np.isfinite(few["swap_loss"]).sum() == 2 * (4 + 3)
    drawn = all_of_them["random_layer"].tolist()
    assert np.isfinite(few["random_loss"]).tolist() == [True, True, False, False, False]
    assert few["random_layer"].tolist() == drawn[:2] + [-1] * 3, "the same, whatever the longest stretch"
    other = measure(model, Surgery("repeat", seed=6), PROMPT)
    assert other["random_layer"].tolist() != drawn


def test_layers_of_different_kinds_are_not_exchanged(model_of, measure):
    """Gemma 2 looks through a window in every other layer."""
    found = measure(model_of("gemma2"), Surgery("swap"), PROMPT)
    pairs = sorted(zip(*np.nonzero(np.isfinite(found["swap_loss"]))))
    assert pairs == [(i, j) for i in range(5) for j in range(5) if i != j and (i - j) % 2 == 0]
    assert any("6 of 10 pairs of layers are of different kinds" in note for note in found.notes)


def test_over_prompts_every_token_counts_alike(model_of, measure):
    model = model_of("qwen3")
    results = [measure(model, Surgery("drop", longest=1), p) for p in (PROMPT, Prompt("Nine b."))]
    found = aggregate(Surgery("drop", longest=1), [r.summary for r in results])
    n, m = (r.n_tokens for r in results)
    assert n != m
    for name, one, other in (("loss", n - 1, m - 1), ("kl", n, m)):
        a, b = (r[f"drop_{name}"][2, 3] for r in results)
        assert found[f"drop_{name}"][2, 3] == pytest.approx((one * a + other * b) / (one + other), rel=1e-6)
    assert np.isnan(found["drop_loss"][2, 4])


def test_curves_of_single_layers(model_of, measure):
    """The diagonals of two maps; what is not measured is not defined."""
    result = measure(model_of("qwen3"), Surgery(longest=2), PROMPT)
    found = Surgery.derive(aggregate(Surgery(), [result.summary]))
    for layer in range(5):
        assert found["kl_without"][layer] == pytest.approx(result["drop_kl"][layer, layer + 1], rel=1e-6)
        assert found["kl_twice"][layer] == pytest.approx(result["repeat_kl"][layer, layer + 1], rel=1e-6)
    weights = result["drop_kl"].diagonal(1).astype(float)
    assert found["center"] == pytest.approx(sum(i * w for i, w in enumerate(weights)) / weights.sum(), rel=1e-6)
    drop = measure(model_of("qwen3"), Surgery("drop", longest=1), PROMPT)
    alone = Surgery.derive(aggregate(Surgery(), [drop.summary]))
    assert alone["kl_twice"].shape == (5,) and np.isnan(alone["kl_twice"]).all() and np.isfinite(alone["center"])
