"""Which model a name means. A name is read once, where it enters (a widget, an option, a TOML file, a link, a Python
call); from there on a `ModelRef` is passed, and no code asks again which kind of model it is. Torch-free.

Settings are applied to a name (`permits`) before the disk is read, and again to every path: a reference may come from a
stored request."""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from .. import settings
from ..errors import BrokenWeights, EffectiveDepthError, ModelNotFound, ParameterError
from ..types import ModelSpec, command_line
from . import catalogue, controls, gguf_files, hub, permits, sizes, weights, wheels
from .bundled import MODELS as BUNDLED
from .catalogue import cached_commit, hub_cache
from .hub import Progress, Stop
from .remote import PREFIX, SERVED
from .weights import content_hash
from .wheels import WHEELS

REVISION = r"(?!/)(?!.*\.\.)[\w./-]{1,200}"  # also a path below the hub's cache, which it must not lead out of
HUB_ID = re.compile(rf"[\w.-]{{1,96}}(/[\w.-]{{1,96}})?(@{REVISION})?")


class ModelRef(ModelSpec):
    """The identity of a model that can be opened again: `Bundled`, `Folder`, `Hub`, `Gguf`, `Wheel` or `Remote`."""

    # ---------------------------------------------------------------- where a name enters

    @classmethod
    def parse(cls, text: str, precision: str = "fp32", device: str = "cpu", adapter: str = "", **more: Any) -> ModelRef:
        """Return the model that a name means (a bundled name, a folder, a GGUF file, a hub id with or without
        `@revision`) with its whole identity; see `opened_as`."""
        return cls.named(text).opened_as(precision, device, adapter, **more)

    @staticmethod
    def named(text: str) -> ModelRef:
        """Return the model that a name means, its content not read yet; a `ModelError` where it means none."""
        if not os.path.exists(os.path.expanduser(text)):
            text = text.strip()
        if not text:
            raise ModelNotFound("No model is named; give a bundled name, a folder, or a hub id.")
        name, revision = _name_and_revision(text)
        permits.model(name, revision)
        if text.startswith(PREFIX):
            return Remote.of_name(text)
        if text in WHEELS:
            return Wheel(text)
        if text in BUNDLED:
            return Bundled(text)
        if text.lower().endswith(".gguf") and os.path.isfile(file := os.path.expanduser(text)):
            return Gguf(str(Path(file).resolve()))
        if revision and (name in BUNDLED or name in WHEELS):
            raise ModelNotFound(f"{name} has one version and no revision {revision!r}; leave it out.")
        if os.path.isdir(folder := os.path.expanduser(text)):  # unlike the path's own method it takes any text
            bundled = (known for known, place in BUNDLED.items() if place.resolve() == Path(folder).resolve())
            return Bundled(known) if (known := next(bundled, None)) else Folder(_unambiguous(Path(folder)))
        if not HUB_ID.fullmatch(text):
            raise ModelNotFound(
                f"There is no folder {text!r}, and it is not a hub id like 'Qwen/Qwen2.5-1.5B'; check the path."
            )
        return Hub(name, revision=cached_commit(name, revision) or revision)

    @staticmethod
    def of(spec: ModelSpec) -> ModelRef:
        """Return the reference to the model of a stored request; its kind follows from its identity."""
        if isinstance(spec, ModelRef):
            return spec
        kind: type[ModelRef] = Folder if spec.content_hash and not spec.revision else Hub
        if spec.source.startswith(PREFIX):
            kind = Remote
        elif spec.source in BUNDLED or spec.source in WHEELS:
            kind = Bundled if spec.source in BUNDLED else Wheel
        elif spec.source.lower().endswith(".gguf"):
            kind = Gguf
        return kind(**{f.name: getattr(spec, f.name) for f in fields(spec)})

    def opened_as(
        self,
        precision: str = "fp32",
        device: str = "cpu",
        adapter: str = "",
        offload: str = "",
        control: str = "",
        control_seed: int = 0,
    ) -> ModelRef:
        """Return this model with the hash of its content and the checked settings for opening it.

        `precision`: "auto" stays until `work.resolve.settle` replaces it by the widest that fits; a checkpoint that
        is stored quantized keeps its own. `adapter`: a LoRA adapter's folder. `offload`: the folder for weights that
        fit into no memory. `control`, `control_seed`: the control to open in the model's place (`controls`)."""
        if precision not in ("auto", self.precision) and precision not in sizes.PRECISIONS:
            expected = f"auto or one of {', '.join(sizes.PRECISIONS)}"
            raise ParameterError(f"The precision is {precision!r}; expected {expected}.")
        if not self.weights_here:
            if precision not in ("auto", "fp32", SERVED) or adapter or offload or control or control_seed:
                raise ParameterError(
                    f"{self.source} runs as the service has it; leave precision, adapter, offload and control out."
                )
            return self if self.revision else replace(self, content_hash=self.content(weights=False))
        ref = replace(self, device=device, offload=offload)
        if not ref.revision and not ref.content_hash:
            ref = replace(ref, content_hash=ref.content(weights=control != "untrained"))
        if adapter:
            ref = ref._adapted(adapter)
        stored, precision = sizes.stored_precision(ref.config()), sizes.PRECISIONS.get(precision, precision)
        if stored and precision not in ("auto", stored):
            raise ParameterError(
                f"The checkpoint {ref.name} is stored in {stored}; it cannot be opened in {precision}: give "
                "--precision auto."
            )
        why = f"{stored}: the checkpoint is stored so." if stored else ""
        return replace(ref, precision=stored or precision, why=why).twin(control, control_seed)

    def _adapted(self, adapter: str) -> Self:
        """Return this model with the LoRA adapter of a folder or hub id; `ModelNotFound` where it is not here."""
        permits.adapter(adapter)
        folder = ModelRef.named(adapter).place
        if not folder.is_dir():
            raise ModelNotFound(f"The adapter {adapter} is not here; `{command_line('fetch', adapter)}` downloads it.")
        weights.check_base(folder, self.source)
        return replace(self, adapter=str(folder), adapter_hash=weights.adapter_hash(folder))

    def twin(self, control: str, seed: int = 0) -> Self:
        """Return the control of this model, or the model itself where `control` is "". The identity of an untrained
        copy is that of config and tokenizer."""
        ref = replace(self, control=control, control_seed=seed)
        controls.check(ref)
        if ref.content_hash and not controls.needs_weights(ref):
            ref = replace(ref, content_hash=ref.content(weights=False))
        return ref

    # ---------------------------------------------------------------- its files

    weights_here = True  # or can be: False for a model that a service measures
    terms: wheels.Terms | None = None  # shown before a download

    @property
    @abstractmethod
    def _folder(self) -> Path: ...

    @property
    def place(self) -> Path:
        """The folder that is loaded: the model's own, a hub snapshot, or a GGUF file's conversion; may be missing."""
        permits.model(self.source, self.revision)
        return self._folder

    @property
    def is_here(self) -> bool:
        """Whether the model's files are here, so that nothing has to be downloaded."""
        return self.place.is_dir()

    @property
    def is_ready(self) -> bool:
        """Whether the model can be opened at once, with nothing to download or convert."""
        return self.is_here

    def download(self, progress: Progress | None = None, cancelled: Stop = hub.never) -> Self:
        """Download the model's files, if needed, and return the reference with its commit or content. Complete files
        are kept when this is cancelled."""
        return self

    def ensure(
        self,
        progress: Progress | None = None,
        cancelled: Stop = hub.never,
        say: Callable[[str], None] = lambda doing: None,
    ) -> Self:
        """Download and convert the model, if needed, and return its reference; `say` gets what begins."""
        ref = self.download(progress, cancelled)
        if not ref.is_ready:
            say(f"converting {self.name}")
            ref._convert()
        return ref

    def _convert(self) -> None:
        """Convert the model's downloaded file into what can be opened; only some kinds need it."""

    def plan(self) -> hub.Plan:
        """Return the files that a download would bring; `ModelNotFound` for a model that is never downloaded."""
        raise ModelNotFound(f"{self.name} is a folder; there is nothing to download.")

    @property
    def cache(self) -> tuple[Path, str]:
        """The folder that a download goes to, and the environment variable that moves it."""
        return hub_cache(self.reads), "HF_HOME"

    def require_weights(self) -> None:
        """Raise `ParameterError` for a remote model: its weights are at a service."""
        if not self.weights_here:
            raise ParameterError(f"The weights of {self.source} are remote; take a model that is here.")

    def content(self, weights: bool = True) -> str:
        """Return a hash of a local model's content, weights included unless left out; "" for a model of the hub."""
        return content_hash(self.place, weights) if self.place.is_dir() else ""

    # ---------------------------------------------------------------- what its config says

    def config(self) -> dict[str, Any]:
        """Return the fields of config.json, or else those that the catalogue knows; {} where neither exists."""
        return weights.config(self.place) or self._config_elsewhere()

    def _config_elsewhere(self) -> dict[str, Any]:
        """Return the config fields known without the model's folder; {} where none are."""
        entry = catalogue.find(self.reads)
        return dict(entry.config) if entry else {}

    def size(self) -> sizes.Size:
        """Return layers, widths and parameters, by the config; `ModelNotFound` where the model has none."""
        if not (config := self.config()):
            if (file := self.place / "config.json").is_file():
                raise ModelNotFound(f"{file} is damaged: it holds no JSON object. Copy it from the model again.")
            raise ModelNotFound(
                f"{self.source} is neither in the catalogue ('python -m ed_core models') nor downloaded, so its size "
                "is not known here."
            )
        return sizes.read(config)

    def size_or_none(self) -> sizes.Size | None:
        """Return what `size` does; None where the config, or a size in it, is missing."""
        try:
            return self.size()
        except EffectiveDepthError:
            return None

    @property
    def n_layers(self) -> int | None:
        """Number of layers, blocks times passes; None where that is not known."""
        return size.n_layers if (size := self.size_or_none()) else None

    @property
    def n_passes(self) -> int | None:
        """How often the blocks run: 1 but for looped models; None where that is not known."""
        return size.passes if (size := self.size_or_none()) else None

    @property
    def layers_text(self) -> str:
        """The size in words, "16 layers" or "4 layers in 4 passes"; "" where it is not known."""
        if not (size := self.size_or_none()):
            return ""
        passes = f" in {size.passes} passes" if size.passes > 1 else ""
        return f"{size.n_blocks} layer{'s' * (size.n_blocks > 1)}{passes}"

    @property
    def packing(self) -> str:
        """The type in which most weights of a GGUF file are packed, like "Q4_1"; "" for other models."""
        return ""

    @property
    def reads(self) -> str:
        """The name by which catalogue, hub and bundled prompts know the model."""
        return self.source


