"""Prompts from a person, from a `.jsonl` file, and the bundled ones. Torch-free; refuses what cannot be encoded, never
repairs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path

from . import settings, untrusted
from .errors import InputError, ParameterError, PromptError, PromptFileError
from .types import Prompt, from_json

HALF = "\ufffd"  # what the bytes of a character decode to that is not whole
UNFAITHFUL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # all controls but tab and line ends
FIELDS = {field.name for field in fields(Prompt)}


def max_tokens() -> int:
    """Return the longest prompt accepted, in tokens: the setting `max_tokens`."""
    return settings.current().max_tokens


def max_characters() -> int:
    """Return the longest prompt, answer included, that is given to a tokenizer, in characters."""
    return max(untrusted.LEAST_CHARACTERS, untrusted.CHARACTERS * max_tokens())


def fits(prompt: Prompt) -> bool:
    """Return whether a prompt has few enough characters to be tokenized."""
    return len(prompt.text) + len(prompt.answer) <= max_characters()


def check_length(prompt: Prompt) -> None:
    """Raise a `PromptError` for a prompt of too many characters, before the time that tokenizing it takes."""
    if not fits(prompt):
        raise PromptError(
            f"The prompt has {len(prompt.text) + len(prompt.answer)} characters and at most {max_characters()} are "
            "read; shorten it or raise the limit of tokens (ED_MAX_TOKENS)."
        )


def too_long(n: int, most: int | None, positions: int | None) -> str:
    """Return why a prompt of `n` tokens is refused, or "". `most`: the setting; `positions`: of the model. None: no
    limit."""
    if positions and n > positions and positions <= (most or positions):
        return f"The prompt has {n} tokens and the model has {positions} positions; shorten it."
    return (
        f"The prompt has {n} tokens and the limit is {most}; shorten it or raise the limit (ED_MAX_TOKENS)."
        if most and n > most
        else ""
    )


def check_types(prompt: Prompt) -> None:
    """Raise a `ParameterError` for a field of another type than `Prompt` declares, which could not be stored."""
    for field in fields(prompt):
        value, kind = getattr(prompt, field.name), type(field.default) if field.name != "text" else str
        if not isinstance(value, kind):
            expected = "True or False" if kind is bool else "text"
            raise ParameterError(f"The {field.name} of a prompt is {str(value)[:40]!r}; expected {expected}.")


def check_text(prompt: Prompt) -> None:
    """Raise a `PromptError` for a prompt that no tokenizer can encode faithfully: nothing at all, lone surrogates,
    control characters."""
    if not prompt.text.strip():
        raise PromptError("The prompt is empty; type or pick some text.")
    if prompt.template not in ("raw", "chat"):
        raise PromptError(f"The template is {prompt.template!r}; expected 'raw' or 'chat'.")
    parts = {"prompt": prompt.text, "answer": prompt.answer, "id": prompt.id, "form": prompt.form}
    for where, text in parts.items():
        if result := UNFAITHFUL.search(text):
            kind = "half of a surrogate pair" if result[0] >= "\ud800" else "a control character"
            raise PromptError(
                f"Character {result.start()} of the {where} is {kind} (U+{ord(result[0]):04X}), which has no faithful "
                "encoding; remove it."
            )


def read_jsonl(path: str | Path) -> list[Prompt]:
    """Return the prompts of a file with one JSON object a line: `text`, optional `answer`, `id`, `template`,
    `special_tokens`, `form`.

    Refuses the whole file with a `PromptFileError` that names the line: nothing is skipped in silence."""
    return parse_jsonl(untrusted.text(path, untrusted.PROMPTS, PromptFileError, "prompts file"), str(path))


def parse_jsonl(text: str, name: str) -> list[Prompt]:
    """Return the prompts of a text as `read_jsonl` reads it from a file; errors call the text `name`."""
    prompts = [_parse(name, number, line) for number, line in islice(lines(text), untrusted.LINES + 1)]
    if len(prompts) > untrusted.LINES:
        raise PromptFileError(f"{name} holds more than {untrusted.LINES} prompts; give a part of it.")
    if not prompts:
        raise PromptFileError(f"{name} holds no prompts; expected one JSON object a line with a 'text'.")
    return prompts


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a text that are not empty, with their numbers from 1. Only a line feed ends one: JSON has
    other separators, like U+2028, inside its strings."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def to_jsonl(prompts: Sequence[Prompt]) -> str:
    """Return prompts as the text that `read_jsonl` reads, fields at their defaults left out."""
    kept = [
        {f.name: getattr(p, f.name) for f in fields(p) if f.name == "text" or getattr(p, f.name) != f.default}
        for p in prompts
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)


def _parse(path: str, number: int, line: str) -> Prompt:
    """Return the prompt of one line of a file; a `PromptFileError` names file and line."""
    try:
        data = from_json(line)
    except ValueError as error:
        place = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise PromptFileError(f"{path}, line {number}: not JSON ({place}); expected one object a line.") from None
    if not isinstance(data, dict) or not isinstance(data.get("text"), str):
        raise PromptFileError(f"{path}, line {number}: expected an object with a string 'text'.")
    prompt = Prompt(**{k: v for k, v in data.items() if k in FIELDS and v is not None})
    try:
        check_types(prompt)
        check_length(prompt)
        check_text(prompt)
    except InputError as error:
        raise PromptFileError(f"{path}, line {number}: {error}") from None
    return prompt


def exact(text: str, answer: str) -> bool:
    """Return whether a written `text` begins with the answer and does not run on in the same word; spaces around the
    answer and in front of the text do not count."""
    text, answer = text.lstrip(), answer.strip()
    return text.startswith(answer) and not (text[len(answer) :][:1].isalnum() and answer[-1:].isalnum())


def settled(text: str, answer: str) -> bool | None:
    """Return `exact(text, answer)` as soon as nothing that may follow `text` can change it, else None."""
    begun, answer = text.lstrip().rstrip(HALF), answer.strip()  # of a character that is not whole yet
    return None if answer.startswith(begun) else exact(text, answer)


def answer_with_seam(answer: str, laid: str) -> str:
    """Return the answer, after the question's end where one token straddles both. `laid`: its tokens' text."""
    return laid if laid.endswith(answer) else answer
