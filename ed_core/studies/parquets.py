"""Parquet files of anybody's: what a footer declares is bounded before anything is unpacked, and so is what pages say
of themselves: pyarrow makes room for what a page's header claims, whatever the footer says (the format: parquet.thrift,
in Thrift's compact protocol). Texts are counted before they are written out: a few bytes may stand for the same long
one in every row, and in every place of a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader, BytesIO

import pyarrow
from pyarrow import compute, types
from pyarrow.parquet import ColumnChunkMetaData, ColumnSchema, ParquetFile

from .. import bounds, outside
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


AT_ONCE = 16  # rows
TEXT = "BYTE_ARRAY"
NUMBERS = frozenset(("INT64", "FLOAT", "DOUBLE"))
VALUE = 32  # bytes of a number or a reference within a list, once Python has it
MARK = b"PAR1"


def opened(handle: BufferedReader | BytesIO, rows: int) -> ParquetFile:
    """The file, of at most so many rows. `ValueError`, or whatever pyarrow says, where its footer declares more than
    is read: columns, levels of lists, numbers, bytes."""
    size = handle.seek(0, 2)
    expect(size > 12, "too short")
    handle.seek(size - 8)
    footer, mark = int.from_bytes(handle.read(4), "little"), handle.read(4)
    expect(mark == MARK, "it does not end as such a file does")
    expect(
        footer <= bounds.FOOTER, f"a footer of {outside.size(footer)}, at most {outside.size(bounds.FOOTER)} is read"
    )
    handle.seek(0)
    file = ParquetFile(handle, thrift_container_size_limit=bounds.PARTS)
    _check(file, rows)
    _check_pages(handle, file)
    return file


def batches(handle: BufferedReader | BytesIO, rows: int, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """A few rows of these columns at a time, of at most `bounds.PROMPTS` bytes in all once Python has them."""
    with opened(handle, rows) as file:
        metadata = file.metadata
        texts = [leaf.path for leaf in _leaves(file) if leaf.physical_type == TEXT]
        handle.seek(0)
        with ParquetFile(handle, metadata=metadata, read_dictionary=texts) as again:
            written = 0
            for batch in again.iter_batches(AT_ONCE, columns=list(columns), use_threads=False):
                written += sum(_bytes_of(column, False) for column in batch.columns)
                expect(written <= bounds.PROMPTS, f"its texts have more than {outside.size(bounds.PROMPTS)}")
                yield batch


def numbers(handle: BufferedReader | BytesIO, rows: int) -> pyarrow.Table:
    """The whole of a file that holds numbers, and lists of them, alone."""
    with opened(handle, rows) as file:
        for leaf in _leaves(file):
            right = leaf.physical_type in NUMBERS and leaf.max_repetition_level <= 1
            expect(right, f"{leaf.path}: the type")
        return file.read(use_threads=False)  # small files, many of them: threads and datasets only cost


def table(handle: BufferedReader | BytesIO, rows: int, schema: pyarrow.Schema) -> pyarrow.Table | None:
    """The whole of a file of this flat schema; None for another."""
    with opened(handle, rows) as file:
        if not file.schema_arrow.equals(schema):
            return None
        metadata, texts = file.metadata, [leaf.path for leaf in _leaves(file) if leaf.physical_type == TEXT]
        about = file.schema_arrow.metadata
        handle.seek(0)
        with ParquetFile(handle, metadata=metadata, read_dictionary=texts) as again:
            found = again.read(use_threads=False)
    held = sum(_bytes_of(chunk, False) for column in found.columns for chunk in column.chunks)
    expect(held <= bounds.PROMPTS, f"its texts have more than {outside.size(bounds.PROMPTS)}")
    return found.cast(schema).replace_schema_metadata(about)


def _leaves(file: ParquetFile) -> list[ColumnSchema]:
    return [file.schema.column(i) for i in range(len(file.schema))]


def _check(file: ParquetFile, rows: int) -> None:
    told = file.metadata
    groups = [told.row_group(i) for i in range(told.num_row_groups)]
    n = max(told.num_rows, sum(group.num_rows for group in groups))
    expect(n <= rows, f"{n} rows, at most {rows} are read")
    leaves = _leaves(file)
    expect(len({leaf.path for leaf in leaves}) == len(leaves), "two columns of one name")
    widths = [width for field in file.schema_arrow for width in _widths(field.type)]
    expect(len(widths) == len(leaves), "columns that are no columns")
    large = 0
    for group in groups:
        chunks = [group.column(i) for i in range(group.num_columns)]
        expect(len(chunks) == len(leaves), "a group of rows that lacks a column")
        values = sum(
            max(chunk.num_values, group.num_rows) * max(width, leaf.length)
            for chunk, width, leaf in zip(chunks, widths, leaves, strict=True)
        )
        large += max(values, sum(chunk.total_uncompressed_size for chunk in chunks))
    expect(large <= bounds.UNPACKED, f"{large} bytes unpacked, at most {bounds.UNPACKED} are read")


def _check_pages(handle: BufferedReader | BytesIO, file: ParquetFile) -> None:
    """The same of what the pages themselves declare, which is what is made room for."""
    told, large, n = file.metadata, 0, 0
    for i in range(told.num_row_groups):
        group = told.row_group(i)
        for j in range(group.num_columns):
            for page in pages(handle, group.column(j)):
                n += 1
                large += page.unpacked + VALUE * page.values * page.dictionary
                expect(n <= bounds.PARTS, f"more than {bounds.PARTS} pages")
                expect(large <= bounds.UNPACKED, f"pages of {large} bytes, at most {bounds.UNPACKED} are read")
    handle.seek(0)


def _widths(kind: pyarrow.DataType, level: int = 0, places: int = 1) -> Iterator[int]:
    """For each column that a type has in the file, the bytes that one value of it takes at most, texts apart. A list of
    a fixed length has all its places even where it is null."""
    expect(level <= bounds.NESTING, f"nested more than {bounds.NESTING} deep")
    if isinstance(kind, pyarrow.BaseExtensionType):
        yield from _widths(kind.storage_type, level, places)
    elif types.is_dictionary(kind):
        yield from _widths(kind.value_type, level, places)
    elif not kind.num_fields:
        yield places * max(8, kind.byte_width if types.is_fixed_size_binary(kind) else 0)
    else:
        if types.is_fixed_size_list(kind):
            places *= max(1, kind.list_size)
        for i in range(kind.num_fields):
            yield from _widths(kind.field(i).type, level + 1, places)


def _bytes_of(column: pyarrow.Array, within: bool) -> int:
    """What a column's texts have when each is written out, and what is `within` lists; 0 for other columns."""
    kind = column.type
    if types.is_dictionary(kind):
        texts = types.is_string(kind.value_type) or types.is_binary(kind.value_type)
        lengths = compute.binary_length(column.dictionary) if texts else None
        held = 0 if lengths is None else compute.sum(compute.take(lengths, column.indices)).as_py() or 0
        return held + VALUE * len(column) * within
    if types.is_struct(kind):
        return VALUE * len(column) + sum(_bytes_of(part, True) for part in column.flatten())
    if types.is_map(kind):
        return _bytes_of(column.keys, True) + _bytes_of(column.items, True)
    if isinstance(column, pyarrow.ExtensionArray):
        return _bytes_of(column.storage, within)
    if kind.num_fields:
        return VALUE * len(column) + _bytes_of(column.flatten(), True)
    texts = types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    return VALUE * len(column) * within + (column.nbytes if texts else 0)
