"""Untrusted JSON: bounds first, then Python's parser, then a schema."""

from __future__ import annotations

import json
import re
import reprlib
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ..bounds import DIGITS, NESTING, TEXT
from ..types import canonical_json

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
LONG = re.compile(rb"[0-9]{%d}" % (DIGITS + 1))
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
adapter = cache(TypeAdapter)
T = TypeVar("T")


def expect(holds: bool, what: str) -> None:
    """Refuse with `what` unless it holds."""
    if not holds:
        raise ValueError(what)


def parse(text: bytes, most: int, nesting: int = NESTING) -> Any:
    """The value of a JSON text of at most `most` bytes. Size, nesting, digits and strings are bounded before it is
    parsed; NaN and infinity are refused."""
    expect(len(text) <= most, f"{len(text)} bytes of JSON, at most {most} are read")
    bare = STRING.sub(b"", text)
    expect(LONG.search(bare) is None, f"a number of more than {DIGITS} digits")
    brackets = bare.translate(None, NOT_BRACKETS)
    for _ in range(nesting):
        if not brackets:
            break
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    expect(not brackets, f"JSON that does not close, or is nested more than {nesting} deep")
    if len(text) > TEXT:
        expect(max(map(len, STRING.findall(text)), default=0) <= TEXT, f"a string of more than {TEXT} bytes")
    return DECODER.decode(text.decode())


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


DECODER = json.JSONDecoder(parse_constant=_no_number)


def exactly(kind: type[T], data: Any) -> T:
    """`data` as a value of this type: every field is there and no other, each of its very type."""
    return exactly_of(kind, canonical_json(data).encode(), json.dumps(data))


def exactly_of(kind: type[T], text: bytes, spelled: str | bytes = b"") -> T:
    """The same of canonical JSON; `spelled`: another spelling, for the order of its keys."""
    extra = getattr(kind, "model_config", {}).get("extra", "forbid")
    schema: TypeAdapter[T] = adapter(kind)  # type: ignore[arg-type]  # a class is hashable
    try:
        found = schema.validate_json(spelled or text, strict=True, extra=extra)
    except ValidationError as error:
        raise ValueError(wrong(error)) from None
    same = canonical_json(schema.dump_python(found)).encode() == text
    expect(same, "a field is left out, or a number spelled otherwise")
    return found


def wrong(error: ValidationError) -> str:
    """The first error of a schema: where, what is expected, what was found."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where!r}: {first['msg'].lower()}, found {reprlib.repr(first['input'])}"
