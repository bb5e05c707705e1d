"""One prompt among others: depth scores by hand, who counts as another prompt, the spread, and the sentence."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import unsettled

from ed_core.cases import export
from ed_core.depth import among_others, say, sinks
from ed_core.probes import Contributions, IntegratedGradients, LayerSkip, LogitLens, Prune, ResidualErasure
from ed_core.probes.base import depth_score, layer_effect
from ed_core.probes.integrated_gradients import completeness, incomplete
from ed_core.results import lookup
from ed_core.types import Prompt

TEXTS = ("5 + 7 + 5 = ", "a=3; b=a; b?", "The capital of France is", "copy a b c: a b", "one two three four")
COMPARED = (Contributions(), LogitLens(), LayerSkip(), ResidualErasure(), IntegratedGradients())


def test_the_effect_on_later_layers_and_its_score():
    effect = np.float32([[9, 2, 4, 6], [9, 9, 1, 3], [9, 9, 9, 5], [9, 9, 9, 9]])  # the diagonal and below do not count
    e = layer_effect(effect)
    assert e.tolist() == [4, 2, 5, 0]
    assert depth_score(e) == pytest.approx((0 * 4 + 1 * 2 + 2 * 5) / 11)
    assert np.isnan(depth_score([0, 0, 0])) and np.isnan(depth_score([1, np.nan])) and depth_score([0, 0, 3]) == 2
    effect[1, 3] = np.nan
    assert np.isnan(layer_effect(effect)).tolist() == [False, True, False, False]


def test_the_command_line_writes_the_scores(model_of, measure):
    probe, model = LayerSkip(), model_of("qwen3")
    results = [measure(model, probe, Prompt(text)) for text in TEXTS[:2]]
    data = export.arrays({probe: results})
    for i, result in enumerate(results):
        assert data[f"layer_skip.depth_score.{i}"] == pytest.approx(depth_score(layer_effect(result["effect"])))
        assert data[f"layer_skip.depth_score_output.{i}"] == pytest.approx(depth_score(result["output"]))
    effects = np.stack([r["effect"] for r in results])
    assert data["layer_skip.depth_score"] == pytest.approx(depth_score(layer_effect(effects.max(0))))
    assert data["layer_skip.depth_score_mean"] == pytest.approx(depth_score(layer_effect(effects.mean(0))), rel=1e-5)
    assert data["layer_skip.depth_score"].dtype == np.float32 and "layer_skip.depth_score_mean.0" not in data


@pytest.mark.parametrize("probe", COMPARED, ids=lambda p: p.name)
def test_the_curves_are_the_measures_own_reductions_and_the_band_their_quantiles(model_of, measure, probe):
    model = model_of("qwen3")
    results = [measure(model, probe, Prompt(text, " 17")) for text in TEXTS]
    mine, *others = results
    reduce = {
        "layer_ratio": lambda r: r["layer_ratio"].mean(1),
        "layer_cos": lambda r: r["layer_cos"].mean(1),
        "kl": lambda r: r["kl"].mean(1),
        "overlap": lambda r: r["overlap"].mean(1),
        "output": lambda r: r["output"],
        "effect_elsewhere": lambda r: np.delete(r["effect"], r.answer_start - 1, 1).max(1),
        "layer_effect": lambda r: [r["effect"][s, s + 1 :].sum() / max(4 - s, 1) for s in range(5)],
        "attribution": lambda r: np.abs(r["attribution"]).sum(1),
    }
    for spread in among_others.spreads(probe, mine.summary, [r.summary for r in others]):
        by_hand = reduce[spread.curve.name]
        assert spread.n == 4 and spread.values == pytest.approx(by_hand(mine), rel=1e-5, abs=1e-6)
        expected = np.quantile(np.stack([by_hand(r) for r in others]), [0.0, 0.5, 1.0], axis=0)
        assert np.abs(spread.quantiles - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())
    few = among_others.spreads(probe, mine.summary, [r.summary for r in others[:2]])
    assert all(not len(s.quantiles) and s.n == 2 for s in few), "two are no spread"


def test_completeness_is_measured_against_the_scale_and_by_the_engines_own_limit(model_of, measure):
    model, prompt = model_of("qwen3"), Prompt(TEXTS[0], "17")
    good = measure(model, IntegratedGradients(), prompt)
    poor = unsettled(good)
    assert incomplete(good) == [] and not good.notes
    for result in (good, poor):
        whole = np.abs(result["f_x"] - result["f_baseline"])
        scale = np.maximum(whole, np.abs(result["attribution"]).max(1))
        assert completeness(result) == pytest.approx(result["completeness_error"] / scale, rel=1e-5)
    assert incomplete(poor) == [i for i, share in enumerate(completeness(poor)) if share > 0.005] != []


def test_the_updates_cosine_of_one_block_is_the_cosine_criterions(model_of, measure):
    for family in ("qwen3", "gpt_neox", "gemma2", "granite"):
        model, prompt = model_of(family), Prompt(TEXTS[0])
        pruned, written = measure(model, Prune(), prompt), measure(model, Contributions(), prompt)
        assert np.abs(pruned["update_cosine"] - written["layer_cos"]).max() <= 1e-4, family


def likenesses(mine, theirs):
    """Of the lens' two curves, made to be `mine` and `theirs`."""

    def summary(curve):
        parts = {f"{name}.sum": np.asarray(curve) for name in ("kl", "overlap")}
        return parts | {f"{name}.first": np.zeros(len(curve)) for name in ("kl", "overlap")} | {"n_tokens": 1}

    return among_others.likeness(LogitLens, summary(mine), summary(theirs))


