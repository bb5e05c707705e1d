"""What a model's name refers to, without torch: bundled name, folder or hub id; its identity; whether it can be had at
all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Any

from .. import bounds, outside
from ..errors import BrokenWeights, EffectiveDepthError, ModelNotFound
from ..types import ModelSpec
from . import catalogue, gguf_files, permits, remote, sizes
from .bundled import MODELS as BUNDLED
from .catalogue import cached_commit, hub_cache
from .families import find
from .weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from .wheels import WHEELS

IDENTITY_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "added_tokens.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
OF_TOKENS = (  # what a tokenizer is made of, which may be large
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
REVISION = r"(?!/)(?!.*\.\.)[\w./-]{1,200}"  # also a path below the hub's cache, which it must not lead out of
HUB_ID = re.compile(rf"[\w.-]{{1,96}}(/[\w.-]{{1,96}})?(@{REVISION})?")
_hashes: dict[tuple[tuple[str, int, int, int, int], ...], str] = {}


def named(source: str) -> ModelSpec:
    """What a name refers to, without a look at the content: a bundled model, a folder, a GGUF file, a model in
    wheels, or a hub id with the commit that is here."""
    if not os.path.exists(os.path.expanduser(source)):
        source = source.strip()
    if not source:
        raise ModelNotFound("No model is named; give a bundled name, a folder, or a hub id.")
    permits.model(*_name_and_revision(source))
    if remote.is_remote(source):
        if "@" in source:
            raise ModelNotFound(f"{source[:80]} names a revision, and the service runs the one it has; leave it out.")
        if remote.is_remote(inner := source.removeprefix(remote.PREFIX)):
            raise ModelNotFound(f"{source[:80]} names the service twice; take {remote.PREFIX}ORG/NAME.")
        return remote.asked(named(inner))
    if source in WHEELS:
        return ModelSpec(source)
    if file := _gguf_file(source):
        return ModelSpec(str(file))
    if source in BUNDLED and os.path.isdir(BUNDLED[source]):
        return ModelSpec(source)
    bundled, at, revision = source.partition("@")
    if at and (bundled in BUNDLED or bundled in WHEELS):
        whence = "with the program" if bundled in BUNDLED else "out of a wheel"
        raise ModelNotFound(f"{bundled} comes {whence} and has no revision {revision!r}; leave it out.")
    folder = Path(os.path.expanduser(source))
    if os.path.isdir(folder):  # unlike the path's own method it takes any text
        return ModelSpec(
            next((name for name, place in BUNDLED.items() if place.resolve() == folder.resolve()), _path(folder))
        )
    if not HUB_ID.fullmatch(source):
        raise ModelNotFound(
            f"There is no folder {source!r}, and it is not a hub id like 'Qwen/Qwen2.5-1.5B'; check the path."
        )
    name, revision = _name_and_revision(source)
    return ModelSpec(name, revision=cached_commit(name, revision) or revision)


def _path(folder: Path) -> str:
    """A folder as it was named; its whole path where that is the name of something else, or none."""
    named = str(folder)
    return os.path.abspath(named) if named in BUNDLED or named in WHEELS or folder.name in ("", "..") else named


def _name_and_revision(source: str) -> tuple[str, str]:
    """A hub id's two parts; of anything else, a folder with an @ in it included, the whole and ""."""
    if not HUB_ID.fullmatch(source):
        return source, ""
    name, _, revision = source.partition("@")
    return name, revision


def of_gguf(spec: ModelSpec) -> gguf_files.Held | None:
    """The model where it comes out of a GGUF file; None for every other. A path that the settings do not allow is
    refused before the disk is looked at."""
    permits.model(spec.source, spec.revision)
    spec = remote.here(spec)
    if spec.source in WHEELS:
        return WHEELS[spec.source].held
    file = None if spec.revision else _gguf_file(spec.source)
    return gguf_files.held(file) if file else None


