"""Every probe against its naive twin, one full pass for each intervention, in every family, with and without an answer;
and against what is known without computing anything."""

from __future__ import annotations

import dataclasses
import math

import naive
import numpy as np
import pytest
from small_models import random_model

from ed_core.errors import ParameterError, PromptError, PromptFileError
from ed_core.models.verify import verify
from ed_core.probes import Contributions, IntegratedGradients, LayerSkip, LogitLens, ResidualErasure
from ed_core.results.aggregate import aggregate
from ed_core.types import Prompt
from ed_core.work import compute

PROMPTS = {"text": Prompt("The quick brown fox jump"), "answer": Prompt("5 + 7 + 5 + 3 + 1 + 7 = ", answer="28")}
SEVERAL = (PROMPTS["answer"], Prompt("Nine b."), Prompt("colorless green ideas sleep furiously"))
SKIPS = {
    "current": dict(),
    "the answer's": dict(mode="future", boundaries=(24,)),
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


# One of each kind of block: one branch behind the other, beside it, norms all around, multipliers.
KINDS = ("qwen3", "gpt_neox", "gemma2", "granite")


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("name", SKIPS)
def test_layer_skip(model_of, measure, family, name):
    model = model_of(family)
    chosen, prompt = SKIPS[name], PROMPTS["answer" if name == "the answer's" else "text"]
    ids = prompt_ids(prompt)
    part, boundaries = chosen.get("part", "layer"), chosen.get("boundaries")
    found = measure(model, LayerSkip(direct=True, **chosen), prompt)
    direct = naive.direct_effect(model.hf, ids, part, boundaries)
    agree(found, naive.layer_skip(model.hf, ids, part, boundaries) | {"effect_direct": direct})
    if part == "layer":
        behind = [(s, s + 1) for s in range(len(direct) - 1)]  # nothing lies in between: both effects are the same
        assert all(abs(found["effect_direct"][at] - found["effect"][at]) <= 1e-4 * found["effect"][at] for at in behind)


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
    assert np.isnan(results[1]["effect"]).all() and any("NaN" in note for note in results[1].notes), "too short"
    assert results[1]["boundaries"].shape == (0,)
    found = aggregate(probe, [r.summary for r in results])
    long = [prompt_ids(SEVERAL[0]), prompt_ids(SEVERAL[2])]
    each = [naive.layer_skip(model.hf, ids, boundaries=probe.chosen_boundaries(len(ids))) for ids in long]
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


def test_the_deep_part_begins_at_the_next_whole_depth():
    jsd = np.where(np.arange(26)[:, None] < [14, 13], 0.9, 0.1)  # 0.56 · 25 is 14, though not in binary
    found = LogitLens(rho=0.56).per_token({"jsd": jsd, "rank": np.ones((26, 2), np.int32)})
    assert found["deep_thinking_ratio"].tolist() == [1, 0]


PROMPT = Prompt("5 + 7 + 5 = ", "17")
BACKGROUND = ("a=3; b=a; b?", "It rains.", "12 + 9")


@pytest.fixture
def background(tmp_path):
    file = tmp_path / "background.jsonl"
    file.write_text("\n".join(f'{{"text": "{text}"}}' for text in BACKGROUND))
    return str(file)


@pytest.mark.parametrize("family, target", [*((family, "future") for family in KINDS), ("qwen3", "answer")])
def test_erasure(model_of, measure, background, family, target):
    """Of the answer the other families are held by test_families."""
    model = model_of(family)
    assert verify(model).suffix_holds
    found = measure(model, ResidualErasure(target, background), PROMPT)
    others = [model.encode(Prompt(text)).ids for text in BACKGROUND]
    expected = naive.residual_erasure(model.hf, found.token_ids, found.answer_start, others, target)
    assert found["effect"].shape == expected.shape
    assert np.array_equal(np.isnan(found["effect"]), np.isnan(expected))
    assert np.nanmax(np.abs(found["effect"] - expected)) <= 1e-4 * np.nanmax(expected)


def test_where_a_suffix_cannot_be_replayed_whole_sequences_are(model_of, measure, background, monkeypatch):
    model = model_of("gemma2")
    monkeypatch.setattr(model, "identities", dataclasses.replace(verify(model), suffix=0.5))
    whole = measure(model, ResidualErasure("future", background), PROMPT)
    monkeypatch.setattr(model, "identities", dataclasses.replace(model.identities, suffix=0.0))
    reused = measure(model, ResidualErasure("future", background), PROMPT)
    assert "whole sequences" in whole.notes[0] and not reused.notes
    assert (whole.provenance["prefix"], reused.provenance["prefix"]) == ("computed again", "keys and values reused")
    assert np.nanmax(np.abs(whole["effect"] - reused["effect"])) <= 1e-5


def test_erasure_reduces_positions_first_then_prompts(model_of, measure, background):
    probe, model = ResidualErasure("future", background), model_of("llama")
    results = [measure(model, probe, p) for p in (PROMPT, Prompt("Nine b. or not"))]
    found = aggregate(probe, [r.summary for r in results])
    each = [r["effect"] for r in results]
    assert np.allclose(found["effect"], np.maximum(*(np.nanmax(e, -1) for e in each)))
    assert np.allclose(found["effect_mean"], sum(np.nanmean(e, -1) for e in each) / 2)


def test_the_backgrounds_content_is_part_of_the_key_not_its_path(model_of, tmp_path):
    spec = model_of("llama").spec
    keys = []
    for name, text in (("a", "It rains."), ("b", "It rains."), ("c", "It snows.")):
        (tmp_path / name).write_text(f'{{"text": "{text}"}}')
        keys.append(ResidualErasure(background=str(tmp_path / name)).request(spec, PROMPT).key)
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(PromptFileError):
        ResidualErasure(background=str(tmp_path / "none")).request(spec, PROMPT)


def test_a_background_that_changed_after_the_asking_is_refused(model_of, background):
    model = model_of("llama")
    request = ResidualErasure(background=background).request(model.spec, PROMPT)
    with open(background, "a") as file:
        file.write('\n{"text": "and more"}')
    with pytest.raises(ParameterError, match="changed"):
        compute.run(model, request)


@pytest.mark.parametrize("probe", [ResidualErasure(), IntegratedGradients()], ids=lambda p: p.name)
def test_without_an_answer_they_refuse(model_of, measure, probe):
    with pytest.raises(PromptError, match="there is no"):
        measure(model_of("llama"), probe, Prompt("5 + 7 = "))


@pytest.mark.parametrize("family, part", [("gpt_neox", "layer"), ("granite", "mlp"), ("gemma2", "attention")])
def test_gradients(measure, family, part, monkeypatch):
    """With a tiny tolerance the map is the integral."""
    monkeypatch.setattr("ed_core.probes.integrated_gradients.TOLERANCE", 1e-5)
    model = random_model(family, num_hidden_layers=2)
    found = measure(model, IntegratedGradients(part, nodes=1025), Prompt("5+7=", "12"))
    expected = naive.integrated_gradients(model.hf, found.token_ids, found.answer_start, part, steps=48)
    assert np.abs(found["attribution"] - expected).max() <= 1e-3 * np.abs(expected).max()
    assert (found["completeness_error"] <= 1e-3 * np.abs(expected).max()).all()


def test_what_the_tolerance_promises_is_kept(measure):
    """Default settings against an integral far finer: within the promised 0.5 % of the largest value, with some room
    for the estimate."""
    model = random_model("gpt2", n_layer=2)
    found = measure(model, IntegratedGradients(), PROMPT)
    expected = naive.integrated_gradients(model.hf, found.token_ids, found.answer_start, steps=48)
    assert np.abs(found["attribution"] - expected).max() <= 0.005 * np.abs(expected).max()
    gain = found["f_x"] - found["f_baseline"]
    assert np.allclose(np.abs(found["attribution"].sum(-1) - gain), found["completeness_error"], atol=1e-6)
    assert (found["nodes_used"] >= 47).all() and not found.notes


def test_a_block_that_does_not_settle_is_said(model_of, measure, monkeypatch):
    monkeypatch.setattr("ed_core.probes.integrated_gradients.TOLERANCE", 1e-12)
    found = measure(model_of("qwen3"), IntegratedGradients(nodes=60), PROMPT)
    assert (found["nodes_used"] <= 60).all()
    assert "did not settle" in found.notes[0] and "1, 2, 3" in found.notes[0]
