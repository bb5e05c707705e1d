"""The numerics of a prompt against the same sums written naively, on right readings and on wrong ones; and what is said
about them."""

import dataclasses

import naive
import numpy as np
import pytest
import torch
from small_models import FAMILIES, random_model

from ed_core.architectures import find
from ed_core.depth import exactness
from ed_core.errors import PromptError
from ed_core.models.verify import PROBE_TEXT, verify
from ed_core.probes import Contributions, LogitLens, Numerics
from ed_core.types import Measure, Prompt
from ed_core.work import compute

PROMPT = Prompt("5 + 7 + 5 + 3 + 1 + 7 = ", "28")
WRONG = {"residual_multiplier": "", "logit_divisor": ""}


@pytest.mark.parametrize("family", FAMILIES)
def test_miss_rounding_slopes_and_norms(model_of, measure, family):
    model = model_of(family)
    found = measure(model, Numerics(), PROMPT)
    expected = naive.numerics(model.hf, found.token_ids, torch.finfo(torch.float32).eps)
    own = (
        0.05 if family == "granite" else 1e-4
    )  # the multiplier's product is rounded as the model rounds it; by hand it is exact
    for name, within in (("miss", own), ("rounding", 1e-4), ("resid_norm", 1e-4)):
        assert np.abs(found[name] - expected[name]).max() <= within * expected[name].max(), name
    for i, name in enumerate(("slope_attn", "slope_mlp")):
        assert np.nanmax(np.abs(found[name] - expected["slopes"][:, i])) <= 1e-4
        assert np.isfinite(found[name]).all()
    assert (found["miss"] <= found["rounding"]).all() and found["miss"].max() > 0.1 * found["rounding"].max()
    assert all(float(found[name]) <= 1e-5 for name in ("closure", "replay", "detour", "suffix"))


def test_a_forgotten_multiplier_and_scale_show_in_every_figure(measure):
    """Granite read as if it multiplied nothing: the same wrong numbers as by hand."""
    wrong = dataclasses.replace(find("granite"), **WRONG)
    model = random_model("granite", architecture=wrong)
    found = measure(model, Numerics(), PROMPT)
    multiplier, divisor = model.config.residual_multiplier, model.config.logits_scaling
    expected = naive.numerics(model.hf, found.token_ids, torch.finfo(torch.float32).eps, scale=1 / multiplier)
    assert np.abs(found["miss"] - expected["miss"]).max() <= 1e-4 * expected["miss"].max()
    assert found["miss"].max() > 1000 * found["rounding"].max()
    assert found["slope_attn"] == pytest.approx(np.full(model.n_layers, multiplier), rel=1e-3)
    assert found["slope_mlp"] == pytest.approx(expected["slopes"][:, 1], rel=1e-3)
    assert float(found["closure"]) == pytest.approx(divisor - 1, rel=1e-4)
    said = exactness.sums(found)
    assert not said.holds and "beyond" in said.text


@pytest.mark.parametrize("family", ("qwen3", "gpt_neox", "granite", "gemma2"))
def test_in_bf16_the_miss_is_rounding_and_no_more(model_of, measure, family):
    found = measure(model_of(family, torch.bfloat16), Numerics(), PROMPT)
    assert (found["miss"] <= found["rounding"]).all()
    assert 1e-4 < found["miss"].max() < found["rounding"].max() < 2e-2
    assert found.provenance["limits"] == {
        "miss": 2e-2,
        "slope": 0.03,
        "suffix": pytest.approx(2**-7 * (2 * found.n_layers) ** 0.5),
    }
    assert exactness.sums(found).holds


@pytest.mark.parametrize("variant", ("gemma4", "gemma4_moe"))
def test_a_third_branch_is_one_more_addition(variant_model, measure, variant):
    found = measure(variant_model(variant), Numerics(), PROMPT)
    assert (found["miss"] <= found["rounding"]).all()


def test_the_figures_on_logits_are_those_of_verify(model_of, measure):
    """On its own text, and where the last tokens alone are compared, no larger."""
    model = model_of("gemma2", torch.bfloat16)
    figures, found = verify(model), measure(model, Numerics(), Prompt(PROBE_TEXT[:40]))
    assert figures.n_tokens > 32
    for name, value in (
        ("closure", figures.closure),
        ("replay", max(figures.replay.values())),
        ("detour", figures.detour),
        ("suffix", figures.suffix),
    ):
        assert 0 <= float(found[name]) <= 2 * max(value, 1e-3), name


def test_what_a_family_hands_past_the_stream_shows_in_the_detour(measure):
    model = random_model("gemma4", num_kv_shared_layers=2)
    found = measure(model, Numerics(), PROMPT)
    assert float(found["detour"]) > 1e-2 > float(found["replay"])
    said = exactness.logits(found)
    assert not said.holds and "past the stream" in said.text