FALLING = np.array([8.0, 7, 5, 4, 2, 1, 0])
CONTROLS = (  # a control's curve, and the shape it counts as
    (FALLING / 10 + 3, 0),
    ([8.0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], 1),  # by rank alone
    ([7.0, 8, 4, 5, 1, 2, 3], 1),  # partly
    (FALLING[::-1].copy(), 2),
    (np.ones(7), None),
    (np.full(7, np.nan), None),
)


@pytest.mark.parametrize("theirs, shape", CONTROLS)
def test_a_controls_curve_is_told_by_order_and_course(theirs, shape):
    found = likenesses(FALLING, theirs)
    assert [l.shape for l in found] == [shape] * 2
    assert "need" not in say.against_control("untrained", [found]), "one draw carries no conclusion"
    if shape == 0:
        assert "does not need training" in say.against_control("untrained", [found] * 5)


def test_noise_does_not_pass_for_the_same_curve_and_a_clear_one_does():
    """Two random walks have one shape now and then; white noise and a step never, a curve under little noise always."""
    rng = np.random.default_rng(0)
    rising, n = np.repeat([0.0, 1.0], 12) + 0.02 * np.arange(24), 200
    noise = [likenesses(rng.normal(size=24), rng.normal(size=24))[0].shape for _ in range(n)]
    clear = [likenesses(rising, 3 * rising + rng.normal(size=24) / 100)[0].shape for _ in range(n)]
    assert noise.count(0) == 0 and clear.count(0) == n


def test_a_spread_without_sinks_is_that_of_the_other_tokens(model_of, measure, own_cache, monkeypatch):
    """Every prompt leaves out its own sinks; without its contributions there is nothing that could be left out."""
    monkeypatch.setattr(sinks, "of_result", lambda r: sinks.find(*(r[n] for n in sinks.READS), 1.05))
    model, lens = model_of("qwen3"), LogitLens()
    results = [measure(model, lens, Prompt(text)) for text in TEXTS]
    assert among_others.without_sinks(lens, results) is None
    made = [measure(model, Contributions(), Prompt(text)) for text in TEXTS]
    for one in made:
        lookup.store().put(one)
    out = [{s.pos for s in sinks.of_result(one)} for one in made]
    assert any(out)
    for probe, of_probe, start in ((lens, results, 0), (Contributions(), made, 0), (Contributions(), made, 1)):
        found = among_others.without_sinks(probe, of_probe, first_token=not start)
        for result, left, positions in zip(of_probe, found, out, strict=True):
            drawn, kept = among_others.curves_of(probe, [left]), range(start, result.n_tokens)
            kept = [t for t in kept if t not in positions] or kept
            for curve in probe.curves:
                rows = [sum(float(row[t]) for t in kept) / len(kept) for row in result[curve.name]]
                np.testing.assert_allclose(drawn[curve.name], rows, rtol=2e-5, atol=1e-6)
    assert among_others.without_sinks(LayerSkip(), [measure(model, LayerSkip(), Prompt("abc"))]) is None
