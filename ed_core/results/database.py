"""diskcache, made to distrust what lies on the disk. Torch-free; used by `ed_core.results.store` alone.

diskcache believes its database: it unpickles what a row declares a pickle, also where only bytes were ever stored
(CVE-2025-69872, no fixed release), opens and deletes whatever path a row names, sets any attribute and runs any PRAGMA
a settings row names, and counts sizes as stated. `BytesDisk` and `Results` believe none of it: whoever can write the
folder can spoil what is in it, and nothing more."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import DEFAULT_SETTINGS, ENOVAL, METADATA, MODE_BINARY, MODE_RAW, UNKNOWN

log = logging.getLogger(__name__)

# diskcache's own culling is off: it deletes ten entries at a time, the newest among them. Its policy only gives an
# index over store_time.
SETTINGS = DEFAULT_SETTINGS | {"cull_limit": 0, "eviction_policy": "least-recently-stored"}
ENTRY = re.compile(r"(?:result|card)/[0-9a-f]{32}")
VALUE_FILE = re.compile(r"[0-9a-f]{2}[/\\][0-9a-f]{30}\.val")
BYTES = "size + ifnull(length(value), 0)"  # of one row: in its value file and in the database
PLAUSIBLE = "(typeof(size) = 'integer' AND size BETWEEN 0 AND ?1)"


class Refused(Exception):
    """A row or an entry that this program did not write like this."""


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Bytes under text keys, in the row or in a value file inside the folder. Nothing is ever pickled or unpickled."""

    def __init__(self, directory: str, **_stored_settings: Any):
        super().__init__(directory, min_file_size=SETTINGS["disk_min_file_size"])
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
        if key not in SETTINGS and key not in METADATA:
            raise sqlite3.DatabaseError(f"its settings name {key!r}")
        return super().reset(key, SETTINGS.get(key, value), update)

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
        return len(strange)

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
