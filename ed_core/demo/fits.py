"""The fitted lenses that ship: `python -m ed_core.demo.fits [NAME …]` fits those named, all unless given, and goes on
where it was stopped.

Bundled models: the prompts of all their tasks' sets. SmolLM2: `fits/texts.jsonl`, paragraphs of this project's own
documents as they once were, and every fourth of those prompts; its affine lens is of rank 64 in half precision. Of its
Jacobian lens the certificate alone is kept, as the matrices take 40 MB."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..fits import ENDING, affine, jacobian
from ..models.opening import open_model
from ..prompts import read_jsonl
from ..service.resolve import resolve
from ..sources.bundled import FITS, MIXED, MODELS, SETS
from ..types import Prompt

REAL, RANK = "smollm2", 64
TEXTS = FITS / "texts.jsonl"
JACOBIAN_PROMPTS = {"ed-demo-8": 120, "ed-demo-16": 120, REAL: 40}
FITTED = tuple(f"{model}-{kind}" for model in (*MODELS, REAL) for kind in ("affine", "jacobian"))


def prompts(model: str) -> list[Prompt]:
    """What a model's lenses are fitted on."""
    files = [file for file in sorted(SETS.glob("*.jsonl")) if model not in MODELS or file.stem != MIXED]
    bundled = [prompt for file in files for prompt in read_jsonl(file)]
    return bundled if model in MODELS else [*read_jsonl(TEXTS), *bundled[::4]]


def fit(name: str, folder: Path = FITS) -> None:
    model_name, _, kind = name.rpartition("-")
    model, used = open_model(resolve(model_name)), prompts(model_name)
    out = folder / f"{name}{ENDING}"

    def tick(share: float) -> None:
        print(f"\r{name} {share:.1%}", end="", flush=True)

    if kind == "affine":
        made = affine.fit(model, used, out, tick=tick, rank=None if model_name in MODELS else RANK)
    else:
        n = JACOBIAN_PROMPTS[model_name]
        spread = [used[i * len(used) // n] for i in range(n)]
        made = jacobian.fit(model, spread, out, tick=tick)
    (folder / f"{name}.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print()


def main(names: list[str]) -> None:
    for name in names or FITTED:
        fit(name)


if __name__ == "__main__":
    main(sys.argv[1:])
