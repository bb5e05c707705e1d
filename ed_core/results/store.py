"""Results on disk, evicted when there are too many. Torch-free.

Two databases of diskcache: `data` has the bytes of `ed_core.results.wire` by run id, `cards` the headline and sums by
`SERIES/ID`, so that lists and comparisons with other prompts read no arrays. Values are bytes and begin with a SHA-256
over name and content: a damaged entry is removed, noted in `problems`, and reads as absent. A damaged database is
renamed, and a new one begun."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import re
import secrets
import sqlite3
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import diskcache
import numpy as np
from diskcache.core import MODE_BINARY, MODE_RAW, UNKNOWN

from .. import settings
from ..disk import BUSY_SECONDS, is_damage, why
from ..errors import StoreError
from ..types import ENGINE_VERSION, ProbeResult, canonical_json
from .shelf import Shelf
from .wire import pack, unpack

log = logging.getLogger(__name__)
T = TypeVar("T")
Card = tuple[dict[str, Any], dict[str, np.ndarray]]  # headline and sums

CARDS_IN_MEMORY = 1024  # decoded, a few kilobytes each
KEY = re.compile(r"[0-9a-f]{32}")
DATABASE = {"timeout": BUSY_SECONDS, "eviction_policy": "least-recently-stored", "cull_limit": 2}


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """A disk for diskcache that stores bytes under text keys, and never pickles or unpickles (CVE-2025-69872)."""

    def put(self, key: Any) -> tuple[str, bool]:
        """Return a text as database key; raise `TypeError` otherwise."""
        if type(key) is not str:
            raise TypeError(f"keys are text, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: Any) -> str:
        """Return a database key's text."""
        return str(key)

    def store(self, value: Any, read: Any, key: Any = UNKNOWN) -> tuple[Any, ...]:
        """Store bytes; raise `TypeError` otherwise."""
        if type(value) is not bytes or read:
            raise TypeError(f"values are bytes, not {type(value).__name__}")
        stored: tuple[Any, ...] = super().store(value, read, key)
        return stored

    def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> Any:
        """Return stored bytes; raise `ValueError` for another type."""
        if mode not in (MODE_RAW, MODE_BINARY) or (mode == MODE_RAW and type(value) is not bytes):
            raise ValueError("it is not stored as bytes")
        return super().fetch(mode, filename, value, read)


