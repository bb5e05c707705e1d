"""The catalogue (`models.toml`): models by group, with the config fields that the estimate needs; the effective
depths that are published for them (`published.csv`); and what the hub's cache on this machine holds of them.
Torch-free, no network."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .bundled import MODELS as BUNDLED

CATALOGUE = Path(__file__).with_name("models.toml")
PUBLISHED = Path(__file__).with_name("published.csv")
SHORT_COMMIT = re.compile("[0-9a-f]{4,40}")


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
    table = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    sets: dict[str, dict[str, None]] = {}
    for known in published():
        sets.setdefault(known.model, {})[known.dataset] = None
    return tuple(Entry(name, "Bundled", {}) for name in BUNDLED) + tuple(
        Entry(name, group["name"], table["shapes"][shape], group.get("gated", False), tuple(sets.get(name, ())))
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
    """The commit that the local hub cache has for this id and revision, which may be the beginning of a commit; without
    a revision or a note of `main` the only commit there is; "" where it has none."""
    ref = hub_cache(hub_id) / "refs" / (revision or "main")
    if ref.is_file():
        return ref.read_text().strip()
    commits = [commit for commit in cached_commits(hub_id) if commit.startswith(revision)]
    return commits[0] if len(commits) == 1 and (not revision or SHORT_COMMIT.fullmatch(revision)) else ""


# ---------------------------------------------------------------- effective depths that are published


@dataclass(frozen=True)
class Published:
    """One published effective depth (Hu et al. 2025, arXiv 2512.14064)."""

    model: str
    n_layers: int
    dataset: str
    criterion: str
    effective_depth: int
    ratio: float

    @property
    def name(self) -> str:
        """The model without its organisation."""
        return self.model.rsplit("/", 1)[-1]


CITATION = "Hu et al. 2025, arXiv 2512.14064"
CAVEATS = (
    "10 prompts a set (5 of AIME24), 8-bit weights (LLM.int8), no intervals.",
    "Compare depths, not curves: the released code averages over features where tokens are meant, which leaves signs "
    "and depths as they are and changes amplitudes.",
    "One stray dip decides some entries: DeepSeek-R1-Distill-Qwen-1.5B on GSM8K has a KL depth of 1 (ratio 0.07) among "
    "neighbours of 0.75 to 0.89.",
)
LONG, INSTRUCT, MATHEMATICS, BASE = "long chain of thought", "instruct", "mathematics", "base"
TRAINING = (BASE, MATHEMATICS, INSTRUCT, LONG)
# What each distilled model was trained from (DeepSeek-AI 2025, arXiv 2501.12948), and the instruct model of its shape.
PAIRS = (
    ("Qwen2.5-Math-1.5B", "DeepSeek-R1-Distill-Qwen-1.5B"),
    ("Qwen2.5-Math-7B", "DeepSeek-R1-Distill-Qwen-7B"),
    ("Qwen2.5-14B", "DeepSeek-R1-Distill-Qwen-14B"),
    ("Qwen2.5-32B", "DeepSeek-R1-Distill-Qwen-32B"),
)
INSTRUCT_PAIRS = (
    ("Qwen2.5-1.5B-Instruct", "DeepSeek-R1-Distill-Qwen-1.5B"),
    ("Qwen2.5-7B-Instruct", "DeepSeek-R1-Distill-Qwen-7B"),
    ("Qwen2.5-14B-Instruct", "DeepSeek-R1-Distill-Qwen-14B"),
    ("Qwen2.5-32B-Instruct", "DeepSeek-R1-Distill-Qwen-32B"),
)


def training(name: str) -> str:
    """How a model was trained last, as far as its name tells: one of `TRAINING`, "" where it does not."""
    low = name.rsplit("/", 1)[-1].lower()
    marks = {LONG: ("r1-distill", "qwq", "-thinking"), INSTRUCT: ("instruct", "-chat"), MATHEMATICS: ("-math-",)}
    for kind, of_kind in marks.items():
        if any(mark in low for mark in of_kind):
            return kind
    return BASE if low.endswith("-base") or any(low == p.name.lower() for p in published()) else ""


@cache
def published() -> tuple[Published, ...]:
    """The published table: 12 models, three sets, three criteria.

    Source: Y. Hu, C. Zhou, M. Zhang, "What Affects the Effective Depth of Large Language Models?", arXiv 2512.14064,
    from the authors' notebook; every ratio is `(ED + 1) / L`, rounded."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return tuple(
            Published(
                r["model"],
                int(r["n_layers"]),
                r["dataset"],
                r["criterion"],
                int(r["effective_depth"]),
                float(r["effective_depth_ratio"]),
            )
            for r in csv.DictReader(file)
        )


def published_marks(
    model: str = "", dataset: str | None = None, n_layers: int | None = None, criterion: str | None = None
) -> list[tuple[str, str, float, str]]:
    """Published verdicts as (model, criterion, ratio, dataset), for `depth_ruler`: those of the model of that name, all
    without one."""
    return [
        (p.name, p.criterion, p.ratio, p.dataset)
        for p in published()
        if model in ("", p.name)
        and dataset in (None, p.dataset)
        and n_layers in (None, p.n_layers)
        and criterion in (None, p.criterion)
    ]
