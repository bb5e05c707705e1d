"""What a model's name refers to, without torch: bundled name, folder or hub id; its identity; whether it can be had at
all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import ParseResult, urlparse

from ..demo import MODELS as BUNDLED
from ..errors import HubUnreachable, ModelNotFound, ParameterError
from ..service import estimate
from ..types import ModelSpec
from . import adapters, catalogue, controls, permits, sizes
from . import precision as precisions

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
)
REVISION = r"(?!/)(?!.*\.\.)[\w./-]{1,200}"  # also a path below the hub's cache, which it must not lead out of
HUB_ID = re.compile(rf"[\w.-]{{1,96}}(/[\w.-]{{1,96}})?(@{REVISION})?")
HUB_SECONDS = 5.0
_hashes: dict[tuple, str] = {}


def resolve(
    source: str,
    precision: str = "fp32",
    device: str = "cpu",
    adapter: str = "",
    offload: str = "",
    free: int | None = None,
    n_tokens: int = estimate.TOKENS,
    control: str = "",
    control_seed: int = 0,
) -> ModelSpec:
    """The full identity of a model given by bundled name, folder or hub id (`org/name`, or `org/name@revision`); a
    `ModelError` says what is wrong with the name.

    `precision` may be "auto": what it comes to, with the reason, is in the spec. `adapter`: a LoRA adapter's folder.
    `free`: bytes free on the device, where it is not this process's memory. `control`, `control_seed`: a twin of the
    model in its place (see `controls`)."""
    if precision != "auto" and precision not in precisions.PRECISIONS:
        raise ParameterError(
            f"The precision is {precision!r}; expected auto or one of {', '.join(precisions.PRECISIONS)}."
        )
    spec = named(source)
    if not spec.revision and not spec.content_hash and Path(location(spec)).is_dir():
        spec = replace(spec, content_hash=content_hash(Path(location(spec)), weights=control != "untrained"))
    spec = replace(spec, device=device, offload=offload)
    if adapter:
        permits.adapter(adapter)
        spec = _adapted(spec, named(adapter))
    return twin(settle(spec, precision, free, n_tokens), control, control_seed)


def twin(spec: ModelSpec, control: str, seed: int = 0) -> ModelSpec:
    """The control of a model that stands for it; the model itself where `control` is "". An untrained twin's identity
    is that of config and tokenizer: what was learned is no part of it."""
    spec = replace(spec, control=control, control_seed=seed)
    controls.check(spec)
    if spec.content_hash and not controls.needs_weights(spec):
        spec = replace(spec, content_hash=content_hash(Path(location(spec)), weights=False))
    return spec


def settle(spec: ModelSpec, precision: str, free: int | None = None, n_tokens: int = estimate.TOKENS) -> ModelSpec:
    """The spec with the precision that `precision` comes to on its device, and why: a checkpoint that is quantized
    already stays as it is, "auto" takes the widest that fits."""
    config = config_of(spec)
    held = precisions.stored(config)
    if held and precisions.PRECISIONS.get(precision, precision) not in ("auto", held):
        raise ParameterError(
            f"The checkpoint {spec.name} is stored in {held}; it cannot be opened in {precision}: give --precision "
            "auto."
        )
    if held:
        return replace(spec, precision=held, why=f"{held}: the checkpoint is stored so.")
    if precision != "auto":
        return replace(spec, precision=precisions.PRECISIONS[precision])
    if not config:
        raise ParameterError(
            f"How large {spec.name} is can only be told once its config.json is here; download it, or give a precision."
        )
    if spec.device.startswith("cuda") and free is None:
        raise ParameterError("What is free on a GPU only the process that uses it can tell; give a precision.")
    chosen, why = estimate.choose(sizes.read(config), n_tokens, spec.device, free)
    return replace(spec, precision=chosen, why=why)


def named(source: str) -> ModelSpec:
    """What a name refers to, without a look at the content: a bundled model, a folder, or a hub id with the commit that
    is here."""
    source = source.strip()
    permits.model(*_name_and_revision(source))
    folder = Path(os.path.expanduser(BUNDLED.get(source, source)))
    if os.path.isdir(folder):  # unlike the path's own method it takes any text
        return ModelSpec(
            next((name for name, place in BUNDLED.items() if place.resolve() == folder.resolve()), str(folder))
        )
    if not HUB_ID.fullmatch(source):
        raise ModelNotFound(
            f"There is no folder {source!r}, and it is not a hub id like 'Qwen/Qwen2.5-1.5B'; check the path."
        )
    name, revision = _name_and_revision(source)
    return ModelSpec(name, revision=cached_commit(name, revision) or revision)


def _name_and_revision(source: str) -> tuple[str, str]:
    """A hub id's two parts; of anything else, a folder with an @ in it included, the whole and ""."""
    if not HUB_ID.fullmatch(source):
        return source, ""
    name, _, revision = source.partition("@")
    return name, revision


def _adapted(spec: ModelSpec, adapter: ModelSpec) -> ModelSpec:
    folder = Path(location(adapter))
    if not folder.is_dir():
        raise ModelNotFound(
            f"The adapter {adapter.source} is not here; 'python -m ed_core fetch {adapter.source}' downloads it."
        )
    adapters.check_base(folder, spec.source)
    return replace(spec, adapter=str(folder), adapter_hash=adapters.content_hash(folder))


