"""The folder of case studies: a file for each, written all or nothing, by one process at a time. Torch-free.

A damaged file is skipped and named, and harms no other. The lock is the kernel's, which releases it when a process
dies, so none is left behind."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .. import disk, settings, untrusted
from ..errors import CaseChanged, CaseError, ImportRefused, StoreError
from . import bundle
from .bundle import Card
from .case_study import ID, Case, new_id

LOCK_SECONDS, POLL_SECONDS = 10.0, 0.005  # how long a write waits for another process's write, how often it looks
SHIPPED = Path(__file__).parent.parent / "demo" / "cases"
SUFFIX = ".edcase"
SORTS = {
    "changed": (lambda c: c.changed, True),
    "created": (lambda c: c.created, True),
    "title": (lambda c: c.title.casefold(), False),
    "model": (lambda c: (c.model, -c.changed), False),
}


class Kept:
    """The folder of case studies, for several threads of one process and for several processes.

    Raises `CaseError` (no such case study, or damaged), `CaseChanged`, `ImportRefused`, and `StoreError` where the disk
    cannot be used. `problems`: the files that the last listing skipped, a sentence each."""

    def __init__(self, root: str | Path | None = None, shipped: Path | None = SHIPPED):
        """Use the folder `kept` in `root`, the cache unless given. `shipped`: the folder of the product's case studies,
        or None."""
        self.path = Path(root or settings.current().cache) / "kept"
        self.shipped = shipped
        self.problems: list[str] = []
        self._cards: dict[Path, tuple[tuple[Any, ...], Card]] = {}
        # never a soft lock, which outlives its process
        self._lock = FileLock(self.path / ".lock", poll_interval=POLL_SECONDS, fallback_to_soft=False)

    # --- reading

    def cards(self, search: str = "", sort: str = "changed") -> list[Card]:
        """Return the cards of the user's case studies, then of the shipped ones, each sorted by one of `SORTS`.
        `search`: every word is in title, notes, tags, prompt, model or verdict, in any case. Arrays are not read."""
        key, downwards = SORTS[sort]
        problems: list[str] = []
        own = self._listed(self.path, problems)
        ids = {card.id for card in own}
        shipped = [c for c in self._listed(self.shipped, problems) if c.id not in ids] if self.shipped else []
        self.problems = problems
        in_order = partial(sorted, key=key, reverse=downwards)
        words = search.casefold().split()
        return [card for card in (*in_order(own), *in_order(shipped)) if all(w in card.words.casefold() for w in words)]

    def open(self, id: str) -> tuple[Case, str]:
        """Return a case study, checked to the last array, and its state (a digest of the file), which `save` takes."""
        data = self.read(id)
        try:
            case = bundle.decode(data, f"{id}{SUFFIX}")
        except ImportRefused as error:
            raise CaseError(f"The case study {id} cannot be opened: {error}") from error
        return replace(case, id=id), _state(data)

    def read(self, id: str) -> bytes:
        """Return the bytes of a case study's file, the user's before a shipped one; `CaseError` where it is missing."""
        own = self._file(id)
        for file in (own, self.shipped / own.name) if self.shipped else (own,):
            with contextlib.suppress(FileNotFoundError):
                return self._bytes(file)
        raise _missing(id)

    def is_shipped(self, id: str) -> bool:
        """Return whether a case study comes with the product and was not replaced by one of the user's."""
        return self.shipped is not None and (self.shipped / f"{id}{SUFFIX}").is_file() and not self._file(id).is_file()

    def exists(self, id: str) -> bool:
        """Return whether an id is taken, by a damaged file too."""
        return self._file(id).exists() or self.is_shipped(id)

    # --- writing

    def add(self, case: Case) -> str:
        """Keep a new case study and return its state, which `save` takes. Its id must be free."""
        data = _checked(case)
        with self._locked():
            if self.exists(case.id):
                raise CaseError(f"The id {case.id} is taken; duplicate the case study to keep it under a new one.")
            disk.write(self._file(case.id), data)
        return _state(data)

    def save(self, case: Case, opened: str) -> str:
        """Replace a case study by an edited one and return its new state; `CaseChanged` where it is not in the state
        `opened`."""
        data = _checked(case)
        if self.is_shipped(case.id):
            raise CaseError("This case study comes with the product and is not edited; duplicate it and edit the copy.")
        with self._locked():
            if (now := _state(self.read(case.id))) != opened and now != _state(data):
                raise CaseChanged(
                    f"The case study {case.id} was changed by somebody else since you opened it, and nothing of theirs "
                    "was overwritten; keep yours as a copy, or open it again and repeat your changes."
                )
            disk.write(self._file(case.id), data)
        return _state(data)

    def duplicate(self, case: Case) -> Case:
        """Keep a copy of a case study under a new id, and return the copy."""
        now = time.time()
        copy = replace(case, id=self._new_id(), title=f"{case.title[:190].rstrip()} (copy)", created=now, changed=now)
        self.add(copy)
        return copy

    def take_in(self, data: bytes) -> tuple[Case, bool]:
        """Import a case study; return what was kept, and whether it is new. It is checked completely and written from
        what was understood (`ImportRefused`); where its id is taken by another one it gets a new id."""
        case = bundle.drawable(data)
        data = _checked(case)
        with self._locked():
            if self.exists(case.id):
                if self.read(case.id) == data:
                    return case, False
                case = replace(case, id=self._new_id())
                data = _checked(case)
            disk.write(self._file(case.id), data)
        return case, True

    def delete(self, id: str) -> None:
        """Delete a case study for good; a damaged one too."""
        file = self._file(id)
        if self.is_shipped(id):
            raise CaseError("This case study comes with the product and cannot be deleted.")
        with self._locked():
            try:
                file.unlink()
            except FileNotFoundError:
                raise _missing(id) from None
            disk.sync_folder(file.parent)

    # --- within

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other writers, in threads and processes, and remove what killed ones left unfinished."""
        with self._disk("written"):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = self._lock.acquire(LOCK_SECONDS)
            except Timeout:
                raise StoreError(
                    f"Another process has been writing case studies for {LOCK_SECONDS:g} s. Try again, or stop that "
                    "process."
                ) from None
            with lock:
                for unfinished in self.path.glob(f"*{disk.UNFINISHED}"):
                    unfinished.unlink()
                yield

    @contextlib.contextmanager
    def _disk(self, done: str) -> Iterator[None]:
        """Turn an error of the disk into one sentence; `done`: what could not be "read" or "written"."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"The case studies in {self.path} cannot be {done}: {disk.why(error)}") from error

    def _bytes(self, file: Path) -> bytes:
        """Return the bytes of a file, cut a byte above the most that a case study has."""
        with self._disk("read"), open(file, "rb") as handle:
            return handle.read(bundle.MAX_BYTES + 1)  # a byte more than any case study has

    def _file(self, id: str) -> Path:
        """Return the path of the user's case study with this id; `CaseError` for what is no id."""
        if not ID.fullmatch(id):
            raise CaseError(f"{id[:40]!r} is not the id of a case study; expected 10 characters, a to z and 2 to 7.")
        return self.path / f"{id}{SUFFIX}"

    def _new_id(self) -> str:
        """Return a random id that is not taken."""
        return next(id for id in iter(new_id, None) if not self.exists(id))

    def _listed(self, folder: Path, problems: list[str]) -> list[Card]:
        """Return the cards of a folder's files; what is wrong with the others is added to `problems`."""
        cards = []
        for file in _files(folder):
            try:
                stat = file.stat()
                stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                if self._cards.get(file, (None,))[0] != stamp:
                    self._cards[file] = (stamp, replace(bundle.card(file), id=file.stem))
                cards.append(self._cards[file][1])
            except FileNotFoundError:  # deleted since
                continue
            except (ImportRefused, StoreError) as error:
                problems.append(str(error))
            except OSError as error:
                problems.append(f"{file.name} cannot be read: {disk.why(error)}")
        return cards


def _checked(case: Case) -> bytes:
    """Return the bytes of a case study, which were read back; `CaseError` where they are too many."""
    data, bounds = bundle.encode(case), bundle.CASE.bounds
    for n, most in ((len(data), bounds.file), (sum(len(item.packed) for item in case.items), bounds.unpacked)):
        if n > most:
            raise CaseError(
                f"The results of this case study take {untrusted.size(n)}, at most {untrusted.size(most)} are kept; "
                "keep fewer, or of shorter prompts."
            )
    assert bundle.decode(data) == case, "a saved case study reads back as it was"
    return data


def _state(data: bytes) -> str:
    """Return the SHA-256 of a file's bytes, which changes with every edit."""
    return hashlib.sha256(data).hexdigest()


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder that are named like case studies, sorted."""
    return [file for file in sorted(folder.glob(f"*{SUFFIX}")) if ID.fullmatch(file.stem)]


def _missing(id: str) -> CaseError:
    """Return the error for an id that no case study has."""
    return CaseError(f"There is no case study {id} here; it may have been deleted, or be on another installation.")
