"""A GGUF file becomes a folder of safetensors, once: opening the file itself takes a quarter of a minute each time.

In a process of its own, which can be stopped and takes its memory with it. The weights are unpacked to float32: many
of the values that a packed file stands for are exact in no narrower dtype, and the curves would move by the rounding.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from .. import disk, errors
from ..errors import BrokenWeights, Cancelled, RefusedFamily, TooLarge, said
from ..machine import ROOM, free_memory, gigabytes, limit_memory
from ..sources import gguf_files, sizes
from ..sources.gguf_files import CONVERTER, RECORD, Header, Held

T = TypeVar("T")
COPIES = 2.5  # float32 copies of the weights that are held at once, at most
BESIDE_WEIGHTS = 64 << 20  # tokenizer and config
BESIDE_MEMORY = 3 << 29  # what the libraries and the tokenizer take while they convert
NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
Progress = Callable[[int, int], None]


def ensure(held: Held, progress: Progress | None = None, cancelled: Callable[[], bool] = lambda: False) -> Path:
    """The folder of a GGUF file's model; converts the file where that has not been done. `progress(done, all)` in
    tensors. Nothing is left behind where it fails or is cancelled."""
    from filelock import FileLock

    if held.converted:
        return held.place
    header = gguf_files.read(held.file)
    held.place.parent.mkdir(parents=True, exist_ok=True)
    memory = _require_room(held, header)
    with FileLock(held.place.parent / "lock"):  # one at a time: each takes much memory
        if held.converted:  # by another process, meanwhile
            return held.place
        for left in held.place.parent.glob(f"{held.place.name}.*{disk.UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)  # by a process that was killed: whoever works has the lock
        part = held.place.with_name(f"{held.place.name}.{secrets.token_hex(4)}{disk.UNFINISHED}")
        try:
            part.mkdir()
            _convert_alone(held.file, part, progress, cancelled, memory)
            record = {"file": held.file.name, "packing": next(iter(header.packing)), "weights": header.packing}
            (part / RECORD).write_text(json.dumps(record | {"converter": CONVERTER}, indent=1), encoding="utf-8")
            disk.move(part, held.place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return held.place


def _require_room(held: Held, header: Header) -> int:
    """Refuse what disk or memory has no room for; returns the bytes of memory that the conversion may take."""
    weights = 4 * max(header.parameters, _promised(held.file, header))
    disk.require_room(f"{held.file.name}, converted to float32,", weights + BESIDE_WEIGHTS, held.place.parent)
    if COPIES * weights > ROOM * free_memory():
        raise TooLarge(
            f"Converting {held.file.name} takes {gigabytes(COPIES * weights)} of memory, and "
            f"{gigabytes(free_memory())} are free; convert it on a larger machine, or take a smaller model."
        )
    return int(COPIES * weights) + BESIDE_MEMORY


def _promised(file: Path, header: Header) -> int:
    """Weights of the model that the header's sizes make, however few of them the file holds. A size that is not there
    is refused: the library would take its own for it."""
    if missing := [name for name in NEEDED if not header.config.get(name)]:
        raise BrokenWeights(
            f"{file.name} does not tell its model's {missing[0]}, so nobody knows what memory it takes; take the same "
            "model as safetensors."
        )
    told = {name: 1 if value == gguf_files.PER_BLOCK else value for name, value in header.config.items()}
    return sizes.read(told).parameters


def _convert_alone(
    file: Path, folder: Path, progress: Progress | None, cancelled: Callable[[], bool], memory: int = 0
) -> None:
    """`memory`: bytes that the process may take; 0 is no limit."""
    command = [sys.executable, "-m", "ed_core.models.conversion", str(file), str(folder), str(memory)]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL, env=environment) as process:
            while process.poll() is None:
                if cancelled():
                    process.kill()
                    raise Cancelled(f"Converting {file.name} was cancelled; nothing of it is left.")
                done, _, total = _last_line(said).partition("/")
                if progress and total.isdigit():
                    progress(int(done), int(total))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        last = _last_line(said)
    if process.returncode:
        try:
            told = json.loads(last)
            raise errors.BY_NAME[told["error"]](told["message"])
        except (ValueError, KeyError, TypeError):
            raise BrokenWeights(
                f"{file.name} could not be converted (the process ended with {process.returncode}, which may mean that "
                "the memory ran out); take a smaller model, or one as safetensors."
            ) from None


def _last_line(said: TextIO) -> str:
    said.seek(0)
    return next(iter(said.read().splitlines()[-1:]), "")


# -------------------------------------------------------------------- in the process of its own


def convert(file: Path, folder: Path) -> None:
    """Unpack a file's weights to float32 and write them, config and tokenizer into a folder, as `save_pretrained`
    does."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    source = folder / "source"
    source.mkdir()
    (source / "model.gguf").symlink_to(file)  # whatever its ending
    options: dict[str, Any] = {"gguf_file": "model.gguf", "local_files_only": True}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
            **options,
        )
        model, report = loaded
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except Exception as error:  # whatever a stranger's file provokes inside the library
        told = said(error)
        if "not supported" in told or isinstance(error, NotImplementedError):
            family = gguf_files.read(file).architecture[:60]
            raise RefusedFamily(
                f"Refused: {file.name} holds a model of the family {family!r}, which the library does not read from "
                f"GGUF ({told}); take the same model as safetensors."
            ) from error
        raise BrokenWeights(f"{file.name} cannot be converted: {told}; take the same model as safetensors.") from error
    if missing := sorted(report["missing_keys"]):
        raise BrokenWeights(
            f"{file.name} lacks {len(missing)} weights of its model, the first is {missing[0]}; running it would show "
            "random layers: take the same model as safetensors."
        )
    read = sum({weight.data_ptr(): weight.numel() for weight in model.state_dict().values()}.values())
    if more := max(0, gguf_files.read(file).parameters - read):
        raise BrokenWeights(
            f"{file.name} holds {more} weights, as of biases, that the library leaves out of what it reads, so every "
            "number would be another model's; take the same model as safetensors."
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(source)


def _main(file: str, folder: str, memory: str = "0") -> int:
    """Convert; print "done/all" as it goes, and at the end what went wrong."""
    from transformers import modeling_gguf_pytorch_utils as library

    def counted(tensors: Collection[T], **_: object) -> Iterator[T]:
        for done, tensor in enumerate(tensors):
            print(f"{done}/{len(tensors)}", flush=True)
            yield tensor

    library.tqdm = counted  # type: ignore[attr-defined]  # in the place of its progress bar
    if int(memory):
        limit_memory(int(memory))
    try:
        convert(Path(file), Path(folder))
    except errors.EffectiveDepthError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
