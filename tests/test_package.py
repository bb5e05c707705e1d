"""The package: its needs as ranges that the lock satisfies, and an installation far from the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hosted_app import free_port, until
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ed_core import __version__, machine
from ed_core.errors import ParameterError
from tools import dependencies

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = PROJECT["name"]
UNLOCKED = {"ray", "ndif", "docs", "audit", "mutants"}  # extras whose packages neither the app nor `make test` needs


def lock() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(r.name): r for r in map(Requirement, (x for x in lines if x and x[0] != "#"))}


def ranges(*extras_: str) -> dict[str, Requirement]:
    listed = [
        *PROJECT["dependencies"],
        *(text for extra in extras_ for text in PROJECT["optional-dependencies"][extra]),
    ]
    return {canonicalize_name(r.name): r for r in map(Requirement, listed) if r.name != NAME}


def test_the_lock_holds_what_app_and_tests_need_inside_the_ranges():
    needed = ranges(*PROJECT["optional-dependencies"].keys() - UNLOCKED)
    locked = lock()
    assert next(iter(locked)) == "torch", "the Makefile installs it first"
    assert needed.keys() <= locked.keys()
    for name, pinned in locked.items():
        (version,) = (one.version for one in pinned.specifier)
        assert name not in needed or version in needed[name].specifier, f"{name}: {version} is outside its range"


def test_the_lock_holds_every_line_of_the_short_list_and_a_hash_for_all():
    """torch apart, with what belongs to its build; the app's packages first, which the image takes."""
    app, _, tests = (ROOT / "requirements.lock").read_text(encoding="utf-8").partition("\n# --- tests")
    held = {}
    for text, of in ((app, "app"), (tests, "tests")):
        for one in dependencies.entries(text).values():
            held.setdefault(canonicalize_name(one.split("==")[0]), []).append(
                (Requirement(one.split("\\")[0]), of, one)
            )
    short = (ROOT / "requirements.txt").read_text(encoding="utf-8").partition("\n# --- tests")
    for text, of in ((short[0], "app"), (short[2], "tests")):
        for wanted in map(Requirement, (line for line in text.splitlines() if re.match(r"[\w-]+==", line))):
            if wanted.name != "torch":
                (found,) = held[canonicalize_name(wanted.name)]
                assert (str(found[0].specifier), found[0].marker, found[1]) == (str(wanted.specifier), None, of), wanted
    assert not [name for name in held if dependencies.OF_TORCH.match(name)]
    for name, found in held.items():
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", one) for _, _, one in found), name
    assert "://" not in app + tests, "no index is named, so that any will do"
    for name in ("starlette", "uvicorn", "websockets", "cryptography", "h11"):
        assert name in held


def test_the_audit_tells_none_from_unknown(monkeypatch, capsys):
    answers = {}

    def run(command, **_):
        return SimpleNamespace(returncode=1, stderr="WARNING: x\nERROR: no route to host\n", **answers)

    monkeypatch.setattr(dependencies.subprocess, "run", run)
    answers["stdout"] = ""
    assert dependencies.audit() == dependencies.UNREACHED and "no route to host" in capsys.readouterr().out
    sound = {"name": "numpy", "version": "2", "vulns": []}
    answers["stdout"] = json.dumps({"dependencies": [sound]})
    assert dependencies.audit() == 0 and "No vulnerability is known of 1 packages" in capsys.readouterr().out
    unknown = {"name": "numpy", "skip_reason": "not found on PyPI"}
    answers["stdout"] = json.dumps({"dependencies": [unknown]})
    assert dependencies.audit() == dependencies.UNREACHED and "none of the 1 packages" in capsys.readouterr().out
    bad = {"name": "h11", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
    answers["stdout"] = json.dumps({"dependencies": [sound, bad]})
    assert dependencies.audit() == 1 and "h11 1: CVE-1, mended in 2" in capsys.readouterr().out


def test_whatever_installs_installs_by_the_hashes_of_the_lock():
    """torch alone and first, by its exact version."""
    for name in ("Dockerfile", "Makefile"):
        lines = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        (line,) = (line for line in lines if "--require-hashes" in line)
        assert "--no-deps" in line and ("requirements.lock" in line or "/tmp/app.txt" in line), name
        first = next(i for i, other in enumerate(lines) if "'^torch==' requirements.txt" in other)
        assert first <= lines.index(line), name
    assert "make .venv/.installed" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_bill_of_materials_is_of_the_lock_and_of_this_release(monkeypatch, tmp_path, capsys):
    given = []

    def run(command, input, **_):
        given.append(input)
        names = [one.split("==")[0] for one in input.splitlines() if "==" in one and one[0] not in "# "]
        bill = {"metadata": {}, "components": [{"name": name} for name in names]}
        return SimpleNamespace(returncode=0, stdout=json.dumps(bill), stderr="")

    (tmp_path / "ed_core").mkdir()
    (tmp_path / "ed_core" / "__init__.py").write_text('__version__ = "9.9"\n')
    monkeypatch.setattr(dependencies, "ROOT", tmp_path)
    monkeypatch.setattr(dependencies, "locked", lambda: ["torch==9.9.9"])
    monkeypatch.setattr(dependencies.subprocess, "run", run)
    dependencies.sbom()
    bill = json.loads((tmp_path / "dist" / "effective-depth-lab-9.9.cdx.json").read_text())
    names = {canonicalize_name(one["name"]) for one in bill["components"]}
    assert {"torch", "starlette", "uvicorn", "websockets", "cryptography"} <= names and "pytest" not in names
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == (
        "effective-depth-lab",
        "9.9",
    )
    assert given[0].count("--hash=sha256:") > 100 and f"{len(bill['components'])} packages" in capsys.readouterr().out


def test_the_image_has_what_the_app_needs():
    """The image installs the lock down to its tests."""
    head = (ROOT / "requirements.txt").read_text(encoding="utf-8").partition("# --- tests")[0].splitlines()
    there = {canonicalize_name(Requirement(line).name) for line in head if line and line[0] != "#"}
    assert ranges("app", "quantized", "adapters", "remote").keys() <= there


def test_a_user_of_the_library_installs_nothing_at_an_exact_version():
    pinned = [str(r) for r in ranges(*PROJECT["optional-dependencies"].keys() - {"test", "docs"}).values()]
    assert not [text for text in pinned if "==" in text]


def test_versions_agree():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)[1]
    logged = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert __version__ == cited == logged


