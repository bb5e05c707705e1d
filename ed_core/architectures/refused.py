"""Families that are refused by name: their stream is no plain sum, or an intervention on it would not be what it seems.
Data."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

STATE_SPACE = (
    "its layers are state-space or recurrent mixers without the pair of attention and MLP that every measure "
    "here is about"
)
HYBRID = (
    "some of its layers are state-space, convolution or lightning mixers in the place of attention, which nobody "
    "has prepared and checked here"
)
ENCODER_DECODER = (
    "an encoder's output enters its decoder beside the residual stream: three additions per layer, and two streams"
)
ENCODER = (
    "it reads its text in both directions and does not continue it, so lens, output effects and answers have no meaning"
)
ALTUP = "AltUp keeps four residual streams side by side and mixes them, so no single stream is a sum of additions"
STREAMS = (
    "it keeps several residual streams side by side and mixes them between layers, so no single stream is a sum "
    "of additions"
)

SOURCES = (
    "its layers read mixtures of what earlier groups of layers left (attention residuals), and every few layers the "
    "stream begins anew, so it is no sum of additions"
)
TWO_STATES = (
    "its two stacks keep a state each, and each state is added to what the other stack reads in later passes: it goes "
    "past the residual stream, so an intervention would not reach all that it should, and its effect would be drawn "
    "wrong"
)
NORMED_LOOP = (
    "its layers run several times and their norms act on the stream itself, so a layer's output is no sum with its "
    "input"
)

REFUSED: dict[str, str] = {
    **dict.fromkeys(("gemma3n", "gemma3n_text"), ALTUP),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "recurrent_gemma"), STATE_SPACE),
    **dict.fromkeys(
        (
            "jamba",
            "bamba",
            "zamba",
            "zamba2",
            "falcon_h1",
            "nemotron_h",
            "granitemoehybrid",
            "lfm2",
            "lfm2_moe",
            "lfm3",
            "kimi_linear",
            "bailing_hybrid",
            "minimax",
            "olmo_hybrid",
        ),
        HYBRID,
    ),
    **dict.fromkeys(
        (
            "t5",
            "mt5",
            "umt5",
            "longt5",
            "switch_transformers",
            "t5gemma",
            "t5gemma2",
            "bart",
            "mbart",
            "plbart",
            "mvp",
            "pegasus",
            "pegasus_x",
            "bigbird_pegasus",
            "marian",
            "m2m_100",
            "nllb-moe",
            "led",
            "fsmt",
            "prophetnet",
            "blenderbot",
            "blenderbot-small",
            "whisper",
            "trocr",
            "encoder-decoder",
            "musicgen",
            "musicgen_melody",
        ),
        ENCODER_DECODER,
    ),
    **dict.fromkeys(
        (
            "bert",
            "bert-generation",
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "camembert",
            "electra",
            "ernie",
            "megatron-bert",
            "rembert",
            "roformer",
            "big_bird",
            "data2vec-text",
            "xmod",
            "distilbert",
            "deberta",
            "deberta-v2",
            "modernbert",
            "reformer",
            "xlm",
            "xlnet",
        ),
        ENCODER,
    ),
    **dict.fromkeys(
        ("deepseek_v4", "glm5_next", "glm5_next_text", "hy_v4", "qwen4_exp", "qwen4_exp_text"),
        STREAMS,
    ),
    **dict.fromkeys(("inkling2", "inkling2_text"), SOURCES),
    "hrm_text": TWO_STATES,
    **dict.fromkeys(("albert", "huginn_raven"), NORMED_LOOP),
}


@runtime_checkable
class Config(Protocol):
    """A model's config."""

    @property
    def model_type(self) -> str: ...


def reason(config: Config) -> str:
    """Why a family that no architecture describes is refused, or ""."""
    if getattr(config, "is_encoder_decoder", False):
        return ENCODER_DECODER
    return REFUSED.get(config.model_type, "")