class Bundled(ModelRef):
    """A model that comes with the program."""

    @property
    def _folder(self) -> Path:
        return BUNDLED[self.source]


class Folder(ModelRef):
    """A folder as `save_pretrained` writes it."""

    @property
    def _folder(self) -> Path:
        return Path(self.source)


class Hub(ModelRef):
    """A model of the hub; `revision` is its commit once that is known."""

    @property
    def _folder(self) -> Path:
        """The snapshot of the model's commit in the hub's cache."""
        known = re.fullmatch(REVISION, self.revision)
        return hub_cache(self.source) / "snapshots" / (self.revision if known else "unknown")

    @property
    def is_here(self) -> bool:
        """Whether the commit's files are all in the hub's cache: weights too, unless the control needs none."""
        place = self.place
        reads = (place / "config.json").is_file() and any((place / name).is_file() for name in weights.OF_TOKENS)
        if not controls.needs_weights(self):
            return reads
        try:
            weights.check_complete(place, self.name)
        except BrokenWeights:
            return False
        return (reads or (place / weights.ADAPTER_CONFIG).is_file()) and any(place.glob("*.safetensors"))

    def plan(self) -> hub.Plan:
        permits.download(self.source)
        return hub.plan(self.source, self.revision, controls.needs_weights(self))

    def download(self, progress: Progress | None = None, cancelled: Stop = hub.never) -> Self:
        return self if self.is_here else replace(self, revision=hub.fetch(self.plan(), progress, cancelled))

    def content(self, weights: bool = True) -> str:
        """Return "": the commit identifies a model of the hub."""
        return ""


