"""The fitted lenses that ship: `python -m tools.fits [NAME …]` fits those named, all unless given, and goes on
where it was stopped.

Bundled models: `fits/prompts.jsonl`, 880 prompts of their tasks in one form each. SmolLM2: `fits/texts.jsonl`,
paragraphs of this project's own documents as they once were, and every fourth of those prompts; its affine lens is of
rank 64 in half precision. Of its Jacobian lens the certificate alone is kept, as the matrices take 40 MB."""

from __future__ import annotations

import json
from pathlib import Path

from ed_core.fits import ENDING, affine, jacobian
from ed_core.fits.streams import Tick
from ed_core.models.language_model import LanguageModel
from ed_core.models.opening import open_model
from ed_core.prompts import read_jsonl
from ed_core.sources.bundled import FITS, MODELS, WORDS
from ed_core.types import Prompt
from ed_core.work.resolve import resolve

from . import given

REAL, RANK = "smollm2", 64
TEXTS, PROMPTS = FITS / "texts.jsonl", FITS / "prompts.jsonl"
JACOBIAN_PROMPTS = {"ed-demo-8": 120, "ed-demo-16": 120, REAL: 40}
FITTED = tuple(f"{model}-{kind}" for model in (*WORDS, REAL) for kind in ("affine", "jacobian"))


def prompts(model: str) -> list[Prompt]:
    """What a model's lenses are fitted on. The form of a bundled prompt is its task."""
    bundled = read_jsonl(PROMPTS)
    return bundled if model in MODELS else [*read_jsonl(TEXTS), *bundled[::4]]


def asked(name: str) -> tuple[LanguageModel, str, list[Prompt]]:
    """The model of a lens, its kind, and the prompts it is fitted and judged on."""
    model, _, kind = name.rpartition("-")
    used, n = prompts(model), JACOBIAN_PROMPTS[model]
    some = used if kind == "affine" else [used[i * len(used) // n] for i in range(n)]
    return open_model(resolve(model)), kind, some


def ticking(name: str) -> Tick:
    return lambda share: print(f"\r{name} {share:.1%}", end="", flush=True)


def fit(name: str, folder: Path = FITS) -> None:
    model, kind, used = asked(name)
    out = folder / f"{name}{ENDING}"
    if kind == "affine":
        rank = None if model.spec.name in MODELS else RANK
        made = affine.fit(model, used, out, tick=ticking(name), rank=rank)
    else:
        made = jacobian.fit(model, used, out, tick=ticking(name))
    tell(name, made, folder)


def tell(name: str, certificate: dict, folder: Path) -> None:
    """The certificate beside the file, to be read without it."""
    (folder / f"{name}.json").write_text(json.dumps(certificate, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print()


def main(names: list[str]) -> None:
    for name in names or FITTED:
        fit(name)


if __name__ == "__main__":
    main(given(__doc__, *FITTED))
