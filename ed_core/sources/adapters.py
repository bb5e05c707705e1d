"""LoRA adapters (as peft writes them): what a folder holds, and whether it belongs to a base. Torch-free."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelNotFound, ParameterError
from ..types import from_json
from .weights import header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def read_config(folder: Path) -> Mapping[str, Any]:
    """The adapter's settings; refuses a folder that holds no LoRA adapter in safetensors."""
    try:
        config: Mapping[str, Any] = from_json((folder / CONFIG).read_text(encoding="utf-8"))
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

    def is_hub_id(name: str) -> bool:
        return name.count("/") == 1 and not Path(name).is_absolute() and not Path(name).exists()

    if is_hub_id(trained_on) and is_hub_id(base) and trained_on.lower() != base.lower():
        raise ParameterError(
            f"The adapter {folder.name} was trained on {trained_on}, not on {base}; open it on its own base."
        )
