"""Merging a LoRA adapter into the weights it was trained on."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from .. import extras
from ..errors import BrokenWeights
from ..sources.weights import ADAPTER_WEIGHTS, adapter_config, header
from .quantized import prepare


def merge(hf_model: nn.Module, folder: Path) -> nn.Module:
    """The model with `W + scale * B A` in place of every adapted `W`, in the model's own dtype."""
    adapter_config(folder)
    modules = dict(hf_model.named_modules())
    for key, (_, shape) in header(folder / ADAPTER_WEIGHTS).items():
        path, _, kind = key.removeprefix("base_model.model.").partition(".lora_")
        if not kind.startswith(("A.", "B.")):
            continue  # peft itself judges the rest (DoRA's magnitudes, whole modules saved)
        target = modules.get(path)
        weight = getattr(target, "weight", None)
        sizes = tuple(weight.shape) if weight is not None else ()
        fits = shape[1] in sizes if kind[0] == "A" else shape[0] in sizes
        if not fits:
            found = f"{path} is {' x '.join(map(str, sizes))} there" if sizes else f"there is no {path}"
            raise BrokenWeights(
                f"The adapter {folder.name} belongs to another base: it changes {path} by {kind[0]} of {shape}, and "
                f"{found}."
            )
    extras.require("peft", "A LoRA adapter")
    if extras.installed("bitsandbytes"):
        prepare()  # peft imports it
    from peft import PeftModel

    try:
        merged: nn.Module = PeftModel.from_pretrained(hf_model, str(folder), local_files_only=True).merge_and_unload()
    except Exception as error:  # whatever a stranger's settings provoke inside the library
        told = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise BrokenWeights(f"The adapter {folder.name} cannot be merged: {told}; save it again with peft.") from error
    return merged
