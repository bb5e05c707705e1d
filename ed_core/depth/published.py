"""Effective depths that are published (`published.csv`), and how a model was trained, by its name."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PUBLISHED = Path(__file__).with_name("published.csv")


@dataclass(frozen=True)
class Published:
    """One published effective depth: of a model on a `dataset` by a rule (`criterion`) of Hu et al. 2025."""

    model: str
    n_layers: int
    dataset: str
    criterion: str
    effective_depth: int

    @property
    def name(self) -> str:
        """The model's name without its organisation."""
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
BASES = {"1.5B": "Qwen2.5-Math-1.5B", "7B": "Qwen2.5-Math-7B", "14B": "Qwen2.5-14B", "32B": "Qwen2.5-32B"}
PAIRS = tuple((base, f"DeepSeek-R1-Distill-Qwen-{size}") for size, base in BASES.items())
INSTRUCT_PAIRS = tuple((f"Qwen2.5-{size}-Instruct", f"DeepSeek-R1-Distill-Qwen-{size}") for size in BASES)


def training(name: str) -> str:
    """Return how a model was trained last, one of `TRAINING`, as far as its name shows; "" where it does not."""
    low = name.rsplit("/", 1)[-1].lower()
    marks = {LONG: ("r1-distill", "qwq", "-thinking"), INSTRUCT: ("instruct", "-chat"), MATHEMATICS: ("-math-",)}
    for kind, of_kind in marks.items():
        if any(mark in low for mark in of_kind):
            return kind
    return BASE if low.endswith("-base") or any(low == p.name.lower() for p in published()) else ""


@cache
def published() -> tuple[Published, ...]:
    """Return the published effective depths: 12 models, three sets, three criteria.

    Source: Y. Hu, C. Zhou, M. Zhang, "What Affects the Effective Depth of Large Language Models?", arXiv 2512.14064,
    from the authors' notebook; the file's ratio is `(ED + 1) / L`, rounded."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return tuple(Published(model, int(n), dataset, rule, int(depth)) for model, n, dataset, rule, depth, _ in rows)


def sets_of(model: str) -> list[str]:
    """Return the data sets for which a hub model's effective depth is published."""
    return list(dict.fromkeys(p.dataset for p in published() if p.model == model))
