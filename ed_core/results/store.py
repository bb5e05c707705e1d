"""Results on disk: evictable, never trusted. Torch-free.

Every result is two entries: `result/<key>`, the bytes of `ed_core.results.wire`, and `card/<key>`, its headline and
summary, read without the arrays. Both begin with a SHA-256 over their own name and content, so a flipped bit, a
truncated file and a swapped row are all seen; such an entry is removed, remembered in `problems`, and reads as absent.
The hash finds damage, it is no signature: whoever may write the folder can forge a number, but cannot have code
executed, a file outside the folder read or deleted, or the limit switched off."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import diskcache
import numpy as np
from diskcache.core import DEFAULT_SETTINGS, ENOVAL, METADATA, MODE_BINARY, MODE_RAW, UNKNOWN

from .. import settings
from ..disk import BUSY_SECONDS, is_damage, not_a_file, reason
from ..errors import StoreError
from ..types import ENGINE_VERSION, ProbeResult, canonical_json
from .shelf import Shelf
from .wire import pack, unpack

log = logging.getLogger(__name__)
T = TypeVar("T")

Card = tuple[dict[str, Any], dict[str, np.ndarray]]  # headline and sums

MOST_CARDS = 1024  # of a few kilobytes each, that stay decoded
USED_SECONDS = 60.0  # a use of a result is noted again after so long
LOOKS = 5  # a file may vanish between row and read because another process replaced the entry: look again
UNNAMED_SECONDS = 3600.0  # for which a value file may wait for its row
KEY = re.compile(r"[0-9a-f]{32}")


class Store:
    """Results by key. One object serves several threads; several processes may open the same folder.

    `StoreError` means that the disk cannot be used; damage never raises. `clear` and eviction touch `results/` alone:
    what lies in `kept/` belongs to the user."""

    def __init__(self, root: str | Path | None = None, size_limit: int | None = None):
        self.root = Path(root or settings.current().cache)
        self.path = self.root / "results"
        self.limit = settings.current().cache_limit if size_limit is None else size_limit
        self.problems: deque[str] = deque(maxlen=100)
        self._lock = threading.RLock()
        self._cache: Results | None = None
        self._identity: tuple[int, int] | None = None
        self._decoded: Shelf[Card] = Shelf(MOST_CARDS)  # cards, by their bytes
        self._run(lambda cache: None)

    def put(self, result: ProbeResult) -> None:
        """Store a complete result and its card, then evict what has not been used for longest."""
        if not result.complete:
            raise ValueError("only complete results are stored")
        key, data = result.request.key, pack(result)
        if len(data) > self.limit // 4:
            raise StoreError(
                f"The result has {_size(len(data))}, more than a quarter of the store's limit of {_size(self.limit)}, "
                "and would push out the others: it is shown but not stored. Set ED_CACHE_LIMIT (in bytes) higher to "
                "keep it."
            )

        def work(cache: Results) -> int:
            for name, payload in ((f"result/{key}", data), (f"card/{key}", _pack_card(result))):
                cache.set(name, _digest(name, payload) + payload, tag=result.request.series)
            return cache.make_room(self.limit, keep=key)

        if strange := self._run(work):
            self._remember(f"{strange} entries with a name or a size that this program does not write were removed.")

    def get(self, key: str) -> ProbeResult | None:
        """The result, or None where there is none that can be believed."""
        found: ProbeResult | None = self._load("result", key)
        return found

    def stamp(self, key: str) -> tuple[Any, ...] | None:
        """What changes whenever a result is stored anew; None where there is none. Counts as a use of it."""
        select = "SELECT rowid, store_time, size, filename, access_time FROM Cache WHERE key = ? AND raw = 1"

        def work(cache: Results) -> tuple[Any, ...] | None:
            found = cache.rows(select, f"result/{key}")
            if found and not time.time() - USED_SECONDS < found[0][-1] <= time.time():
                cache.touch_run(key)
            return (self._identity, *found[0][:-1]) if found else None

        return self._run(work)

    def keys(self, beginning: str, n: int = 3) -> list[str]:
        """Run ids of stored results that begin with these hex digits, at most `n`."""
        if not re.fullmatch("[0-9a-f]*", beginning):
            return []
        select = "SELECT key FROM Cache WHERE raw = 1 AND key GLOB ? LIMIT ?"
        return [name[7:] for (name,) in self._run(lambda cache: cache.rows(select, f"result/{beginning}*", n))]

    def headline(self, key: str) -> dict[str, Any] | None:
        """What `recent` tells, of one result."""
        card: Card | None = self._load("card", key)
        return card[0] if card else None

    def summary(self, key: str) -> dict[str, np.ndarray] | None:
        """The small sums of a result (see `ed_core.results.aggregate`), read without its arrays. They are read-only."""
        card: Card | None = self._load("card", key)
        return card[1] if card else None

    def recent(self, n: int = 20) -> list[dict[str, Any]]:
        """Headlines of the results stored last, newest first; none of an engine whose numbers were different."""
        return [headline for headline, _ in self._cards(n) if headline["engine"] == ENGINE_VERSION]

    def series(self, name: str, n: int = 200) -> dict[str, dict[str, np.ndarray]]:
        """Summaries by key of the results of one `Request.series`, newest first, at most `n`."""
        cards = self._cards(n, name)
        return {headline["key"]: summary for headline, summary in cards if headline.get("series") == name}

    def info(self) -> dict[str, Any]:
        """How many results there are, what they take and may take, where, and what went wrong."""
        select = "SELECT total(key GLOB 'result/*'), total(max(size, 0) + ifnull(length(value), 0)) FROM Cache"
        ((entries, size),) = self._run(lambda cache: cache.rows(select))
        return {
            "entries": int(entries),
            "bytes": int(size),
            "limit": self.limit,
            "path": str(self.path),
            "problems": list(self.problems),
        }

    def check(self) -> tuple[int, list[str]]:
        """Read every result and card: how many results there are, and what was damaged (and was removed, as whenever
        damage is met)."""
        rows = self._run(lambda cache: cache.rows("SELECT key FROM Cache WHERE raw = 1 AND typeof(key) = 'text'"))
        names, before = [name.partition("/") for (name,) in rows], list(self.problems)
        for kind, _, key in names:
            self._load(kind, key, touch=False)
        return sum(kind == "result" for kind, *_ in names), [p for p in self.problems if p not in before]

    def clear(self) -> int:
        """Remove all results; returns how many."""
        return self._run(lambda cache: cache.wipe())

    def close(self) -> None:
        """Close this thread's connection; others close with their threads."""
        if self._cache is not None:
            self._cache.close()

    def _cards(self, n: int, series: str = "") -> list[Card]:
        """Headlines and summaries of the results stored last, at most `n`, newest first; of one series, if it is named.
        Its name is the row's tag."""
        of_series = "AND tag = ?2" if series else ""
        select = (
            "SELECT key, value FROM Cache WHERE raw = 1 AND typeof(key) = 'text' AND key GLOB 'card/*' "
            f"{of_series} ORDER BY store_time DESC LIMIT ?1"
        )
        given = (n, series) if series else (n,)
        rows = self._run(lambda cache: cache.rows(select, *given))
        return [card for name, value in rows if (card := self._card(name[5:], value))]

    def _card(self, key: str, value: bytes | None) -> Card | None:
        """A card whose row holds `value`: as it was decoded before, where that was the same to the last byte."""

        def load() -> Card | None:
            card: Card | None = self._load("card", key, touch=False)
            return card

        return load() if value is None else self._decoded.get((key, value), load)

    def _load(self, kind: str, key: str, touch: bool = True) -> Any:
        """A decoded entry, or None; a damaged one is removed, with its other half, and remembered."""
        if kind not in DECODE or not KEY.fullmatch(key):
            return None

        def work(cache: Results) -> Any:
            try:
                payload = _payload(cache, f"{kind}/{key}")
                found = None if payload is None else DECODE[kind](payload, key)
            except (Refused, ValueError) as error:
                with contextlib.suppress(sqlite3.OperationalError, diskcache.Timeout):
                    cache.forget(key)
                self._remember(f"The stored result {key} cannot be used and was removed: {error}.")
                return None
            if found is not None and touch:
                cache.touch_run(key)
            return found

        return self._run(work)

    def _run(self, work: Callable[[Results], T]) -> T:
        """`work` on the database. A damaged one is set aside, and the work is done on a new one."""
        for last in (False, True):
            seen = _identity(self.path)
            try:
                return work(self._open())
            except (sqlite3.Error, diskcache.Timeout, OSError) as error:
                self.close()  # a COMMIT that failed may have left its transaction open, and all others locked out
                # diskcache hides the cause behind its Timeout, and SQLite behind the roll-back it already did
                hidden = isinstance(error, diskcache.Timeout) or "rollback" in str(error)
                cause = (error.__context__ if hidden else None) or error
                moved = _identity(self.path) != seen  # somebody deleted the folder or set it aside just now
                if (kind := not_a_file(self.path / diskcache.core.DBNAME)) and not moved:
                    raise StoreError(
                        f"The results in {self.path} cannot be used: {diskcache.core.DBNAME} is {kind} there. Remove "
                        "it, or set ED_CACHE to another folder."
                    ) from error
                if last or not (moved or is_damage(cause)):
                    raise StoreError(f"The results in {self.path} cannot be used: {reason(cause)}") from error
                self._set_aside(seen, cause)
        raise AssertionError("the second time returns or raises")

    def _open(self) -> Results:
        """The open database; opened anew where somebody deleted the folder or set it aside, for the old one is nobody's
        any more."""
        with self._lock:
            if self._cache is None or self._identity != _identity(self.path):
                self._cache = None
                self._cache = Results(str(self.path), timeout=BUSY_SECONDS, disk=BytesDisk, **DATABASE_SETTINGS)
                self._identity = _identity(self.path)
            return self._cache

    def _set_aside(self, seen: tuple[int, int] | None, cause: BaseException) -> None:
        """Rename the folder, unless another thread or process was faster."""
        with self._lock:
            self._cache = None
            if _identity(self.path) != seen:
                return
            now = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09d}"
            aside = self.path.with_name(f"results.damaged-{now}")
            try:
                self.path.rename(aside)
            except OSError as error:
                raise StoreError(
                    f"The results in {self.path} are damaged and cannot be set aside: {reason(error)}"
                ) from error
            self._remember(
                f"The database of results was damaged ({cause}); it was set aside as {aside.name} and a new one begun."
            )

    def _remember(self, problem: str) -> None:
        self.problems.append(problem)
        log.warning(problem)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Which database file lies there now."""
    try:
        stat = (folder / diskcache.core.DBNAME).stat()
        return stat.st_dev, stat.st_ino
    except OSError:
        return None


def _size(n: int) -> str:
    return f"{n / 2**20:.1f} MiB"


def _digest(name: str, payload: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + payload).digest()


def _payload(cache: Results, name: str) -> bytes | None:
    """An entry's content, its hash checked."""
    for _ in range(LOOKS):
        data: bytes | None = cache.get(name)
        if data is not None:
            if data[:32] != _digest(name, data[32:]):
                raise Refused("its content does not have the hash it was stored with")
            return data[32:]
        if name not in cache:
            return None
    raise Refused("its file is missing")


