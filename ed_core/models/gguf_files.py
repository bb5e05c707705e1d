"""GGUF files, read by their headers alone: which model one holds, how its weights are packed, where its conversion
is. Torch-free.

A file is converted once into safetensors (`models.conversion`); from then on that folder is the model. Its identity is
the file's SHA-256, before the conversion and after it. The reader of the package `gguf` takes 3 to 15 seconds for the
vocabulary of one file; this one skips it."""

from __future__ import annotations

import functools
import hashlib
import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import settings, untrusted
from ..errors import BrokenWeights, ModelNotFound, one_line
from . import weights

CONVERTER = 1  # counted up where a conversion would give other weights
MAGIC, VERSIONS = b"GGUF", (2, 3)
PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
AGAIN = "download or copy it again"
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
FAMILIES = {"gemma3": "gemma3_text", "gptneox": "gpt_neox"}  # that have another name in a config
FIELDS = {  # a config's field, and the end of the header's key
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
}
# Byte-level tokenizers to which llama.cpp adds BOS where the file does not say (src/llama-vocab.cpp).
BOS_SPLITS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"}
BOS_SPLITS |= {"tekken", "chameleon"}


@dataclass(frozen=True)
class Header:
    """The facts in a GGUF file's header. `config`: the sizes, named as in a config.json; `packing`: the number of
    weights by the type that they are packed in, the commonest first; `split`: the pattern by which a byte-level
    tokenizer splits text, "" where the file does not say; `add_bos`: whether a prompt begins with BOS."""

    architecture: str
    config: dict[str, Any]
    packing: dict[str, int]
    byte_level: bool
    split: str
    add_bos: bool

    @property
    def parameters(self) -> int:
        """Number of all weights, counted tensor by tensor."""
        return sum(self.packing.values())


def content_hash(file: Path) -> str:
    """Return the hash by which a GGUF model is known; reads the file once. `ModelNotFound` for one of several parts."""
    if parts := PART.search(file.name):
        raise ModelNotFound(
            f"{file.name} is one of {int(parts[1])} parts; merge them into one file first: llama-gguf-split --merge "
            f"{file.name} whole.gguf"
        )
    return of_sha256(weights.sha256(file))


def of_sha256(sha256: str) -> str:
    """Return the hash by which the GGUF model in a file with that SHA-256 is known; the file need not be here."""
    return hashlib.sha256(f"gguf {CONVERTER} {sha256}".encode()).hexdigest()


def place(content_hash: str) -> Path:
    """Return the folder that the conversion of a GGUF model, known by its `content_hash`, has or will have."""
    return settings.current().cache / "converted" / content_hash[:32]


# -------------------------------------------------------------------- the header


def read(file: Path) -> Header:
    """Return the header of a GGUF file; `BrokenWeights` says what is damaged, cut off, or cannot be read."""
    return _read(file, *weights.state(file))


@functools.lru_cache(maxsize=64)
def _read(file: Path, size: int, *_stat: int) -> Header:
    """Return the header of a GGUF file; cached while size and further `_stat` of the file stay the same."""
    try:
        with (
            untrusted.opened(file, untrusted.WEIGHTS, BrokenWeights) as handle,
            mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _header(file, *_walk(data), size)
    except (ValueError, TypeError, struct.error, ArithmeticError, IndexError, KeyError) as error:
        raise BrokenWeights(f"{file.name} is no GGUF file that can be read: {one_line(error)}; {AGAIN}.") from None


def _walk(data: mmap.mmap) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int, int]], int]:
    """Return the header's fields, a list as a range of its length; the tensors as (name, shape, type, offset); the
    header's length in bytes."""
    place = 4

    def take(format: str) -> Any:
        nonlocal place
        (value,) = struct.unpack_from(format, data, place)
        place += struct.calcsize(format)
        return value

    def text() -> str:
        nonlocal place
        length = take("<Q")
        place += length
        return data[place - length : place].decode()

    def value(kind: int) -> Any:
        nonlocal place
        if kind == STRING:
            return text()
        if kind != ARRAY:
            return take(SCALARS[kind])
        kind, length = take("<I"), take("<Q")
        if kind == STRING:
            for _ in range(length):
                n_bytes = take("<Q")
                place += n_bytes
        else:
            place += length * struct.calcsize(SCALARS[kind])
        return range(length)

    if data[:4] != MAGIC or (version := take("<I")) not in VERSIONS:
        raise ValueError("it does not begin as one" if data[:4] != MAGIC else f"its version is {version}")
    n_tensors, n_fields = take("<Q"), take("<Q")
    fields = {text(): value(take("<I")) for _ in range(n_fields)}
    tensors = [(text(), tuple(take("<Q") for _ in range(take("<I"))), take("<I"), take("<Q")) for _ in range(n_tensors)]
    return fields, tensors, place


