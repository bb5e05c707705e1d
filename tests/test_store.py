"""The store believes nothing it finds on the disk, says what is wrong, and loses nothing that was not damaged."""

from __future__ import annotations

import hashlib
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ed_core import probes
from ed_core.errors import StoreError
from ed_core.results import store as store_module
from ed_core.results.aggregate import summarize
from ed_core.results.store import Store
from ed_core.results.wire import pack
from ed_core.sweeps.recorder import Recorder
from ed_core.types import Encoding, ModelSpec, Prompt

REPOSITORY = Path(__file__).resolve().parent.parent


@cache
def make_result(i: int = 0, n_layers: int = 16, n_tokens: int = 64):
    """A complete result of about 45 KB (its bytes lie in a value file); 2 layers × 4 tokens lie in the row itself."""
    probe = probes.find("contributions")
    request = probe().request(ModelSpec("org/some-model", precision="bf16"), Prompt(f"prompt {i} " + "x" * 100))
    record = Recorder(
        request,
        probe.measures,
        Encoding(tuple(range(n_tokens)), tuple(f"t{n}" for n in range(n_tokens))),
        n_layers,
    )
    for spec in probe.measures:
        record.allocate(spec.name, (n_layers + (spec.dims[0] == "depth"), n_tokens))
        record.write(
            spec.name, slice(None), np.random.default_rng(i).random(record.arrays[spec.name].shape, np.float32)
        )
    record.provenance.update(seconds=1.5, time="2026-11-21T12:00:00Z")
    return summarize(record.result(complete=True))


def key_of(result) -> str:
    return result.request.key


def execute(store: Store, sql: str, *arguments) -> None:
    """What somebody who can write the folder might do to the database."""
    with closing(sqlite3.connect(store.path / "cache.db", isolation_level=None)) as db:
        assert db.execute(sql, arguments).rowcount, "the row to tamper with is not there"


def set_row(store: Store, name: str, column: str, value) -> None:
    execute(store, f"UPDATE Cache SET {column} = ? WHERE key = ?", value, name)


def value_file(store: Store, name: str) -> Path:
    with closing(sqlite3.connect(store.path / "cache.db")) as db:
        return store.path / db.execute("SELECT filename FROM Cache WHERE key = ?", (name,)).fetchone()[0]


def reseal(name: str, payload: bytes) -> bytes:
    """An entry's bytes under their right hash: whoever may write the folder can forge one."""
    return hashlib.sha256(name.encode() + b"\0" + payload).digest() + payload


class Bomb:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def result():
    return make_result()