class Store:
    """Results on disk by run id, for several threads and processes. `root` (folder) and `size_limit` (bytes): None for
    the settings. Raises `StoreError` if the disk cannot be used. `clear` and eviction touch `results/` only, never what
    a user keeps."""

    def __init__(self, root: str | Path | None = None, size_limit: int | None = None):
        self.path = Path(root or settings.current().cache) / "results"
        self.limit = settings.current().cache_limit if size_limit is None else size_limit
        self.problems: deque[str] = deque(maxlen=100)
        self._thread = ThreadPoolExecutor(1, "store")  # one connection for all threads: pages run in a new one each
        self._opened: tuple[diskcache.Cache, diskcache.Cache] | None = None
        self._decoded: Shelf[Card] = Shelf(CARDS_IN_MEMORY)
        self._index: tuple[Any, dict[str, list[str]]] = (None, {})
        self._run(lambda data, cards: None)

    def put(self, result: ProbeResult) -> None:
        """Store a complete result and its card; the oldest results make room. Raises `StoreError` for a result above a
        quarter of the limit, `ValueError` for a partial one."""
        if not result.complete:
            raise ValueError("only complete results are stored")
        key, series, packed = result.request.key, result.request.series, pack(result)
        if len(packed) > self.limit // 4:
            raise StoreError(
                f"The result has {len(packed) / 2**20:.1f} MiB, more than a quarter of the store's limit of "
                f"{self.limit / 2**20:.1f} MiB, so it is shown and not stored. Set ED_CACHE_LIMIT (in bytes) higher to "
                "keep it."
            )

        def work(data: diskcache.Cache, cards: diskcache.Cache) -> None:
            data.set(key, _sealed(key, packed), tag=secrets.token_hex(8))
            cards.delete(name := f"{series}/{key}")  # so that it is the newest
            cards.set(name, _sealed(name, _pack_card(result)))

        self._run(work)

    def get(self, key: str) -> ProbeResult | None:
        """Return the result with this run id; None if missing or damaged."""
        return self._run(lambda data, cards: self._read(data, key, lambda packed: _result(packed, key)))

    def stamp(self, key: str) -> str | None:
        """Return a text that changes whenever the result is stored again; None without a result."""
        return self._run(lambda data, cards: _tag(data, key))

    def keys(self, beginning: str, n: int = 3) -> list[str]:
        """Return at most `n` run ids of stored results that begin with these hex digits."""
        return self._run(lambda data, cards: list(islice((k for k in data.iterkeys() if k.startswith(beginning)), n)))

    def recent(self, n: int = 20) -> list[dict[str, Any]]:
        """Return the headlines of the `n` results stored last, newest first, of this engine version."""
        results = self._run(lambda data, cards: list(islice(self._cards(data, cards, reversed(cards)), n)))
        return [headline for headline, _ in results if headline["engine"] == ENGINE_VERSION]

    def series(self, name: str, n: int = 200) -> dict[str, dict[str, np.ndarray]]:
        """Return the summaries of at most `n` results of one `Request.series`, by run id, newest first."""

        def work(data: diskcache.Cache, cards: diskcache.Cache) -> list[Card]:
            now = len(cards), next(reversed(cards), None)
            if self._index[0] != now:
                index: dict[str, list[str]] = {}
                for key in reversed(cards):
                    index.setdefault(key.partition("/")[0], []).append(key)
                self._index = now, index
            return list(islice(self._cards(data, cards, iter(self._index[1].get(name, ()))), n))

        return {headline["key"]: summary for headline, summary in self._run(work)}

    def info(self) -> dict[str, Any]:
        """Return the number of results, their bytes, the limit, the folder and the problems so far."""
        entries, size = self._run(lambda data, cards: (len(data), data.volume() + cards.volume()))
        info_of = {"entries": entries, "bytes": size, "limit": self.limit, "path": str(self.path)}
        return info_of | {"problems": list(self.problems)}

    def clear(self) -> int:
        """Remove all results, and leftovers of killed processes; return how many results there were."""

        def work(data: diskcache.Cache, cards: diskcache.Cache) -> int:
            n = len(data)
            data.clear(), cards.clear()
            with warnings.catch_warnings(action="ignore"):
                data.check(fix=True)
            return n

        return self._run(work)

    def close(self) -> None:
        """Close the databases; the next call opens them again."""
        self._thread.submit(self._close).result()

    def _close(self) -> None:
        """Close both databases, from the store's thread."""
        for one in self._opened or ():
            one.close()
        self._opened = None

    def _run(self, work: Callable[[diskcache.Cache, diskcache.Cache], T]) -> T:
        """Return `work(data, cards)`, run in the store's thread."""
        return self._thread.submit(self._work, work).result()

    def _work(self, work: Callable[[diskcache.Cache, diskcache.Cache], T], again: bool = True) -> T:
        """Return `work(data, cards)`. Damaged databases are renamed and, with `again`, `work` runs on new ones."""
        try:
            if self._opened is None:
                data = diskcache.Cache(self.path / "data", disk=BytesDisk, size_limit=self.limit, **DATABASE)
                cards = diskcache.Cache(
                    self.path / "cards", disk=BytesDisk, disk_min_file_size=1 << 20, size_limit=self.limit, **DATABASE
                )
                self._opened = data, cards
            return work(*self._opened)
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            with contextlib.suppress(sqlite3.Error):  # a failed COMMIT may have left its transaction open
                self._close()
            cause = error.__context__ if isinstance(error, diskcache.Timeout) else error
            if not (again and is_damage(cause)):
                raise StoreError(f"The results in {self.path} cannot be used: {why(cause)}") from error
            renamed = self.path.with_name(f"results.damaged-{time.time_ns()}")
            try:
                self.path.rename(renamed)
            except OSError as refused:
                raise StoreError(f"The results in {self.path} are damaged: {why(refused)}") from refused
            self._note(f"The database of results was damaged ({cause}); it is now {renamed.name}, and a new one begun.")
        return self._work(work, again=False)

    def _cards(self, data: diskcache.Cache, cards: diskcache.Cache, names: Iterator[str]) -> Iterator[Card]:
        """Yield these cards, decoded; cards of evicted results are removed."""
        for name in names:
            key = name[-32:]
            if key not in data:
                cards.delete(name)
            elif card := self._read(cards, name, lambda packed: self._card(name, packed)):
                yield card

    def _card(self, name: str, packed: bytes) -> Card | None:
        """Return a decoded card, cached in memory."""
        return self._decoded.get((name, packed), lambda: _unpack_card(packed, name[-32:]))

    def _read(self, cache: diskcache.Cache, name: str, decode: Callable[[bytes], T | None]) -> T | None:
        """Return an entry, decoded; None if missing. A damaged one is removed, noted, and reads as None."""
        try:
            # A second look: another process may put the entry anew between its row and its file.
            value = cache.get(name) or cache.get(name)
            if value is None:
                return None
            if value[:32] != _digest(name, value[32:]):
                raise ValueError("it does not have the hash it was stored with")
            return decode(value[32:])
        except ValueError as error:
            cache.delete(name)
            self._note(f"The stored result {name[-32:]} was damaged and is removed: {error}.")
            return None

    def _note(self, problem: str) -> None:
        """Add a problem to `problems` and the log."""
        self.problems.append(problem)
        log.warning(problem)