def test_long_prompts_keep_a_few_logits_only(model_of, monkeypatch):
    model = model_of("qwen3")
    seen = []
    monkeypatch.setattr(
        type(model),
        "unembed",
        lambda self, resid, plain=type(model).unembed: (seen.append(resid.shape[-2]), plain(self, resid))[1],
    )
    found = compute.run(model, Numerics().request(model.spec, Prompt("a b c d " * 20)))
    assert max(seen) <= 32 and float(found["detour"]) <= 1e-5 and float(found["suffix"]) <= 1e-5


def test_one_token_is_refused(model_of, measure):
    with pytest.raises(PromptError, match="at least 2"):
        measure(model_of("qwen3"), Numerics(), Prompt("a"))


# ---------------------------------------------------------------- what is said


def changed(result, name, values):
    return dataclasses.replace(
        result, measures={**result.measures, name: Measure(Numerics.spec(name), np.asarray(values, np.float32))}
    )


@pytest.fixture(scope="module")
def found(model_of, measure):
    return measure(model_of("qwen3"), Numerics(), PROMPT)


def test_a_sink_is_named_with_its_depth_and_size(found):
    norms = np.ones_like(found["resid_norm"])
    assert not exactness.sink(changed(found, "resid_norm", norms)).holds
    norms[3:, 0] = 40.0
    said = exactness.sink(changed(found, "resid_norm", norms))
    assert said.holds and "Sink: token 0 (" in said.text and "up to 40 times" in said.text and "depth 3" in said.text
    several = norms.copy()
    several[3:, 5] = 40.0
    more = exactness.sink(changed(found, "resid_norm", several)).text
    assert "Sinks: token 0 (" in more and "; token 5 (" in more, "a massive token elsewhere is named"
    last = np.ones_like(norms)
    last[-1, 4] = 40.0
    ends = exactness.sink(changed(found, "resid_norm", last))
    assert not ends.holds and "Token 4 (" in ends.text
    assert ends.text.endswith("no attention reads it, so it is not a sink.")
    three = np.tile(np.float32([40.0, 1.0, 3.0]), (len(norms), 1))
    assert "up to 20 times" in exactness.sink(changed(found, "resid_norm", three)).text, "the median of the others"


def test_all_checks_pass_or_the_sentence_says_which_failed(found):
    said = exactness.verdict(found)
    assert said.holds and said.text.startswith("All checks passed: ") and "limits" in said.text
    worse = changed(changed(found, "detour", 0.25), "slope_mlp", np.full_like(found["slope_mlp"], 1.5))
    said = exactness.verdict(worse)
    assert not said.holds and said.text.startswith("2 of 5 checks failed on this prompt: the slopes are off by 0.5 (")
    assert "with another stream put in at layer 0" in said.text and "by 0.25 (" in said.text
    assert "last residual" not in said.text
    assert not exactness.verdict(changed(found, "closure", np.nan)).holds, "what is not there has not passed"


def test_a_miss_beyond_rounding_but_within_the_limit_is_told_apart(found):
    more = found["miss"].copy()
    more[2, 4] = 5e-6
    said = exactness.sums(changed(found, "miss", more))
    times = round(5e-6 / float(found["rounding"][2, 4]), 1)
    assert said.holds and "layer 2, token 4" in said.text and times > 2
    assert f"somewhere the error is {times} times what rounding can cause" in said.text
    hardly = exactness.sums(changed(found, "miss", found["rounding"] * 1.002))
    assert "the error is 1.002 times what" in hardly.text, "which is more than once"
    little = exactness.sums(changed(found, "miss", found["rounding"] * 0.004))
    assert "nowhere more than 1 % of what rounding can cause" in little.text


def test_what_leaving_out_the_first_token_changes(model_of, measure):
    model = model_of("qwen3")
    contributions, lens = measure(model, Contributions(), PROMPT), measure(model, LogitLens(), PROMPT)
    rows = exactness.without_first(contributions, lens)
    assert [row.name for row in rows] == ["cosine", "kl", "overlap"]
    for row in rows:
        result = contributions if row.name == "cosine" else lens
        names = ("attn_cos", "mlp_cos", "layer_cos") if row.name == "cosine" else (row.name,)
        for values, first in ((row.with_first, 0), (row.without, 1)):
            assert values == pytest.approx(
                np.mean([result[n][:, first:].mean(1) for n in names], axis=0), rel=1e-4, abs=1e-6
            )
    assert "same layers with and without the first token" in exactness.change(
        [dataclasses.replace(row, depth_without=row.depth_with) for row in rows]
    )
    moved = [dataclasses.replace(rows[0], depth_with=1, depth_without=3), *rows[1:]]
    assert "cosine: 1 with it, 3 without" in exactness.change(moved)