def _unpack_result(payload: bytes, key: str) -> ProbeResult:
    result = unpack(payload)
    if result.request.key != key or not result.complete:
        raise Refused(f"it is the result of {result.request.key}")
    return result


def _pack_card(result: ProbeResult) -> bytes:
    """One line of JSON, the headline and the summary's dtypes and shapes; then the summary's bytes. Ten times faster to
    read than npz."""
    request = result.request
    headline = {
        "key": request.key,
        "engine": ENGINE_VERSION,
        "series": request.series,
        "probe": request.probe,
        "model": ", ".join(m.name for m in request.models),
        "precision": ", ".join(m.precision for m in request.models),
        "prompt": request.prompts[0].text[:80],
        "n_layers": result.n_layers,
        "n_tokens": result.n_tokens,
        "seconds": result.provenance.get("seconds"),
        "time": result.provenance.get("time"),
    }
    arrays = {name: np.asarray(values) for name, values in result.summary.items()}
    layout = [(name, a.dtype.str, a.shape) for name, a in arrays.items()]
    return canonical_json([headline, layout]).encode() + b"\n" + b"".join(a.tobytes() for a in arrays.values())


def _unpack_card(payload: bytes, key: str) -> Card:
    line, _, rest = payload.partition(b"\n")
    try:
        headline, layout = json.loads(line)
        if headline["key"] != key:
            raise Refused(f"it is the summary of {headline['key']}")
        summary, at = {}, 0
        for name, dtype, shape in layout:
            count = math.prod(shape)
            summary[name] = np.frombuffer(rest, dtype, count, at).reshape(shape)
            at += summary[name].nbytes
    except (TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"not a card ({error})") from error
    return headline, summary


