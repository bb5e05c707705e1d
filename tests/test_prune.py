"""Pruning and early exit against one forward pass per choice, and what is made of the figures."""

from dataclasses import replace

import naive
import numpy as np
import pytest

from ed_core.errors import ParameterError
from ed_core.probes import EarlyExit, Prune
from ed_core.probes.base import rank_correlation
from ed_core.results.aggregate import aggregate, summarize
from ed_core.types import Prompt

PROMPT = Prompt("5 + 7 + 5 = ", "17")


@pytest.fixture(params=("qwen3", "gpt_neox", "gemma2", "granite"))
def model(request, model_of):
    return model_of(request.param)


@pytest.mark.parametrize("n", [1, 3])
def test_every_stretch_is_measured_as_if_it_were_gone(model, measure, n):
    found = measure(model, Prune(n=n, drop=(0, 3)), PROMPT)
    ids = found.token_ids
    for layers in (*(tuple(range(start, start + n)) for start in range(model.n_layers - n + 1)), (0, 3)):
        for name, values in naive.pruned(model.hf, ids, layers).items():
            one = found[f"drop_{name}"] if layers == (0, 3) else found[name][layers[0]]
            assert np.array_equal(np.isnan(one), np.isnan(values))
            assert np.nanmax(np.abs(one - values)) <= 1e-4 * max(1e-3, np.nanmax(values)), name
    assert np.nanmax(np.abs(found["nll_whole"] - naive.pruned(model.hf, ids, ())["nll"])) <= 1e-4


def test_the_proxies_are_the_papers(model, measure):
    found, resid = measure(model, Prune(n=2), PROMPT), naive.run(model.hf, model.encode(PROMPT).ids).resid
    for start in range(model.n_layers - 1):
        for t in range(found.n_tokens):
            cosine = naive.cosine(resid[start][t], resid[start + 2][t])
            assert abs(found["block_influence"][start, t] - (1 - cosine)) <= 1e-5
            assert abs(found["angular_distance"][start, t] - np.arccos(cosine) / np.pi) <= 1e-3
            added = naive.cosine(resid[start + 2][t] - resid[start][t], resid[start][t])
            assert abs(found["update_cosine"][start, t] - added) <= 1e-4


def test_the_loss_is_averaged_over_tokens_that_have_a_next_one(model_of, measure):
    model = model_of("qwen3")
    results = [measure(model, Prune(), p) for p in (PROMPT, Prompt("Nine b."))]
    found = aggregate(Prune(), [r.summary for r in results])
    losses = np.concatenate([r["nll"][:, :-1] for r in results], axis=1)
    assert np.allclose(found["nll"], losses.mean(1), rtol=1e-5)
    assert np.allclose(found["kl"], np.concatenate([r["kl"] for r in results], axis=1).mean(1), rtol=1e-5)
    assert "drop_kl" not in found


@pytest.mark.parametrize(
    "values, words", [({"n": 5}, "5 layers"), ({"drop": (5,)}, "0 to 4"), ({"drop": (0, 1, 2, 3, 4)}, "at least one")]
)
def test_what_cannot_be_dropped_is_refused(model_of, measure, values, words):
    with pytest.raises(ParameterError, match=words):
        measure(model_of("qwen3"), Prune(**values), PROMPT)
    with pytest.raises(ParameterError, match="the model's 1 layer\\."):
        Prune().check_layers(1)


def test_early_exit(model, measure, threshold=0.05):
    found = measure(model, EarlyExit(threshold), PROMPT)
    lens = naive.logit_lens(model.hf, found.token_ids, 1)
    confidence = lens["top_probs"][..., 0]
    assert np.abs(found["confidence"] - confidence).max() <= 1e-4
    assert np.array_equal(found["agreement"], lens["top1_match"])
    for t in range(found.n_tokens):
        leaves = [l for l in range(model.n_layers + 1) if confidence[l, t] >= threshold or l == model.n_layers]
        assert found["exit_depth"][t] == leaves[0]
        assert found["exit_agrees"][t] == lens["top1_match"][leaves[0], t]


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(np.sqrt(3) / 2)  # ranks 1.5, 1.5, 3 against 1, 2, 3
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None and rank_correlation([1, 2], [1, 2]) is None
    assert {rank_correlation([1, 2, 3], [1, 2, odd]) for odd in (np.nan, np.inf)} == {None}


def without_values(result, at):
    """A result whose divergence at these places is not finite."""
    values = result["kl"].copy()
    values[at] = np.nan
    return summarize(replace(result, measures=result.measures | {"kl": replace(result.measures["kl"], values=values)}))


def test_a_layer_whose_removal_overflows_changes_no_other_layers_figures(model_of, measure):
    one, other = (measure(model_of("qwen3"), Prune(), p) for p in (PROMPT, Prompt("Nine b.")))
    whole = aggregate(Prune(), [one.summary, other.summary])
    for at in (0, (0, 3)):  # every token of the layer, and one
        for results in ([without_values(one, at)], [without_values(one, at), other]):
            found = aggregate(Prune(), [r.summary for r in results])
            expected = whole if len(results) == 2 else aggregate(Prune(), [one.summary])
            assert np.isnan(found["kl"][0]) and np.array_equal(found["kl"][1:], expected["kl"][1:])
            assert Prune.derive(found)["cheapest"] == 1 + np.argmin(expected["kl"][1:])
    assert np.isnan(Prune.derive({**whole, "kl": np.full(5, np.nan)})["cheapest"])
