"""Families nobody described, families refused by name, and the documents that speak of both."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from shell import refused
from small_models import VARIANTS, save_random

from ed_core.architectures import families, find
from ed_core.architectures.families import REFUSED, why_refused
from ed_core.commands import main
from ed_core.errors import BY_NAME, RefusedFamily
from ed_core.models.opening import load_model, open_model
from ed_core.models.verify import verify
from ed_core.probes import Contributions
from ed_core.types import Prompt
from ed_core.work import compute
from ed_core.work.resolve import resolve

DOCS = Path(__file__).parent.parent / "docs"


def forget(monkeypatch, *model_types):
    """As if nobody had described these."""
    left = tuple(family for family in families.FAMILIES if not set(model_types) & set(family.model_types))
    monkeypatch.setattr(families, "FAMILIES", left)
    monkeypatch.setattr("ed_core.models.adoption.FAMILIES", left)


# ---------------------------------------------------------------- unknown


@pytest.mark.parametrize(
    "variant, like, parallel",
    [
        ("qwen3", "Llama", False),
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
    model = open_model(resolve(str(save_random(tmp_path / "m", variant))))
    assert model.architecture.family == f"{model_type} (read like {like})"
    assert model.parallel is parallel, "measured, because the sums cannot tell"
    for role in ("blocks", "final_norm", "attn", "mlp"):
        assert model.architecture.paths(role) == described.paths(role)
    result = compute.run(model, Contributions().request(model.spec, Prompt("12 + 7")))
    assert f"'{model_type}' is not described here" in result.notes[0] and f"read like {like}" in result.notes[0]
    assert ("run in parallel" in " ".join(result.notes)) is parallel
    assert like in result.provenance["family"]


@pytest.mark.parametrize("variant", ["granite", "cohere2", "gemma3"])
def test_multipliers_and_caps_that_the_config_names_are_tried(monkeypatch, tmp_path, variant):
    forget(monkeypatch, VARIANTS[variant][0])
    model = open_model(resolve(str(save_random(tmp_path / "m", variant))))
    assert model.identities.failures() == [] and "is not described here" in model.architecture.note


def test_odd_config_fields_are_named_and_harmless_ones_are_not(monkeypatch, tmp_path, capsys):
    forget(monkeypatch, "qwen3")
    folder = save_random(tmp_path / "m", "qwen3", attention_dropout=0.1, stream_gain=3, max_window_layers=5)
    assert main(["verify", str(folder)]) == 0
    note = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("note:"))
    assert "max_window_layers=5" in note and "stream_gain=3" in note
    assert "attention_dropout" not in note and "hidden_size" not in note


@pytest.mark.parametrize(
    "variant, words",
    [
        ("bloom", ["misses the next residual"]),  # BLOOM's own layout is forgotten, and GPT-2's modules are not there
        ("glm4", ["layer 0: h + a + m misses the next residual", "self_attn"]),
        ("mpt", ["no module was found"]),
        ("gemma4", ["read like"]),
    ],
)
def test_where_no_layout_holds_the_nearest_is_told(monkeypatch, tmp_path, capsys, variant, words):
    forget(monkeypatch, VARIANTS[variant][0])
    known = (f"'{VARIANTS[variant][0]}'", "docs/adding-a-model-family.md")
    refused(capsys, ["verify", save_random(tmp_path / "m", variant)], *known, *words)


def test_shared_keys_and_values_are_noticed_where_nobody_named_them(monkeypatch, tmp_path):
    """Gemma 4's upper blocks may read keys and values of lower ones: blocks called in order pass, an intervention gives
    wrong numbers."""
    gemma4 = find("gemma4_text")
    monkeypatch.setattr(
        families, "FAMILIES", tuple(f if f is not gemma4 else replace(f, refused=()) for f in families.FAMILIES)
    )
    model = load_model(resolve(str(save_random(tmp_path / "m", "gemma4", num_kv_shared_layers=2))))
    figures = verify(model)
    assert max(figures.replay.values()) <= figures.miss_limit < figures.detour
    assert any("past the stream" in failure for failure in figures.failures())


def test_what_stands_between_passes_is_said_where_there_is_something():
    told = {name: find(name).modules_read() for name in ("ed_looped", "ouro", "llama")}
    assert told["ed_looped"].endswith(
        ", config.n_loops passes with model.loop_norm and the embedding where config.loop_input in between"
    )
    assert told["ouro"].endswith(", config.total_ut_steps passes with model.norm in between")
    assert "passes" not in told["llama"]


# ---------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    "variant, config, words",
    [
        ("gemma4", {"num_kv_shared_layers": 2}, ["Gemma 4", "num_kv_shared_layers is 2", "keys and values"]),
        ("opt", {"do_layer_norm_before": False}, ["OPT", "do_layer_norm_before is False", "OPT-350m"]),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, ["BLOOM", "replaced by its norm"]),
    ],
)
def test_variants_are_refused_with_the_reason(tmp_path, capsys, variant, config, words):
    refused(capsys, ["verify", save_random(tmp_path / "m", variant, **config)], *words)


@pytest.mark.parametrize(
    "config, words",
    [
        ({"model_type": "gemma3n_text"}, ["gemma3n_text", "AltUp", "four residual streams"]),
        ({"model_type": "mamba"}, ["mamba", "state-space"]),
        ({"model_type": "falcon_mamba"}, ["state-space"]),
        ({"model_type": "jamba"}, ["jamba", "in the place of attention"]),
        ({"model_type": "t5"}, ["t5", "encoder"]),
        ({"model_type": "bart"}, ["bart", "encoder"]),
        ({"model_type": "bert"}, ["bert", "both directions"]),
    ],
    ids=lambda x: x["model_type"] if isinstance(x, dict) else "",
)
def test_families_are_refused_by_name_before_anything_is_loaded(tmp_path, config, words):
    folder = save_random(tmp_path / "m", "llama")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RefusedFamily) as caught:
        open_model(resolve(str(folder)))
    assert all(word in str(caught.value) for word in words)


def test_an_unknown_encoder_decoder_is_refused_by_its_config():
    assert "encoder" in why_refused(SimpleNamespace(model_type="new", is_encoder_decoder=True))
    assert why_refused(SimpleNamespace(model_type="new", is_encoder_decoder=False)) == ""


def test_nothing_is_both_described_and_refused():
    assert not set(REFUSED) & {t for family in families.FAMILIES for t in family.model_types}
    assert BY_NAME["RefusedFamily"] is RefusedFamily


# ---------------------------------------------------------------- documents


def test_the_guide_runs(tmp_path, monkeypatch):
    """Every code block, in order, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "adding-a-model-family.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 5
    scope = {"__name__": "guide"}
    for i, block in enumerate(blocks):
        exec(compile(block, f"adding-a-model-family.md, block {i}", "exec"), scope)


def test_families_are_listed_with_their_figures(capsys, monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", tuple(f for f in families.FAMILIES if f.family in ("OPT", "Granite")))
    assert main(["models", "--families"]) == 0
    out = capsys.readouterr().out
    assert "OPT (opt): attention's addition at self_attn, the MLP's at fc2" in out and "mlp × multiplier" in out
    assert out.count("miss, bf16 ≤ 1e-2") == 2 and "mamba" in out
