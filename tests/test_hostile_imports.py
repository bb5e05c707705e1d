"""A thousand bundles that nobody should open, imported into one folder: each is refused or read as exactly the
original, in bounded memory.

They are imported by a process of its own, as the app would: only there are the tests' type checks off, which refuse
much before the program does, and its memory is nobody else's."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from archives import handmade, mutated
from kept_cases import case

from ed_core.cases import bundle, case_study
from ed_core.cases.kept import Kept
from ed_core.errors import ImportRefused

ROOT = Path(__file__).parent.parent
MEMORY = 60  # MiB above what importing the good one takes
HARMLESS = {"refused", "read as it was"}


def good() -> case_study.Case:
    return case(
        "Good", ("layer_skip", "contributions", "continuation"), notes="n" * 500, tags=["a"], now=1e9, id="goodgoodgo"
    )


def make(folder: Path, n: int) -> None:
    """Write `n` hostile bundles: all that are made by hand, then damaged ones."""
    data = bundle.encode(good())
    by_hand = list(islice(handmade(data), n))
    for i, (_, hostile) in enumerate([*by_hand, *mutated(data, n - len(by_hand))]):
        (folder / f"{i:05}.edcase").write_bytes(hostile)


@pytest.mark.parametrize("n", [130, pytest.param(1000, marks=pytest.mark.slow)])
def test_hostile_imports_in_a_process_without_type_checks(tmp_path, n):
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    make(bundles, n)
    code = (
        "import json, sys, test_hostile_imports as t; print(json.dumps([*t.take_in(*sys.argv[1:]), "
        "'torch' in sys.modules]))"
    )
    env = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", code, str(bundles), str(tmp_path / "cache")]
    out = subprocess.run(command, env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    seen, grown, torch = json.loads(out.stdout)
    assert set(seen) <= HARMLESS and sum(seen.values()) == n and seen["refused"] > n / 2, seen
    assert grown <= MEMORY and not torch


def test_an_import_that_believes_too_much_is_caught(tmp_path, monkeypatch):
    files, original = tmp_path / "bundles", bundle.drawable
    files.mkdir()
    make(files, 4)

    def believing(data):
        try:
            return original(data)
        except ImportRefused:
            return replace(good(), title="Something else")

    monkeypatch.setattr(bundle, "drawable", believing)
    seen, _ = take_in(files, tmp_path / "cache")
    assert any(what.startswith("read as something else") for what in seen)


def take_in(files: Path | str, root: Path | str) -> tuple[Counter, float]:
    """What became of the bundles in a folder, imported one after another; the growth of this process' peak memory in
    MiB."""
    one, kept = good(), Kept(root, shipped=None)
    bundle.drawable(bundle.encode(one))  # imports and caches
    before, seen = _peak(), Counter()
    for file in sorted(Path(files).iterdir()):
        try:
            taken, _ = kept.take_in(file.read_bytes())
            seen["read as it was" if replace(taken, id=one.id) == one else f"read as something else: {file.name}"] += 1
        except ImportRefused as error:
            short = "\n" not in str(error) and len(str(error)) < 500
            seen["refused" if short else f"refused at length: {file.name}"] += 1
        except Exception as error:  # that there is none is what is looked for
            seen[f"crashed on {file.name} with {type(error).__name__}: {error}"] += 1
    for file in kept.root.rglob("*"):
        if file.is_file() and file.name not in (".lock", f"{one.id}.edcase"):
            seen[f"left behind: {file.name}"] += 1
    return seen, _peak() - before


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