def _tag(data: diskcache.Cache, key: str) -> str | None:
    """Return an entry's tag without reading the value; None if missing."""
    value, tag = data.get(key, read=True, tag=True)
    if hasattr(value, "close"):
        value.close()
    return tag if isinstance(tag, str) else None


def _digest(name: str, payload: bytes) -> bytes:
    """Return the SHA-256 of an entry's name and content."""
    return hashlib.sha256(name.encode() + b"\0" + payload).digest()


def _sealed(name: str, payload: bytes) -> bytes:
    """Return the content with its digest in front."""
    return _digest(name, payload) + payload


def _result(packed: bytes, key: str) -> ProbeResult:
    """Return the result in these bytes; raise `ValueError` if partial or of another run id."""
    result = unpack(packed)
    if result.request.key != key or not result.complete:
        raise ValueError(f"it is the result of {result.request.key}")
    return result


def _pack_card(result: ProbeResult) -> bytes:
    """Return a result's card as bytes: a JSON line (headline, and the summary's names, dtypes and shapes), then the
    summary's bytes. Ten times faster to read than a zip file."""
    request = result.request
    headline = {
        "key": request.key,
        "engine": ENGINE_VERSION,
        "series": request.series,
        "model": ", ".join(m.name for m in request.models),
        "precision": ", ".join(m.precision for m in request.models),
        "n_tokens": result.n_tokens,
        "seconds": result.provenance.get("seconds"),
    }
    arrays = {name: np.asarray(values) for name, values in result.summary.items()}
    layout = [(name, a.dtype.str, a.shape) for name, a in arrays.items()]
    return canonical_json([headline, layout]).encode() + b"\n" + b"".join(a.tobytes() for a in arrays.values())


def _unpack_card(packed: bytes, key: str) -> Card:
    """Return headline and summary of a card; raise `ValueError` if invalid."""
    line, _, rest = packed.partition(b"\n")
    try:
        headline, layout = json.loads(line)
        if headline["key"] != key:
            raise ValueError(f"it is the summary of {headline['key']}")
        summary, offset = {}, 0
        for name, dtype, shape in layout:
            summary[name] = np.frombuffer(rest, dtype, math.prod(shape), offset).reshape(shape)
            offset += summary[name].nbytes
    except (TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"not a card ({error})") from error
    return headline, summary