def _header(
    file: Path, fields: dict[str, Any], tensors: list[tuple[str, tuple[int, ...], int, int]], length: int, size: int
) -> Header:
    """Return the header made of the results of `_walk`; `BrokenWeights` where weights are missing, cut off, or at
    scaled positions. `length`, `size`: bytes of the header and of the file."""
    import gguf

    alignment = int(fields.get("general.alignment", 32))
    start = -(-length // alignment) * alignment
    packing: dict[str, int] = {}
    end = start
    for _, shape, number, offset in tensors:
        kind, n = gguf.GGMLQuantizationType(number), math.prod(shape)
        block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        end = max(end, start + offset + n // block * n_bytes)
        packing[kind.name] = packing.get(kind.name, 0) + n
    if not tensors:
        raise BrokenWeights(f"{file.name} holds a header and no weights; {AGAIN}.")
    if end > size:
        raise BrokenWeights(f"{file.name} is cut off: it has {size} bytes and its header promises {end}; {AGAIN}.")
    architecture = str(fields["general.architecture"])
    if scaled := _scaled(architecture, fields, [name for name, *_ in tensors]):
        raise BrokenWeights(
            f"{file.name} cannot be opened: its positions are scaled ({scaled[:60]!r}), which the library leaves "
            "out of what it reads, so every number would be another model's; take the same model as safetensors."
        )
    return Header(
        architecture,
        _config(architecture, fields, [name for name, *_ in tensors]),
        dict(sorted(packing.items(), key=lambda item: -item[1])),
        byte_level=fields.get("tokenizer.ggml.model") == "gpt2",
        split=str(fields.get("tokenizer.ggml.pre", "")),
        add_bos=_adds_bos(fields),
    )


def _adds_bos(fields: dict[str, Any]) -> bool:
    """Whether a prompt begins with BOS: as the file says, or by llama.cpp's default for its tokenizer."""
    by_default = fields.get("tokenizer.ggml.model") in ("llama", "bert") or (
        fields.get("tokenizer.ggml.model") == "gpt2" and fields.get("tokenizer.ggml.pre") in BOS_SPLITS
    )
    return bool(fields.get("tokenizer.ggml.add_bos_token", by_default))


def _scaled(architecture: str, fields: dict[str, Any], tensors: list[str]) -> str:
    """Return the field or tensor that stretches rotary positions, as in Llama 3.1; "" where none does."""
    rope = f"{architecture}.rope"
    factors = (f"{rope}.scaling.factor", f"{rope}.scale_linear") if fields.get(f"{rope}.scaling.type") != "none" else ()
    scaled = [name for name in factors if fields.get(name, 1) not in (0, 1)]
    return next(iter([*scaled, *(name for name in tensors if name.startswith("rope_f"))]), "")


def _config(architecture: str, fields: dict[str, Any], tensors: list[str]) -> dict[str, Any]:
    """Return a model's sizes, named as in a config.json, for an estimate; without a size that differs by block."""
    values = {name: fields.get(f"{architecture}.{key}") for name, key in FIELDS.items()}
    if not values["vocab_size"] and isinstance(tokens := fields.get("tokenizer.ggml.tokens"), range):
        values["vocab_size"] = len(tokens)
    sizes = {name: value for name, value in values.items() if value is not None and not isinstance(value, range)}
    family = FAMILIES.get(architecture, architecture)
    return {"model_type": family, **sizes, "tie_word_embeddings": "output.weight" not in tensors}