def _gguf_file(source: str) -> Path | None:
    """The GGUF file that a name stands for; a bundled model's name never does, whatever lies in the current folder."""
    return None if source in BUNDLED else gguf_files.find(source)


def location(spec: ModelSpec) -> str:
    """Where the model is loaded from: a folder (a cached hub model's snapshot is one, a GGUF file's conversion too), or
    the hub id. A bundled model goes by its name, which is the same on every machine. A path that the settings do not
    allow is refused here, wherever a spec came from. Of a model that is elsewhere: what of it is here."""
    spec = remote.here(spec)
    if packed := of_gguf(spec):
        return str(packed.place)
    if (
        spec.revision
        and re.fullmatch(REVISION, spec.revision)
        and (snapshot := hub_cache(spec.source) / "snapshots" / spec.revision).is_dir()
    ):
        return str(snapshot)
    return str(BUNDLED.get(spec.source, spec.source))


def content_of(spec: ModelSpec, weights: bool = True) -> str:
    """What stands for a local model's content: of a GGUF file the file's, of a folder `content_hash`; "" for a model of
    the hub, which its commit stands for."""
    if packed := of_gguf(spec):
        return packed.content_hash if weights else hashlib.sha256(f"config {packed.content_hash}".encode()).hexdigest()
    place = Path(location(spec))
    return content_hash(place, weights) if place.is_dir() else ""


def content_hash(folder: Path, weights: bool = True) -> str:
    """SHA-256 over names and contents of weights (unless left out), config and tokenizer. Remembered while size and
    times of every file stay the same."""
    if not (folder / "config.json").is_file():
        if (folder / ADAPTER_CONFIG).is_file():
            raise ModelNotFound(
                f"The folder {folder} holds an adapter, not a model; give its base as the model and this folder as "
                "--adapter."
            )
        raise ModelNotFound(f"The folder {folder} holds no config.json; expected a model as save_pretrained writes it.")
    shards = sorted(folder.glob("*.safetensors"))
    if weights and not shards:
        pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))
        found = f"only {pickled[0].name}, whose format can run code when loaded" if pickled else "no weights"
        place = json.dumps(str(folder), ensure_ascii=False)
        code = (
            f"from transformers import AutoModelForCausalLM as M; M.from_pretrained({place}, use_safetensors=False)"
            f".save_pretrained({place})"
        )
        raise ModelNotFound(
            f"The folder {folder} holds {found}; expected .safetensors files. Where you trust the file, convert it: "
            f"python -c {shlex.quote(code)}"
        )
    files = [folder / name for name in IDENTITY_FILES if (folder / name).is_file()]
    files += _of_weights(folder) if weights else []
    stats = tuple(map(_state, files))
    if stats not in _hashes:
        digest = hashlib.sha256()
        for file in files:
            with _opened(file) as handle:
                digest.update(f"{file.name}\0".encode() + hashlib.file_digest(handle, "sha256").digest())
        _hashes[stats] = digest.hexdigest()
    return _hashes[stats]


def _opened(file: Path) -> BufferedReader:
    """A file of a model's folder within the bounds of its kind."""
    own = bounds.TOKENIZER if file.name in OF_TOKENS else bounds.CONFIG
    return outside.opened(file, bounds.WEIGHTS if file.suffix == ".safetensors" else own, BrokenWeights)


def _state(file: Path) -> tuple[str, int, int, int, int]:
    """What stays the same as long as a file does."""
    with _opened(file) as handle:
        s = os.fstat(handle.fileno())
    return str(file), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino


def check_files(spec: ModelSpec) -> None:
    """Refuse files that the library would read whole, whatever their size."""
    for file in (Path(location(spec)) / name for name in IDENTITY_FILES):
        if file.is_file():
            _opened(file).close()


