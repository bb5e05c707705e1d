"""The published effective depths, and where they stand. Torch-free."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """One published effective depth (Hu et al. 2025, arXiv 2512.14064)."""

    model: str
    n_layers: int
    dataset: str
    criterion: str
    effective_depth: int
    ratio: float


@cache
def published() -> tuple[Published, ...]:
    """The published table: 12 models, three sets, three criteria.

    Source: Y. Hu, C. Zhou, M. Zhang, "What Affects the Effective Depth of Large Language Models?", arXiv 2512.14064,
    from the authors' notebook; every ratio is `(ED + 1) / L`, rounded."""
    with open(Path(__file__).parent.parent / "sources" / "published.csv", encoding="utf-8", newline="") as file:
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
    """Published verdicts as (model, criterion, ratio, dataset), for `depth_ruler`: those whose model's name contains
    `model`."""
    return [
        (p.model.rsplit("/", 1)[-1], p.criterion, p.ratio, p.dataset)
        for p in published()
        if model.lower() in p.model.lower()
        and dataset in (None, p.dataset)
        and n_layers in (None, p.n_layers)
        and criterion in (None, p.criterion)
    ]
