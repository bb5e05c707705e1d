"""The documentation: its links resolve, README's first program runs, and the settings it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from ed_core.settings import Settings

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def documents() -> list[Path]:
    folders = (ROOT / "docs", ROOT / "ed_core", ROOT / "examples")
    return sorted([*ROOT.glob("*.md"), *(file for folder in folders for file in folder.rglob("*.md"))])


def prose(file: Path) -> str:
    """The text of a document without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", file.read_text(encoding="utf-8")))


@cache
def anchors(file: Path) -> set[str]:
    """Names of a document's headings in a link, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("file", documents(), ids=lambda file: file.relative_to(ROOT).as_posix())
def test_every_relative_link_resolves(file):
    for link in LINK.findall(prose(file)):
        if "://" in link or link.startswith("mailto:"):
            continue
        place, _, anchor = link.partition("#")
        target = (file.parent / place).resolve() if place else file
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_readmes_first_python_runs(capsys):
    code = re.search(r"(?ms)^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"))
    exec(compile(code[1], "README.md", "exec"), {"__name__": "readme"})


def test_the_settings_that_are_documented_are_those_there_are():
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    table = text.partition("<!-- settings -->")[2].partition("<!-- /settings -->")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(Settings.model_fields)
    example = tomllib.loads((ROOT / "docs" / "lab.example.toml").read_text(encoding="utf-8"))
    assert example.keys() <= Settings.model_fields.keys()
    Settings(**example)


PRINTED = [
    (file, *found.groups())
    for file in sorted((ROOT / "docs").glob("*.md"))
    for found in re.finditer(r"^```console\n\$ (.*)\n((?:.*\n)*?)```$", file.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.process
@pytest.mark.parametrize(("file", "command", "printed"), PRINTED, ids=[file.stem for file, *_ in PRINTED])
def test_a_printed_command_prints_what_is_printed(file, command, printed, tmp_path):
    words = command.replace("DIR", str(tmp_path / "out")).split()
    done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed.strip() in done.stdout


def test_some_commands_are_printed_with_what_they_give():
    assert PRINTED
