"""Every probe against its naive twin: each measure within 1e-4 of its largest value, in every family, with and without
an answer."""

import math
import random

import naive
import numpy as np
import pytest
from small_models import FAMILIES

from ed_core.probes import Contributions, LayerSkip, LogitLens
from ed_core.results.aggregate import aggregate
from ed_core.sweeps import metrics
from ed_core.types import Prompt

PROMPTS = {
    "text": Prompt("The quick brown fox jump"),
    "answer": Prompt("5 + 7 + 5 + 3 + 1 + 7 = ", answer="28"),
}
SEVERAL = (PROMPTS["answer"], Prompt("Nine b."), Prompt("colorless green ideas sleep furiously"))
SKIPS = {
    "current": dict(),
    "future": dict(mode="future", boundaries=(8, 15)),
    "attention": dict(part="attention"),
    "mlp": dict(part="mlp"),
    "future attention": dict(mode="future", part="attention", boundaries=(2, 23)),
    "future mlp": dict(mode="future", part="mlp", boundaries=(11,)),
}


def agree(result, expected):
    """The same measures, and the same numbers in them."""
    assert set(result.measures) == set(expected)
    for name, values in expected.items():
        found = result[name]
        assert found.shape == values.shape, name
        assert found.dtype == (np.int32 if name in ("rank", "top_ids", "boundaries") else np.float32), name
        largest = 1.0 if name == "noise_floor" else abs(values).max()  # a change relative to the update, naively 0
        assert abs(found - values).max() <= 1e-4 * largest, name


@pytest.fixture(params=PROMPTS)
def prompt(request):
    return PROMPTS[request.param]


# One of each kind of block: one branch behind the other, beside it, norms all around, multipliers. The rest is read
# in every family, and left out in others by test_families; here by `make test-slow`.
KINDS = ("qwen3", "gpt_neox", "gemma2", "granite")


@pytest.fixture(params=[pytest.param(f, marks=() if f in KINDS else pytest.mark.slow) for f in FAMILIES])
def model(request, model_of):
    return model_of(request.param)


@pytest.fixture(params=FAMILIES)
def any_model(request, model_of):
    return model_of(request.param)


def test_contributions(any_model, measure, prompt):
    agree(measure(any_model, Contributions(), prompt), naive.contributions(any_model.hf, prompt_ids(prompt)))


def test_several_depths_measured_at_once_are_what_each_is(model, measure, monkeypatch):
    """As on a GPU."""
    whole = measure(model, LogitLens(k=3), SEVERAL[0])
    monkeypatch.setattr(metrics, "at_once", lambda logits: 3)
    agree(measure(model, LogitLens(k=3), SEVERAL[0]), {name: m.values for name, m in whole.measures.items()})


def test_logit_lens(model, measure, prompt):
    agree(measure(model, LogitLens(), prompt), naive.logit_lens(model.hf, prompt_ids(prompt), k=5))


@pytest.mark.parametrize("name", SKIPS)
def test_layer_skip(model, measure, name):
    chosen, ids = SKIPS[name], prompt_ids(PROMPTS["text"])
    part, boundaries = chosen.get("part", "layer"), chosen.get("boundaries")
    found = measure(model, LayerSkip(direct=True, **chosen), PROMPTS["text"])
    direct = naive.direct_effect(model.hf, ids, part, boundaries)
    agree(found, naive.layer_skip(model.hf, ids, part, boundaries) | {"effect_direct": direct})
    if part == "layer":
        behind = [(s, s + 1) for s in range(len(direct) - 1)]  # nothing lies in between: both effects are the same
        assert all(abs(found["effect_direct"][at] - found["effect"][at]) <= 1e-4 * found["effect"][at] for at in behind)


def test_answers_are_part_of_the_prompt(model, measure):
    probe = LayerSkip(mode="future", boundaries=(24,))
    result = measure(model, probe, PROMPTS["answer"])
    assert result.answer_start == 24 and result.n_tokens == 26
    agree(result, naive.layer_skip(model.hf, prompt_ids(PROMPTS["answer"]), boundaries=[24]))


def test_automatic_boundaries_are_the_papers(model_of, measure):
    text = "colorless green ideas sleep furiously and so do the others"
    drawn = list(range(8, len(text) - 4, 8))
    random.Random(123).shuffle(drawn)
    result = measure(model_of("llama"), LayerSkip(mode="future"), Prompt(text))
    assert len(drawn) == 6 and result["boundaries"].tolist() == drawn[:4]


