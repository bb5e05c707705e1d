"""docs/deploy.md holds: its table against the settings, its files by reading them as their readers do, its proxy by
running it."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from ed_core import settings

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_table_is_that_of_the_settings():
    table = re.search(r"<!-- settings -->\n(.*?)\n<!-- /settings -->", TEXT, re.DOTALL)[1]
    assert table == settings.table(), "python -m ed_core settings --markdown prints it"


def test_every_name_it_uses_exists():
    known = {settings.PREFIX + name.upper() for name in settings.Settings.model_fields} | {"ED_CONFIG"}
    assert set(re.findall(r"\bED_[A-Z_]+[A-Z]\b", TEXT)) <= known
    space = dict(re.findall(r"\| `(ED_\w+)` \| `([^`]*)` \|", TEXT))
    assert "ED_FRAMES" in space


def test_the_variables_of_the_space_are_accepted(monkeypatch):
    rows = [
        ([name.strip(" `") for name in names.split(",")], re.findall("`([^`]*)`", values))
        for names, values in re.findall(r"^\| (`ED_[^|]*) \| ([^|]*) \|", TEXT, re.MULTILINE)
    ]
    assert len(rows) >= 6
    for names, values in rows:
        for i, name in enumerate(names):
            if name.startswith("ED_"):
                monkeypatch.setenv(name, values[min(i, len(values) - 1)])
    found = settings.current()
    assert (
        not found.local_folders
        and not found.hub_ids
        and found.max_jobs == 40
        and found.frames == ("https://huggingface.co", "https://*.hf.space")
    )


def test_a_space_is_what_the_hub_offers():
    """Docker Spaces need a paid plan, and what is kept lies in a bucket mounted as a volume."""
    part = TEXT.partition("## A Hugging Face Space")[2].partition("\n## ")[0]
    assert "paid plan" in part and "bucket mounted as a volume" in part
    assert not re.search("free (space|tier)|persistent storage", TEXT, re.IGNORECASE)


def test_its_files_are_read_as_their_readers_do():
    assert tomllib.loads(blocks("toml")[0])["auth"]["redirect_uri"].endswith("/oauth2callback")
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string(blocks("ini")[0].replace("\\\n", ""))
    start = unit["Service"]["ExecStart"].split()
    assert start[1:3] == ["-m", "ed_ui.server"]
    help_ = subprocess.run(
        [sys.executable, "-m", "ed_ui.server", "--help"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    for option in [word for word in start if word.startswith("--")]:
        assert option in help_, option


def test_the_image_starts_and_asks_with_commands_that_exist():
    text = (ROOT / "Dockerfile").read_text()
    assert '"-m", "ed_ui.server"' in text and '"-m", "ed_core", "ready"' in text
    assert shutil.which("python3") and (ROOT / "ed_ui" / "server.py").is_file()


def test_secrets_and_settings_enter_neither_the_repository_nor_the_image():
    for name in (".gitignore", ".dockerignore"):
        assert {"lab.toml", ".streamlit/secrets.toml"} <= set((ROOT / name).read_text().splitlines()), name
