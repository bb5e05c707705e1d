"""The fitted lenses that ship: `python -m tools.fits [NAME …]` fits those named, all by default, and continues where it
was stopped.

Bundled models use `fits/prompts.jsonl`, 880 prompts of their tasks, each task in one form. SmolLM2 uses
`fits/texts.jsonl`, paragraphs of older documents of this project, and every fourth of those prompts; its affine lens
has rank 64 in half precision. Of its Jacobian lens only the certificate ships, as the matrices take 40 MB."""

from __future__ import annotations

import argparse
import json

from ed_core.lenses import ENDING
from ed_core.lenses.affine import Affine
from ed_core.lenses.jacobian import Jacobian
from ed_core.models.bundled import FITS, MODELS, WORDS
from ed_core.models.opening import open_model
from ed_core.models.ref import ModelRef
from ed_core.prompts import read_jsonl
from ed_core.types import Prompt

REAL, RANK = "smollm2", 64
TEXTS, PROMPTS = FITS / "texts.jsonl", FITS / "prompts.jsonl"
JACOBIAN_PROMPTS = {"ed-demo-8": 120, "ed-demo-16": 120, REAL: 40}
FITTED = tuple(f"{model}-{kind}" for model in (*WORDS, REAL) for kind in ("affine", "jacobian"))


def prompts(model: str) -> list[Prompt]:
    """The prompts that a model's lenses are fitted on. The form of a bundled prompt is its task."""
    bundled = read_jsonl(PROMPTS)
    return bundled if model in MODELS else [*read_jsonl(TEXTS), *bundled[::4]]


def fit(name: str) -> None:
    """Fit one lens, and write its certificate next to it, to be read without it."""
    model, _, kind = name.rpartition("-")
    used, n = prompts(model), JACOBIAN_PROMPTS[model]
    opened, out = open_model(ModelRef.parse(model)), FITS / f"{name}{ENDING}"

    def tick(share: float) -> None:
        print(f"\r{name} {share:.1%}", end="", flush=True)

    if kind == "affine":
        fitting: Affine | Jacobian = Affine(opened, prompts=used, rank=None if model in MODELS else RANK)
    else:
        fitting = Jacobian(opened, prompts=[used[i * len(used) // n] for i in range(n)])
    certificate = fitting.fit(out, tick)
    out.with_suffix(".json").write_text(json.dumps(certificate, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(FITTED))
    for name in parser.parse_args().names or FITTED:
        fit(name)
