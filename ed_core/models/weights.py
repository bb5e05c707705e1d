"""What a folder of weights holds, told from headers and settings alone, in milliseconds and without torch: .safetensors
files, and LoRA adapters as peft writes them. What is wrong is said before anything is loaded."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .. import bounds, outside
from ..errors import BrokenWeights, ModelNotFound, ParameterError

SHARD = re.compile(r"[\w.-]{1,200}\.safetensors")
AGAIN = "download or copy the model again"


def check_complete(folder: Path, name: str) -> None:
    """Refuse a shard that the index names and the folder lacks, and a file that is shorter than its header says."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            shards = sorted(set(outside.json_of(index)["weight_map"].values()))
            if wrong := next((shard for shard in shards if not SHARD.fullmatch(shard)), None):
                raise ValueError(wrong)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BrokenWeights(f"The weights of {name} cannot be loaded: {index.name} is damaged; {AGAIN}.") from error
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise BrokenWeights(
                f"The weights of {name} cannot be loaded: {len(missing)} of {len(shards)} shards are missing, the "
                f"first is {missing[0]}; {AGAIN}."
            )
    for file in sorted(folder.glob("*.safetensors")):
        header(file)


def header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """A file's tensors: `{name: (dtype, shape)}`. Raises `BrokenWeights` where the file is shorter or longer than they
    need."""
    try:
        with outside.opened(file, bounds.WEIGHTS, BrokenWeights), safe_open(file, framework="np") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except SafetensorError as error:
        told = " ".join(str(error)[:200].split())  # it may quote the file
        problem = _wrong_length(file) if "not fully covered" in told else f"is no safetensors file ({told})"
        raise BrokenWeights(f"The weights cannot be loaded: {file.name} {problem}; {AGAIN}.") from error


def _wrong_length(file: Path) -> str:
    """What is wrong with a file whose header is sound: the figures, which the reader does not tell."""
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        entries = json.loads(handle.read(min(length, bounds.HEADER)))
    end = 8 + length + max((e["data_offsets"][1] for name, e in entries.items() if name != "__metadata__"), default=0)
    return f"has {file.stat().st_size} bytes and its header promises {end}"


# ---------------------------------------------------------------- LoRA adapters


ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def adapter_config(folder: Path) -> Mapping[str, Any]:
    """The adapter's settings; refuses a folder that holds no LoRA adapter in safetensors."""
    try:
        config: Mapping[str, Any] = outside.json_of(folder / ADAPTER_CONFIG)
        kind = str(config["peft_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelNotFound(
            f"{folder} holds no usable {ADAPTER_CONFIG}; expected a LoRA adapter as peft's save_pretrained writes it."
        ) from error
    if kind != "LORA":
        raise ParameterError(
            f"The adapter {folder.name} is of the kind {kind}; only LoRA can be merged into the weights."
        )
    if config.get("layer_replication"):
        raise ParameterError(
            f"The adapter {folder.name} repeats layers of its base (layer_replication), which is not merged here; "
            "merge it into the base with peft, save that, and open it without an adapter."
        )
    if single := config.get("target_parameters"):
        raise ParameterError(
            f"The adapter {folder.name} changes single parameters, as of experts ({str(single)[:60]}), which is not "
            "merged here; merge it into the base with peft, save that, and open it without an adapter."
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelNotFound(
            f"The adapter {folder} holds no {ADAPTER_WEIGHTS}; save it again with peft (a pickled .bin can run code "
            "when loaded)."
        )
    _check_numbers(folder.name, config, header(folder / ADAPTER_WEIGHTS))
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


def adapter_hash(folder: Path) -> str:
    """SHA-256 over the adapter's settings and weights."""
    adapter_config(folder)
    return hashlib.sha256(b"".join(_sha256(folder / name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS))).hexdigest()


def _sha256(file: Path) -> bytes:
    with outside.opened(file, bounds.WEIGHTS, ModelNotFound) as handle:
        return hashlib.file_digest(handle, "sha256").digest()


def check_base(folder: Path, base: str) -> None:
    """Refuse an adapter whose settings name another hub model than `base`; where either is a folder, only the shapes
    can tell."""
    trained_on = str(adapter_config(folder).get("base_model_name_or_path") or "")

    def is_hub_id(name: str) -> bool:
        return name.count("/") == 1 and not Path(name).is_absolute() and not Path(name).exists()

    if is_hub_id(trained_on) and is_hub_id(base) and trained_on.lower() != base.lower():
        raise ParameterError(
            f"The adapter {folder.name} was trained on {trained_on}, not on {base}; open it on its own base."
        )
