"""Models from the hub, by its own library: what a download would bring, room for it, the download with progress and
cancel. Torch-free.

What the hub refuses is said with the reason; a model that is here already never needs it. A token for gated models is
read by the library from the environment (HF_TOKEN), and neither stored nor logged here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import BrokenWeights, Cancelled, EffectiveDepthError, HubRefused, HubUnreachable
from ..types import ModelSpec
from . import catalogue, controls, permits, remote, weights, wheels
from .catalogue import hub_cache
from .specs import IDENTITY_FILES, OF_TOKENS, content_of, location, of_gguf
from .wheels import WHEELS

ANSWER_SECONDS = 4.0  # how long the hub may take to answer
WEIGHTS = (".safetensors", ".safetensors.index.json")
TOKEN = "accept its terms on its hub page, make a read token there, and set it in the environment: HF_TOKEN=…"
ELSEWHERE = "choose a bundled model or a local folder, or download it where there is a network (`hf download`)"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """What a download consists of: the commit, and `(name, bytes)` of each file, the small ones first."""

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
    from huggingface_hub import HfApi

    with _plain_errors(hub_id, revision):
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


def fetch(
    hub_id: str,
    revision: str = "",
    progress: Progress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    with_weights: bool = True,
) -> str:
    """Download a model (or config and tokenizer alone) and return its commit. `progress(done, all)` in bytes. Complete
    files stay when a download is cancelled or breaks off; the next one fetches the others."""
    from huggingface_hub import snapshot_download

    wanted = plan(hub_id, revision, with_weights)
    here, (folder, setting) = downloaded_bytes(wanted), place(hub_id)
    disk.require_room(hub_id, wanted.bytes - here, folder, setting)
    most = here

    def report(n_bytes: int) -> None:  # of bytes received, or written
        nonlocal most
        most = max(most, min(here + n_bytes, wanted.bytes))
        if progress:
            progress(most, wanted.bytes)

    with _plain_errors(hub_id, revision):
        snapshot = snapshot_download(
            hub_id,
            revision=revision or None,
            allow_patterns=[name for name, _ in wanted.files],
            etag_timeout=ANSWER_SECONDS,
            tqdm_class=_bar(report, cancelled),
        )
    report(wanted.bytes)
    if with_weights:
        weights.check_complete(Path(snapshot), hub_id)
    return Path(snapshot).name


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
        """Stop soon; files that are complete stay."""
        self._cancel.set()

    def wait(self, seconds: float | None = None) -> None:
        self._thread.join(seconds)


def place(hub_id: str) -> tuple[Path, str]:
    """The folder that a model's files go to, and the setting that moves it."""
    if model := WHEELS.get(hub_id):
        return model.file.parent, "ED_CACHE"
    return hub_cache(hub_id), "HF_HOME"


def downloaded_bytes(wanted: Plan) -> int:
    """Bytes already in the cache for this commit."""
    snapshot = place(wanted.hub_id)[0] / "snapshots" / wanted.commit
    return sum(size for name, size in wanted.files if (snapshot / name).is_file())


def file_bytes(file: str) -> int:
    """What a file of a published set has, named as hf://…, or of this machine; 0 where it is not told."""
    if not file.startswith("hf://"):
        return Path(file).stat().st_size if Path(file).is_file() else 0
    from huggingface_hub import HfFileSystem

    return int(HfFileSystem().info(file)["size"] or 0)


def _bar(report: Callable[[int], object], cancelled: Callable[[], bool]) -> type:
    """The library's progress bar: it reports the bytes written, and raises where the user has cancelled."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *args: object, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": True})
            self.in_bytes, self.n_bytes = kwargs.get("unit") == "B", 0  # of three bars one counts files

        def update(self, n: int | float | None = 1) -> None:
            if cancelled():
                raise Cancelled(
                    "The download was cancelled; files that are complete are kept, and the next one fetches the others."
                )
            if self.in_bytes:
                self.n_bytes += int(n or 0)
                report(self.n_bytes)

    return Bar


@contextlib.contextmanager
def _plain_errors(hub_id: str, revision: str) -> Iterator[None]:
    """Whatever the hub's library raises, as one sentence of ours."""
    from huggingface_hub import errors

    try:
        yield
    except EffectiveDepthError:
        raise
    except errors.OfflineModeIsEnabled:
        if commits := catalogue.cached_commits(hub_id):
            raise HubUnreachable(
                f"Offline mode is on, and of {hub_id} the local hub cache has {', '.join(commits)}, not "
                f"{revision or 'main'!r}; give one of them: {hub_id}@{commits[0]}."
            ) from None
        raise HubUnreachable(f"{hub_id!r} is not in the local hub cache and offline mode is on; {ELSEWHERE}.") from None
    except errors.GatedRepoError:
        raise HubRefused(f"{hub_id} is gated: {TOKEN}") from None
    except errors.RevisionNotFoundError:
        raise HubRefused(
            f"{hub_id} has no revision {revision!r}; give a branch, a tag, or a commit with its 40 digits."
        ) from None
    except Exception as error:
        if reason := disk.lacks(error, "HF_HOME"):
            raise HubRefused(f"{hub_id} cannot be downloaded. {reason}") from None
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
            raise HubRefused(f"The hub knows no model {hub_id}, or it is private or gated (then: {TOKEN})") from None
        if status is not None and status < 500:
            raise HubRefused(f"The hub refuses {hub_id} with status {status}; try again later.") from None
        raise HubUnreachable(
            f"The model hub did not answer or broke off ({type(error).__name__}) while {hub_id} was asked for; "
            f"{ELSEWHERE}."
        ) from None