@pytest.fixture
def child():
    """`child(code, *arguments)`: another Python on this repository, started."""

    def start(code: str, *arguments, **options):
        prelude = f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / 'tests')!r}]\n"
        command = [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    return start


def output(process) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


# ---- what it is for


@pytest.mark.parametrize("size", [(2, 4), (16, 64)], ids=["in the row", "in a file"])
def test_a_result_comes_back_equal(store, size):
    result = make_result(0, *size)
    store.put(result)
    assert pack(store.get(key_of(result))) == pack(result)
    assert bool(list(store.path.glob("*/*.val"))) == (size == (16, 64))
    assert store.get("0" * 32) is None and store.summary("0" * 32) is None and store.headline("0" * 32) is None
    assert store.get("../../etc/passwd") is None and store.get("\ud800") is None


def test_the_summary_and_the_headline_are_read_without_the_arrays(store, result, monkeypatch):
    store.put(result)
    value_file(store, f"result/{key_of(result)}").unlink()
    monkeypatch.setattr(store_module, "unpack", None)
    summary = store.summary(key_of(result))
    assert summary.keys() == result.summary.keys()
    for name, values in result.summary.items():
        assert summary[name].dtype == values.dtype and np.array_equal(summary[name], values), name
    [headline] = store.recent()
    assert headline == store.headline(key_of(result))
    expected = dict(
        key=key_of(result),
        probe="contributions",
        model="some-model",
        precision="bf16",
        prompt=result.request.prompts[0].text[:80],
        n_layers=16,
        n_tokens=64,
        seconds=1.5,
        time="2026-11-21T12:00:00Z",
    )
    assert expected.items() <= headline.items()


def test_recent_is_newest_first_and_leaves_out_engines_with_other_numbers(store, monkeypatch):
    results = [make_result(i, 2, 4) for i in range(5)]
    for result in results:
        store.put(result)
    assert [h["key"] for h in store.recent(3)] == [key_of(r) for r in results[:1:-1]]
    monkeypatch.setattr(store_module, "ENGINE_VERSION", 99)
    assert store.recent() == []


def test_only_complete_results_are_stored(store, result):
    with pytest.raises(ValueError, match="complete"):
        store.put(replace(result, complete=False))
    forged = pack(replace(result, complete=False))
    store.put(result)
    value_file(store, name := f"result/{key_of(result)}").write_bytes(reseal(name, forged))
    assert store.get(key_of(result)) is None


def test_clear_removes_results_and_leftovers_and_nothing_kept(store):
    (store.root / "kept").mkdir()
    (store.root / "kept" / "study.npz").write_bytes(b"mine")
    for i in range(3):
        store.put(make_result(i))
    leftover = store.path / "ab" / ("0" * 30 + ".val")  # of a process killed between file and row
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_bytes(b"torn")
    assert store.info()["entries"] == 3 and store.info()["bytes"] > 3 * 40_000
    assert store.clear() == 3
    assert store.info()["entries"] == store.info()["bytes"] == 0 and not list(store.path.rglob("*.val"))
    assert (store.root / "kept" / "study.npz").read_bytes() == b"mine"


# ---- damage


def is_set_aside(store: Store, result, words: str) -> None:
    assert store.get(key_of(result)) is None
    assert words in store.problems[-1] and key_of(result) in store.info()["problems"][-1]
    assert store.info()["entries"] == 0 and store.recent() == []
    store.put(result)
    assert store.get(key_of(result)) is not None


@pytest.mark.parametrize("kept_bytes", [0, 40_000])
def test_a_truncated_value_file(store, result, kept_bytes):
    store.put(result)
    file = value_file(store, f"result/{key_of(result)}")
    file.write_bytes(file.read_bytes()[:kept_bytes])
    is_set_aside(store, result, "hash")


@pytest.mark.parametrize("at", [0, 20_000])
def test_a_flipped_bit(store, result, at):
    store.put(result)
    file = value_file(store, f"result/{key_of(result)}")
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)
    is_set_aside(store, result, "hash")


@pytest.mark.parametrize("resealed", [False, True], ids=["as it is", "with a new hash"])
@pytest.mark.parametrize("kind", ["result", "card"])
def test_a_swapped_row_is_not_served(store, kind, resealed):
    mine, other = make_result(1, 2, 4), make_result(2, 2, 4)
    store.put(mine), store.put(other)
    name, other_name = f"{kind}/{key_of(mine)}", f"{kind}/{key_of(other)}"
    with closing(sqlite3.connect(store.path / "cache.db")) as db:
        data = db.execute("SELECT value FROM Cache WHERE key = ?", (other_name,)).fetchone()[0]
    set_row(store, name, "value", reseal(name, data[32:]) if resealed else data)
    read = store.get if kind == "result" else store.summary
    assert read(key_of(mine)) is None
    assert (f"of {key_of(other)}" if resealed else "hash") in store.problems[-1]
    assert read(key_of(other)) is not None


# ---- malice


