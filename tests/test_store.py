"""The store gives back what was put, notices damage, and loses nothing that was not damaged."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ed_core import probes
from ed_core.results.aggregate import summarize
from ed_core.results.store import Store
from ed_core.results.wire import pack
from ed_core.sweeps.recorder import Recorder
from ed_core.types import Encoding, ModelSpec, Prompt

TESTS = Path(__file__).resolve().parent


@cache
def make_result(i: int = 0, n_layers: int = 16, n_tokens: int = 64):
    """A complete result of about 45 kB (in a file of its own); 2 layers × 4 tokens are a row of the database."""
    probe = probes.find("contributions")
    request = probe().request(ModelSpec("org/some-model", precision="bf16"), Prompt(f"prompt {i} " + "x" * 100))
    encoding = Encoding(tuple(range(n_tokens)), tuple(f"t{n}" for n in range(n_tokens)))
    record, rng = Recorder(request, probe.measures, encoding, n_layers), np.random.default_rng(i)
    for spec in probe.measures:
        record.allocate(spec.name)
        record.write(spec.name, slice(None), rng.random(record.arrays[spec.name].shape, np.float32))
    record.provenance.update(seconds=1.5, time="2026-11-21T12:00:00Z")
    return summarize(record.result(complete=True))


def key_of(result) -> str:
    return result.request.key


def value_file(store: Store) -> Path:
    [file] = store.path.glob("data/*/*/*.val")
    return file


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def result():
    return make_result()


@pytest.mark.parametrize("size", [(2, 4), (16, 64)], ids=["in the row", "in a file"])
def test_a_result_comes_back_equal(store, size):
    result = make_result(0, *size)
    stamps = [store.put(result) or store.stamp(key_of(result)) for _ in range(2)]
    assert pack(store.get(key_of(result))) == pack(result) and len({None, *stamps}) == 3
    assert store.keys(key_of(result)[:8]) == [key_of(result)]
    assert store.get("0" * 32) is None and store.get("../../etc/passwd") is None


def test_a_list_has_what_each_result_says_in_short(store, result):
    store.put(result)
    [(key, summary)] = store.series(result.request.series).items()
    assert key == key_of(result) and summary.keys() == result.summary.keys()
    for name, values in result.summary.items():
        assert summary[name].dtype == values.dtype and np.array_equal(summary[name], values), name
    expected = {"key": key, "model": "some-model", "precision": "bf16", "n_tokens": 64, "seconds": 1.5}
    assert expected.items() <= store.recent()[0].items() and not store.series("other")


def test_recent_is_newest_first_and_leaves_out_engines_with_other_numbers(store, monkeypatch):
    results = [make_result(i, 2, 4) for i in range(5)]
    for result in [*results, results[0]]:
        store.put(result)
    assert [h["key"] for h in store.recent(3)] == [key_of(r) for r in (results[0], results[4], results[3])]
    assert list(store.series(results[0].request.series, 3)) == [h["key"] for h in store.recent(3)]
    monkeypatch.setattr("ed_core.results.store.ENGINE_VERSION", 99)
    assert store.recent() == []


def test_cleared_results_are_gone_and_nothing_kept_is(store, tmp_path):
    mine = tmp_path / "study.npz"
    mine.write_bytes(b"mine")
    for i in range(3):
        store.put(make_result(i))
    assert store.info()["entries"] == len(store.recent()) == 3 and store.info()["bytes"] > 3 * 40_000
    leftover = store.path / "data" / "ab" / ("0" * 30 + ".val")  # of a process killed between file and row
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_bytes(b"torn")
    assert store.clear() == 3 and not store.recent() and not list(store.path.rglob("*.val"))
    assert mine.read_bytes() == b"mine"


# ---------------------------------------------------------------- damage


def truncated(data: bytes) -> bytes:
    return data[:40_000]


def flipped(data: bytes) -> bytes:
    return data[:20_000] + bytes([data[20_000] ^ 4]) + data[20_001:]


@pytest.mark.parametrize("damage", [truncated, flipped])
def test_a_damaged_entry_is_removed_noted_and_stored_again(store, result, damage):
    store.put(result)
    value_file(store).write_bytes(damage(value_file(store).read_bytes()))
    assert store.get(key_of(result)) is None and key_of(result) in store.info()["problems"][0]
    assert key_of(result) not in {h["key"] for h in store.recent()}
    store.put(result)
    assert store.get(key_of(result)) is not None


class Bomb:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("column", ["value", "filename"])
def test_a_pickle_is_never_executed(store, result, tmp_path, column):
    store.put(result)
    sprung = tmp_path / "sprung"
    bomb = pickle.dumps(Bomb(sprung))
    value_file(store).write_bytes(bomb)
    sql, given = "UPDATE Cache SET mode = 4", []
    if column == "value":
        sql, given = f"{sql}, filename = NULL, value = ?", [bomb]
    with closing(sqlite3.connect(store.path / "data" / "cache.db", isolation_level=None)) as db:
        assert db.execute(sql, given).rowcount
    assert Store(tmp_path).get(key_of(result)) is None and not sprung.exists()
    pickle.loads(bomb)
    assert sprung.exists(), "the bomb is a dud"


def damage_header(db: Path):
    db.write_bytes(b"not a database at all, far from it" * 100)


def truncate(db: Path):
    db.write_bytes(db.read_bytes()[: db.stat().st_size // 2 // 4096 * 4096 + 100])


@pytest.mark.parametrize("damage", [damage_header, truncate])
@pytest.mark.parametrize("database", ["data", "cards"])
def test_a_damaged_database_is_renamed_and_a_new_one_begun(store, tmp_path, damage, database):
    results = [make_result(i, 2, 4) for i in range(12)]
    for result in results:
        store.put(result)
    store.close()  # the last connection: everything is in cache.db itself
    damage(store.path / database / "cache.db")
    for result in results:
        store.put(result)
    assert all(store.get(key_of(r)) for r in results) and len(store.recent()) == 12
    [renamed] = tmp_path.glob("results.damaged-*")
    assert renamed.name in store.problems[-1] and (renamed / "data" / "cache.db").exists()


def test_the_oldest_results_make_room(tmp_path):
    store = Store(tmp_path, size_limit=1_000_000)
    for i in range(40):
        store.put(make_result(i))
        assert store.get(key_of(make_result(i)))
    entries = store.info()["entries"]
    newest = [key_of(make_result(i)) for i in range(39, 39 - entries, -1)]
    assert 10 <= entries < 30 and [h["key"] for h in store.recent(99)] == newest and not store.problems


HAMMER = """
from test_store import *
import random
from concurrent.futures import ThreadPoolExecutor
store, results = Store(sys.argv[1]), [make_result(i) for i in range(6)]
originals = {key_of(r): pack(r) for r in results}
def work(seed):
    rng, mine = random.Random(seed), set()
    for step in range(15):
        result = rng.choice(results)
        if rng.random() < 0.5:
            store.put(result), mine.add(key_of(result))
        found = store.get(key_of(result))
        assert found is not None or key_of(result) not in mine, "lost"
        assert found is None or pack(found) == originals[key_of(result)], "wrong"
        assert len(store.recent()) <= 6
with ThreadPoolExecutor(4) as threads:
    list(threads.map(work, [n + 10 * int(sys.argv[2]) for n in range(4)]))
assert not list(store.problems), store.problems
"""


@pytest.mark.process
def test_two_processes_and_eight_threads_on_the_same_keys(tmp_path):
    """Both begin on an empty folder at the same moment, so that they also create the databases together."""
    here = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent)))}
    commands = [[sys.executable, "-c", HAMMER, str(tmp_path), str(n)] for n in range(2)]
    for process in [subprocess.Popen(one, env=here, stderr=subprocess.PIPE, text=True) for one in commands]:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    assert Store(tmp_path).info()["entries"] == 6
