"""The durability and import benchmarks count rightly: small runs hold, and a writer or an import that is broken is
caught."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ed_core.bench import durability, imports
from ed_core.cases import bundle
from ed_core.cases.kept import Kept
from ed_core.cases.safe_folder import SafeFolder

ROOT = Path(__file__).parent.parent


@pytest.fixture
def kept(tmp_path) -> Kept:
    return Kept(tmp_path, shipped=None)


def test_killed_writers_lose_nothing(kept):
    counts, _ = durability.run(kept, 10, random.Random(1))
    assert counts["kills"] == 10 and counts["reported"] > 0 and counts["lost"] == counts["torn"] == 0
    assert all(row.ok for row in durability.rows(counts, 1.0))


def test_a_writer_that_writes_in_place_is_caught(kept, monkeypatch):
    def write(self, file, data):
        with file.open("wb") as handle:
            handle.write(data[:1000])
            handle.flush()
            time.sleep(0.05)
            handle.write(data[1000:])

    monkeypatch.setattr(SafeFolder, "write", write)
    counts, _ = durability.run(kept, 10, random.Random(1))
    assert counts["torn"] and not all(row.ok for row in durability.rows(counts, 1.0))


def test_a_writer_that_reports_too_early_is_caught(kept, monkeypatch):
    monkeypatch.setattr(Kept, "save", lambda self, case, opened: "")
    counts, _ = durability.run(kept, 10, random.Random(1))
    assert counts["lost"] and not all(row.ok for row in durability.rows(counts, 1.0))


def test_hostile_imports_in_a_process_without_type_checks():
    """The tests' own type checks refuse much before the program does: here they are off, as for users."""
    code = "from ed_core.bench import imports; rows = imports.measure(); print(rows); assert all(r.ok for r in rows); import sys; assert 'torch' not in sys.modules"
    env = {"ED_BENCH_IMPORTS": "130", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr[-2000:]
    assert "130 hostile imports" in out.stdout


def test_an_import_that_believes_too_much_is_caught(tmp_path, kept, monkeypatch):
    from dataclasses import replace

    files = tmp_path / "bundles"
    files.mkdir()
    imports.make(files, 4)
    original = bundle.drawable

    def believing(data):
        try:
            return original(data)
        except bundle.ImportRefused:
            return replace(imports.good(), title="Something else")

    monkeypatch.setattr(bundle, "drawable", believing)
    seen, grown, slowest = imports.run(sorted(files.iterdir()), kept)
    assert (
        any(what.startswith("read as something else") for what in seen) and not imports.rows(seen, grown, slowest)[0].ok
    )
    assert imports.rows(Counter(refused=5, **{"left behind": 0}), 1.0, 0.1)[0].ok
    assert not imports.rows(Counter(refused=5, **{"left behind": 0}), 1000.0, 0.1)[1].ok
