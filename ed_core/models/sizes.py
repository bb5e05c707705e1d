"""Precisions by name, and a model's size in each from its config alone: parameters, and the bytes of its weights.
Torch-free.

fp32, bf16, fp16, int8 (LLM.int8) and 4bit (nf4 with doubly quantized constants): in int8 and 4bit only the blocks'
linear maps are quantized; embeddings, head and norms, and everything computed between, are bf16.

What a family adds to the common count (biases, norms, fused maps) is a row of `LAYOUTS`. A family without a row is
counted as a Llama and the count is said to be approximate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from .. import untrusted
from ..errors import ParameterError
from .families import find

PRECISIONS = {name: name for name in ("fp32", "bf16", "fp16", "int8", "4bit")}
PRECISIONS |= {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
QUANTIZED = ("int8", "4bit")
WIDEST_FIRST = ("fp32", "bf16", "int8", "4bit")
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
PRECISION_LABELS = {
    "int8": "LLM.int8 weights, bf16 elsewhere",
    "4bit": "nf4 weights with double quantization, bf16 elsewhere",
}


def compute_name(precision: str) -> str:
    """Return the precision of everything but the quantized weights, which decides the rounding limits."""
    return precision if precision in BYTES else "bf16"


def stored_precision(config: Mapping[str, Any]) -> str:
    """Return how a checkpoint is quantized: "4bit", "int8", or its method's name ("gptq"); "" for an ordinary one."""
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping):
        return ""
    if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
        return "4bit"
    if settings.get("load_in_8bit") or settings.get("_load_in_8bit"):
        return "int8"
    if {"group_size", "bits"} <= settings.keys() and "quant_method" not in settings:
        return "mlx"
    return str(settings.get("quant_method") or "quantized")


def require_gradients(precision: str, probe: str) -> None:
    """Refuse a probe that needs gradients in int8, where they would be wrong."""
    if precision == "int8":
        raise ParameterError(
            f"{probe} needs gradients, which are unavailable in int8: int8 rounds activations as well as weights, so "
            "the true gradient is zero almost everywhere, and the library returns another one (4 to 8 % off on the "
            "bundled models); choose 4bit, bf16 or fp32."
        )


# ---------------------------------------------------------------- sizes


BLOCK_4BIT = 64  # weights that share a constant
BLOCK_CONSTANTS = 256  # constants that share one of their own
TABLE_BYTES = 4 * (256 + 16 + 1)  # per map: the two code books and the constants' mean


@dataclass(frozen=True)
class Layout:
    """What a family's parameter count depends on besides its config's sizes. A string names a boolean config field
    ("+": true where the config is silent).

    `norms`: vectors of the stream's width per block. `qk_norm`: "head" (one head wide) or "all" (all heads). `tied`:
    the head's weights are the embedding's, where the config is silent. `fused`: query, key and value in one map (and
    gate and up): matters for rounding alone. `more`: what a looped model has between passes: the config field that adds
    a norm, or "gate", a map to one number. `grouped`: whether the family has fewer key and value heads, and a head size
    in its config. `mlp_field`: the config field of the MLP's width (four times the stream's where it is silent)."""

    gated: bool = True
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    norms: int = 2
    norm_bias: bool = False
    qk_norm: str = ""
    positions: bool = False
    tied: bool = False
    fused: bool = False
    grouped: bool = True
    more: str = ""
    mlp_field: str = "intermediate_size"


