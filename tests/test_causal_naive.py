"""Erasure and gradients against one full pass per intervention, and against what is known without computing
anything."""

import dataclasses
import math

import naive
import numpy as np
import pytest
import torch

from ed_core.errors import ParameterError, PromptError, PromptFileError
from ed_core.models.verify import verify
from ed_core.probes import IntegratedGradients, ResidualErasure, integrated_gradients
from ed_core.results.aggregate import aggregate
from ed_core.service import compute
from ed_core.sweeps import gradients
from ed_core.types import Prompt

FAMILIES = ("qwen3", "gpt2", "gpt_neox", "olmo2", "gemma2", "granite")
PROMPT = Prompt("5 + 7 + 5 = ", "17")
BACKGROUND = ("a=3; b=a; b?", "It rains.", "12 + 9")


@pytest.fixture
def background(tmp_path):
    file = tmp_path / "background.jsonl"
    file.write_text("\n".join(f'{{"text": "{text}"}}' for text in BACKGROUND))
    return str(file)


@pytest.mark.parametrize(
    "family, target", [*((family, "future") for family in FAMILIES), ("qwen3", "answer"), ("gpt2", "answer")]
)
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
    assert (whole.provenance["prefix"], reused.provenance["prefix"]) == ("computed anew", "keys and values reused")
    assert np.nanmax(np.abs(whole["effect"] - reused["effect"])) <= 1e-5


def test_reusing_the_prefix_computes_half_of_the_tokens(model_of, measure, background, monkeypatch):
    """The tokens that blocks see, counted: each erased position needs itself and what follows only."""
    model, seen = model_of("llama"), []
    verify(model)
    original = type(model).run_block

    def run_block(self, trace, layer, resid, *args, **kwargs):
        seen.append(resid.shape[0] * resid.shape[1])
        return original(self, trace, layer, resid, *args, **kwargs)

    monkeypatch.setattr(type(model), "run_block", run_block)
    n_layers, n_tokens, size = model.n_layers, 14, 4
    measure(model, ResidualErasure("answer", background), PROMPT)
    rows = sum(range(1, n_layers + 1))
    assert sum(seen) == sum(
        rows * min(size, n_tokens - 1 - start) * (n_tokens - start) for start in range(0, n_tokens - 1, size)
    )


def test_erasure_is_zero_where_nothing_can_be_felt(model_of, measure, background):
    answer = measure(model_of("llama"), ResidualErasure("answer", background), PROMPT)["effect"]
    assert (answer[:, -1] == 0).all(), "the last position predicts nothing that is looked at"
    assert (answer[-1, :11] < 1e-6).all(), "behind the last block a position speaks only for itself"
    assert (answer[:-1, :11] > 0).all()
    future = measure(model_of("llama"), ResidualErasure("future", background), PROMPT)["effect"]
    assert np.isnan(future[:, -1]).all() and (future[-1, :-1] < 1e-6).all()


def test_erasure_reduces_positions_first_then_prompts(model_of, measure, background):
    probe, model = ResidualErasure("future", background), model_of("llama")
    results = [measure(model, probe, p) for p in (PROMPT, Prompt("Nine b. or not"))]
    found = aggregate(probe, [r.summary for r in results])
    each = [r["effect"] for r in results]
    assert np.allclose(found["effect"], np.maximum(*(np.nanmax(e, -1) for e in each)))
    assert np.allclose(found["effect_mean"], sum(np.nanmean(e, -1) for e in each) / 2)


@pytest.mark.parametrize("target", ["answer", "future"])
def test_the_summary_leaves_out_the_position_that_predicts_the_answer(model_of, measure, background, target):
    """Beside the aggregate that counts all; with later tokens as target nothing is left out."""
    probe, prompts = ResidualErasure(target, background), (PROMPT, Prompt("Nine bees, ten", " trees"))
    results = [measure(model_of("llama"), probe, p) for p in prompts]
    found = aggregate(probe, [r.summary for r in results])
    kept = [
        [row for t, row in enumerate(r["effect"].T) if target == "future" or t != r.answer_start - 1] for r in results
    ]
    assert np.allclose(found["effect_elsewhere"], np.maximum(*(np.nanmax(e, 0) for e in kept)))
    assert np.allclose(found["effect_elsewhere_mean"], sum(np.nanmean(e, 0) for e in kept) / 2)
    assert (found["effect_elsewhere"] < found["effect"]).any() == (target == "answer")
    assert np.allclose(found["effect"], np.maximum(*(np.nanmax(r["effect"], 1) for r in results)))


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
    with pytest.raises(ParameterError, match="has changed"):
        compute.run(model, request)


