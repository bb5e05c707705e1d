"""The list of defects in `mutants.toml` fits the code as it is now, and its runner tells caught from survived."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from types import ModuleType

import mutants
import pytest
from jinja2 import Environment
from mutants import ROOT, Mutant

LISTED = mutants.mutants()
ADD, TEST = (
    "def add(a, b):\n    return a + b\n",
    "from {0} import add\n\n\ndef test_add():\n    assert add(2, {1}) == {2}\n",
)


def test_every_patch_applies_once_and_compiles():
    for mutant in LISTED:
        text = mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
        if mutant.file.endswith(".html"):
            Environment().parse(text)
        elif mutant.file.endswith(".py"):
            compile(text, mutant.file, "exec")


def test_every_test_that_is_named_exists():
    for mutant in LISTED:
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


def test_they_are_spread_over_every_folder():
    assert len(LISTED) >= 70 and max(Counter(mutant.name for mutant in LISTED).values()) == 1
    meant = {file.parent for place in ("ed_core", "ed_ui", "pages") for file in (ROOT / place).rglob("*.py")}
    there = {(ROOT / mutant.file).parent for mutant in LISTED}
    assert meant - there <= {ROOT / "pages"}


@pytest.mark.parametrize("text", ["nothing like it", "a"])
def test_a_text_that_is_not_there_once_is_refused(text):
    with pytest.raises(ValueError, match=f"found: '{text}' occurs"):
        Mutant("found", "sum.py", text, "b", ()).applied(ADD)


def test_caught_survived_and_broken_are_told_apart(tmp_path, monkeypatch):
    """In a repository of one function and three tests."""
    # A page that was tested in this process is left as its main program, which every fork would run.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    sides = {"good": ("sum", 3, 5), "blind": ("sum", 0, 2), "wrong": ("sum", 3, 6)}
    files = {"sum.py": ADD} | {f"test_{name}.py": TEST.format(*side) for name, side in sides.items()}
    for name, text in files.items():
        (tmp_path / "there" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "there" / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "there", check=True)
    copy = mutants.copied(tmp_path / "there", tmp_path / "copy")
    assert sorted(file.name for file in copy.iterdir()) == sorted(files)
    _, failing = mutants.run(copy, ("test_good.py", "test_wrong.py"))
    assert failing == ["test_wrong.py::test_add"]

    def verdict(test: str, new: str = "a - b", old: str = "a + b") -> str:
        return mutants.tried(Mutant("m", "sum.py", old, new, (test,)), copy, failing).verdict

    assert verdict("test_good.py") == "caught" and verdict("test_blind.py") == "SURVIVED"
    assert verdict("test_wrong.py") == verdict("test_good.py", "a +") == verdict("test_good.py", old="c") == "broken"
    assert (copy / "sum.py").read_text() == ADD, "as it was"
