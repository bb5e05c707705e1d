"""The arrays of an `.npz` as `numpy.savez` writes them, without pickle. Numpy reads an array's header with Python's own
parser, which in Python 3.11 fails where two threads use it at once ("AST constructor recursion depth mismatch")."""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

MAGIC = b"\x93NUMPY"
LENGTH: dict[tuple[int, ...], int] = {(1, 0): 2, (2, 0): 4}  # bytes of the header's length, by the format's version
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the other ways have errors, and memory, of their own
TOLD = re.compile(
    r"\{'descr': '([<>|][biufcSU][1-9]\d{0,8})', 'fortran_order': (False|True), "
    r"'shape': \((|\d+,|\d+(?:, \d+)+)\), \} *\n"
)
# What numpy makes of other numbers in a text, or in what is true or false, is nothing that Python can do with.
UNITS = {"U": ("u4", 0x10FFFF), "b": ("u1", 1)}  # by the dtype's kind: what it is made of, and the largest of these
# What a damaged or hostile archive ends in: cut off, encrypted, packed in a way that there is not.
TROUBLES = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError)


@runtime_checkable
class Readable(Protocol):
    """A file as far as an array's header asks for it."""

    def read(self, size: int, /) -> bytes: ...


class Header(NamedTuple):
    """What stands before an array's bytes."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype

    @property
    def n_bytes(self) -> int:
        """Of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def header(file: Readable) -> Header:
    """An array's header; the file then stands at the array's first byte. `ValueError` for what numpy would not have
    written, and for objects."""
    begin = file.read(len(MAGIC) + 2)
    size = LENGTH.get(tuple(begin[len(MAGIC) :]), 0)
    if not begin.startswith(MAGIC) or not size:
        raise ValueError("an array's format")
    said = file.read(int.from_bytes(file.read(size), "little")).decode("latin-1")
    if (found := TOLD.fullmatch(said)) is None:
        raise ValueError(f"an array's header: {said[:80]!r}")
    dtype, order, shape = found.groups()
    try:
        return Header(tuple(int(n) for n in shape.split(",") if n.strip()), order == "True", np.dtype(dtype))
    except TypeError as error:  # of a size that there is not, as f3
        raise ValueError(f"an array of {dtype!r}") from error


def read(data: bytes, most: int | None = None) -> dict[str, np.ndarray]:
    """Every array by its name. `ValueError` for anything else, and for more than `most` bytes unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if most is not None and sum(entry.file_size for entry in entries) > most:
                raise ValueError(f"more than {most} bytes")
            return {entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries}
    except TROUBLES as error:
        raise ValueError(f"no arrays ({type(error).__name__}: {error})") from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    if not entry.filename.endswith(".npy") or entry.compress_type not in PACKED:
        raise ValueError(f"{entry.filename[:80]!r} is no array, or packed otherwise")
    with archive.open(entry) as file:
        told, held = header(file), bytearray(file.read())
    if len(held) != told.n_bytes:
        raise ValueError(f"an array of {told.n_bytes} bytes has {len(held)}")
    unit, largest = UNITS.get(told.dtype.kind, ("", 0))
    if held and unit and np.frombuffer(held, told.dtype.byteorder.replace("|", "") + unit).max() > largest:
        raise ValueError(f"an array of {told.dtype} with values that there are not")
    return np.ndarray(told.shape, told.dtype, held, order="F" if told.fortran_order else "C")
