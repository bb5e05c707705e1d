"""LoRA adapters (as peft writes them): what a folder holds, and whether it belongs to a base. Torch-free."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import bounds, outside
from ..errors import ModelNotFound, ParameterError
from .weights import header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def read_config(folder: Path) -> Mapping[str, Any]:
    """The adapter's settings; refuses a folder that holds no LoRA adapter in safetensors."""
    try:
        config: Mapping[str, Any] = outside.json_of(folder / CONFIG)
        kind = str(config["peft_type"])
    except (ValueError, KeyError, TypeError) as error:
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
    _check_numbers(folder.name, config, header(folder / WEIGHTS))
    return config


def _check_numbers(name: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Refuse ranks and scales that are no numbers, or that the adapter's own matrices do not have: peft would build
    what the settings say before it looks at the weights."""
    patterns = {key: config.get(key) or {} for key in ("rank_pattern", "alpha_pattern")}
    for key, pattern in patterns.items():
        if not isinstance(pattern, dict) or len(pattern) > bounds.LAYERS:
            raise ParameterError(
                f"The adapter {name} has a {key} that is no table of modules; save it again with peft."
            )
    for rank in (config.get("r", 8), *patterns["rank_pattern"].values()):
        if type(rank) is not int or not 1 <= rank <= bounds.RANK:
            raise ParameterError(
                f"The adapter {name} has the rank {str(rank)[:40]!r}; expected a whole number from 1 to {bounds.RANK}."
            )
    for alpha in (config.get("lora_alpha", 8), *patterns["alpha_pattern"].values()):
        if type(alpha) not in (int, float) or not abs(alpha) <= bounds.WHOLE:
            raise ParameterError(f"The adapter {name} has the alpha {str(alpha)[:40]!r}; expected a number.")
    ranks = {config.get("r", 8), *patterns["rank_pattern"].values()}
    found = {shape[0] for key, (_, shape) in shapes.items() if ".lora_A." in key and shape}
    if found and not found <= ranks:
        raise ParameterError(
            f"The adapter {name} says it has the rank {config.get('r', 8)} and its matrices have {min(found)}; save it "
            "again with peft."
        )


def content_hash(folder: Path) -> str:
    """SHA-256 over the adapter's settings and weights."""
    read_config(folder)
    return hashlib.sha256(b"".join(_sha256(folder / name) for name in (CONFIG, WEIGHTS))).hexdigest()


def _sha256(file: Path) -> bytes:
    with outside.opened(file, bounds.WEIGHTS, ModelNotFound) as handle:
        return hashlib.file_digest(handle, "sha256").digest()


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
