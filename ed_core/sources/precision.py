"""Precisions by name: fp32, bf16, fp16, int8 (LLM.int8) and 4bit (nf4 with doubly quantized constants). Torch-free.

In int8 and 4bit only the blocks' linear maps are quantized; embeddings, head and norms, and everything computed
between, are bf16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ParameterError

PRECISIONS = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "int8": "int8",
    "4bit": "4bit",
}
QUANTIZED = ("int8", "4bit")
WIDEST_FIRST = ("fp32", "bf16", "int8", "4bit")
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
LABELS = {"int8": "LLM.int8 weights, bf16 elsewhere", "4bit": "nf4 weights with double quantization, bf16 elsewhere"}
NO_GRADIENT = {
    "int8": "int8 rounds activations as well as weights, so the true gradient is zero almost everywhere and what the "
    "library returns is that of another function (4 to 8 % off on the bundled models); choose 4bit, bf16 or fp32"
}


def compute_name(precision: str) -> str:
    """The dtype that everything but the quantized weights has, and whose rounding limits apply."""
    return precision if precision in BYTES else "bf16"


def asked(precision: str | None, dtype: str | None) -> str:
    """What `--precision` and its other name `--dtype` ask for together; fp32 where neither is given."""
    if precision is None and dtype is None:
        return "fp32"
    names = [name for name in (precision, dtype) if name is not None]
    for name in names:
        if name != "auto" and name not in PRECISIONS:
            raise ParameterError(f"The precision is {name!r}; expected auto or one of {', '.join(PRECISIONS)}.")
    if dtype is not None and PRECISIONS.get(dtype) not in BYTES:
        raise ParameterError(
            f"--dtype is {dtype!r}; expected float32, bfloat16 or float16 (for {dtype} use --precision)."
        )
    if len({PRECISIONS.get(name, name) for name in names}) > 1:
        raise ParameterError(f"--precision {precision} and --dtype {dtype} ask for different things; give one of them.")
    return PRECISIONS.get(names[0], names[0])


def stored(config: Mapping[str, Any]) -> str:
    """How a pre-quantized checkpoint is quantized: "4bit", "int8", or its method's name ("gptq"); "" for an ordinary
    one."""
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping):
        return ""
    if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
        return "4bit"
    if settings.get("load_in_8bit") or settings.get("_load_in_8bit"):
        return "int8"
    return str(settings.get("quant_method") or "quantized")


def require_gradients(precision: str, probe: str) -> None:
    """Refuse a probe that needs gradients where they would be wrong."""
    if reason := NO_GRADIENT.get(precision):
        raise ParameterError(f"{probe} needs gradients, which are unavailable in {precision}: {reason}.")
