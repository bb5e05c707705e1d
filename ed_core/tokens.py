"""Token counts and previews from a model's `tokenizer.json` alone: milliseconds, no torch."""
from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from .types import ModelSpec, Prompt


def _file(spec: ModelSpec) -> Path | None:
    """The model's tokenizer.json: in its folder, or in the hub cache's snapshot."""
    if Path(spec.source).is_dir():
        file = Path(spec.source) / "tokenizer.json"
    elif spec.revision:
        from huggingface_hub import constants

        file = Path(constants.HF_HUB_CACHE) / ("models--" + spec.source.replace("/", "--")) / "snapshots" / spec.revision / "tokenizer.json"
    else:
        return None
    return file if file.is_file() else None


@lru_cache(maxsize=8)
def _tokenizer(file: str, mtime_ns: int):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(file)


def count(spec: ModelSpec, prompt: Prompt) -> int | None:
    """Tokens of `text + answer`; None where only the model itself could tell (no tokenizer.json at hand, or a chat template)."""
    file = _file(spec)
    if file is None or prompt.template != "raw":
        return None
    return len(_tokenizer(str(file), file.stat().st_mtime_ns).encode(prompt.text + prompt.answer, add_special_tokens=prompt.special_tokens))
