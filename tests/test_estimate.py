"""Sizes from configs against real models on the meta device; the estimate's arithmetic and its words."""

import json
import math

import pytest
import torch
from small_models import FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM

from ed_core.cli import main
from ed_core.models import catalogue, sizes
from ed_core.models.ref import ModelRef
from ed_core.models.sizes import WIDEST_FIRST
from ed_core.models.verify import verify
from ed_core.probes import LayerSkip, ResidualErasure
from ed_core.types import Prompt
from ed_core.work import estimate
from tools.families import VARIANTS, config_fields

STATED = {  # as the publishers state them
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b-pt": 999_885_952,
    "EleutherAI/pythia-12b": 11_846_072_320,
    "openai-community/gpt2-xl": 1_557_611_200,
}
pytestmark = pytest.mark.usefixtures("own_cache")


def on_meta(config) -> int:
    """Parameters of the model that the library builds from a config, a tied head counted once."""
    fields = dict(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
    model.tie_weights()
    return sum(p.numel() for p in model.parameters())


def test_every_catalogue_config_has_the_parameters_that_are_counted():
    for entry in {json.dumps(entry.config): entry for entry in catalogue.entries() if entry.config}.values():
        size = sizes.read(entry.config)
        assert size.exact and size.parameters == on_meta(entry.config), entry.id


def test_counts_are_those_the_publishers_state():
    for name, stated in STATED.items():
        assert ModelRef.named(name).size().parameters == stated, name


CHANGED = [{}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": True}, {"num_key_value_heads": 4}]


@pytest.mark.parametrize("more", CHANGED, ids=str)
@pytest.mark.parametrize("family", [*FAMILIES, "gemma3", "phi3", "looped", "looped_norm", "ouro"])
def test_every_family_is_counted_exactly_off_its_defaults_too(family, more):
    config = {**config_fields(family, more), "model_type": VARIANTS[family][0]}
    if family.startswith(("gpt_neox", "gpt2")) and "tie_word_embeddings" not in more:
        config["tie_word_embeddings"] = family == "gpt2"
    assert sizes.read(config).parameters == on_meta(config)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-32B", "google/gemma-2-9b", "openai-community/gpt2"])
def test_narrower_is_smaller_and_longer_needs_more(name):
    size = ModelRef.named(name).size()
    weights = [size.weight_bytes(p) for p in WIDEST_FIRST]
    assert weights == sorted(weights, reverse=True) and weights[0] == 4 * size.parameters == 2 * weights[1]
    short, long = (estimate.estimate(size, "bf16", n) for n in (64, 512))
    for a, b in zip(short.needs, long.needs):
        assert a.probe == b.probe and b.activations >= a.activations > 0, a.probe
        assert 0 < a.seconds <= b.seconds < math.inf, a.probe


FUTURE = LayerSkip(mode="future"), LayerSkip(mode="future", boundaries=(9, 20), part="mlp", direct=True)


@pytest.mark.parametrize("probe", [LayerSkip(), *FUTURE, ResidualErasure(target="future")])
def test_skips_and_erasure_are_counted_with_their_split_points_and_targets(model_of, measure, monkeypatch, probe):
    model, tokens, read = model_of("llama"), [], []
    monkeypatch.setattr(model, "identities", None)
    verify(model)  # erasure goes on from the middle of a prompt
    run_block, unembed = model.run_block, model.unembed

    def counted(trace, at, h, *args, **more):
        tokens.append(h[..., 0].numel())
        return run_block(trace, at, h, *args, **more)

    monkeypatch.setattr(model, "run_block", counted)
    monkeypatch.setattr(model, "unembed", lambda h: (read.append(h[..., 0].numel()), unembed(h))[1])
    n = measure(model, probe, Prompt("5 + 7 + 5 + 3 + 1 + 7 = 28, as we know")).n_tokens
    passes, unembedded = probe.work(model.n_layers, n)
    assert passes == pytest.approx(model.n_layers + sum(tokens) / n, rel=0.15)
    assert unembedded == pytest.approx(sum(read), rel=0.3)


def test_what_does_not_fit_is_said_with_what_would(capsys):
    assert main(["estimate", "Qwen/Qwen2.5-32B", "--precision", "4bit"]) == 0
    out = capsys.readouterr().out
    assert "32.8 B parameters" in out and "4bit 19.2 GB" in out and "layer_skip" in out and "free on cpu" in out
    size = ModelRef.named("Qwen/Qwen2.5-7B").size()
    assert estimate.fitting(size, 20 * 10**9) == ["bf16", "int8", "4bit"] and not estimate.fitting(size, 10**9)
    assert estimate.choose(size, free=20 * 10**9)[0] == "bf16" and estimate.choose(size, free=10**9)[0] == "4bit"