@pytest.mark.parametrize("probe", [ResidualErasure(), IntegratedGradients()], ids=lambda p: p.name)
def test_without_an_answer_they_refuse(model_of, measure, probe):
    with pytest.raises(PromptError, match="there is no answer"):
        measure(model_of("llama"), probe, Prompt("5 + 7 = "))


@pytest.mark.parametrize(
    "family, part",
    [("gpt_neox", "layer"), ("gemma2", "layer"), ("granite", "layer"), ("gpt_neox", "mlp"), ("gemma2", "attention")],
)
def test_gradients(model_of, measure, family, part, monkeypatch):
    """With a tiny tolerance the doubling goes on, and the map is the integral."""
    monkeypatch.setattr(integrated_gradients, "TOLERANCE", 1e-5)
    model = model_of(family)
    found = measure(model, IntegratedGradients(part, nodes=1025), PROMPT)
    expected = naive.integrated_gradients(model.hf, found.token_ids, found.answer_start, part, steps=48)
    assert np.abs(found["attribution"] - expected).max() <= 1e-3 * np.abs(expected).max()
    assert (found["completeness_error"] <= 1e-3 * np.abs(expected).max()).all()


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "olmo2"])
def test_what_the_tolerance_promises_is_kept(model_of, measure, family):
    """Default settings against an integral far finer: within the promised 0.5 % of the largest value, with some room
    for the estimate."""
    model = model_of(family)
    found = measure(model, IntegratedGradients(), PROMPT)
    expected = naive.integrated_gradients(model.hf, found.token_ids, found.answer_start, steps=48)
    assert np.abs(found["attribution"] - expected).max() <= 0.005 * np.abs(expected).max()
    gain = found["f_x"] - found["f_baseline"]
    assert np.allclose(np.abs(found["attribution"].sum(-1) - gain), found["completeness_error"], atol=1e-6)
    assert (found["nodes_used"] >= 17).all() and not found.notes


def test_a_block_that_does_not_settle_is_said(model_of, measure):
    found = measure(model_of("qwen3"), IntegratedGradients(nodes=3), PROMPT)
    assert (found["nodes_used"] <= 3).all()
    assert "did not settle" in found.notes[0] and "0, 1, 2" in found.notes[0]


def test_a_sum_that_misses_and_parts_that_still_move_are_told_apart(model_of, measure, monkeypatch):
    """Of five layers one misses its sum, and two have the right sum of parts that still move."""

    def integrate(path, nodes, tolerance):
        path.values = {0.0: 0.0, 1.0: 1.0}
        return torch.zeros(len(path.difference)), 0.0, path.layer != 1, path.layer in (0, 4)

    monkeypatch.setattr(gradients._Path, "integrate", integrate)
    missed, moving = measure(model_of("qwen3"), IntegratedGradients(nodes=33), PROMPT).notes
    assert missed.startswith(f"{integrated_gradients.UNSETTLED} within 33 nodes at layer 1:")
    assert moving.startswith("Within 33 nodes attributions at layers 2, 3 stay uncertain by more than 0.5%")


def test_gradients_leave_nothing_on_the_weights(model_of, measure):
    model = model_of("qwen3")
    measure(model, IntegratedGradients(), PROMPT)
    assert all(p.grad is None for p in model.hf.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.hf.modules())


def test_nodes_are_doubled_while_any_token_still_moves():
    """Two tokens that move against each other: their sum holds still from the first nodes on."""
    path = object.__new__(gradients._Path)
    path.values, path.slopes = {}, {}

    def evaluate(alphas):
        for alpha in alphas:
            wave = math.cos(16 * math.pi * alpha)  # 1 on each of the first nine nodes, 0 on average
            path.values[alpha] = torch.tensor(alpha, dtype=torch.float64)
            path.slopes[alpha] = torch.tensor([wave, 1 - wave], dtype=torch.float64)

    path._evaluate = evaluate
    attribution, error, complete, still = path.integrate(129, integrated_gradients.TOLERANCE)
    assert len(path.values) == 33 and complete and still and error < 1e-9
    assert attribution.tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
