"""The catalogue (`models.toml`): models by group, with the config fields that the estimate needs; and their commits in
the hub's cache on this machine. Torch-free, no network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .bundled import MODELS as BUNDLED

CATALOGUE = Path(__file__).with_name("models.toml")
SHORT_COMMIT = re.compile("[0-9a-f]{4,40}")


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue: `config` holds fields of its config.json under their own names ({} for a bundled one:
    its folder has them), `gated` whether the hub asks for a token."""

    id: str
    group: str
    config: Mapping[str, Any]
    gated: bool = False


@cache
def entries() -> tuple[Entry, ...]:
    """Return all models of the catalogue in the order in which pages list them, the bundled ones first."""
    table = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    return tuple(Entry(name, "Bundled", {}) for name in BUNDLED) + tuple(
        Entry(name, group["name"], table["shapes"][shape], group.get("gated", False))
        for group in table["groups"]
        for name, shape in group["models"].items()
    )


def find(name: str) -> Entry | None:
    """Return the catalogue's entry of a hub id or bundled name; None where it has none."""
    return next((entry for entry in entries() if entry.id == name), None)


def hub_cache(hub_id: str) -> Path:
    """Return the folder of a model in the hub's local cache, which need not exist."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / ("models--" + hub_id.replace("/", "--"))


def cached_commits(hub_id: str) -> list[str]:
    """The commits of a model that the local hub cache has, sorted."""
    return sorted(folder.name for folder in (hub_cache(hub_id) / "snapshots").glob("*"))


def cached_commit(hub_id: str, revision: str = "") -> str:
    """Return the commit that the local hub cache has for this id and revision; "" where it has none. `revision`: a
    branch, a tag, or the beginning of a commit; "" is `main`, or else the only commit there."""
    ref = hub_cache(hub_id) / "refs" / (revision or "main")
    if ref.is_file():
        return ref.read_text().strip()
    commits = [commit for commit in cached_commits(hub_id) if commit.startswith(revision)]
    return commits[0] if len(commits) == 1 and (not revision or SHORT_COMMIT.fullmatch(revision)) else ""
