"""Small random models of every family.

A model of every variant of every family is data. Whatever could hide a mistake at its default is moved off it: sliding
windows shorter than the prompt, several experts, soft-caps, multipliers."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer as Words
from tokenizers.models import WordLevel
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ed_core.models import loops  # noqa: F401  makes its families known
from ed_core.models.families import find
from ed_core.models.language_model import LanguageModel
from ed_core.models.loading import DTYPES
from ed_core.models.modules import Pretrained, Tokenizer
from ed_core.types import ModelSpec

COMMON = dict(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "head_dim": 4,
}
GRANITE = {"residual_multiplier": 0.22, "logits_scaling": 6.0, "embedding_multiplier": 2.0, "attention_multiplier": 0.2}
GPT = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 512}
NO_HEAD_DIM = ("falcon",)  # computes it and refuses to be told
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "image_size": 16,
    "patch_size": 8,
}
FALCON = {"num_kv_heads": 2, "bias": True}
GEMMA3 = {**SLIDING, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 8}
GEMMA4 = {
    **SLIDING,
    "final_logit_softcapping": 3.0,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 256,
    "global_head_dim": 8,
}
LLAMA4 = {
    "intermediate_size_mlp": 48,
    "num_local_experts": 3,
    "moe_layers": [1, 3],
    "no_rope_layers": [1, 0, 1, 1],
    "attention_chunk_size": 4,
    "floor_scale": 2,
    "layer_types": ["chunked_attention", "full_attention", "chunked_attention", "chunked_attention"],
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # name: model_type, config fields
    "llama": ("llama", {}),
    "llama4": ("llama4_text", LLAMA4),
    "llama4_multimodal": ("llama4", {"text_config": LLAMA4, "vision_config": VISION}),
    "mistral": ("mistral", {"sliding_window": 4}),
    "ministral": ("ministral", SLIDING),
    "ministral3": ("ministral3", {"sliding_window": 4}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "sliding_window": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2_sliding": ("qwen2", {"use_sliding_window": True, **SLIDING}),
    "qwen2_moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 24, "mlp_only_layers": [2]}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", EXPERTS | {"mlp_only_layers": [2]}),
    "qwen3_next": (
        "qwen3_next",
        EXPERTS
        | {
            "shared_expert_intermediate_size": 24,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
    ),
    "gemma": ("gemma", {}),
    "gemma2": (
        "gemma2",
        {
            "sliding_window": 4,
            "final_logit_softcapping": 3.0,
            "attn_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gemma3": ("gemma3_text", GEMMA3),
    "gemma3_multimodal": ("gemma3", {"text_config": GEMMA3, "vision_config": VISION}),
    "gemma4": ("gemma4_text", GEMMA4),
    "gemma4_multimodal": (
        "gemma4",
        {
            "text_config": {**GEMMA4, "pad_token_id": 0},
            "vision_config": VISION,
        },
    ),
    "gemma4_moe": (
        "gemma4_text",
        {
            **SLIDING,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 16,
            "global_head_dim": 8,
        },
    ),
    "olmo": ("olmo", {"clip_qkv": 2.0}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", SLIDING),
    "olmoe": ("olmoe", EXPERTS),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {"sliding_window": 4}),
    "phimoe": ("phimoe", {"num_local_experts": 4, "sliding_window": 4}),
    "gpt2": ("gpt2", GPT),
    "gpt_neo": (
        "gpt_neo",
        {"num_layers": 4, "num_heads": 4, "window_size": 4, "attention_types": [[["global", "local"], 2]]},
    ),
    "gptj": ("gptj", GPT | {"rotary_dim": 4}),
    "gpt_bigcode": ("gpt_bigcode", GPT),
    "gpt_neox": ("gpt_neox", {"use_parallel_residual": True}),
    "gpt_neox_sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "gpt_oss": ("gpt_oss", EXPERTS | {**SLIDING, "num_local_experts": 4}),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "bloom": ("bloom", {"n_layer": 4, "n_head": 4}),
    "mpt": ("mpt", {"d_model": 32, "n_layers": 4, "n_heads": 4, "max_seq_len": 512}),
    "falcon_7b": ("falcon", {"multi_query": True, "parallel_attn": True}),
    "falcon_40b": ("falcon", FALCON | {"new_decoder_architecture": True}),
    "falcon_11b": ("falcon", FALCON | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    "falcon_rw": ("falcon", {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}),
    "stablelm": ("stablelm", {"use_parallel_residual": False}),
    "stablelm_parallel": ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
    "starcoder2": ("starcoder2", {"sliding_window": 4}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}),
    "nemotron": ("nemotron", {}),
    "granite": ("granite", GRANITE),
    "granitemoe": ("granitemoe", GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "granite4": (
        "granitemoehybrid",
        GRANITE
        | {
            "layer_types": ["attention"] * 4,
            "num_local_experts": 0,
            "shared_intermediate_size": 64,
            "position_embedding_type": "rope",
            "mamba_n_heads": 8,
        },
    ),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "exaone4": ("exaone4", SLIDING),
    "cohere": ("cohere", {"logit_scale": 0.25, "use_qk_norm": True}),
    "cohere2": ("cohere2", {"logit_scale": 0.25, **SLIDING}),
    "deepseek_v2": ("deepseek_v2", LATENT | {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}),
    "deepseek_v3": ("deepseek_v3", LATENT | {"n_group": 2, "topk_group": 1}),
    "looped": ("ed_looped", {"num_hidden_layers": 2, "n_loops": 2}),
    "looped_norm": ("ed_looped", {"num_hidden_layers": 2, "n_loops": 2, "loop_norm": True}),
    "looped_input": ("ed_looped", {"num_hidden_layers": 2, "n_loops": 2, "loop_norm": True, "loop_input": True}),
    "ouro": ("ouro", {"num_hidden_layers": 2, "total_ut_steps": 2}),
}


def config_fields(variant: str, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """All config fields of a variant; those of the text model stand where the family keeps them."""
    model_type, fields = VARIANTS[variant]
    common = {name: value for name, value in COMMON.items() if not (name == "head_dim" and model_type in NO_HEAD_DIM)}
    if "text_config" in fields:
        return fields | {"text_config": common | fields["text_config"] | (overrides or {})}
    return common | fields | (overrides or {})


def random_hf(variant: str, seed: int = 0, **overrides: Any) -> Pretrained:
    """An untrained transformers model of a variant, float32. Norm weights are jittered, because at initialisation they
    are all ones and hide a forgotten norm; matrices are larger than at initialisation, so that updates are comparable
    to the stream."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(VARIANTS[variant][0], **config_fields(variant, overrides))
    hf = AutoModelForCausalLM.from_config(config).eval()
    jitter(hf)
    return hf


@torch.no_grad()
def jitter(hf: nn.Module) -> None:
    """Norms' weights off 1 and larger maps, so that a module left out is seen in the numbers."""
    for name, weight in hf.named_parameters():
        if "norm" in name or ".ln_" in name:
            weight.add_(0.3 * torch.randn_like(weight))
        elif weight.dim() >= 2:
            weight.mul_(3)
    for name, buffer in hf.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.fill_(0.8)


def random_model(variant: str, precision: str = "fp32", tokenizer: Tokenizer = None, **overrides: Any) -> LanguageModel:
    """The same behind its family's description; identities not yet checked. Without a tokenizer all text is unknown to
    it, and evenly spread ids are read in its place (`verify.short_prompt`)."""
    tokenizer = tokenizer or PreTrainedTokenizerFast(tokenizer_object=Words(WordLevel({"?": 0}, unk_token="?")))
    hf = random_hf(variant, **overrides).to(DTYPES[precision])
    spec = ModelSpec(f"random-{variant}", content_hash=variant, precision=precision)
    architecture = find(hf.config.model_type)
    assert architecture is not None  # of every variant
    return LanguageModel(hf, tokenizer, architecture, spec)