LLAMA = Layout(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
BIASED = Layout(False, True, True, True, norm_bias=True, fused=True, grouped=False)
LAYOUTS: dict[str, Layout] = {
    "llama": LLAMA,
    "ed_looped": replace(LLAMA, more="loop_norm"),
    "ouro": Layout(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", norms=4, more="gate"),
    "granite": LLAMA,
    "mistral": Layout(),
    "phi3": Layout(fused=True),
    "qwen2": Layout(qkv_bias=True),
    "qwen3": Layout(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head"),
    "olmo2": Layout(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="all"),
    "gemma2": Layout(qkv_bias="attention_bias", out_bias="attention_bias", norms=4, tied=True),
    "gemma3_text": Layout(qkv_bias="attention_bias", out_bias="attention_bias", norms=4, qk_norm="head", tied=True),
    "gpt2": replace(BIASED, positions=True, tied=True, mlp_field="n_inner"),
    "gpt_neox": replace(BIASED, qkv_bias="+attention_bias", out_bias="+attention_bias"),
}
HEAD_DIM = {"qwen3": 128, "gemma2": 256, "gemma3_text": 256}  # the family's own default where the config is silent


@dataclass(frozen=True)
class Size:
    """Sizes of a model, read off its config. `n_layers`: blocks times `passes`. `maps`: a block's linear maps as
    (outputs, inputs, bias). `around`: parameters outside the blocks. `exact`: whether the family's layout is known."""

    family: str
    n_layers: int
    d_model: int
    d_mlp: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_vocab: int
    tied: bool
    maps: tuple[tuple[int, int, bool], ...]
    block_vectors: int
    around: int
    exact: bool
    passes: int = 1

    @property
    def n_blocks(self) -> int:
        """Number of blocks with weights of their own."""
        return self.n_layers // self.passes

    @property
    def block_maps(self) -> int:
        """Number of weights in one block's linear maps: what quantization shrinks."""
        return sum(outputs * inputs for outputs, inputs, _ in self.maps)

    @property
    def block(self) -> int:
        """Number of parameters in one block."""
        return self.block_maps + self.block_vectors + sum(outputs for outputs, _, bias in self.maps if bias)

    @property
    def parameters(self) -> int:
        """Number of all parameters; a tied head counts once."""
        return self.n_blocks * self.block + self.around

    def weight_bytes(self, precision: str) -> int:
        """Return the bytes of the weights in a precision, quantization constants included."""
        unit = BYTES[compute_name(precision)]
        if precision in BYTES:
            return unit * self.parameters
        maps = sum(_quantized(outputs, inputs, precision) for outputs, inputs, _ in self.maps)
        return unit * (self.parameters - self.n_blocks * self.block_maps) + self.n_blocks * maps


def _quantized(outputs: int, inputs: int, precision: str) -> int:
    """Return the bytes of one quantized map. int8: a byte a weight and a float a row. 4bit: half a byte a weight, a
    byte for 64 of them, a float for 256 of those, and the code books."""
    n = outputs * inputs
    if precision == "int8":
        return n + 4 * outputs
    constants = ceil(n / BLOCK_4BIT)
    return ceil(n / 2) + constants + 4 * ceil(constants / BLOCK_CONSTANTS) + TABLE_BYTES


def of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a config: a model that also sees has one inside its own."""
    return inner if isinstance(inner := config.get("text_config"), Mapping) and inner else config


def read(config: Mapping[str, Any]) -> Size:
    """Return the sizes of a config.json or catalogue entry; a `ParameterError` names a field that is missing."""
    config = of_text(config)
    family = str(config.get("model_type", ""))
    layout = LAYOUTS.get(family, LLAMA)

    def number(*names: str) -> int:
        name = next((n for n in names if config.get(n)), names[0])
        value = config.get(name) or 0
        if not isinstance(value, int) or not 0 <= value <= untrusted.WHOLE:
            raise ParameterError(f"The config's {name} is {str(value)[:40]!r}; expected a whole number.")
        return value

    architecture = find(family)
    passes = architecture.n_passes(config) if architecture else 1
    n_layers, d_model = number("num_hidden_layers", "n_layer", "n_layers"), number("hidden_size", "n_embd", "d_model")
    n_heads, d_vocab = number("num_attention_heads", "n_head", "n_heads"), number("vocab_size")
    needed = {"layers": n_layers, "width": d_model, "heads": n_heads, "vocabulary": d_vocab}
    if missing := [what for what, value in needed.items() if not value]:
        raise ParameterError(
            f"The config does not say the model's {', '.join(missing)}; expected a decoder's config.json."
        )
    n_kv_heads = number("num_key_value_heads") * layout.grouped or n_heads
    head_dim = number("head_dim") * layout.grouped or HEAD_DIM.get(family) or d_model // n_heads
    d_mlp = number(layout.mlp_field) or 4 * d_model

    def flag(value: bool | str) -> bool:
        return bool(config.get(value.lstrip("+"), value[0] == "+")) if isinstance(value, str) else value

    q, kv = n_heads * head_dim, n_kv_heads * head_dim
    attention = [(q + 2 * kv,)] if layout.fused else [(q,), (kv,), (kv,)]
    widen = [d_mlp * (1 + layout.gated)] if layout.fused else [d_mlp] * (1 + layout.gated)
    maps = (
        *((outputs, d_model, flag(layout.qkv_bias)) for (outputs,) in attention),
        (d_model, q, flag(layout.out_bias)),
        *((outputs, d_model, flag(layout.mlp_bias)) for outputs in widen),
        (d_model, d_mlp, flag(layout.mlp_bias)),
    )
    norm = d_model * (1 + layout.norm_bias)
    qk = {"": 0, "head": 2 * head_dim, "all": q + kv}[layout.qk_norm]
    tied = bool(config.get("tie_word_embeddings", layout.tied))
    positions = d_model * (number("n_positions", "max_position_embeddings") or 1024) if layout.positions else 0
    if not 0 < passes * n_layers <= untrusted.LAYERS:
        times = f", run {passes} times" if passes != 1 else ""
        raise ParameterError(f"The config has {n_layers} layers{times}; at most {untrusted.LAYERS} are opened.")
    more = {"": 0, "gate": d_model + 1}.get(layout.more, norm * bool(config.get(layout.more)))
    return Size(
        family,
        passes * n_layers,
        d_model,
        d_mlp,
        n_heads,
        n_kv_heads,
        head_dim,
        d_vocab,
        tied,
        maps,
        block_vectors=layout.norms * norm + qk,
        around=d_vocab * d_model * (2 - tied) + positions + norm + more,
        exact=family in LAYOUTS,
        passes=passes,
    )
