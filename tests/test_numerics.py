"""The numerics of a prompt against the same sums written naively, on right readings and on wrong ones; and what is said
about them."""

import dataclasses

import naive
import numpy as np
import pytest
import torch
from small_models import FAMILIES, random_model

from ed_core.depth import exactness
from ed_core.models.families import find
from ed_core.probes import Numerics
from ed_core.types import Prompt

PROMPT = Prompt("5 + 7 + 5 + 3 + 1 + 7 = ", "28")
WRONG = {"residual_multiplier": "", "logit_divisor": ""}


@pytest.mark.parametrize("family", FAMILIES)
def test_miss_rounding_slopes_and_norms(model_of, measure, family):
    model = model_of(family)
    found = measure(model, Numerics(), PROMPT)
    expected = naive.numerics(model.hf, found.token_ids, torch.finfo(torch.float32).eps)
    own = 0.05 if family == "granite" else 1e-4  # its multiplier's product is rounded; by hand it is exact
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
    assert not exactness.checks(found)[0].holds


@pytest.mark.parametrize("family", ("qwen3", "gpt_neox", "granite", "gemma2"))
def test_in_bf16_the_miss_is_rounding_and_no_more(model_of, measure, family):
    found = measure(model_of(family, torch.bfloat16), Numerics(), PROMPT)
    assert (found["miss"] <= found["rounding"]).all()
    assert 1e-4 < found["miss"].max() < found["rounding"].max() < 2e-2
    assert exactness.checks(found)[0].holds


def test_what_a_family_hands_past_the_stream_shows_in_the_detour(measure):
    model = random_model("gemma4", num_kv_shared_layers=2)
    found = measure(model, Numerics(), PROMPT)
    assert float(found["detour"]) > 1e-2 > float(found["replay"])
    assert [check.name for check in exactness.checks(found) if not check.holds] == [exactness.LOGITS["detour"]]
