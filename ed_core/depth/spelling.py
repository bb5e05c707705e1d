"""Tokens that are bytes of a character, for reading."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

BYTES = re.compile(r"( ?)((?:<0x[0-9A-F]{2}>)+)")  # a token that is part of a character
PARTS = "₁₂₃₄₅₆₇₈"
LONGEST = 3  # tokens before one that its character may have begun in


def spelled(tokens: Sequence[str]) -> list[str]:
    """Return tokens for reading: bytes of one character show that character, each with the number of its part."""
    out, start = list(tokens), 0
    while start < len(tokens):
        data, end = b"", start
        while end < len(tokens) and end - start < len(PARTS) and (part := BYTES.fullmatch(tokens[end])):
            data, end = data + _bytes(part), end + 1
            with contextlib.suppress(UnicodeDecodeError):
                char = data.decode()
                space = " " * tokens[start].startswith(" ")
                out[start:end] = [space * (i == 0) + char + PARTS[i] for i in range(end - start)]
                break
        start = max(end, start + 1)
    return out


def following(before: Sequence[str], token: str) -> str:
    """Return a token that follows those `before`, for reading: the last byte of a character shows this, a first byte
    the letters that may begin so ("À…ÿ"), any other "…"."""
    if (part := BYTES.fullmatch(token)) is None:
        return token
    for n in range(1, LONGEST + 1):
        if (read := spelled([*before[-n:], token])[-1]) != token:
            return read
    first = _bytes(part)[0]
    if len(_bytes(part)) > 1 or not 0xC2 <= first <= 0xDF:
        return f"{part[1]}…"
    return f"{part[1]}{bytes([first, 0x80]).decode()}…{bytes([first, 0xBF]).decode()}"


def _bytes(found: re.Match[str]) -> bytes:
    """Return the bytes that a matched token spells."""
    return bytes.fromhex(found[2].replace("<0x", "").replace(">", ""))
