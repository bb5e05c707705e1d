"""Models from the hub, by its own library: what a download consists of, room for it, progress and cancel. Torch-free.

A model that is here already never needs the hub. The library reads a token for gated models from the environment
(HF_TOKEN); it is neither stored nor logged here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import BrokenWeights, Cancelled, EffectiveDepthError, HubRefused, HubUnreachable
from . import catalogue, weights
from .catalogue import hub_cache
from .weights import IDENTITY_FILES, OF_TOKENS

ANSWER_SECONDS = 4.0  # how long the hub may take to answer
WEIGHTS = (".safetensors", ".safetensors.index.json")
TOKEN = "accept its terms on its hub page, make a read token there, and set it in the environment: HF_TOKEN=…"
ELSEWHERE = "choose a bundled model or a local folder, or download it where there is a network (`hf download`)"
Progress = Callable[[int, int], None]  # bytes done, bytes in all
Stop = Callable[[], bool]  # whether to stop


def never() -> bool:
    """Return False: the default `cancelled` of a download that nobody can cancel."""
    return False


@dataclass(frozen=True)
class Plan:
    """The files of a download as `(name, bytes)`, small ones first, at one commit. `revision`: as the user gave it."""

    hub_id: str
    commit: str
    files: tuple[tuple[str, int], ...]
    revision: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of all files together."""
        return sum(size for _, size in self.files)

    def bytes_in(self, cache: Path) -> int:
        """Return how many of these bytes a model's cache folder has already."""
        snapshot = cache / "snapshots" / self.commit
        return sum(size for name, size in self.files if (snapshot / name).is_file())


def plan(hub_id: str, revision: str = "", with_weights: bool = True) -> Plan:
    """Return the files that a model or adapter of the hub consists of: safetensors (unless left out), config and
    tokenizer. Raises `HubRefused`, `HubUnreachable`, or `BrokenWeights` where weights are pickled or missing."""
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
    if kept.keys() & {"model.safetensors", "model.safetensors.index.json"}:  # Mistral's has all weights once more
        kept = {name: size for name, size in kept.items() if not name.startswith("consolidated")}
    if with_weights and not any(name.endswith(".safetensors") for name in kept):
        pickled = next((name for name in sizes if name.endswith((".bin", ".pt", ".pth"))), "")
        content = f"only {pickled}, whose format can run code when loaded" if pickled else "no weights"
        raise BrokenWeights(
            f"{hub_id} holds {content}; expected .safetensors files: look for a converted copy, or convert it where "
            "you trust it."
        )
    if weights.ADAPTER_CONFIG not in kept and not any(name in OF_TOKENS for name in kept):
        raise BrokenWeights(f"{hub_id} holds no tokenizer; expected tokenizer.json next to the weights.")
    return Plan(hub_id, str(info.sha), tuple(sorted(kept.items(), key=lambda item: item[1])), revision)


def fetch(wanted: Plan, progress: Progress | None = None, cancelled: Stop = never) -> str:
    """Download the files of a plan and return its commit. Complete files stay when a download is cancelled or breaks
    off; the next one fetches the others."""
    from huggingface_hub import snapshot_download

    folder = hub_cache(wanted.hub_id)
    here = wanted.bytes_in(folder)
    disk.require_room(wanted.hub_id, wanted.bytes - here, folder, "HF_HOME")
    most = here

    def report(n_bytes: int) -> None:  # of bytes received, or written
        nonlocal most
        most = max(most, min(here + n_bytes, wanted.bytes))
        if progress:
            progress(most, wanted.bytes)

    with _plain_errors(wanted.hub_id, wanted.revision):
        snapshot = snapshot_download(
            wanted.hub_id,
            revision=wanted.revision or None,
            allow_patterns=[name for name, _ in wanted.files],
            etag_timeout=ANSWER_SECONDS,
            tqdm_class=_bar(report, cancelled),
        )
    report(wanted.bytes)
    weights.check_complete(Path(snapshot), wanted.hub_id)
    return Path(snapshot).name


class Download(threading.Thread):
    """A download in the background, for a page: `progress` is (bytes done, bytes in all), `error` what went wrong,
    `done` whether it is complete. `fetch(progress, cancelled)` downloads the files."""

    done = False
    error: EffectiveDepthError | None = None

    def __init__(self, fetch: Callable[[Progress, Stop], object]):
        super().__init__(daemon=True)
        self.progress, self._fetch, self._cancel = (0, 0), fetch, threading.Event()
        self.start()

    def run(self) -> None:
        """Download the files; runs in the thread."""

        def progress(done: int, total: int) -> None:
            self.progress = (done, total)

        try:
            self._fetch(progress, self._cancel.is_set)
            self.done = True
        except EffectiveDepthError as error:
            self.error = error

    @property
    def over(self) -> bool:
        """Whether the download has ended, complete or not."""
        return not self.is_alive()

    def cancel(self) -> None:
        """Ask the download to stop soon; files that are complete stay."""
        self._cancel.set()


def _bar(report: Callable[[int], object], cancelled: Stop) -> type:
    """Return a progress bar class that reports the bytes written, and raises `Cancelled` once `cancelled()` is true."""
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
    """Turn errors of the hub's library inside the block into `HubRefused` or `HubUnreachable`, one sentence each."""
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
