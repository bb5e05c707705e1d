"""Token previews from a model's `tokenizer.json` alone, without torch. A chat template is strangers' code: the worker
alone runs it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import prompts, untrusted
from ..errors import BrokenWeights, PromptError, one_line
from ..types import Encoding, Prompt
from . import sizes
from .encoder import Encoder
from .ref import ModelRef

SETTINGS = "tokenizer_config.json"


def encoder(ref: ModelRef) -> Encoder | None:
    """Return the encoder of the model's own files; None without a tokenizer.json."""
    file, settings = (ref.place / name for name in ("tokenizer.json", SETTINGS))
    if not file.is_file():
        return None
    return _read(str(file), file.stat().st_mtime_ns, settings.stat().st_mtime_ns if settings.is_file() else 0)


@lru_cache(maxsize=8)
def _read(file: str, *mtimes_ns: int) -> Encoder:
    """Return the encoder of a tokenizer.json; cached while the times of the files stay the same."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(untrusted.text(file, untrusted.TOKENIZER, BrokenWeights))
    except BrokenWeights:
        raise
    except Exception as error:  # whatever a stranger's file provokes inside the library
        raise BrokenWeights(f"The tokenizer.json of this model cannot be read: {one_line(error)}.") from None
    folder = Path(file).parent
    return Encoder(tokenizer, _roles(folder).get("bos_token", ""), add_bos(folder))


def add_bos(folder: Path) -> bool | None:
    """Return whether a tokenizer's configuration asks for BOS in front of a text; None where it is silent."""
    asks = _settings(folder, SETTINGS).get("add_bos_token")
    return asks if isinstance(asks, bool) else None


def preview(ref: ModelRef, prompt: Prompt) -> Encoding | None:
    """Return the prompt's tokens as the model will get them, with notes; None without a tokenizer.json, with a chat
    template, and where nothing can be encoded."""
    if prompt.template != "raw" or not prompts.fits(prompt) or (own := encoder(ref)) is None:
        return None
    try:
        return own.encode(prompt.text, prompt.answer, prompt.special_tokens)
    except PromptError:
        return None


def ids(ref: ModelRef, text: str) -> list[int] | None:
    """Ids of a text's tokens, without special ones; None without a tokenizer.json."""
    return None if (own := encoder(ref)) is None else own.ids(text, special_tokens=False)


def special(ref: ModelRef) -> frozenset[str]:
    """Texts of the tokens that the model's tokenizer calls special; empty without a tokenizer.json."""
    added = {} if (own := encoder(ref)) is None else own.tokenizer.get_added_tokens_decoder()
    return frozenset(token.content for token in added.values() if token.special)


def too_long(ref: ModelRef, n: int) -> str:
    """Return the reason why the model takes no prompt of `n` tokens here, by its config, or ""."""
    config = sizes.of_text(ref.config())
    positions = config.get("max_position_embeddings") or config.get("n_positions")
    return prompts.too_long(n, prompts.max_tokens(), positions if isinstance(positions, int) else None)


def chats(ref: ModelRef) -> bool | None:
    """Whether the model has a chat template; None where its files are not here."""
    folder = ref.place
    if not folder.is_dir():
        return None
    if (folder / "chat_template.jinja").is_file():
        return True
    template = _settings(folder, SETTINGS).get("chat_template")
    if isinstance(template, list):  # several by name
        return any(isinstance(one, dict) and one.get("name") == "default" for one in template)
    return bool(template)


def _roles(folder: Path) -> dict[str, str]:
    """Return the texts of the special tokens by role, like "bos_token", as the folder's settings name them."""
    roles: dict[str, str] = {}
    for name in ("special_tokens_map.json", SETTINGS):
        for role, value in _settings(folder, name).items():
            text = value.get("content") if isinstance(value, dict) else value
            if role.endswith("_token") and isinstance(text, str):
                roles[role] = text
    return roles


def _settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the fields of a JSON file in a folder; {} where it cannot be read."""
    try:
        fields = untrusted.json_of(folder / name)
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}
