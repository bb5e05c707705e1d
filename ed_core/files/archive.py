"""Zip files, written and read with bounds. Only what this program writes is understood: plain entries, stored or
deflated, one behind the other from the file's first byte to the directory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from io import BufferedIOBase
from typing import BinaryIO, NamedTuple

from .checked import expect

END, END64, LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
ENTRY, LOCAL, MORE = struct.Struct("<4s4B4H3L5H2L"), struct.Struct("<4s5H3L2H"), struct.Struct("<2H3Q")
STORED, DEFLATED, UTF8 = 0, 8, 0x800
DAY = 0x21  # the first of January 1980, which a zip file counts from
LARGE, MANY = 0xFFFFFFFF, 0xFFFF  # stand for a number that follows in 8 bytes
MOST_NAME = 255
FILE_TYPES, PLAIN = 0o170000 << 16, (0, 0o100000 << 16)


class Entry(NamedTuple):
    """One file of an archive: its name, where it begins, and its size there and unpacked, as the directory has them."""

    name: str
    at: int
    packed: int
    bytes: int
    method: int
    crc: int


# ---------------------------------------------------------------- out


class Writer:
    """A zip file, entry by entry; the same bytes from the same content."""

    def __init__(self, file: BinaryIO | BufferedIOBase):
        self.file, self.at, self.directory, self.n = file, 0, bytearray(), 0

    def add(self, name: str, content: Iterable[bytes | memoryview], compressed: bool) -> None:
        """An entry of these pieces."""
        pieces, crc, size = list(content), 0, 0
        for piece in pieces:
            crc, size = zlib.crc32(piece, crc), size + len(piece)
        if compressed:
            deflating = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            pieces = [*map(deflating.compress, pieces), deflating.flush()]
        packed = sum(map(len, pieces)) if compressed else size
        told, method = name.encode(), DEFLATED if compressed else STORED
        flags = 0 if name.isascii() else UTF8
        large = max(size, packed, self.at) >= LARGE
        more = MORE.pack(1, MORE.size - 4, size, packed, self.at) if large else b""
        sizes = (LARGE, LARGE) if large else (packed, size)
        version = 45 if large else 20
        begin = LOCAL.pack(b"PK\3\4", version, flags, method, 0, DAY, crc, *sizes, len(told), len(more)) + told + more
        system = (version, 3, version, 0)
        at = LARGE if large else self.at
        self.directory += ENTRY.pack(
            b"PK\1\2", *system, flags, method, 0, DAY, crc, *sizes, len(told), len(more), 0, 0, 0, 0o600 << 16, at
        )
        self.directory += told + more
        self.n += 1
        self._write(begin, *pieces)

    def close(self) -> None:
        """Write the directory."""
        at, length, n = self.at, len(self.directory), self.n
        self._write(self.directory)
        if at + length >= LARGE or n >= MANY:
            end = self.at
            self._write(END64.pack(b"PK\6\6", END64.size - 12, 45, 45, 0, 0, n, n, length, at))
            self._write(LOCATOR.pack(b"PK\6\7", 0, end, 1))
        few = min(n, MANY)
        self._write(END.pack(b"PK\5\6", 0, 0, few, few, min(length, LARGE), min(at, LARGE), 0))

    def _write(self, *pieces: bytes | bytearray | memoryview) -> None:
        for piece in pieces:
            self.file.write(piece)
            self.at += len(piece)


# ---------------------------------------------------------------- in


def entries(file: BufferedIOBase, most: int) -> list[Entry]:
    """The directory, of at most `most` entries. The memory that this takes is bounded by `most`."""
    size = file.seek(0, 2)
    expect(size >= END.size, "no zip file")
    file.seek(max(0, size - END.size - LOCATOR.size - END64.size))
    tail = file.read()
    sign, disk, first_disk, here, n, length, at, comment = END.unpack(tail[-END.size :])
    expect(sign == b"PK\5\6" and not disk and not first_disk and not comment, "no zip file, or it does not end here")
    stop = size - END.size
    if tail[-END.size - LOCATOR.size :].startswith(b"PK\6\7") and len(tail) == END.size + LOCATOR.size + END64.size:
        sign, _, _, _, disk, first_disk, here, n, length, at = END64.unpack(tail[: END64.size])
        expect(sign == b"PK\6\6" and not disk and not first_disk, "the zip file's end")
        stop -= LOCATOR.size + END64.size
    expect(here == n and at + length == stop, "the zip file's directory is not where its end says")
    expect(0 < n <= most, f"{n} entries, at most {most} are read")
    expect(length <= n * (ENTRY.size + MOST_NAME + 64), "the zip file's directory is too long")
    file.seek(at)
    directory, offset, end = file.read(length), 0, 0
    found: list[Entry] = []
    for _ in range(n):
        entry, offset = _entry(directory, offset)
        expect(entry.at >= end and (entry.at == 0) == (not found), "its entries overlap")
        end = entry.at + LOCAL.size + entry.packed
        found.append(entry)
    expect(offset == length and end <= at, "the zip file's directory")
    return found


def _entry(directory: bytes, offset: int) -> tuple[Entry, int]:
    begin = offset + ENTRY.size
    expect(begin <= len(directory), "the zip file's directory is cut off")
    told = ENTRY.unpack_from(directory, offset)
    sign, _, _, _, _, flags, method, _, _, crc, packed, size, of_name, of_more, of_comment, disk, _, mode, at = told
    end = begin + of_name + of_more
    expect(sign == b"PK\1\2" and end <= len(directory) and not disk and not of_comment, "the zip file's directory")
    expect(mode & FILE_TYPES in PLAIN, "an entry is not a plain file")
    expect(method in (STORED, DEFLATED) and not flags & ~UTF8, "an entry is encrypted or compressed in another way")
    expect(0 < of_name <= MOST_NAME, "an entry's name")
    name = directory[begin : begin + of_name].decode("utf-8" if flags & UTF8 else "ascii")
    if LARGE in (size, packed, at):
        size, packed, at = _large([size, packed, at], directory[begin + of_name : end])
    expect(method == DEFLATED or packed == size, "a stored entry has two sizes")
    return Entry(name, at, packed, size, method, crc), end


def _large(numbers: list[int], more: bytes) -> list[int]:
    """Numbers of an entry, those that did not fit taken from what follows its name."""
    large = [i for i, number in enumerate(numbers) if number == LARGE]
    expect(more[:4] == struct.pack("<2H", 1, 8 * len(large)) and len(more) >= 4 + 8 * len(large), "an entry's size")
    for i, number in zip(large, struct.unpack_from(f"<{len(large)}Q", more, 4)):
        numbers[i] = number
    return numbers


def content(file: BufferedIOBase, entry: Entry, most: int) -> bytearray:
    """An entry's bytes, unpacked: exactly as many as the directory says, which is at most `most`."""
    if entry.bytes > most:
        raise ValueError(f"{entry.name!r} would have {entry.bytes} bytes unpacked, at most {most} are read")
    file.seek(entry.at)
    begin = file.read(LOCAL.size)
    expect(len(begin) == LOCAL.size, "an entry is cut off")
    sign, _, _, method, _, _, _, _, _, of_name, of_more = LOCAL.unpack(begin)
    same = sign == b"PK\3\4" and method == entry.method and file.read(of_name) == entry.name.encode()
    expect(same, "an entry is not what the directory says")
    file.seek(of_more, 1)
    data = bytearray(entry.packed)  # no more than the file has: `entries` looked
    expect(file.readinto(data) == entry.packed, "an entry is cut off")
    if entry.method == STORED:
        return data
    inflating = zlib.decompressobj(-zlib.MAX_WBITS)
    unpacked = inflating.decompress(data, entry.bytes + 1)
    expect(len(unpacked) == entry.bytes and inflating.eof, "an entry is not as long as the directory says")
    return bytearray(unpacked)
