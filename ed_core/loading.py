"""From a `ModelSpec` to weights and tokenizer on a device, or one clear refusal. Safetensors only, never a repository's own code."""
from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from .architectures import Architecture, find
from .architectures.refused import reason
from .errors import BrokenWeights, ModelNotFound, ParameterError, RefusedFamily, UnknownFamily
from .sources import ensure_reachable, location
from .types import ModelSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()
SAMPLES = ("5 + 7 = 12", "The quick brown fox.", "a=3; b=a;\n  b?", "Ünïcode — 好")


def load(spec: ModelSpec, architecture: Architecture | None = None):
    """`(model, tokenizer, architecture, spec)`, in eval mode, in `spec.precision`, on `spec.device`; the architecture is None where nobody
    described the family."""
    if spec.precision not in DTYPES:
        raise ParameterError(f"The precision is {spec.precision!r}; expected one of {', '.join(DTYPES)}.")
    place = location(spec)
    ensure_reachable(place)
    options = {"revision": spec.revision or None, "trust_remote_code": False, "local_files_only": Path(place).is_dir()}
    config = _config(spec, options)
    architecture = architecture or find(config.model_type)
    refusal = architecture.refusal(config.get_text_config()) if architecture else reason(config)
    if refusal:
        family = architecture.family if architecture else config.model_type
        raise RefusedFamily(f"Refused: {spec.name} is of the family '{family}', and {refusal}. `python -m ed_core models --families` lists what is read.")
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            place, dtype=DTYPES[spec.precision], use_safetensors=True, output_loading_info=True, **options
        )
    except Exception as error:  # OSError, SafetensorError, and what the library raises on shapes that do not fit
        raise BrokenWeights(
            f"The weights of {spec.name} cannot be loaded: {_one_line(error)} Expected complete .safetensors files; download or convert "
            "the model again."
        ) from error
    missing = sorted(report["missing_keys"]) + sorted(str(k) for k in report.get("mismatched_keys", ()))
    if missing:
        raise BrokenWeights(
            f"{len(missing)} weights of {spec.name} are missing or of another shape, the first is {missing[0]}; running it would show random "
            "layers. Download the model again."
        )
    return model.to(spec.device), _tokenizer(spec, options), architecture, spec


def _config(spec: ModelSpec, options: dict):
    try:
        return AutoConfig.from_pretrained(location(spec), **options)
    except Exception as error:  # whatever a stranger's config provokes inside the library
        if "does not recognize this architecture" in str(error) or "model_type" in str(error):
            raise UnknownFamily(f"{spec.name} is of a family this version of transformers does not know: {_one_line(error)}") from error
        raise ModelNotFound(f"The config.json of {spec.name} cannot be used: {_one_line(error)} Give a model folder or a hub id.") from error


def _tokenizer(spec: ModelSpec, options: dict):
    """The model's tokenizer; for a folder, held against its tokenizer.json, because some families silently build their own instead."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(location(spec), **options)
    except Exception as error:
        raise ModelNotFound(f"{spec.name} has no usable tokenizer: {_one_line(error)} Expected tokenizer.json beside the weights.") from error
    file = Path(location(spec)) / "tokenizer.json"
    if file.is_file():
        saved = PreTrainedTokenizerFast(tokenizer_file=str(file))
        differs = any(tokenizer.encode(s, add_special_tokens=False) != saved.encode(s, add_special_tokens=False) for s in SAMPLES)
        if differs:
            settings = Path(location(spec)) / "tokenizer_config.json"
            saved.chat_template = json.loads(settings.read_text()).get("chat_template") if settings.is_file() else None
            return saved
    return tokenizer


def _one_line(error: Exception) -> str:
    """A library's message on one line, cut where it rambles."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    return text if text.endswith(".") else text + "."
