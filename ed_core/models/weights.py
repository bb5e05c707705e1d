"""The files of a model's folder, read by headers and settings alone, in milliseconds: config, content, .safetensors
files, and LoRA adapters as peft writes them. Refusals come before anything is loaded. Torch-free."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .. import untrusted
from ..errors import BrokenWeights, ModelNotFound, ParameterError, one_line

_OF_TOKENS = "vocab.txt spiece.model sentencepiece.bpe.model"
IDENTITY_FILES = (  # in the order of their hashes
    *["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"],
    *["vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json", "added_tokens.json"],
    *_OF_TOKENS.split(),
)
# vocabularies, which may be large
OF_TOKENS = (*["tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"], *_OF_TOKENS.split())
AGAIN = "download or copy the model again"


def check_complete(folder: Path, name: str) -> None:
    """Raise `BrokenWeights` for a shard that the index names and the folder lacks, and for a file that is shorter than
    its header says. `name`: the model's, for the message."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            shards = sorted(set(untrusted.json_of(index)["weight_map"].values()))
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
    """Return the tensors of a .safetensors file, `{name: (dtype, shape)}`; `BrokenWeights` for another length."""
    try:
        with untrusted.opened(file, untrusted.WEIGHTS, BrokenWeights), safe_open(file, framework="np") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except SafetensorError as error:
        what = f"{file.name} is damaged or cut off ({one_line(error)})"
        raise BrokenWeights(f"The weights cannot be loaded: {what}; {AGAIN}.") from error


# ---------------------------------------------------------------- config and content of a folder


def config(folder: Path) -> dict[str, Any]:
    """Return the fields of a folder's config.json; {} where it is missing or cannot be read."""
    try:
        state = (file := folder / "config.json").stat()
        fields = _json(file, state.st_mtime_ns, state.st_size, state.st_ino)
    except (OSError, ValueError):
        return {}
    return dict(fields) if isinstance(fields, dict) else {}


@lru_cache(maxsize=64)
def _json(file: Path, *state: int) -> object:
    """Return the content of a JSON file, read again when its `state` changes: a page needs one a dozen times."""
    return untrusted.json_of(file)


def content_hash(folder: Path, weights: bool = True) -> str:
    """Return a SHA-256 over names and contents of a model folder's weights (unless left out), config and tokenizer;
    `ModelNotFound` where it has no model."""
    if not (folder / "config.json").is_file():
        if (folder / ADAPTER_CONFIG).is_file():
            raise ModelNotFound(
                f"The folder {folder} holds an adapter, not a model; give its base as the model and this folder as "
                "--adapter."
            )
        raise ModelNotFound(
            f"The folder {folder} holds no config.json; expected a model as save_pretrained writes it, or the path of "
            "a GGUF file."
        )
    if weights and not any(folder.glob("*.safetensors")):
        pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))
        content = f"only {pickled[0].name}, whose format can run code when loaded" if pickled else "no weights"
        raise ModelNotFound(
            f"The folder {folder} holds {content}; expected .safetensors files. Where you trust the file, open it in "
            "transformers with use_safetensors=False and save it again with save_pretrained."
        )
    files = [folder / name for name in IDENTITY_FILES]
    if weights:
        files += [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.index.json"))]
    digest = hashlib.sha256()
    for file in filter(Path.is_file, files):
        digest.update(f"{file.name}\0".encode() + bytes.fromhex(sha256(file)))
    return digest.hexdigest()


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content; cached while its size and times stay the same."""
    return _sha256(file, *state(file))


@lru_cache(maxsize=1024)
def _sha256(file: Path, *state: int) -> str:
    """Return the SHA-256 of a file's content; cached per `state`."""
    with _opened(file) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _opened(file: Path) -> BufferedReader:
    """Open a file of a model's folder, within the bounds of its kind."""
    own = untrusted.TOKENIZER if file.name in OF_TOKENS else untrusted.CONFIG
    is_weights = file.suffix.lower() in (".safetensors", ".gguf")
    return untrusted.opened(file, untrusted.WEIGHTS if is_weights else own, BrokenWeights)


def state(file: Path) -> tuple[int, ...]:
    """Return size, times and inode of a file, by which a change shows."""
    with _opened(file) as handle:
        s = os.fstat(handle.fileno())
    return s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino


def check_files(folder: Path) -> None:
    """Raise `BrokenWeights` for a config or tokenizer file above its bound: the library would read it whole."""
    for file in (folder / name for name in IDENTITY_FILES):
        if file.is_file():
            _opened(file).close()


# ---------------------------------------------------------------- LoRA adapters


OF_ADAPTER = ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def adapter_config(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the LoRA adapter in a folder; refuses a folder that has none in safetensors."""
    try:
        config: Mapping[str, Any] = untrusted.json_of(folder / ADAPTER_CONFIG)
        kind, ranks = str(config["peft_type"]), [config.get("r", 8), *dict(config.get("rank_pattern") or {}).values()]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelNotFound(
            f"{folder} holds no usable {ADAPTER_CONFIG}; expected a LoRA adapter as peft's save_pretrained writes it."
        ) from error
    if kind != "LORA":
        raise ParameterError(
            f"The adapter {folder.name} is of the kind {kind}; only LoRA can be merged into the weights."
        )
    if kept := next((name for name in ("layer_replication", "target_parameters") if config.get(name)), ""):
        raise ParameterError(
            f"The adapter {folder.name} has {kept}, which is not merged here; merge it into the base with peft, save "
            "that, and open it without an adapter."
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelNotFound(
            f"The adapter {folder} holds no {ADAPTER_WEIGHTS}; save it again with peft (a pickled .bin can run code "
            "when loaded)."
        )
    most = max((min(shape) for _, shape in header(folder / ADAPTER_WEIGHTS).values() if len(shape) == 2), default=0)
    if wrong := [rank for rank in ranks if type(rank) is not int or not 1 <= rank <= most]:  # peft allocates so much
        raise ParameterError(
            f"The adapter {folder.name} names the rank {str(wrong[0])[:40]}, its matrices have at most {most}; save it "
            "again with peft."
        )
    return config


def adapter_hash(folder: Path) -> str:
    """Return a SHA-256 over the adapter's settings and weights."""
    adapter_config(folder)
    return hashlib.sha256(b"".join(bytes.fromhex(sha256(folder / name)) for name in OF_ADAPTER)).hexdigest()


def check_base(folder: Path, base: str) -> None:
    """Refuse an adapter of another hub model than `base`; where either is a folder, merging compares the shapes."""
    trained_on = str(adapter_config(folder).get("base_model_name_or_path") or "")

    def is_hub_id(name: str) -> bool:
        return name.count("/") == 1 and not Path(name).is_absolute() and not Path(name).exists()

    if is_hub_id(trained_on) and is_hub_id(base) and trained_on.lower() != base.lower():
        raise ParameterError(
            f"The adapter {folder.name} was trained on {trained_on}, not on {base}; open it on its own base."
        )
