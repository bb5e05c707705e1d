"""LoRA adapters (as peft writes them): what a folder holds, whether it belongs to a base, and merging it. Torch only to
merge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BrokenWeights, ModelNotFound, ParameterError
from .weights import header

if TYPE_CHECKING:
    from torch import nn

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def read_config(folder: Path) -> Mapping[str, Any]:
    """The adapter's settings; refuses a folder that holds no LoRA adapter in safetensors."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind = str(config["peft_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelNotFound(
            f"{folder} holds no usable {CONFIG}; expected a LoRA adapter as peft's save_pretrained writes it."
        ) from error
    if kind != "LORA":
        raise ParameterError(
            f"The adapter {folder.name} is of the kind {kind}; only LoRA can be merged into the weights."
        )
    if not (folder / WEIGHTS).is_file():
        raise ModelNotFound(
            f"The adapter {folder} holds no {WEIGHTS}; save it again with peft (a pickled .bin can run code when "
            "loaded)."
        )
    header(folder / WEIGHTS)
    return config


def content_hash(folder: Path) -> str:
    """SHA-256 over the adapter's settings and weights."""
    read_config(folder)
    return hashlib.sha256(
        b"".join(hashlib.sha256((folder / name).read_bytes()).digest() for name in (CONFIG, WEIGHTS))
    ).hexdigest()


def check_base(folder: Path, base: str) -> None:
    """Refuse an adapter whose settings name another hub model than `base`; where either is a folder, only the shapes
    can tell."""
    trained_on = str(read_config(folder).get("base_model_name_or_path") or "")
    is_hub_id = lambda name: name.count("/") == 1 and not Path(name).is_absolute() and not Path(name).exists()  # noqa: E731
    if is_hub_id(trained_on) and is_hub_id(base) and trained_on.lower() != base.lower():
        raise ParameterError(
            f"The adapter {folder.name} was trained on {trained_on}, not on {base}; open it on its own base."
        )


def merge(hf_model: nn.Module, folder: Path) -> nn.Module:
    """The model with `W + scale * B A` in place of every adapted `W`, in the model's own dtype."""
    read_config(folder)
    modules = dict(hf_model.named_modules())
    for key, (_, shape) in header(folder / WEIGHTS).items():
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
    from ..models.quantized import prepare

    prepare()  # peft imports bitsandbytes
    from peft import PeftModel

    return PeftModel.from_pretrained(hf_model, str(folder), local_files_only=True).merge_and_unload()