DECODE = {"result": _unpack_result, "card": _unpack_card}


# ---------------------------------------------------------------- diskcache, made to distrust what lies on the disk

# diskcache believes its database: it unpickles what a row declares a pickle, also where only bytes were ever stored
# (CVE-2025-69872, no fixed release), opens and deletes whatever path a row names, sets any attribute and runs any
# PRAGMA a settings row names, and counts sizes as stated. `BytesDisk` and `Results` believe none of it: whoever can
# write the folder can spoil what is in it, and nothing more.

# diskcache's own culling is off: it deletes ten entries at a time, the newest among them. Its policy only gives an
# index over store_time.
DATABASE_SETTINGS = DEFAULT_SETTINGS | {"cull_limit": 0, "eviction_policy": "least-recently-stored"}
ENTRY = re.compile(r"(?:result|card)/[0-9a-f]{32}")
VALUE_FILE = re.compile(r"[0-9a-f]{2}[/\\][0-9a-f]{30}\.val")
BYTES = "size + ifnull(length(value), 0)"  # of one row: in its value file and in the database
PLAUSIBLE = "(typeof(size) = 'integer' AND size BETWEEN 0 AND ?1)"


class Refused(Exception):
    """A row or an entry that this program did not write like this."""


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Bytes under text keys, in the row or in a value file inside the folder. Nothing is ever pickled or unpickled."""

    def __init__(self, directory: str, **_stored_settings: Any):
        super().__init__(directory, min_file_size=DATABASE_SETTINGS["disk_min_file_size"])
        self.written = threading.local()

    def put(self, key: Any) -> tuple[Any, bool]:
        if type(key) is not str:
            raise TypeError(f"keys are text, not {type(key).__name__}")
        put: tuple[Any, bool] = super().put(key)
        return put

    def get(self, key: Any, raw: Any) -> str:
        if raw != 1 or type(key) is not str:
            raise Refused("its key is not plain text")
        return key

    def store(self, value: Any, read: Any, key: Any = UNKNOWN) -> tuple[Any, ...]:
        if type(value) is not bytes or read:
            raise TypeError(f"values are bytes, not {type(value).__name__}")
        stored: tuple[Any, ...] = super().store(value, read, key)
        return stored

    def fetch(self, mode: Any, filename: Any, value: Any, read: Any) -> bytes:
        if mode == MODE_RAW and type(value) is bytes:
            return value
        if mode == MODE_BINARY and _is_value_file(filename):
            found: bytes = super().fetch(mode, filename, value, False)
            return found
        raise Refused(f"its row was tampered with (mode {mode!r}, file {filename!r})")

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        name = os.urandom(16).hex()
        self.written.name = os.path.join(name[:2], name[2:] + ".val")
        return self.written.name, os.path.join(self._directory, self.written.name)

    def remove(self, file_path: Any) -> None:
        if _is_value_file(file_path):
            with contextlib.suppress(OSError):  # another process was faster
                os.remove(os.path.join(self._directory, file_path))
        else:
            log.warning("A row of the results names the file %r: not touched.", file_path)


class _EndsWithThread:
    """Lies among what a thread has for itself, and closes its connection when the thread ends. A connection refers to
    itself: else it would stay open, megabytes of the database in its memory, until the next full collection; and pages
    are drawn in a thread each."""

    def __init__(self, connection: sqlite3.Connection):
        self.connection = connection

    def __del__(
        self,
        suppress: type[contextlib.suppress] = contextlib.suppress,  # modules are empty at the program's end
        error: type[sqlite3.Error] = sqlite3.Error,
    ) -> None:
        with suppress(error):  # it belongs to another thread: at the program's end, too
            self.connection.close()


class Results(diskcache.Cache):  # type: ignore[misc]  # diskcache has no types
    """The database, which does not believe its settings, and with an eviction that knows which two entries belong
    together."""

    swept = 0.0  # when value files were last looked through

    @property
    def _con(self) -> sqlite3.Connection:
        try:
            connection: sqlite3.Connection = super()._con
        except (TypeError, AttributeError) as error:  # a settings key that is not text
            raise sqlite3.DatabaseError("its settings are damaged") from error
        if not hasattr(self._local, "ends") or self._local.ends.connection is not connection:
            self._local.ends = _EndsWithThread(connection)
        return connection

    def reset(self, key: Any, value: Any = ENOVAL, update: bool = True) -> Any:
        """diskcache sets attributes and runs PRAGMAs from stored settings: ours are constants, and no others exist."""
        if key not in DATABASE_SETTINGS and key not in METADATA:
            raise sqlite3.DatabaseError(f"its settings name {key!r}")
        return super().reset(key, DATABASE_SETTINGS.get(key, value), update)

    def set(self, key: Any, value: Any, **options: Any) -> bool:
        """Leaves no file behind when it fails: on a full disk a torn one would keep the disk full."""
        self._disk.written.name = None
        try:
            done: bool = super().set(key, value, **options)
            return done
        except BaseException:
            if self._disk.written.name:
                self._disk.remove(self._disk.written.name)
            raise

    def rows(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._sql(sql, arguments).fetchall()
        return found

    def touch_run(self, key: str) -> None:
        """Note the use of a result for eviction; reading goes on where that cannot be written."""
        with contextlib.suppress(sqlite3.OperationalError):
            self._sql(
                "UPDATE Cache SET access_time = ? WHERE key IN (?, ?)", (time.time(), f"result/{key}", f"card/{key}")
            )

    def forget(self, key: str) -> None:
        """Delete both entries of a result."""
        with self.transact():
            self.delete(f"result/{key}")
            self.delete(f"card/{key}")

    def make_room(self, limit: int, keep: str) -> int:
        """Delete results, least recently used first, until at most `limit` bytes are left; `keep` stays. Rows that
        cannot be ours (a name or a size nobody here writes: a negative one would switch the limit off) go first;
        returns how many those were."""
        select = f"SELECT total(CASE WHEN {PLAUSIBLE} THEN {BYTES} ELSE ?1 + 1 END) <= ?1 FROM Cache"
        if self.rows(select, limit) == [(1,)]:
            return 0
        runs: dict[str, list[tuple[Any, ...]]] = {}
        total, strange = 0, []
        with self._transact() as (sql, cleanup):
            select = f"SELECT rowid, filename, key, {BYTES}, raw = 1 AND {PLAUSIBLE} FROM Cache ORDER BY access_time"
            for rowid, filename, name, size, plausible in sql(select, (limit,)).fetchall():
                if plausible and type(name) is str and ENTRY.fullmatch(name):
                    runs.setdefault(name[-32:], []).append((rowid, filename, size))
                    total += size
                else:
                    strange.append((rowid, filename, 0))
            doomed = list(strange)
            for key, rows in runs.items():
                if total > limit and key != keep:
                    doomed += rows
                    total -= sum(row[2] for row in rows)
            for rowid, filename, _ in doomed:
                sql("DELETE FROM Cache WHERE rowid = ?", (rowid,))
                cleanup(filename)
        if time.time() - self.swept > UNNAMED_SECONDS:
            self.sweep()
        return len(strange)

    def sweep(self) -> None:
        """Delete value files without a row, of processes that were killed in between; a young one may get its row
        yet."""
        self.swept = time.time()
        named = {name for (name,) in self.rows("SELECT filename FROM Cache WHERE filename IS NOT NULL")}
        for file in Path(self.directory).glob("*/*.val"):
            if (name := str(file.relative_to(self.directory))) not in named:
                with contextlib.suppress(OSError):  # another process was faster
                    if time.time() - file.stat().st_mtime > UNNAMED_SECONDS:
                        self._disk.remove(name)

    def wipe(self) -> int:
        """Delete every value file, those a killed process left behind included, then every row: on a full disk the
        files make the room that deleting rows needs."""
        folder = Path(self.directory)
        for file in folder.glob("*/*.val"):
            self._disk.remove(str(file.relative_to(folder)))
        with self._transact() as (sql, _):
            entries = int(sql("SELECT count(*) FROM Cache WHERE key GLOB 'result/*'").fetchone()[0])
            sql("DELETE FROM Cache")
        return entries


def _is_value_file(name: Any) -> bool:
    return type(name) is str and VALUE_FILE.fullmatch(name) is not None
