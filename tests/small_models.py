"""Small random models of every family, built from configs: norm weights jittered, because at initialisation they are all ones and hide a
forgotten norm; multipliers and soft-caps off their defaults; windows shorter than the prompt."""
from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ed_core.architectures import find
from ed_core.model import LanguageModel
from ed_core.types import ModelSpec

COMMON = dict(
    vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 8},
    "olmo2": {},
    "gemma2": {"sliding_window": 8, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8},
    "gpt2": {"n_embd": 32, "n_layer": 5, "n_head": 4, "n_positions": 512},
    "gpt_neox": {"use_parallel_residual": True},
    "gpt_neox_sequential": {"use_parallel_residual": False},
    "granite": {"residual_multiplier": 0.22, "logits_scaling": 6.0, "embedding_multiplier": 2.0, "attention_multiplier": 0.2},
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def random_hf(family: str, dtype=torch.float32, seed: int = 0, **overrides):
    """An untrained transformers model of a family, with jittered norms."""
    torch.manual_seed(seed)
    model_type = family.removesuffix("_sequential")
    config = AutoConfig.for_model(model_type, **{**COMMON, **FAMILIES.get(family, {}), **overrides})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or ".ln_" in name:
                weight.add_(0.3 * torch.randn_like(weight))
            elif weight.dim() == 2:
                weight.mul_(3)  # larger than initialisation: updates comparable to the stream
    return model.to(dtype)


def random_model(family: str, dtype=torch.float32, architecture=None, **overrides) -> LanguageModel:
    """The same, opened; identities not yet checked."""
    hf = random_hf(family, dtype, **overrides)
    architecture = architecture or find(hf.config.model_type)
    precision = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    return LanguageModel(hf, byte_tokenizer(), architecture, ModelSpec(f"random-{family}", content_hash=family, precision=precision))


def save_random(folder, family: str = "qwen3", **overrides):
    """A random model with its tokenizer, as `save_pretrained` writes them."""
    random_hf(family, **overrides).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