@pytest.mark.parametrize("n_tokens, expected", [(12, []), (13, [8]), (20, [8]), (21, [16, 8])])
def test_automatic_boundaries_of_short_prompts(n_tokens, expected):
    assert sorted(LayerSkip(mode="future").chosen_boundaries(n_tokens)) == sorted(expected)


@pytest.mark.parametrize("first_token", [True, False])
@pytest.mark.parametrize("probe", [Contributions(), LogitLens(k=3, g=0.02, rho=0.5)], ids=lambda p: p.name)
def test_token_means_weigh_tokens_not_prompts(model_of, measure, probe, first_token):
    model = model_of("qwen3")
    found = aggregate(probe, [measure(model, probe, p).summary for p in SEVERAL], first_token)
    if probe.name == "contributions":
        each = [naive.contributions(model.hf, prompt_ids(p)) for p in SEVERAL]
    else:
        each = [lens_with_aggregates(model.hf, p, probe) for p in SEVERAL]
        assert 0 < found["deep_thinking_ratio"] < 1
    assert set(found) == set(each[0])
    for name in found:
        expected = naive.token_mean([one[name] for one in each], first_token)
        assert found[name].shape == expected.shape
        assert abs(found[name] - expected).max() <= 1e-4 * abs(expected).max(), name


def test_skips_are_put_together_by_maximum_and_mean_without_nan(model_of, measure):
    model, probe = model_of("gpt2"), LayerSkip(mode="future", n_boundaries=2)
    results = [measure(model, probe, p) for p in SEVERAL]
    assert np.isnan(results[1]["effect"]).all() and "NaN" in " ".join(
        results[1].notes
    )  # 7 tokens: no boundary can be drawn
    assert results[1]["boundaries"].shape == (0,)
    found = aggregate(probe, [r.summary for r in results])
    long = [SEVERAL[0], SEVERAL[2]]
    each = [
        naive.layer_skip(model.hf, prompt_ids(p), boundaries=probe.chosen_boundaries(len(prompt_ids(p)))) for p in long
    ]
    expected = {
        "effect": np.maximum(each[0]["effect"], each[1]["effect"]),
        "effect_mean": (each[0]["effect"] + each[1]["effect"]) / 2,
        "output": np.maximum(each[0]["output"], each[1]["output"]),
        "output_mean": (each[0]["output"] + each[1]["output"]) / 2,
        "top1_kept": (each[0]["top1_kept"] + each[1]["top1_kept"]) / 2,
    }
    assert set(found) == {*expected, "noise_floor", "noise_floor_mean"} and found["noise_floor"].max() < 1e-4
    for name, values in expected.items():
        assert abs(found[name] - values).max() <= 1e-4 * abs(values).max(), name


def test_the_aggregate_of_prompts_without_boundaries_is_nan(model_of, measure):
    probe = LayerSkip(mode="future")
    found = aggregate(probe, [measure(model_of("gpt2"), probe, SEVERAL[1]).summary])
    assert all(np.isnan(values).all() for values in found.values())


def prompt_ids(prompt):
    """The byte tokenizer's ids, by hand: printable ASCII from "!" on, and the space behind the bytes that have a glyph
    of their own."""
    return [220 if char == " " else ord(char) - ord("!") for char in prompt.text + prompt.answer]


def lens_with_aggregates(hf, prompt, probe):
    """The lens' measures that have an aggregate, per token."""
    out = naive.logit_lens(hf, prompt_ids(prompt), probe.k)
    n_depths, n_tokens = out["jsd"].shape
    first_below = [min(l for l in range(n_depths) if out["jsd"][l, t] <= probe.g) for t in range(n_tokens)]
    out["mrr"] = 1 / out["rank"]
    out["deep_thinking_ratio"] = np.array([float(l >= math.ceil(probe.rho * (n_depths - 1))) for l in first_below])
    return {name: values for name, values in out.items() if name not in ("rank", "top_ids", "top_probs")}


def test_automatic_boundaries_follow_their_seed():
    drawn = [LayerSkip(mode="future", seed=seed).chosen_boundaries(200) for seed in (123, 7)]
    assert drawn[0] != drawn[1] == LayerSkip(mode="future", seed=7).chosen_boundaries(200)


def test_the_deep_part_begins_at_the_next_whole_depth():
    """With 3 blocks and half of them, at depth 2: of tokens that settle at depths 1, 2 and 3 the last two count."""
    jsd = np.array([[0.9, 0.9, 0.9], [0.4, 0.9, 0.9], [0.9, 0.4, 0.9], [0.0, 0.0, 0.0]])
    found = LogitLens(rho=0.5).per_token({"jsd": jsd, "rank": np.ones((4, 3), np.int32)})
    assert found["deep_thinking_ratio"].tolist() == [0, 1, 1]