class Gguf(ModelRef):
    """A GGUF file, converted once into a folder of safetensors. Its identity is that of the file."""

    @property
    def file(self) -> Path:
        """The path of the GGUF file, which need not exist yet."""
        return Path(self.source)

    def content(self, weights: bool = True) -> str:
        """Return the hash by which the GGUF file is known; without `weights` another one made of it."""
        permits.model(self.source)
        content = self._content()
        return content if weights else hashlib.sha256(f"config {content}".encode()).hexdigest()

    def _content(self) -> str:
        """Return the hash by which the GGUF file is known."""
        return gguf_files.content_hash(self.file)

    @property
    def _folder(self) -> Path:
        return gguf_files.place(self._content())

    @property
    def is_here(self) -> bool:
        return self.is_ready or self.file.is_file()

    @property
    def is_ready(self) -> bool:
        return self.place.is_dir()

    def _convert(self) -> None:
        from . import conversion

        conversion.ensure(self.file, self.place)

    def _config_elsewhere(self) -> dict[str, Any]:
        """Return the sizes in the file's header, before the file is converted; else those of the catalogue."""
        return gguf_files.read(self.file).config if self.file.is_file() else super()._config_elsewhere()

    @property
    def packing(self) -> str:
        return next(iter(gguf_files.read(self.file).packing)) if self.file.is_file() else ""


