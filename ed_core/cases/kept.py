"""Case studies on disk: `kept/` in the cache folder, written all or nothing, by one process at a time. Never evicted;
every file stands for itself. Torch-free.

One file per case study, in the format of `ed_core.cases.bundle`. A damaged file is set aside in `damaged/`, and
everything else goes on.

The lock is the kernel's, which gives it back when a process dies, however that ends, so none can be left behind."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .. import disk, settings, untrusted
from ..errors import CaseChanged, CaseError, EffectiveDepthError, ImportRefused, OtherVersion, StoreError
from . import bundle
from .bundle import Card
from .case_study import ID, Case, new_id

LOCK_SECONDS, POLL_SECONDS = 10.0, 0.005  # how long a write waits for another process's write, how often it looks


class SafeFolder:
    """Writing, moving and locking in one folder and those below it. `StoreError` where the disk does not do it."""

    def __init__(self, path: Path):
        self.path = path
        self._threads = threading.RLock()
        # never a soft lock, a file that the next program would have to believe: it outlives its process
        self._lock = FileLock(path / ".lock", thread_local=False, fallback_to_soft=False)

    def write(self, file: Path, data: bytes) -> None:
        """All or nothing. Called under the lock, so any other unfinished file is of a process that died."""
        with self.disk("written"):
            for left in self.path.glob(f"*{disk.UNFINISHED}"):
                left.unlink()
            disk.write(file, data)

    def move(self, file: Path, to: Path) -> None:
        with self.disk("moved"):
            to.parent.mkdir(exist_ok=True)
            disk.move(file, to)

    def remove(self, file: Path) -> None:
        try:
            with self.disk("deleted"):
                file.unlink()
                disk.sync_folder(file.parent)
        except FileNotFoundError:
            raise CaseError(f"There is no case study {file.stem} here; it may have been deleted already.") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time, among threads and processes."""
        with self._threads:
            with self.disk("locked"):
                if not self.path.is_dir():
                    self.path.mkdir(parents=True, exist_ok=True)
                    disk.sync_folder(self.path.parent)
                try:
                    lock = self._lock.acquire(LOCK_SECONDS, POLL_SECONDS)
                except Timeout:
                    raise StoreError(
                        f"Another process has been writing case studies for {LOCK_SECONDS:g} s. Try again, or stop "
                        "that process."
                    ) from None
            with lock:
                yield

    @contextlib.contextmanager
    def disk(self, done: str) -> Iterator[None]:
        """What the disk refuses, in one sentence."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"The case studies in {self.path} cannot be {done}: {disk.why(error)}") from error


log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent.parent / "demo" / "cases"
SUFFIX = ".edcase"
SORTS = {
    "changed": (lambda c: c.changed, True),
    "created": (lambda c: c.created, True),
    "title": (lambda c: c.title.casefold(), False),
    "model": (lambda c: (c.model, -c.changed), False),
}


class Kept:
    """The folder of case studies. One object serves several threads, several processes may use one folder.

    Raises `CaseError` (no such case), `CaseChanged`, `ImportRefused`, and `StoreError` where the disk cannot be used.
    """

    def __init__(self, root: str | Path | None = None, shipped: Path | None = SHIPPED):
        self.root = Path(root or settings.current().cache)
        self.path = self.root / "kept"
        self.damaged_path = self.path / "damaged"
        self.shipped = shipped
        self.problems: deque[str] = deque(maxlen=100)
        self._cards: dict[Path, tuple[tuple[Any, ...], Card]] = {}
        self._folder = SafeFolder(self.path)

    # --- reading

    def cards(self, search: str = "", sort: str = "changed") -> list[Card]:
        """What there is: own case studies, then the shipped ones, each sorted by one of `SORTS`. `search`: every word
        must stand in title, notes, tags, prompt, model or verdict, whatever its case. Arrays are not read; damaged
        files are set aside and reported."""
        key, downwards = SORTS[sort]
        own = self._listed(self.path)
        ids = {c.id for c in own}
        shipped = [c for c in self._listed(self.shipped) if c.id not in ids] if self.shipped else []
        sort_cards = partial(sorted, key=key, reverse=downwards)
        return _found([*sort_cards(own), *sort_cards(shipped)], search)

    def open(self, id: str) -> tuple[Case, str]:
        """A case study, checked to the last array, and the state it was in, which `save` asks for."""
        data = self.read(id)
        try:
            case = bundle.decode(data)
        except OtherVersion:
            raise
        except ImportRefused as error:
            if not self.is_shipped(id):
                self._set_aside(self._file(id), error)
            raise CaseError(
                f"The case study {id} is damaged and was set aside; the others are unharmed. Import it again if you "
                "have a copy."
            ) from error
        if case.id != id:
            raise CaseError(f"The file of {id} holds the case study {case.id}: it was renamed. Import it to open it.")
        return case, _state(data)

    def read(self, id: str) -> bytes:
        """The file of a case study as it lies there: what an export is a copy of."""
        own = self._file(id)
        for file in (own, self.shipped / own.name) if self.shipped else (own,):
            with contextlib.suppress(FileNotFoundError):
                return self.whole(file)
        raise CaseError(f"There is no case study {id} here; it may have been deleted, or be on another installation.")

    def whole(self, file: Path) -> bytes:
        """A file of the folder, or as much of it as no case study has; `FileNotFoundError` where it is gone."""
        with self._folder.disk("read"), untrusted.regular(file) as handle:
            return handle.read(bundle.MAX_BYTES + 1)

    def is_shipped(self, id: str) -> bool:
        """Whether a case study is one that comes with the product, and was not replaced by an own one."""
        return self.shipped is not None and (self.shipped / f"{id}{SUFFIX}").is_file() and not self._file(id).is_file()

    def check(self) -> tuple[int, list[str]]:
        """Read every own and shipped case study to the last array and change nothing: how many there are, and what is
        wrong."""
        problems = [f"damaged/{file.name}: was set aside" for file in sorted(self.damaged_path.glob("*"))]
        files = [*_files(self.path), *(_files(self.shipped) if self.shipped else [])]
        for file in files:
            try:
                if bundle.decode(self.whole(file)).id != file.stem:
                    problems.append(f"{file.name}: it was renamed")
            except FileNotFoundError:  # deleted meanwhile
                continue
            except EffectiveDepthError as error:
                problems.append(f"{file.name}: {error}")
        return len(files), problems

    # --- writing

    def add(self, case: Case) -> str:
        """Keep a new case study; returns the state `save` asks for. Its id must be free."""
        data = _checked(case)
        with self._folder.locked():
            if self._here(case.id):
                raise CaseError(f"The id {case.id} is taken here; duplicate the case study to keep it under a new one.")
            self._folder.write(self._file(case.id), data)
        return _state(data)

    def save(self, case: Case, opened: str) -> str:
        """Replace a case study by an edited one, unless it changed since it was `opened`; returns its new state."""
        data = _checked(case)
        if self.is_shipped(case.id):
            raise CaseError("This case study comes with the product and is not edited; duplicate it and edit the copy.")
        with self._folder.locked():
            if (now := _state(self.read(case.id))) != opened and now != _state(data):
                raise CaseChanged(
                    f"The case study {case.id} was changed by somebody else since you opened it, and nothing of theirs "
                    "was overwritten; save yours as a duplicate, or open it again and repeat your changes."
                )
            self._folder.write(self._file(case.id), data)
        return _state(data)

    def duplicate(self, case: Case) -> Case:
        """Keep a copy under an id of its own."""
        now = time.time()
        copy = replace(case, id=self._fresh_id(), title=f"{case.title[:190].rstrip()} (copy)", created=now, changed=now)
        self.add(copy)
        return copy

    def take_in(self, data: bytes) -> tuple[Case, bool]:
        """Import a bundle: the case study as it is kept now, and whether it is new. Everything is checked first
        (`ImportRefused`), and what is kept is written anew from what was understood. One that is here already is not
        kept twice, nor is one that an import gave an id of its own; a different one of the same id gets its own."""
        case = bundle.drawable(data)
        data = _checked(case)
        with self._folder.locked():
            if self._here(case.id):
                if _state(self.read(case.id)) == _state(data):
                    return case, False
                if copy := self._copy(case):
                    return copy, False
                case = replace(case, id=self._fresh_id())
                data = _checked(case)
            self._folder.write(self._file(case.id), data)
        return case, True

    def delete(self, id: str) -> None:
        """Delete a case study for good."""
        file = self._file(id)
        if self.is_shipped(id):
            raise CaseError("This case study comes with the product and cannot be deleted.")
        with self._folder.locked():
            self._folder.remove(file)

    # --- within

    def _file(self, id: str) -> Path:
        if not ID.fullmatch(id):
            raise CaseError(
                f"{id[:40]!r} is not the id of a case study; expected 10 characters from a to z and 2 to 7."
            )
        return self.path / f"{id}{SUFFIX}"

    def _here(self, id: str) -> bool:
        return self._file(id).exists() or self.is_shipped(id)

    def _copy(self, case: Case) -> Case | None:
        """The same case study under an id of its own, which an import gave it."""
        for card in self._listed(self.path):
            if (card.title, card.created, card.changed) == (case.title, case.created, case.changed):
                copy = replace(case, id=card.id)
                if _state(self.read(card.id)) == _state(bundle.encode(copy)):
                    return copy
        return None

    def _fresh_id(self) -> str:
        return next(id for id in iter(new_id, None) if not self._here(id))

    def _listed(self, folder: Path) -> list[Card]:
        return [card for file in _files(folder) if ID.fullmatch(file.stem) and (card := self._card(file))]

    def _card(self, file: Path) -> Card | None:
        """A file's card, remembered while the file stays the same; None where it cannot be read."""
        try:
            stat = file.stat()
            if kind := untrusted.kind_of(stat.st_mode):
                self._remember(f"{file.name} is {kind}, and a file is expected; move it away.")
                return None
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if self._cards.get(file, (None,))[0] != seen:
                card = bundle.card(file)
                self._cards[file] = (seen, card)
            card = self._cards[file][1]
            if card.id == file.stem:
                return card
            self._remember(
                f"{file.name} holds the case study {card.id}: it was renamed. It was not changed; import it to see it."
            )
        except FileNotFoundError:  # deleted by another process just now
            return None
        except (OtherVersion, StoreError) as error:
            self._remember(f"{file.name}: {error}")
        except ImportRefused as error:
            with contextlib.suppress(StoreError):  # a folder that may only be read
                if file.parent == self.path:
                    self._set_aside(file, error)
        except OSError as error:
            self._remember(f"{file.name} cannot be read: {disk.why(error)}")
        return None

    def _set_aside(self, file: Path, cause: Exception) -> None:
        """Move a damaged file out of the way, unless it was replaced meanwhile."""
        with self._folder.locked(), contextlib.suppress(FileNotFoundError):
            try:
                bundle.decode(self.whole(file))
            except ImportRefused:
                aside = self.damaged_path / f"{file.stem}.{time.time_ns()}{SUFFIX}"
                self._folder.move(file, aside)
                self._remember(
                    f"The case study {file.stem} is damaged; it was set aside as {aside.relative_to(self.root)} "
                    f"({cause})."
                )

    def _remember(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            log.warning(problem)


def _checked(case: Case) -> bytes:
    """The bytes of a case study, after they have been read back: nothing is kept that would not open."""
    data, bounds = bundle.encode(case), bundle.CASE.bounds
    for n, most in ((len(data), bounds.file), (sum(len(item.packed) for item in case.items), bounds.unpacked)):
        if n > most:
            raise CaseError(
                f"The results of this case study take {untrusted.size(n)}, at most {untrusted.size(most)} are kept; "
                "keep fewer, or of shorter prompts."
            )
    if bundle.decode(data) != case:
        raise CaseError("This case study does not come back as it is written; this is a defect, please report it.")
    return data


def _state(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _found(cards: list[Card], search: str) -> list[Card]:
    words = search.casefold().split()
    return [card for card in cards if all(word in card.words.casefold() for word in words)]


def _files(folder: Path) -> list[Path]:
    """The bundles in a folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))
