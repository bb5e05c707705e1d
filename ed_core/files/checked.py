"""Untrusted JSON and arrays, bounded before they are made. JSON: bounds first, then Python's parser, then a schema. An
array: the bytes of a `.npy` file and back, without pickle. Numpy reads an array's header with Python's own parser,
which in Python 3.11 fails where two threads use it at once ("AST constructor recursion depth mismatch")."""

from __future__ import annotations

import json
import math
import re
import reprlib
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
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


MAGIC = b"\x93NUMPY"
LENGTH = {b"\x01\0": 2, b"\x02\0": 4}  # bytes of the header's length, by the format's version
MOST_HEADER, MOST_DIMS, MOST_ALONG = 10_000, 8, 1 << 40
WRITTEN = re.compile(
    rb"\{'descr': '([<>|][biufcSU][1-9]\d{0,8})', 'fortran_order': (False|True), "
    rb"'shape': \((|\d{1,18},|\d{1,18}(?:, \d{1,18})+)\), \} *\n"
)
# Python cannot use what numpy makes of other numbers in a text or a boolean.
UNITS = {"U": ("u4", 0x10FFFF), "b": ("u1", 1)}  # by the dtype's kind: what it is made of, and the largest of these


def array_parts(array: Any) -> tuple[bytes, memoryview]:
    """The header and the bytes of a `.npy` file; the bytes are a view of the array where it is contiguous."""
    array = np.asarray(array, order="C")
    if array.dtype.kind not in "biufU":
        raise TypeError(f"an array of {array.dtype} is not written; expected numbers, booleans or text")
    shape = ", ".join(map(str, array.shape)) + "," * (array.ndim == 1)
    said = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': ({shape}), }}".encode()
    said += b" " * (-(len(said) + len(MAGIC) + 5) % 64) + b"\n"
    raw = memoryview(array.reshape(-1).view(np.uint8) if array.nbytes else b"")
    return MAGIC + b"\x01\0" + len(said).to_bytes(2, "little") + said, raw


def read_array(data: bytes | bytearray) -> np.ndarray:
    """The array in a `.npy` file's bytes, a view of them. `ValueError` for objects, for what numpy would not have
    written, and where the header does not fit the bytes."""
    size = LENGTH.get(bytes(data[len(MAGIC) : len(MAGIC) + 2]), 0)
    if not data.startswith(MAGIC) or not size:
        raise ValueError("not the format of an array")
    begin = len(MAGIC) + 2 + size
    at = begin + int.from_bytes(data[len(MAGIC) + 2 : begin], "little")
    dtype, shape, order, size = _array_header(bytes(data[begin : min(at, begin + MOST_HEADER)]))
    if size != len(data) - at:
        raise ValueError(f"an array of {size} bytes has {len(data) - at}")
    unit, largest = UNITS.get(dtype.kind, ("", 0))
    if unit and np.frombuffer(data, dtype.byteorder.replace("|", "") + unit, offset=at).max(initial=0) > largest:
        raise ValueError(f"an array of {dtype} with out-of-range values")
    return np.ndarray(shape, dtype, data, at, order=order)


@lru_cache(1024)
def _array_header(said: bytes) -> tuple[np.dtype, tuple[int, ...], Literal["C", "F"], int]:
    """What an array's header says: dtype, shape, order, and how many bytes follow."""
    if (found := WRITTEN.fullmatch(said)) is None:
        raise ValueError(f"an array's header: {said[:80]!r}")
    try:
        dtype = np.dtype(found[1].decode())
    except TypeError as error:  # of an impossible size, as f3
        raise ValueError(f"an array of {found[1]!r}") from error
    shape = tuple(int(n) for n in found[3].split(b",") if n.strip())
    if len(shape) > MOST_DIMS or max(shape, default=0) > MOST_ALONG:
        raise ValueError(f"an array of shape {shape}")
    return dtype, shape, "F" if found[2] == b"True" else "C", math.prod(shape) * dtype.itemsize
