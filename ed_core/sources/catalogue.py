"""The catalogue (`models.toml`): models by group, with the config fields that the estimate needs. Torch-free, no
network."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .bundled import MODELS as BUNDLED

FILE = Path(__file__).with_name("models.toml")
PUBLISHED = Path(__file__).with_name("published.csv")


@dataclass(frozen=True)
class Entry:
    """One model: `config` holds fields of its config.json under their own names ({} for a bundled one: its folder has
    them), `published` the data sets whose effective depth is published for it, `gated` whether the hub asks for a
    token."""

    id: str
    group: str
    config: Mapping[str, Any]
    gated: bool = False
    published: tuple[str, ...] = ()


@cache
def entries() -> tuple[Entry, ...]:
    """All models in the picker's order, the bundled ones first."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    published = _published()
    return tuple(Entry(name, "Bundled", {}) for name in BUNDLED) + tuple(
        Entry(name, group["name"], table["shapes"][shape], group.get("gated", False), published.get(name, ()))
        for group in table["groups"]
        for name, shape in group["models"].items()
    )


def find(name: str) -> Entry | None:
    """The entry of that hub id or bundled name, or None."""
    return next((entry for entry in entries() if entry.id == name), None)


def _published() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    with PUBLISHED.open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            found.setdefault(row["model"], {})[row["dataset"]] = None
    return {model: tuple(sets) for model, sets in found.items()}
