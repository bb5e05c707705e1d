"""A folder's .safetensors files, checked by their headers alone: milliseconds, no torch. What is wrong is said before
anything is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from ..errors import BrokenWeights

AGAIN = "download or copy the model again"


def check(folder: Path, name: str) -> None:
    """Refuse a shard that the index names and the folder lacks, and a file that is shorter than its header says."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
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
    size = file.stat().st_size
    try:
        with file.open("rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > min(size - 8, 100_000_000):
                raise ValueError("its header is longer than the file")
            tensors = {name: entry for name, entry in json.loads(handle.read(length)).items() if name != "__metadata__"}
        found = {name: (str(entry["dtype"]), tuple(int(n) for n in entry["shape"])) for name, entry in tensors.items()}
        end = 8 + length + max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error) as error:
        raise BrokenWeights(
            f"The weights cannot be loaded: {file.name} is no safetensors file ({error}); {AGAIN}."
        ) from error
    if size != end:
        raise BrokenWeights(
            f"The weights cannot be loaded: {file.name} has {size} bytes and its header promises {end}; {AGAIN}."
        )
    return found
