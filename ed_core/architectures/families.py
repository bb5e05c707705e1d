"""The families. To add one: ten lines here, then `python -m ed_core verify FOLDER`; the identities tell whether the paths are right."""
from . import Architecture

FAMILIES: tuple[Architecture, ...] = (
    Architecture("Llama", ("llama",)),
    Architecture("Qwen2", ("qwen2",)),
    Architecture("Qwen3", ("qwen3",)),
    Architecture("Mistral", ("mistral",)),
    # Post-norm on the branch: the stream receives the norm's output, not the sub-layer's.
    Architecture("OLMo 2", ("olmo2",), attn="post_attention_layernorm", mlp="post_feedforward_layernorm"),
    # Sandwich norms, and a tanh soft-cap behind the head.
    Architecture(
        "Gemma 2",
        ("gemma2",),
        attn="post_attention_layernorm",
        mlp="post_feedforward_layernorm",
        logit_softcap="final_logit_softcapping",
    ),
    Architecture("GPT-2", ("gpt2",), blocks="transformer.h", final_norm="transformer.ln_f", attn="attn"),
    Architecture(
        "GPT-NeoX",
        ("gpt_neox",),
        blocks="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        attn="attention",
        parallel="use_parallel_residual",
    ),
    # Both branches are multiplied before the sum; the logits are divided after the head.
    Architecture("Granite", ("granite",), residual_multiplier="residual_multiplier", logit_divisor="logits_scaling"),
)
