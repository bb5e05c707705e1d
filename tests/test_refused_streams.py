"""Families that are refused by name: each is built small, and what the refusal says of it is seen in its numbers."""

import json

import pytest
import torch
from safetensors.torch import save_file
from small_models import byte_tokenizer
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from ed_core.architectures.families import NORMED_LOOP, REFUSED, SOURCES, STREAMS, TWO_STATES
from ed_core.architectures.small import COMMON
from ed_core.errors import RefusedFamily
from ed_core.models.families import jitter
from ed_core.models.identities import miss
from ed_core.models.modules import first, hooked, split_call
from ed_core.models.opening import open_model
from ed_core.types import ModelSpec

EXPERTS = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
INDEX = {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}
LATENT = {**INDEX, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 8}
LATENT["num_key_value_heads"] = 4
SMALL = {
    "deepseek_v4": {
        **EXPERTS,
        **INDEX,
        "num_key_value_heads": 1,
        "q_lora_rank": 16,
        "o_groups": 2,
        "o_lora_rank": 8,
        "sliding_window": 8,
    },
    "hy_v4": {**EXPERTS, **LATENT, "qk_rope_head_dim": 4},
    "glm5_next_text": {**EXPERTS, **LATENT, "qk_rope_head_dim": 0, "head_dim": 0, "index_kpool": 2},
    "qwen4_exp_text": {
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "hc_lowrank": 8,
        "ngram_vocab_size_base": 100,
        "heads_per_ngram": 2,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "inkling2_text": {
        **EXPERTS,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "sliding_window_size": 4,
        "d_rel": 4,
        "rel_extent": 16,
        "unpadded_vocab_size": 256,
        "n_layers_per_attn_res_block": 2,
    },
    "hrm_text": {"num_hidden_layers": 2},
    "albert": {"embedding_size": 16},
}
CLASSES = {"glm5_next_text": AutoModel, "albert": AutoModelForMaskedLM}
SEVERAL = ("deepseek_v4", "hy_v4", "glm5_next_text", "qwen4_exp_text")
IDS = torch.arange(20, 30)[None]


def small(model_type):
    """A random model of the family, norms and whatever is constant at first off their defaults."""
    torch.manual_seed(0)
    left_out = {"hrm_text": ("num_key_value_heads",)}.get(model_type, ())
    fields = {name: value for name, value in (COMMON | SMALL[model_type]).items() if name not in left_out}
    hf = CLASSES.get(model_type, AutoModelForCausalLM).from_config(AutoConfig.for_model(model_type, **fields)).eval()
    jitter(hf)
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.numel() > 1 and not weight.std():
                weight.add_(0.3 * torch.randn_like(weight))
    return hf


@pytest.mark.parametrize("model_type", SMALL)
def test_each_is_refused_by_name_with_the_reason(tmp_path, model_type):
    small(model_type).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(RefusedFamily, match="Refused: model is of the family") as refused:
        open_model(ModelSpec(str(tmp_path / "model")))
    assert f"'{model_type}', and {REFUSED[model_type]}." in str(refused.value)


def test_one_that_brings_its_own_code_is_refused_by_name_too(tmp_path):
    own = {"AutoModelForCausalLM": "raven_modeling_minimal.RavenForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "huginn_raven", "auto_map": own}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(RefusedFamily, match="'huginn_raven', and its layers run several times and their norms act"):
        open_model(ModelSpec(str(tmp_path)))


def test_the_reasons_are_those_of_what_is_seen_below():
    assert {REFUSED[name] for name in SEVERAL} == {STREAMS}
    assert REFUSED["inkling2"] == REFUSED["inkling2_text"] == SOURCES
    assert REFUSED["hrm_text"] == TWO_STATES and REFUSED["albert"] == REFUSED["huginn_raven"] == NORMED_LOOP


@pytest.mark.parametrize("model_type", SEVERAL)
@torch.no_grad()
def test_four_streams_enter_a_layer(model_type):
    hf, seen = small(model_type), []
    (layers,) = (m for name, m in hf.named_modules() if name.endswith("layers"))
    look = lambda module, args, kwargs: seen.append(split_call(args, kwargs)[0])
    with hooked(layers[3].register_forward_pre_hook(look, with_kwargs=True)):
        hf(input_ids=IDS, use_cache=False)
    streams = seen[0].reshape(IDS.shape[1], 4, 32)
    assert (streams[:, 0] - streams[:, 1]).norm() > 1e-4 * streams.norm(), "and they are not four times the same"


@torch.no_grad()
def test_a_stream_begins_anew_every_few_layers():
    """Of four layers in groups of two, the sum holds within a group; the first layer of the second leaves its own
    additions alone."""
    hf, seen = small("inkling2_text"), {}
    layers = hf.model.layers

    def keep(at):
        return lambda module, args, output: seen.update({at: first(output)})

    for number, layer in enumerate(layers):
        layer.register_forward_hook(keep((number, "out")))
        layer.post_attention_convolution.register_forward_hook(keep((number, "a")))
        layer.post_mlp_convolution.register_forward_hook(keep((number, "m")))
    hf(input_ids=IDS, use_cache=False)

    def missed(number):
        h = seen[number - 1, "out"]
        return float(miss(h, seen[number, "a"], seen[number, "m"], seen[number, "out"]).max())

    assert missed(1) <= 1e-5 and missed(3) <= 1e-5 and missed(2) > 0.1
    assert float((seen[2, "a"] + seen[2, "m"] - seen[2, "out"]).norm() / seen[2, "out"].norm()) <= 1e-5


@torch.no_grad()
def test_a_norm_on_the_stream_is_no_sum():
    hf, seen = small("albert"), {}
    (layer,) = hf.albert.encoder.albert_layer_groups[0].albert_layers
    layer.register_forward_pre_hook(lambda module, args: seen.setdefault("h", []).append(args[0]))
    for name, module in (("a", layer.attention.dense), ("m", layer.ffn_output), ("out", layer)):
        module.register_forward_hook(
            lambda module, args, output, name=name: seen.setdefault(name, []).append(first(output))
        )
    hf(input_ids=IDS)
    assert len(seen["h"]) == 4, "one layer, four times"
    for h, a, m, out in zip(*(seen[name] for name in ("h", "a", "m", "out"))):
        assert float(miss(h, a, m, out).max()) > 0.1


@torch.no_grad()
def test_two_states_pass_each_other_by():
    """A walk over one stream, with what the model added from its other state in the traced pass, gives the model's
    output; changed at the end of the first slow pass it gives another than the model that is changed there."""
    hf = small("hrm_text")
    model, config, entered, calls = hf.model, hf.config, [], []
    stacks = [model.L_module] * config.L_cycles + [model.H_module]
    order = stacks * config.H_cycles

    def enters(module, args, kwargs):
        entered.append(args[0])
        calls.append(kwargs)

    for stack in (model.L_module, model.H_module):
        stack.register_forward_pre_hook(enters, with_kwargs=True)
    handles = [
        stack.final_norm.register_forward_hook(lambda module, args, output: left.append(output))
        for stack in (model.L_module, model.H_module)
    ]
    left = []
    own = hf(input_ids=IDS, use_cache=False).logits
    for handle in handles:
        handle.remove()
    beside = [x - before for x, before in zip(entered[1:], left)]  # what was added to what the stack before left
    named = [{name: value for name, value in call.items() if name != "past_key_values"} for call in calls]

    def walked(change):
        stream = entered[0]
        for number, (stack, kwargs) in enumerate(zip(order, named)):
            stream = type(stack).forward(stack, stream, **kwargs)
            if number == config.L_cycles:
                stream = change(stream)
            if number + 1 < len(order):
                stream = stream + beside[number]
        return hf.lm_head(stream)

    def changed(module, args, output):
        return output.roll(1, dims=1) if len(seen_before) == 0 and not seen_before.append(1) else output

    seen_before = []
    torch.testing.assert_close(walked(lambda stream: stream), own, rtol=0, atol=1e-5 * float(own.abs().max()))
    with hooked(model.H_module.register_forward_hook(changed)):
        expected = hf(input_ids=IDS, use_cache=False).logits
    assert not torch.equal(expected, own)
    assert float((walked(lambda stream: stream.roll(1, dims=1)) - expected).abs().max() / expected.abs().max()) > 1e-2