@pytest.mark.parametrize("column", ["value", "filename"])
@pytest.mark.parametrize("kind", ["result", "card"])
def test_a_pickle_is_never_executed(store, result, tmp_path, kind, column):
    store.put(result)
    name, sprung = f"{kind}/{key_of(result)}", tmp_path / "sprung"
    bomb = pickle.dumps(Bomb(sprung))
    if column == "filename":
        file = store.path / "ab" / ("1" * 30 + ".val")
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bomb)
    execute(
        store,
        "UPDATE Cache SET mode = 4, value = ?, filename = ? WHERE key = ?",
        bomb if column == "value" else None,
        "ab/" + "1" * 30 + ".val" if column == "filename" else None,
        name,
    )
    reader = Store(tmp_path)
    assert reader.info()["entries"] == 1
    assert [h["key"] for h in reader.recent()] == ([key_of(result)] if kind == "result" else [])
    assert (reader.get if kind == "result" else reader.summary)(key_of(result)) is None
    assert not sprung.exists()
    pickle.loads(bomb)
    assert sprung.exists(), "the bomb is a dud"


@pytest.mark.parametrize("where", ["../../secret.txt", "absolute"])
def test_a_file_outside_the_folder_is_neither_read_nor_deleted(tmp_path, where):
    store, secret = Store(tmp_path / "cache", size_limit=250_000), tmp_path / "secret.txt"
    result = make_result()
    name = f"result/{key_of(result)}"
    outside = str(secret) if where == "absolute" else where
    target = (store.path / outside).resolve()
    forged = reseal(name, pack(result))  # even a perfect one is not read from there
    for harm in (
        lambda: store.get(key_of(result)),  # and removed
        lambda: [store.put(make_result(i)) for i in range(1, 9)],  # evicted
        lambda: store.put(result),  # replaced
        lambda: store.clear(),
    ):
        store.put(result)
        set_row(store, name, "filename", outside)
        target.write_bytes(forged)
        os.utime(target, (1, 1))
        harm()
        assert target.read_bytes() == forged
    store.put(result)
    set_row(store, name, "filename", outside)
    assert store.get(key_of(result)) is None and "tampered" in store.problems[-1]


# ---- a damaged database


def damage_header(db: Path):
    db.write_bytes(b"not a database at all, far from it" * 100)


