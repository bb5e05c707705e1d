"""Token previews from a model's `tokenizer.json` alone: milliseconds, no torch. A chat template is code from strangers:
only the worker runs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import bounds, outside, prompts
from ..errors import BrokenWeights
from ..types import ModelSpec, Prompt
from . import sizes
from .specs import config_of, location

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def _tokenizer(spec: ModelSpec) -> Tokenizer | None:
    """Of the model's tokenizer.json, in its folder or in the hub cache's snapshot; None where there is none."""
    file = Path(location(spec)) / "tokenizer.json"
    return _read(str(file), file.stat().st_mtime_ns) if file.is_file() else None


@lru_cache(maxsize=8)
def _read(file: str, mtime_ns: int) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        found = Tokenizer.from_str(outside.text(file, bounds.TOKENIZER, BrokenWeights))
    except BrokenWeights:
        raise
    except Exception as error:  # whatever the library says of a stranger's file
        told = " ".join(str(error).split())[:120]
        raise BrokenWeights(f"The tokenizer.json of this model cannot be used ({told}); download it again.") from None
    found.no_truncation()  # a training may have left how it cut and padded
    found.no_padding()
    return found


def preview(spec: ModelSpec, prompt: Prompt) -> list[str] | None:
    """Texts of the tokens of `text + answer`; None where only the model itself could tell (no tokenizer.json, or a chat
    template)."""
    if prompt.template != "raw" or not prompts.fits(prompt) or (tokenizer := _tokenizer(spec)) is None:
        return None
    ids = tokenizer.encode(prompt.text + prompt.answer, add_special_tokens=prompt.special_tokens).ids
    return [_text(tokenizer, i) for i in ids]


def ids(spec: ModelSpec, text: str) -> list[int] | None:
    """Ids of a text's tokens, without special ones; None where only the model itself could tell."""
    tokenizer = _tokenizer(spec)
    return None if tokenizer is None else list(tokenizer.encode(text, add_special_tokens=False).ids)


def unread(spec: ModelSpec, texts: Sequence[str]) -> int:
    """How many of these tokens, as of `preview`, stand for what the model's tokenizer has no token for."""
    roles = special_roles(spec)
    unknown = roles.get("unk_token")
    if unknown in (roles.get("bos_token"), roles.get("eos_token")):  # it stands for a text's begin or end as well
        return 0
    return sum(text == unknown for text in texts)


def special(spec: ModelSpec) -> frozenset[str]:
    """Texts of the tokens that the model's tokenizer calls special; empty where it has no tokenizer.json."""
    tokenizer = _tokenizer(spec)
    added = {} if tokenizer is None else tokenizer.get_added_tokens_decoder()
    return frozenset(token.content for token in added.values() if token.special)


def too_long(spec: ModelSpec, n: int) -> str:
    """Why the model takes no prompt of `n` tokens here, or ""; from its config alone."""
    config = sizes.of_text(config_of(spec))
    positions = config.get("max_position_embeddings") or config.get("n_positions")
    return prompts.too_long(n, prompts.max_tokens(), positions if isinstance(positions, int) else None)


def chats(spec: ModelSpec) -> bool | None:
    """Whether the model has a chat template; None where its files are not here to tell."""
    folder = Path(location(spec))
    if not folder.is_dir():
        return None
    if (folder / "chat_template.jinja").is_file():
        return True
    found = _settings(spec, "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # several by name
        found = {one.get("name"): one for one in found if isinstance(one, dict)}
    return "default" in found if isinstance(found, dict) else bool(found)


def special_roles(spec: ModelSpec) -> dict[str, str]:
    """The special tokens a tokenizer's own files name, by their role (`bos_token`, `eos_token`, …); {} where there are
    no such files."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for role, value in _settings(spec, name).items():
            text = value.get("content") if isinstance(value, dict) else value
            if role.endswith("_token") and isinstance(text, str):
                found[role] = text
    return found


def added(spec: ModelSpec) -> tuple[list[str], list[str]] | None:
    """Special tokens that stand before and after every prompt that is encoded with special tokens; None without a
    tokenizer.json."""
    if (tokenizer := _tokenizer(spec)) is None:
        return None
    with_them, without = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
    at = next((i for i in range(len(with_them)) if with_them[i : i + len(without)] == without), 0)

    def name(ids: list[int]) -> list[str]:
        return [str(tokenizer.id_to_token(i)) for i in ids]

    return name(with_them[:at]), name(with_them[at + len(without) :])


def _settings(spec: ModelSpec, name: str) -> dict[str, Any]:
    try:
        found = outside.json_of(Path(location(spec)) / name)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    """As `LanguageModel.token_text`: the tokenizer's own symbol where a token is only part of a character."""
    text: str = tokenizer.decode([token_id], skip_special_tokens=False)
    return str(tokenizer.id_to_token(token_id)) if "\ufffd" in text or not text else text