def location(spec: ModelSpec) -> str:
    """Where the model is loaded from: a folder (a cached hub model's snapshot is one), or the hub id. A bundled model
    goes by its name, which is the same on every machine. A path that the settings do not allow is refused here,
    wherever a spec came from."""
    permits.model(spec.source, spec.revision)
    if (
        spec.revision
        and re.fullmatch(REVISION, spec.revision)
        and (snapshot := hub_cache(spec.source) / "snapshots" / spec.revision).is_dir()
    ):
        return str(snapshot)
    return str(BUNDLED.get(spec.source, spec.source))


def content_hash(folder: Path, weights: bool = True) -> str:
    """SHA-256 over names and contents of weights (unless left out), config and tokenizer. Remembered while size and
    times of every file stay the same."""
    if not (folder / "config.json").is_file():
        if (folder / adapters.CONFIG).is_file():
            raise ModelNotFound(
                f"The folder {folder} holds an adapter, not a model; give its base as the model and this folder as "
                "--adapter."
            )
        raise ModelNotFound(f"The folder {folder} holds no config.json; expected a model as save_pretrained writes it.")
    shards = sorted(folder.glob("*.safetensors"))
    if weights and not shards:
        pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))
        found = f"only {pickled[0].name}, whose format can run code when loaded" if pickled else "no weights"
        raise ModelNotFound(
            f"The folder {folder} holds {found}; expected .safetensors files. Where you trust the file, convert it: "
            'python -c "from transformers '
            f"import AutoModelForCausalLM as M; M.from_pretrained('{folder}', "
            f"use_safetensors=False).save_pretrained('{folder}')\""
        )
    files = [folder / name for name in IDENTITY_FILES if (folder / name).is_file()]
    files += [*shards, *sorted(folder.glob("*.index.json"))] if weights else []
    stats = tuple((str(f), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for f in files for s in [f.stat()])
    if stats not in _hashes:
        digest = hashlib.sha256()
        for file in files:
            with file.open("rb") as handle:
                digest.update(f"{file.name}\0".encode() + hashlib.file_digest(handle, "sha256").digest())
        _hashes[stats] = digest.hexdigest()
    return _hashes[stats]


def hub_cache(hub_id: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / ("models--" + hub_id.replace("/", "--"))


def cached_commit(hub_id: str, revision: str = "") -> str:
    """The commit the local hub cache holds for this id and revision, or "" where it holds none."""
    place = hub_cache(hub_id)
    if revision and (place / "snapshots" / revision).is_dir():
        return revision
    ref = place / "refs" / (revision or "main")
    return ref.read_text().strip() if ref.is_file() else ""


def ensure_reachable(source: str, even_if_cached: bool = False) -> None:
    """Raise `HubUnreachable` within seconds where a hub id is neither cached nor any network answers (the library
    itself takes half a minute)."""
    if Path(source).is_dir() or (cached_commit(source) and not even_if_cached):
        return
    from huggingface_hub import constants

    hint = (
        "choose a bundled model or a local folder, or download it where there is a network (huggingface-cli download)"
    )
    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE") == "1":
        raise HubUnreachable(f"'{source}' is not in the local hub cache and offline mode is on; {hint}.")
    if error := _no_answer(urlparse(constants.ENDPOINT)):
        raise HubUnreachable(f"'{source}' is not a local folder, and the model hub does not answer ({error}); {hint}.")


def _no_answer(address: ParseResult) -> str:
    """Why a host cannot be reached within `HUB_SECONDS`, or "". In a thread of its own, because looking up a name knows
    no time limit."""
    found = [f"nothing within {HUB_SECONDS:g} s"]

    def knock() -> None:
        try:
            socket.create_connection((address.hostname, address.port or 443), timeout=HUB_SECONDS).close()
            found.append("")
        except OSError as error:
            found.append(str(error))

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return found[-1]


def describe(spec: ModelSpec) -> dict[str, str]:
    """What a model's config.json says of its size: `{"blocks": "16", "wide": "128", …}`; empty where there is none at
    hand."""
    fields = config_of(spec)
    first = lambda *names: next((str(fields[n]) for n in names if fields.get(n)), "")  # noqa: E731
    described = {
        "": first("model_type"),
        "blocks": first("num_hidden_layers", "n_layer"),
        "wide": first("hidden_size", "n_embd"),
        "tokens in the vocabulary": first("vocab_size"),
    }
    return {name: value for name, value in described.items() if value}


def n_layers(spec: ModelSpec) -> int | None:
    """The number of blocks, from the config alone; None where there is none at hand."""
    blocks = describe(spec).get("blocks", "")
    return int(blocks) if blocks.isdigit() else None


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


def config_of(spec: ModelSpec) -> dict:
    """The fields of a model's config.json where it is at hand, else those the catalogue knows; {} where there are
    none."""
    try:
        fields = json.loads((Path(location(spec)) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        entry = catalogue.find(spec.source)
        return dict(entry.config) if entry else {}
    return fields if isinstance(fields, dict) else {}