def damage_middle(db: Path):
    data = bytearray(db.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    db.write_bytes(data)


def truncate(db: Path):
    db.write_bytes(db.read_bytes()[: db.stat().st_size // 2 // 4096 * 4096 + 100])


@pytest.mark.parametrize("damage", [damage_header, damage_middle, truncate])
@pytest.mark.parametrize("while_open", [False, True], ids=["before it is opened", "while it is open"])
def test_a_damaged_database_is_set_aside_and_begun_anew(tmp_path, damage, while_open):
    store, results = Store(tmp_path), [make_result(i, 2, 4) for i in range(12)]
    for result in results:
        store.put(result)
    store.close()  # the last connection: everything is in cache.db itself
    damage(tmp_path / "results" / "cache.db")
    reader = store if while_open else Store(tmp_path)
    assert [reader.get(key_of(r)) for r in results] == [None] * 12
    for result in results:
        reader.put(result)
    assert all(reader.get(key_of(r)) for r in results)
    [aside] = tmp_path.glob("results.damaged-*")
    assert aside.name in reader.problems[-1] and (aside / "cache.db").exists()


# ---- no room, no permission


@pytest.mark.process
def test_a_full_disk_when_the_file_is_written(store, result, child):
    """A real write error, from a limit on the size of files; the result already there stays, and no torn file is left
    behind."""
    store.put(make_result(1))
    before = sorted(store.path.glob("*/*.val"))
    code = """
        import resource, signal
        from test_store import *
        store = Store(sys.argv[1])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.dont_write_bytecode = True  # of what it imports now, it would be cut as well, and stay so
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        try:
            store.put(make_result())
        except StoreError as error:
            print(error)
    """
    message = output(child(code, store.root))
    assert "disk is full" in message and "ED_CACHE" in message and message.count("\n") == 1
    assert sorted(store.path.glob("*/*.val")) == before
    assert store.get(key_of(result)) is None and store.get(key_of(make_result(1))) and not store.problems


def test_a_result_larger_than_a_quarter_of_the_limit_is_refused(tmp_path, result):
    store = Store(tmp_path, size_limit=4 * len(pack(result)) - 4)
    small = make_result(1, 2, 4)
    store.put(small)
    with pytest.raises(StoreError, match="quarter of the store's limit.*not stored.*ED_CACHE_LIMIT"):
        store.put(result)
    assert store.get(key_of(small)) and store.get(key_of(result)) is None


def test_a_busy_database_is_reported_and_reading_goes_on(store, result, monkeypatch, tmp_path):
    store.put(result)
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.1)
    reader = Store(tmp_path)
    with closing(sqlite3.connect(store.path / "cache.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert reader.get(key_of(result)) and reader.recent()
        for size in ((16, 64), (2, 4)):
            with pytest.raises(StoreError, match="another process"):
                reader.put(make_result(1, *size))
    assert len(list(store.path.glob("*/*.val"))) == 1
    reader.put(make_result(1))


# ---- eviction


def test_eviction_keeps_the_newest_and_the_used_and_all_that_is_kept(tmp_path):
    kept = tmp_path / "kept" / "study.npz"
    kept.parent.mkdir()
    kept.write_bytes(b"mine" * 1_000_000)
    store = Store(tmp_path, size_limit=500_000)
    used, summed = make_result(100), make_result(101)
    store.put(used), store.put(summed)
    old, young = (store.path / "ab" / f"{name * 30}.val" for name in "01")
    young.parent.mkdir(exist_ok=True)
    old.write_bytes(b"torn"), young.write_bytes(b"torn")
    os.utime(old, (0, time.time() - 7200))
    for i in range(20):
        store.put(make_result(i))
        assert store.get(key_of(used)) and store.summary(key_of(summed)) and store.get(key_of(make_result(i)))
        assert store.info()["bytes"] <= 500_000
    entries = store.info()["entries"]
    assert entries >= 6
    assert [h["key"] for h in store.recent(entries - 2)] == [
        key_of(make_result(i)) for i in range(19, 21 - entries, -1)
    ]
    assert store.get(key_of(make_result(5))) is None and store.headline(key_of(make_result(5))) is None
    assert young.exists() and not old.exists(), "of a process killed between file and row"
    assert (
        len(list(store.path.glob("*/*.val"))) == entries + 1 and kept.stat().st_size == 4_000_000 and not store.problems
    )


# ---- several threads, several processes


HAMMER = """
    from test_store import *
    import random, threading
    store, results = Store(sys.argv[1]), [make_result(i) for i in range(6)]
    originals = {key_of(r): pack(r) for r in results}
    errors = []
    def work(seed):
        try:
            rng, mine = random.Random(seed), set()
            for step in range(15):
                result = rng.choice(results)
                if rng.random() < 0.5:
                    store.put(result), mine.add(key_of(result))
                found = store.get(key_of(result))
                assert found is not None or key_of(result) not in mine, "lost"
                assert found is None or pack(found) == originals[key_of(result)], "wrong"
                assert len(store.recent()) <= 6
        except BaseException as error:
            errors.append(repr(error))
    threads = [threading.Thread(target=work, args=(n + 10 * int(sys.argv[2]),)) for n in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    print(errors + list(store.problems))
"""


@pytest.mark.process
def test_two_processes_and_eight_threads_on_the_same_keys(tmp_path, child):
    """Both begin on an empty folder at the same moment, so that they also create the database together."""
    for process in [child(HAMMER, tmp_path, n) for n in range(2)]:
        assert output(process).strip() == "[]"
    store = Store(tmp_path)
    assert store.info()["entries"] == 6 and len(list(store.path.glob("*/*.val"))) == 6
