"""A GGUF file becomes a folder of safetensors, once: the library takes half a minute to open the file itself.

The weights are unpacked to float32: many values of a packed file are exact in no narrower dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.utils import logging

from .. import disk
from ..errors import BrokenWeights, ModelError, RefusedFamily, TooLarge, one_line, refused
from ..machine import ROOM, free_memory, gigabytes
from . import gguf_files, sizes
from .gguf_files import Header

COPIES = 2.5  # float32 copies of the weights in memory at once, at most
BESIDE_WEIGHTS = 64 << 20  # tokenizer and config
# Patterns that equal GPT-2's, which the library takes for every unknown name. "smollm" also splits digits, and its
# vocabulary has no token that joins them.
GPT2_SPLITS = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "smollm")
SAFETENSORS = "take the same model as safetensors"


def ensure(file: Path, place: Path) -> None:
    """Convert a GGUF file into the folder `place`, unless that exists; a failure leaves nothing behind."""
    header = gguf_files.read(file)
    _check(file, header, place.parent)

    def make(folder: Path) -> Path:
        (folder / "source").mkdir()
        (folder / "source" / "model.gguf").symlink_to(file)  # alone, whatever is next to the file
        _convert(file, header, folder / "source", folder / "made")
        return folder / "made"

    disk.make_once(place, make)


def _check(file: Path, header: Header, folder: Path) -> None:
    """Raise `BrokenWeights` for a tokenizer that the library would replace, `TooLarge` where room is lacking."""
    name = file.name
    if header.byte_level and header.split not in (*GGUF_PRE_TOKENIZER_SPLITS, *GPT2_SPLITS):
        how = f"as {header.split[:40]!r}, which the library does not know" if header.split else "in a way it leaves out"
        raise BrokenWeights(
            f"{name} cannot be opened: its tokenizer splits text {how}, so a prompt would be other tokens; "
            f"{SAFETENSORS}."
        )
    weights = 4 * max(header.parameters, sizes.read(header.config).parameters)
    disk.require_room(f"{name}, converted to float32,", weights + BESIDE_WEIGHTS, folder)
    if COPIES * weights > ROOM * free_memory():
        raise TooLarge(
            f"Converting {name} takes {gigabytes(COPIES * weights)} of memory, and {gigabytes(free_memory())} are "
            "free; convert it on a larger machine, or take a smaller model."
        )


def _convert(file: Path, header: Header, source: Path, folder: Path) -> None:
    """Write a GGUF file's weights in float32, config and tokenizer into `folder`, as `save_pretrained` does. `source`:
    a folder with nothing but the file, as "model.gguf"."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options: dict[str, Any] = {"gguf_file": "model.gguf", "local_files_only": True}
    with refused(lambda error: _unreadable(file, header, one_line(error))):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **options,
        )
        model, report = loaded
        tokenizer = AutoTokenizer.from_pretrained(source, add_bos_token=header.add_bos, **options)
    if missing := sorted(report["missing_keys"]):
        raise BrokenWeights(
            f"{file.name} lacks {len(missing)} weights of its model, the first is {missing[0]}; running it would show "
            f"random layers: {SAFETENSORS}."
        )
    read = sum({weight.data_ptr(): weight.numel() for weight in model.state_dict().values()}.values())
    if more := max(0, header.parameters - read):
        raise BrokenWeights(
            f"{file.name} holds {more} weights, as of biases, that the library leaves out of what it reads, so every "
            f"number would be another model's; {SAFETENSORS}."
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unreadable(file: Path, header: Header, reason: str) -> ModelError:
    """Return the refusal of a GGUF file that the library could not open; `reason` is the library's message."""
    if "architecture" in reason and "not supported" in reason:
        return RefusedFamily(
            f"Refused: {file.name} holds a model of the family {header.architecture[:60]!r}, which the library does "
            f"not read from GGUF; {SAFETENSORS}."
        )
    return BrokenWeights(f"{file.name} cannot be converted: {reason}; {SAFETENSORS}.")
