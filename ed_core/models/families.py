"""The families that are read, and those that are refused by name.

To add one: ten lines here, then `python -m ed_core verify FOLDER`; the identities say whether the paths are right.
examples/a_new_family.ipynb goes through it step by step. A family is refused where its stream is no plain sum, or an
intervention on it would not be what it seems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .architecture import Architecture, layer_kinds

# Where the stream is if not as in Llama: inside a model that also sees, in either, as in GPT-2.
INSIDE: dict[str, Any] = {"blocks": "model.language_model.layers", "final_norm": "model.language_model.norm"}
EITHER: dict[str, Any] = {
    "blocks": ("model.layers", "model.language_model.layers"),
    "final_norm": ("model.norm", "model.language_model.norm"),
}
GPT: dict[str, Any] = {"blocks": "transformer.h", "final_norm": "transformer.ln_f", "attn": "attn"}

# What a branch adds is its post-norm's output; both branches are multiplied and the logits divided.
POST_NORMS: dict[str, Any] = {"attn": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}
SCALED: dict[str, Any] = {"residual_multiplier": "residual_multiplier", "logit_divisor": "logits_scaling"}

CAP = "final_logit_softcapping"

SHARED_KEYS = (
    "its upper layers attend to keys and values of lower layers, outside the residual stream; an intervention on the "
    "stream in between would not reach them, and its effect would be drawn wrong"
)
EARLY = (
    "its logits are then those of an earlier pass, while every measure here reads the last; take this field out of "
    "config.json"
)

FAMILIES: tuple[Architecture, ...] = (
    Architecture("Llama", ("llama",)),
    # Blocks with experts and blocks without name the MLP alike; its experts come out flat.
    Architecture("Llama 4", ("llama4_text", "llama4"), mlp="feed_forward"),
    Architecture("Mistral", ("mistral",)),
    Architecture("Ministral", ("ministral", "ministral3")),
    Architecture("Mixtral", ("mixtral",)),
    Architecture("Qwen2", ("qwen2",)),
    Architecture("Qwen2-MoE", ("qwen2_moe",)),
    Architecture("Qwen3", ("qwen3",)),
    Architecture("Qwen3-MoE", ("qwen3_moe",)),
    # Three blocks in four mix tokens by a gated delta rule instead of attention.
    Architecture("Qwen3-Next", ("qwen3_next",), attn=("self_attn", "linear_attn")),
    Architecture("Gemma", ("gemma",)),
    # Sandwich norms, and a tanh soft-cap after the head.
    Architecture("Gemma 2", ("gemma2",), **POST_NORMS, logit_softcap=CAP),
    Architecture("Gemma 3", ("gemma3_text",), **POST_NORMS, logit_softcap=CAP),
    # The model that also sees leaves the soft-cap out, whatever its config says.
    Architecture("Gemma 3, multimodal", ("gemma3",), **INSIDE, **POST_NORMS),
    # A third branch mixes in an embedding of the token made for this block alone; then the whole stream is scaled.
    Architecture(
        "Gemma 4",
        ("gemma4_text", "gemma4"),
        **EITHER,
        **POST_NORMS,
        third="post_per_layer_input_norm",
        stream_scale="layer_scalar",
        logit_softcap=CAP,
        refused=(("num_kv_shared_layers", (0, None), SHARED_KEYS),),
    ),
    Architecture("OLMo", ("olmo",)),
    # Post-norm on the branch: the stream receives the norm's output, not the sub-layer's.
    Architecture("OLMo 2", ("olmo2",), **POST_NORMS),
    Architecture("OLMo 3", ("olmo3",), **POST_NORMS),
    Architecture("OLMoE", ("olmoe",)),
    Architecture("Phi 1 and 2", ("phi",), final_norm="model.final_layernorm", parallel=True),
    Architecture("Phi 3 and 4", ("phi3",)),
    Architecture("Phi-MoE", ("phimoe",)),
    Architecture("GPT-2", ("gpt2",), **GPT),
    Architecture("GPT-Neo", ("gpt_neo",), **GPT),
    Architecture("GPT-J", ("gptj",), **GPT, parallel=True),
    Architecture("GPT-BigCode", ("gpt_bigcode",), **GPT),
    Architecture(
        "GPT-NeoX",
        ("gpt_neox",),
        blocks="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        attn="attention",
        parallel="use_parallel_residual",
    ),
    Architecture("GPT-OSS", ("gpt_oss",)),
    # The MLP is no module: its last map is.
    Architecture(
        "OPT",
        ("opt",),
        blocks="model.decoder.layers",
        final_norm="model.decoder.final_layer_norm",
        mlp="fc2",
        refused=(
            ("do_layer_norm_before", (True,), "the norms act on the stream itself, so no layer's output is a sum"),
        ),
    ),
    # Attention and MLP add the residual inside their modules: their last maps are what is added.
    Architecture(
        "BLOOM",
        ("bloom",),
        blocks="transformer.h",
        final_norm="transformer.ln_f",
        attn="self_attention.dense",
        mlp="mlp.dense_4h_to_h",
        per_row=("alibi",),
        refused=(
            (
                "apply_residual_connection_post_layernorm",
                (False,),
                "the stream is replaced by its norm inside the layer",
            ),
        ),
    ),
    Architecture(
        "MPT", ("mpt",), blocks="transformer.blocks", final_norm="transformer.norm_f", attn="attn", mlp="ffn.down_proj"
    ),
    Architecture(
        "Falcon",
        ("falcon",),
        blocks="transformer.h",
        final_norm="transformer.ln_f",
        attn="self_attention",
        parallel=("parallel_attn", "new_decoder_architecture"),
        in_place=True,
        per_row=("alibi",),
    ),
    Architecture("StableLM", ("stablelm",), parallel="use_parallel_residual"),
    Architecture("StarCoder2", ("starcoder2",)),
    Architecture("SmolLM3", ("smollm3",)),
    Architecture("Nemotron", ("nemotron",)),
    Architecture("Granite", ("granite",), **SCALED),
    Architecture("Granite-MoE", ("granitemoe",), mlp="block_sparse_moe", **SCALED),
    Architecture(
        "Granite 4",
        ("granitemoehybrid",),
        mlp="shared_mlp",
        **SCALED,
        layers=("attention", "full_attention"),
        refused=(("num_local_experts", (0, None), "experts and the shared MLP both add to the stream"),),
    ),
    Architecture("GLM", ("glm",)),
    Architecture("GLM-4", ("glm4",), attn="post_self_attn_layernorm", mlp="post_mlp_layernorm"),
    Architecture("EXAONE 4", ("exaone4",), **POST_NORMS),
    Architecture("Cohere", ("cohere",), parallel=True, logit_multiplier="logit_scale"),
    Architecture("Cohere 2", ("cohere2",), parallel=True, logit_multiplier="logit_scale"),
    Architecture("DeepSeek V2", ("deepseek_v2",)),
    Architecture("DeepSeek V3", ("deepseek_v3",)),
    # Blocks that run several times: ours, and Ouro, with its final norm after every pass.
    Architecture("Looped", ("ed_looped",), passes="n_loops", between="model.loop_norm", reentry="loop_input"),
    Architecture(
        "Ouro",
        ("ouro",),
        attn="input_layernorm_2",
        mlp="post_attention_layernorm_2",
        passes="total_ut_steps",
        between="model.norm",
        exit_gate="model.early_exit_gate",
        refused=(
            ("early_exit_step", (None,), EARLY),
            ("early_exit_threshold", (None, 1.0), EARLY),
            ("use_sliding_window", (False, None), "only its full attention was prepared and checked here"),
        ),
    ),
)

# ---------------------------------------------------------------- refused by name

ATTENTION = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
STATE_SPACE = (
    "its layers are state-space or recurrent mixers without attention and MLP, which every measure here is about"
)
HYBRID = "some of its layers are state-space, convolution or lightning mixers instead of attention, which are not read"
ENCODER_DECODER = (
    "an encoder's output enters its decoder outside the residual stream: two streams, three additions a layer"
)
ENCODER = (
    "it reads its text in both directions and does not continue it, so lens, output effects and answers have no meaning"
)
STREAMS = "it keeps several residual streams and mixes them between layers, so no single stream is a sum of additions"
SOURCES = (
    "its layers read mixtures of what earlier groups of layers left (attention residuals), so its stream is no sum"
)
TWO_STATES = (
    "its two stacks add their states to what the other reads in later passes, outside the residual stream; an "
    "intervention would not reach all that it should, and its effect would be drawn wrong"
)
NORMED_LOOP = "its layers run several times and their norms act on the stream itself, so no layer's output is a sum"

_HYBRIDS = """
jamba bamba zamba zamba2 falcon_h1 nemotron_h lfm2 lfm2_moe lfm3 kimi_linear bailing_hybrid minimax olmo_hybrid
"""
_ENCODERS = """
bert bert-generation roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl camembert electra ernie megatron-bert
rembert roformer big_bird data2vec-text xmod distilbert deberta deberta-v2 modernbert reformer xlm xlnet
"""
REFUSED: dict[str, str] = {
    **dict.fromkeys(("gemma3n", "gemma3n_text"), STREAMS),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "recurrent_gemma"), STATE_SPACE),
    **dict.fromkeys(_HYBRIDS.split(), HYBRID),
    **dict.fromkeys(_ENCODERS.split(), ENCODER),
    **dict.fromkeys(("deepseek_v4", "glm5_next", "glm5_next_text", "hy_v4", "qwen4_exp", "qwen4_exp_text"), STREAMS),
    **dict.fromkeys(("inkling2", "inkling2_text"), SOURCES),
    "hrm_text": TWO_STATES,
    **dict.fromkeys(("albert", "huginn_raven"), NORMED_LOOP),
}


DECODERS = {  # of models that also see, by their own `model_type`: the family that they are
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}


def text_decoder(model_type: str) -> Architecture | None:
    """Return the architecture of a vision-language model's text decoder, with paths inside that model; None where the
    decoder's `model_type` is not described."""
    family = find(DECODERS.get(model_type, model_type))
    return replace(family, **INSIDE) if family else None


def why_refused(config: Any) -> str:
    """Return why a model that no architecture describes is refused by name; "" where it is not."""
    if config.is_encoder_decoder:
        return ENCODER_DECODER
    why, kinds = REFUSED.get(config.model_type, ""), layer_kinds(config)
    return "" if why == HYBRID and kinds and kinds <= ATTENTION else why


def find(model_type: str) -> Architecture | None:
    """The architecture that describes a config's `model_type`, or None."""
    return next((family for family in FAMILIES if model_type in family.model_types), None)


def supported() -> list[str]:
    """Return the names of all families that are read, for messages and listings."""
    return [family.family for family in FAMILIES]
