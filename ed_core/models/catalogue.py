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
    """One model: `config` holds fields of its config.json under their own names ({} for a bundled one: its folder has
    them), `gated` whether the hub asks for a token."""

    id: str
    group: str
    config: Mapping[str, Any]
    gated: bool = False


@cache
def entries() -> tuple[Entry, ...]:
    """All models in the picker's order, the bundled ones first."""
    table = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    return tuple(Entry(name, "Bundled", {}) for name in BUNDLED) + tuple(
        Entry(name, group["name"], table["shapes"][shape], group.get("gated", False))
        for group in table["groups"]
        for name, shape in group["models"].items()
    )


def find(name: str) -> Entry | None:
    """The entry of that hub id or bundled name, or None."""
    return next((entry for entry in entries() if entry.id == name), None)


def hub_cache(hub_id: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / ("models--" + hub_id.replace("/", "--"))


def cached_commits(hub_id: str) -> list[str]:
    """The commits of a model that the local hub cache has, sorted."""
    return sorted(folder.name for folder in (hub_cache(hub_id) / "snapshots").glob("*"))


def cached_commit(hub_id: str, revision: str = "") -> str:
    """The commit that the local hub cache has for this id and revision (a beginning of a commit will do); without a
    revision or a note of `main` the only commit there is; "" where it has none."""
    ref = hub_cache(hub_id) / "refs" / (revision or "main")
    if ref.is_file():
        return ref.read_text().strip()
    commits = [commit for commit in cached_commits(hub_id) if commit.startswith(revision)]
    return commits[0] if len(commits) == 1 and (not revision or SHORT_COMMIT.fullmatch(revision)) else ""
