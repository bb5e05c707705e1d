"""The package: its needs as ranges that the lock satisfies, and what the wheel holds."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ed_core import __version__, machine
from ed_core.errors import ParameterError

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
UNLOCKED = {"ray", "ndif", "docs"}  # extras that neither the app nor the tests need


def pinned(text: str) -> dict[str, Requirement]:
    """Packages of `name==version` lines."""
    found = [Requirement(line.partition("\\")[0]) for line in text.splitlines() if re.match(r"[\w.-]+==", line)]
    return {canonicalize_name(r.name): r for r in found}


def ranges(*extras: str) -> dict[str, Requirement]:
    lines = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    found = [r for r in map(Requirement, lines) if r.name != PROJECT["name"]]
    return {canonicalize_name(r.name): r for r in found}


def test_requirements_hold_what_app_and_tests_need_inside_the_ranges():
    """The part before the tests, which the image installs, is enough for the app."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    every, needed = pinned(text), ranges(*PROJECT["optional-dependencies"].keys() - UNLOCKED)
    assert needed.keys() <= every.keys()
    assert ranges("app", "quantized", "adapters", "remote").keys() <= pinned(text.partition("# --- tests")[0]).keys()
    for name in every.keys() & needed.keys():
        (version,) = (one.version for one in every[name].specifier)
        assert version in needed[name].specifier, f"{name}: {version} is outside its range"


def test_the_lock_holds_all_requirements_but_torch_with_hashes():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked, wanted = pinned(text), pinned((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    assert all(locked[name].specifier == r.specifier for name, r in wanted.items() if name != "torch")
    entries = re.findall(r"^[\w.-]+==.*(?:\n[ \t].*)*", text, re.MULTILINE)
    assert len(entries) >= len(locked) > 100 and all("--hash=sha256:" in entry for entry in entries)


def test_the_wheel_holds_the_packages_the_app_and_its_pages():
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {"ed_core", "ed_ui"} <= {*wheel["packages"]} and (ROOT / "ed_core" / "py.typed").is_file()
    assert {"app.py", "pages", ".streamlit/config.toml"} <= wheel["force-include"].keys()
    assert all((ROOT / source).exists() for source in (*wheel["packages"], *wheel["force-include"]))


def test_the_citation_has_this_version():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited and cited[1] == __version__


def test_a_missing_package_is_one_sentence_with_its_extra(monkeypatch):
    for package, extra in machine.EXTRAS.items():
        assert package in {r.name for r in map(Requirement, PROJECT["optional-dependencies"][extra])}
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ParameterError, match=r"needs the package peft.*effective-depth-lab\[adapters\]'"):
        machine.require_package("peft", "A LoRA adapter")
