"""Parquet files of numbers that others made: what their footer declares is bounded before anything is unpacked."""

from __future__ import annotations

from io import BufferedReader, BytesIO

import pyarrow
from pyarrow import types
from pyarrow.parquet import ParquetFile

from .. import untrusted
from ..files import expect

NUMBERS = (pyarrow.int64(), pyarrow.float32(), pyarrow.float64())


def opened(handle: BufferedReader | BytesIO, rows: int, size: int = untrusted.UNPACKED) -> ParquetFile:
    """The file, of at most so many rows and bytes. `ValueError`, or whatever pyarrow says, where it declares more."""
    file = ParquetFile(handle, thrift_string_size_limit=untrusted.FOOTER, thrift_container_size_limit=untrusted.PARTS)
    meta = file.metadata
    expect(meta.num_rows <= rows, f"{meta.num_rows} rows, at most {rows} are read")
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    large = sum(group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns))
    expect(large <= size, f"{large} bytes unpacked, at most {size} are read")
    return file


def numbers(file: ParquetFile) -> pyarrow.Table:
    """The whole of a file that holds numbers, and lists of them, alone."""
    for field in file.schema_arrow:
        kind = field.type.value_type if types.is_list(field.type) else field.type
        expect(kind in NUMBERS, f"{field.name}: the type")
    return file.read(use_threads=False)  # small files, many of them: threads and datasets only cost
