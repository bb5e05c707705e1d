"""Token previews from a model's `tokenizer.json` alone: milliseconds, no torch."""
from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from .sources import location
from .types import ModelSpec, Prompt


def _file(spec: ModelSpec) -> Path | None:
    """The model's tokenizer.json: in its folder, or in the hub cache's snapshot."""
    file = Path(location(spec)) / "tokenizer.json"
    return file if file.is_file() else None


@lru_cache(maxsize=8)
def _tokenizer(file: str, mtime_ns: int):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(file)


def preview(spec: ModelSpec, prompt: Prompt) -> list[str] | None:
    """Texts of the tokens of `text + answer`; None where only the model itself could tell (no tokenizer.json, or a chat template)."""
    file = _file(spec)
    if file is None or prompt.template != "raw":
        return None
    tokenizer = _tokenizer(str(file), file.stat().st_mtime_ns)
    ids = tokenizer.encode(prompt.text + prompt.answer, add_special_tokens=prompt.special_tokens).ids
    return [_text(tokenizer, i) for i in ids]


def _text(tokenizer, token_id: int) -> str:
    """As `LanguageModel.token_text`: the tokenizer's own symbol where a token is only part of a character."""
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return tokenizer.id_to_token(token_id) if "\ufffd" in text or not text else text
