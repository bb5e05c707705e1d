"""Families nobody described, and families refused by name."""

import json
import shutil
from dataclasses import replace

import pytest
from shell import refused
from small_models import VARIANTS, save_random

from ed_core.errors import RefusedFamily
from ed_core.models import families
from ed_core.models.families import REFUSED, find
from ed_core.models.opening import load_model, open_model
from ed_core.models.ref import ModelRef
from ed_core.models.verify import verify
from ed_core.probes import Contributions
from ed_core.types import Prompt
from ed_core.work import compute


def forget(monkeypatch, *model_types):
    """As if nobody had described these."""
    left = tuple(family for family in families.FAMILIES if not set(model_types) & set(family.model_types))
    monkeypatch.setattr(families, "FAMILIES", left)
    monkeypatch.setattr("ed_core.models.adoption.FAMILIES", left)


@pytest.mark.parametrize(
    "variant, like, parallel",
    [
        ("olmo3", "Gemma 2", False),
        ("phi3", "Llama", False),
        ("gptj", "GPT-2", True),
        ("stablelm_parallel", "Llama", True),
    ],
)
def test_a_family_whose_sums_hold_is_accepted_with_a_note(monkeypatch, tmp_path, variant, like, parallel):
    model_type = VARIANTS[variant][0]
    described = find(model_type)
    forget(monkeypatch, model_type)
    model = open_model(ModelRef.parse(str(save_random(tmp_path / "m", variant))))
    assert model.architecture.family == f"{model_type} (read like {like})"
    assert model.parallel is parallel, "measured, because the sums cannot tell"
    for role in ("blocks", "final_norm", "attn", "mlp"):
        assert model.architecture.paths(role) == described.paths(role)
    result = compute.run(model, Contributions().request(model.spec, Prompt("12 + 7")))
    assert f"'{model_type}' is not described here" in result.notes[0] and f"read like {like}" in result.notes[0]
    assert ("run in parallel" in " ".join(result.notes)) is parallel
    assert like in result.provenance["family"]


@pytest.mark.parametrize("variant", ["granite", "gemma3"])
def test_multipliers_and_caps_that_the_config_names_are_tried(monkeypatch, tmp_path, variant):
    forget(monkeypatch, VARIANTS[variant][0])
    model = open_model(ModelRef.parse(str(save_random(tmp_path / "m", variant))))
    assert model.identities.failures() == [] and "is not described here" in model.architecture.note


@pytest.mark.parametrize(
    "variant, words",
    [("glm4", ["layer 1: h + a + m misses the next residual", "self_attn"]), ("mpt", ["no module was found"])],
)
def test_where_no_layout_holds_the_nearest_is_told(monkeypatch, tmp_path, capsys, variant, words):
    forget(monkeypatch, VARIANTS[variant][0])
    known = (f"'{VARIANTS[variant][0]}'", "examples/a_new_family.ipynb")
    refused(capsys, ["verify", save_random(tmp_path / "m", variant)], *known, *words)


def test_shared_keys_and_values_are_noticed_where_nobody_named_them(monkeypatch, tmp_path):
    """Gemma 4's upper blocks may read keys and values of lower ones: blocks called in order pass, an intervention gives
    wrong numbers."""
    gemma4 = find("gemma4_text")
    monkeypatch.setattr(
        families, "FAMILIES", tuple(f if f is not gemma4 else replace(f, refused=()) for f in families.FAMILIES)
    )
    model = load_model(ModelRef.parse(str(save_random(tmp_path / "m", "gemma4", num_kv_shared_layers=2))))
    figures = verify(model)
    assert max(figures.replay.values()) <= figures.miss_limit < figures.detour
    assert any("outside the stream" in failure for failure in figures.failures())


@pytest.mark.parametrize(
    "variant, config, words",
    [
        ("gemma4", {"num_kv_shared_layers": 2}, ["Gemma 4", "num_kv_shared_layers is 2", "keys and values"]),
        ("opt", {"do_layer_norm_before": False}, ["OPT", "do_layer_norm_before is False", "norms act"]),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, ["BLOOM", "replaced by its norm"]),
    ],
)
def test_variants_are_refused_with_the_reason(tmp_path, capsys, variant, config, words):
    refused(capsys, ["verify", save_random(tmp_path / "m", variant, **config)], *words)


NAMED = ("gemma3n_text", "mamba", "jamba", "bert", "deepseek_v4", "hrm_text", "albert", "huginn_raven")


@pytest.mark.parametrize(
    "model_type, why", [*((one, REFUSED[one]) for one in NAMED), ("t5", "an encoder's output enters its decoder")]
)
def test_families_are_refused_by_name_before_anything_is_loaded(small_folder, tmp_path, model_type, why):
    folder = shutil.copytree(small_folder, tmp_path / "m")
    own = {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}} if model_type == "huginn_raven" else {}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type} | own))
    with pytest.raises(RefusedFamily) as caught:
        open_model(ModelRef.parse(str(folder)))
    assert f"Refused: m is of the family '{model_type}', and {why}" in str(caught.value)
