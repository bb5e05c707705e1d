"""docs/deploy.md and what it points to hold: its table against the settings, its files by reading them as their readers
do. The proxies are run in `test_proxy.py`, the Space in `test_space.py`."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from ed_core import settings
from ed_core.sharing import space
from ed_ui import navigation

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


@cache
def options_told() -> str:
    asked = [sys.executable, "-m", "ed_ui.server", "--help"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_table_is_that_of_the_settings():
    table = re.search(r"<!-- settings -->\n(.*?)\n<!-- /settings -->", TEXT, re.DOTALL)[1]
    assert table == settings.table(), "python -m ed_core settings --markdown prints it"


def test_every_name_it_uses_exists():
    known = {settings.PREFIX + name.upper() for name in settings.Settings.model_fields} | {"ED_CONFIG", "ED_DEBUG"}
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
    assert not found.local_folders and not found.hub_ids and found.max_jobs == 40
    assert found.frames == ("https://huggingface.co", "https://*.hf.space")


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
    for option in [word for word in start if word.startswith("--")]:
        assert option in options_told(), option


def test_the_image_starts_and_asks_with_commands_that_exist():
    text = (ROOT / "Dockerfile").read_text()
    assert '"-m", "ed_ui.server"' in text and '"-m", "ed_core", "ready"' in text
    assert shutil.which("python3") and (ROOT / "ed_ui" / "server.py").is_file()


def test_compose_gives_the_app_the_gpus_where_that_is_asked():
    service = yaml.safe_load((ROOT / "deploy" / "compose.gpu.yaml").read_text())["services"]
    assert list(service) == ["app"] and "app" in yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    (device,) = service["app"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_compose_starts_the_image_behind_the_shipped_proxy():
    """As far as reading goes: options, mounts, ports, names and the health check fit the image and the proxy's file."""
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())
    app, proxy = found["services"]["app"], found["services"]["proxy"]
    docker, caddy = (ROOT / "Dockerfile").read_text(), (ROOT / "deploy" / "Caddyfile").read_text()
    command = app["command"]
    assert f'"{command[1]}", "{command[2]}"' in docker and "ports" not in app, "the proxy alone is reached from outside"
    for option in command[3::2]:
        assert option in options_told(), option
    base = command[command.index("--server.baseUrlPath") + 1]
    assert app["healthcheck"]["test"][-1] == f"http://127.0.0.1:8501/{base}" and f"redir /{base} /{base}/" in caddy
    assert re.search(r"STREAMLIT_SERVER_PORT=8501", docker) and proxy["environment"]["LAB_APP"] == "app:8501"
    assert set(re.findall(r"\{\$(\w+):", caddy)) == set(proxy["environment"])
    mounted = {one["target"] if isinstance(one, dict) else one.split(":")[1] for one in app["volumes"]}
    assert mounted == {"/app/lab.toml", *json.loads(re.search(r"^VOLUME (.*)$", docker, re.MULTILINE)[1])}
    assert app["environment"]["ED_CACHE"] in mounted, "lab.toml may name another folder"
    named = {one.split(":")[0] for one in (*app["volumes"], *proxy["volumes"]) if isinstance(one, str)}
    assert named - {"./deploy/Caddyfile"} == set(found["volumes"])
    assert {port.split(":")[0] for port in proxy["ports"]} == {"80", "443"}


@pytest.mark.parametrize("name", ["Caddyfile", "nginx.conf"])
def test_the_proxies_list_every_page_and_hide_what_they_do_not_list(name):
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    entries = [tab for room in navigation.ROOMS for tab in room.tabs]
    pages = {"" if one.kept_as == "home" else one.url or Path(one.file).stem for one in entries}
    shown = [re.compile(one) for one in re.findall(r"\^/depth/\S+", text)]
    assert set(re.search(r"\^/depth/\(([\w|]*)\)\$", text)[1].split("|")) == pages
    for path in ("static/js/a.js", "media/a.png", "_stcore/stream", "_stcore/health", "_stcore/upload_file/a/b"):
        assert any(one.search(f"/depth/{path}") for one in shown), path
    for path in ("ready", "metrics", "x/metrics", "skip/metrics", "_stcore/metrics", "_stcore/agent/interact", "x"):
        assert not any(one.search(f"/depth/{path}") for one in shown), path
    assert ("handle {\n\t\trespond 404" if name == "Caddyfile" else "location / { return 404; }") in text


def test_the_variables_of_the_space_are_those_that_are_set():
    rows = re.findall(r"^\| (`ED_[^|]*) \| ([^|]*) \|", TEXT.partition("## A Hugging Face Space")[2], re.MULTILINE)
    told = {}
    for names, values in rows:
        names, values = re.findall("`([^`]*)`", names), re.findall("`([^`]*)`", values)
        told |= {name: values[min(i, len(values) - 1)] for i, name in enumerate(names)}
    assert told == space.VARIABLES | space.KEPT


def test_what_it_points_to_is_shipped():
    for place in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / place).is_file(), place


def test_secrets_and_settings_enter_neither_the_repository_nor_the_image():
    for name in (".gitignore", ".dockerignore"):
        assert {"lab.toml", ".streamlit/secrets.toml"} <= set((ROOT / name).read_text().splitlines()), name
