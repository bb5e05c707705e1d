"""A folder's .safetensors files, checked by their headers alone: milliseconds, no torch. What is wrong is said before
anything is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from .. import bounds, outside
from ..errors import BrokenWeights

SHARD = re.compile(r"[\w.-]{1,200}\.safetensors")
AGAIN = "download or copy the model again"


def check(folder: Path, name: str) -> None:
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