def test_every_optional_package_is_in_its_extra():
    for package, extra in machine.EXTRAS.items():
        assert package in {r.name for r in map(Requirement, PROJECT["optional-dependencies"][extra])}


def test_a_missing_package_is_one_sentence_with_its_extra(monkeypatch):
    machine.require_package("peft", "A LoRA adapter")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ParameterError, match=r"A LoRA adapter needs the package peft.*effective-depth-lab\[adapters\]'"
    ):
        machine.require_package("peft", "A LoRA adapter")


@pytest.mark.slow
def test_an_installation_serves_the_app_and_computes(tmp_path):
    """`pip install .[app]` into a bare environment with an empty home folder, away from the checkout."""
    venv, home, port = tmp_path / "venv", tmp_path / "home", free_port()
    home.mkdir()
    env = {"PATH": f"{venv / 'bin'}{os.pathsep}{os.defpath}", "HOME": str(home), "OMP_WAIT_POLICY": "PASSIVE"}
    pip = os.environ | env  # its index and cache may be in the environment

    def run(*command: str, env: dict = env) -> subprocess.CompletedProcess:
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
        return done

    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    install = (str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*install, str(lock()["torch"]), env=pip)  # first: a range may bring a build for GPUs, of gigabytes
    run(*install, f"{ROOT}[app]", env=pip)

    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "ed_core", "ed_ui", "pages", "app.py"], cwd=ROOT, text=True
    )
    site = next(venv.glob("lib/python*/site-packages"))
    for name in filter(None, listed.split("\0")):
        place = site / name if name.startswith("ed_") else site / "ed_ui" / "app" / name
        assert place.is_file() or not (ROOT / name).is_file(), f"{name} is not installed"
    assert not (site / "tools").exists() and not (site / "pages").exists() and not (site / "app.py").exists()
    assert (site / "ed_core" / "py.typed").is_file()

    (home / "p.jsonl").write_text('{"text": "Sums mod 10:\\n3 + 4 = 7\\n8 + 5 = ", "answer": "3"}\n')
    asked = ["--model", "ed-demo-8", "--prompts", "p.jsonl", "--out", "r.npz"]
    assert "1 computed" in run("effective-depth", "run", "logit_lens", *asked).stdout
    assert any(key.startswith("logit_lens.kl") for key in np.load(home / "r.npz"))
    assert (home / ".effective-depth" / "cache").is_dir()

    with (tmp_path / "log").open("wb") as log:
        command = ["effective-depth", "app", "--port", str(port)]
        served = subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log)
    try:

        def ready() -> bool:
            assert served.poll() is None, (tmp_path / "log").read_text()[-3000:]
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).status == 200
            except OSError:
                return False

        until(ready)
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).read()
        assert b"</html>" in page
        walk = """
from pathlib import Path
from types import SimpleNamespace
import ed_ui
from streamlit.testing.v1 import AppTest
app = AppTest.from_file(str(Path(ed_ui.__file__).parent / "app" / "app.py"), default_timeout=120).run()
assert not app.exception, app.exception
assert len(app.get("bidi_component")) >= 5
"""
        run(str(venv / "bin" / "python"), "-c", walk)
    finally:
        served.terminate()
        served.wait(30)