class Wheel(Gguf):
    """A GGUF file out of Python wheels in a package registry."""

    @property
    def model(self) -> wheels.Model:
        """The entry of `WHEELS`: version, hashes and terms."""
        return WHEELS[self.source]

    @property
    def file(self) -> Path:
        return self.model.file

    def _content(self) -> str:
        return gguf_files.of_sha256(self.model.gguf_sha256)

    @property
    def terms(self) -> wheels.Terms | None:  # type: ignore[override]
        return self.model.terms

    @property
    def cache(self) -> tuple[Path, str]:
        return self.file.parent, "ED_CACHE"

    def plan(self) -> hub.Plan:
        """Return the wheels that a download would bring."""
        permits.download(self.source)
        return hub.Plan(self.source, self.model.version, tuple((one.package, one.bytes) for one in self.model.wheels))

    def download(self, progress: Progress | None = None, cancelled: Stop = hub.never) -> Self:
        if self.is_here:
            return self
        permits.download(self.source)
        wheels.fetch(self.model, progress, cancelled)
        return replace(self, content_hash=self.content())


class Remote(ModelRef):
    """A model that the service NDIF measures: `ndif:org/name`. Config and tokenizer are here. Its precision is `served`
    and its device none of this machine's, so no result of it is taken for one that was computed here."""

    weights_here = False

    @classmethod
    def of_name(cls, text: str) -> Self:
        """Return the model of a name with the service's prefix `ndif:`."""
        if "@" in text:
            raise ModelNotFound(f"{text[:80]} names a revision, and the service runs the one it has; leave it out.")
        here = ModelRef.named(text.removeprefix(PREFIX))
        return cls(PREFIX + here.source, revision=here.revision, precision=SERVED, device=_service())

    @property
    def here(self) -> ModelRef:
        """The part of the model on this machine: config and tokenizer, and the weights where the service is local."""
        control = "" if settings.current().ndif_address == settings.LOCAL else "untrained"  # which needs no weights
        return replace(ModelRef.named(self.source.removeprefix(PREFIX)), revision=self.revision, control=control)

    @property
    def _folder(self) -> Path:
        return self.here.place

    @property
    def is_here(self) -> bool:
        return self.here.is_here

    def download(self, progress: Progress | None = None, cancelled: Stop = hub.never) -> Self:
        return replace(self, revision=self.here.download(progress, cancelled).revision)

    @property
    def is_ready(self) -> bool:
        return self.here.is_ready

    def _convert(self) -> None:
        self.here._convert()

    def plan(self) -> hub.Plan:
        return self.here.plan()

    def content(self, weights: bool = True) -> str:
        return self.here.content(weights)

    @property
    def reads(self) -> str:
        return self.here.source


def step_name(training: str, step: str) -> str:
    """Return the name of one step of a training: a folder in the training's folder, or a revision of its hub model."""
    return f"{training.rstrip('/')}{'/' if os.path.isdir(os.path.expanduser(training)) else '@'}{step}"


def _service() -> str:
    """Return the service's name in a model's identity, "ndif at HOST"."""
    address = settings.current().ndif_address
    host = settings.LOCAL if address == settings.LOCAL else urlsplit(address).netloc.replace(":", " port ")
    return f"ndif at {host}"


def _unambiguous(folder: Path) -> str:
    """Return a folder's name as given; its absolute path where the name means something else, or nothing."""
    named = str(folder)
    return os.path.abspath(named) if named in BUNDLED or named in WHEELS or folder.name in ("", "..") else named


def _name_and_revision(text: str) -> tuple[str, str]:
    """Return the parts of a hub id "name@revision"; of anything else (a folder may have an @) all of it and ""."""
    if not HUB_ID.fullmatch(text):
        return text, ""
    name, _, revision = text.partition("@")
    return name, revision
