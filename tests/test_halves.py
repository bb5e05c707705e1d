"""The lens within a layer: read after attention, against hooks on what the block reads there; depths by hand."""

import naive
import numpy as np
import pytest
import torch
from charts import charts, numbers
from small_models import computed
from test_pages import app

from ed_core.depth import halves
from ed_core.depth.mean_depth import MEAN_DEPTH
from ed_core.errors import ParameterError
from ed_core.models.ref import ModelRef
from ed_core.probes import LogitLens
from ed_core.results import lookup
from ed_core.types import Prompt

PROMPT = Prompt("5 + 7 + 1 = ", "13")


def read_after_attention(hf, ids) -> list[torch.Tensor]:
    """What the first module behind attention reads, block by block, in one plain pass: the stream with attention's
    addition, which nobody here adds."""
    found, waiting, handles = [], [], []

    def reads(module, args, kwargs):
        if waiting and not isinstance(module, torch.nn.Dropout):
            waiting.clear()
            found.append(naive.rows((args or tuple(kwargs.values()))[0]).double())

    for layer, block in enumerate(naive.blocks_of(hf)):
        attention = naive.branch_of(hf, layer, "attention")
        inside = {id(module) for module in attention.modules()}
        handles.append(attention.register_forward_hook(lambda module, args, output: waiting.append(True)))
        for module in block.modules():
            if module is not block and id(module) not in inside:
                handles.append(module.register_forward_pre_hook(reads, with_kwargs=True))
    with naive.hooks(*handles), torch.no_grad():
        hf(input_ids=torch.tensor([list(ids)]), use_cache=False)
    return found


@pytest.mark.parametrize("variant", ("qwen3", "gemma2", "granite", "gpt_neox", "looped_input"))
def test_half_rows_are_what_is_read_behind_attention(variant_model, measure, variant):
    model = variant_model(variant)
    if model.parallel:
        with pytest.raises(ParameterError, match="in parallel"):
            measure(model, LogitLens(points="halves"), PROMPT)
        return
    found, hf = measure(model, LogitLens(k=3, points="halves"), PROMPT), naive.plain(model.hf)
    streams = read_after_attention(hf, found.token_ids)
    assert len(streams) == model.n_layers
    output = naive.run(hf, found.token_ids).logits.log_softmax(-1)
    best = output.argmax(-1)
    for layer, stream in enumerate(streams):
        logits = naive.lens(hf, found.token_ids, stream)
        log_p = logits.log_softmax(-1)
        kl = (log_p.exp() * (log_p - output)).sum(-1).numpy()
        np.testing.assert_allclose(found["half_kl"][layer], kl, rtol=1e-5, atol=1e-5)
        top = log_p.exp().sort(descending=True).values[:, :3].numpy()
        np.testing.assert_allclose(found["half_top_probs"][layer], top, rtol=0, atol=1e-5)
        rank = 1 + (logits > logits.gather(1, best[:, None])).sum(-1)
        assert (found["half_rank"][layer] == rank.numpy()).mean() > 0.9, "but for ties"
    plain = measure(model, LogitLens(k=3), PROMPT)
    assert not any(name.startswith("half_") for name in plain.measures)
    for name, values in plain.measures.items():
        assert np.array_equal(values.values, found[name], equal_nan=True), name


def test_the_key_of_what_is_kept_stays():
    spec = ModelRef.parse("ed-demo-8")
    asked = LogitLens().request(spec, PROMPT)
    assert dict(asked.parameters) == {"k": 5, "g": 0.5, "rho": 0.85}
    inside = LogitLens(points="halves").request(spec, PROMPT)
    assert dict(inside.parameters)["points"] == "halves" and inside.key != asked.key
    assert LogitLens.make(dict(asked.parameters)) == LogitLens() and LogitLens.make(dict(inside.parameters)).points


def by_thresholds(depths, curve, holds_from):
    """The mean over many thresholds of the depth from which a curve stays beyond it."""
    shares = (np.arange(4_000) + 0.5) / 4_000
    stays = [next(d for i, d in enumerate(depths) if holds_from(curve[i:], share)) for share in shares]
    return float(np.mean(stays))


def test_mean_depth_at_half_layers_is_the_mean_over_thresholds():
    rng = np.random.default_rng(3)
    for n in (2, 4, 6):
        kl = np.append(rng.random(n) * np.linspace(2, 0.3, n), 0.0)
        half, depths = rng.random(n), np.arange(2 * n + 1) / 2
        curve = halves.interleaved(kl, half)[2:]
        expected = by_thresholds(depths[2:], curve, lambda rest, share: (rest <= share * curve.max()).all())
        assert halves.mean_depth("kl", kl, half) == pytest.approx(expected, abs=1e-3)
        overlap = np.append(rng.random(n), 1.0)
        expected = by_thresholds(depths, halves.interleaved(overlap, half), lambda rest, share: (rest >= share).all())
        assert halves.mean_depth("overlap", overlap, half) == pytest.approx(expected, abs=1e-3)
    falls = np.array([9.0, 6.0, 2.0, 0.0])
    exact, finer = MEAN_DEPTH["kl"](falls[None])[0], halves.mean_depth("kl", falls, [8.0, 3.0, 1.0])
    assert finer == 1 + (6 + 3 + 2 + 1) / 6 / 2 and exact - 0.5 <= finer <= exact
    assert halves.mean_depth("kl", np.zeros(3), np.zeros(2)) is None


def test_the_branch_that_brings_the_answer():
    inside = computed(LogitLens(points="halves").request(ModelRef.parse("ed-demo-8"), PROMPT))
    named = [halves.branch_at(depth) for depth in (0.0, 0.5, 1.0, 1.5, 4.0)]
    assert named == [("embedding", 0), ("attention", 0), ("MLP", 0), ("attention", 1), ("MLP", 3)]
    best = halves.interleaved(inside["top_ids"][..., 0], inside["half_top_ids"][..., 0])
    for t in range(inside.n_tokens):
        stays = min(i for i in range(len(best)) if (best[i:, t] == best[-1, t]).all())
        assert inside["half_settle_depth"][t] == stays / 2
    found = halves.brought(inside)
    assert sum(found.counts.values()) == inside.n_tokens
    assert (found.attention + found.mlp).sum() == pytest.approx(float(inside["kl"][0].mean()), rel=1e-5)
    without = halves.brought(inside, (0,))
    assert sum(without.counts.values()) == inside.n_tokens - 1


def test_the_page_draws_half_layers_where_they_are_asked_for(stored):
    spec = ModelRef.parse("small")
    result = computed(LogitLens(points="halves").request(spec, PROMPT))
    lookup.store().put(result)
    test = app("pages/prompt/logit_lens.py", prompt=None, run=result.request.key)
    assert not test.exception and not test.error
    assert test.segmented_control(key="logit_lens.points").value == "halves"
    rows = [len(numbers(one["data"][0]["z"])) for one in charts(test) if "z" in one["data"][0]]
    assert rows == [2 * result.n_layers + 1]
    curves = [[numbers(trace["y"]) for trace in one["data"]] for one in charts(test) if "z" not in one["data"][0]]
    found = halves.brought(result)
    expected = [found.attention, found.mlp]
    assert any(len(of) == 2 and np.allclose(of, expected, atol=1e-5) for of in curves)
