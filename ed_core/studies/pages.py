"""What the pages of a parquet file say of themselves, read before any is unpacked: pyarrow makes room for what a page's
header claims, whatever the footer says (the format: parquet.thrift, in Thrift's compact protocol)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, BytesIO

from pyarrow.parquet import ColumnChunkMetaData

from .. import bounds
from ..files import expect

MOST = 64 << 10  # bytes of a header
STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
TYPE, UNPACKED, PACKED, DATA, DICTIONARY, DATA_V2 = 1, 2, 3, 5, 7, 8  # fields of a page's header
N_VALUES = 1  # field of the header of its kind


@dataclass(frozen=True)
class Page:
    unpacked: int  # bytes
    packed: int
    values: int
    dictionary: bool


def pages(handle: BufferedReader | BytesIO, chunk: ColumnChunkMetaData) -> Iterator[Page]:
    """Every page of a column within a group of rows. `ValueError` where the bytes are no such pages."""
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    at = min(first or chunk.data_page_offset, chunk.data_page_offset)
    end = at + chunk.total_compressed_size
    while at < end:
        handle.seek(at)
        header = Header(handle.read(min(MOST, end - at)))
        page = header.page()
        yield page
        at += header.at + page.packed


class Header:
    """One page's header; `at` is where its reading has come to."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def page(self) -> Page:
        told: dict[int, int] = {}
        n_values = 0
        for field, kind in self._fields():
            if field in (DATA, DICTIONARY, DATA_V2) and kind == STRUCT:
                told[field] = True
                for inner, of in self._fields():
                    if inner == N_VALUES and of in INTEGERS:
                        n_values = self._integer()
                    else:
                        self._skip(of)
            elif kind in INTEGERS:
                told[field] = self._integer()
            else:
                self._skip(kind)
        unpacked, packed = told.get(UNPACKED, -1), told.get(PACKED, -1)
        expect(min(unpacked, packed, n_values) >= 0, "a page without its sizes")
        return Page(unpacked, packed, n_values, DICTIONARY in told)

    def _fields(self) -> Iterator[tuple[int, int]]:
        field = 0
        while (head := self._byte()) != STOP:
            field = field + (head >> 4) if head >> 4 else self._integer()
            yield field, head & 15

    def _skip(self, kind: int, level: int = 0) -> None:
        expect(level <= bounds.NESTING, "a page's header that is no header")
        if kind in (TRUE, FALSE):
            return
        if kind == BYTE:
            self._past(1)
        elif kind in INTEGERS:
            self._integer()
        elif kind == DOUBLE:
            self._past(8)
        elif kind == BINARY:
            self._past(self._varint())
        elif kind in (LIST, SET):
            head = self._byte()
            n = head >> 4 if head >> 4 != 15 else self._varint()
            self._each(n, (head & 15,), level)
        elif kind == MAP:
            n = self._varint()
            head = self._byte() if n else 0
            self._each(n, (head >> 4, head & 15), level)
        else:
            expect(kind == STRUCT, "a page's header that is no header")
            for _, of in self._fields():
                self._skip(of, level + 1)

    def _each(self, n: int, kinds: tuple[int, ...], level: int) -> None:
        expect(n <= len(self.data), "a page's header that is no header")
        for kind in kinds * n:
            if kind in (TRUE, FALSE):  # which within a list take a byte
                self._past(1)
            else:
                self._skip(kind, level + 1)

    def _past(self, n: int) -> None:
        self.at += n
        expect(self.at <= len(self.data), "a page's header that is cut off")

    def _byte(self) -> int:
        self._past(1)
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            expect(shift < 64, "a page's header that is no header")

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