def _of_weights(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.index.json"))]


def read_for(source: str, adapter: str = "") -> list[str | Path]:
    """What opening a model, and its adapter, reads: no output may take its place."""
    found: list[str | Path] = [source]
    if adapter:
        found += [Path(adapter) / name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    with contextlib.suppress(EffectiveDepthError, OSError, ValueError):  # no such model, which whoever opens it says
        spec = named(source)
        place = Path(location(spec))
        packed = of_gguf(spec)
        found += [*(place / name for name in IDENTITY_FILES), *_of_weights(place), *([packed.file] if packed else [])]
    return found


def describe(spec: ModelSpec) -> dict[str, str]:
    """What a model's config.json says of its size: `{"layers": "16", "wide": "128", …}`, blocks that run several times
    counted as often; empty where there is none at hand."""
    fields = config_of(spec)
    architecture = find(str(fields.get("model_type")))
    passes = architecture.n_passes(fields) if architecture else 1

    def first(*names: str) -> str:
        return next((str(fields[n]) for n in names if fields.get(n)), "")

    layers = first("num_hidden_layers", "n_layer")
    described = {
        "": first("model_type"),
        "layers": str(passes * int(layers)) if passes > 1 and layers.isdigit() else layers,
        "wide": first("hidden_size", "n_embd"),
        "tokens in the vocabulary": first("vocab_size"),
    }
    return {name: value for name, value in described.items() if value}


def n_layers(spec: ModelSpec) -> int | None:
    """The number of blocks, from the config alone; None where there is none at hand."""
    layers = describe(spec).get("layers", "")
    return int(layers) if layers.isdigit() else None


def layers_in_words(spec: ModelSpec) -> str:
    """ "16 layers", "4 layers in 4 passes"; "" where there is no config at hand."""
    layers, passes = n_layers(spec), n_passes(spec) or 1
    if layers is None:
        return ""
    return f"{layers // passes} layers in {passes} passes" if passes > 1 else f"{layers} layer{'s' * (layers > 1)}"


def n_passes(spec: ModelSpec) -> int | None:
    """How often the model's layers run, 1 but for looped models; None where there is no config at hand."""
    try:
        return sizes.read(config_of(spec)).passes
    except EffectiveDepthError:
        return None


def size_of(source: str) -> sizes.Size:
    """The size of a bundled model, a folder, a downloaded hub model or an entry of the catalogue; of others nothing is
    known without a network."""
    config = config_of(named(source))
    if not config:
        raise ModelNotFound(
            f"{source} is neither in the catalogue ('python -m ed_core models') nor downloaded, so its size is not "
            "known here."
        )
    return sizes.read(config)


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """The fields of a model's config.json where it is at hand, else what a GGUF file's header says, else what the
    catalogue knows; {} where there are none."""
    try:
        file = Path(location(spec)) / "config.json"
        state = file.stat()
        fields = _read(str(file), state.st_mtime_ns, state.st_size, state.st_ino)
    except (OSError, ValueError):
        if (packed := of_gguf(spec)) and packed.file.is_file():
            return gguf_files.read(packed.file).config
        entry = catalogue.find(remote.here(spec).source)
        return dict(entry.config) if entry else {}
    return dict(fields) if isinstance(fields, dict) else {}


FOREIGN = ("_attn_implementation", "attn_implementation", "_experts_implementation", "experts_implementation")
OURS = (None, "", "sdpa")


def foreign(spec: ModelSpec) -> str:
    """A note where the model's config asks for an implementation of its own, which is not used; "" for most models."""
    config = config_of(spec)
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    asked = [part[name] for part in parts for name in FOREIGN if part.get(name) not in OURS]
    if not asked:
        return ""
    told = ", ".join(dict.fromkeys(repr(str(one)[:60]) for one in asked))
    return (
        f"Its config.json asks for {told} to compute with; a model folder does not choose code, so torch's own is used."
    )


@lru_cache(maxsize=64)
def _read(file: str, *state: int) -> object:
    """A JSON file, read anew where its `state` is another: a page asks for one a dozen times."""
    return outside.json_of(file)
