"""Parquet files that others made: what their footer declares is bounded before anything is unpacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BufferedReader, BytesIO

import pyarrow
from pyarrow import types
from pyarrow.parquet import ParquetFile

from .. import bounds, outside
from ..files import expect

AT_ONCE = 16  # rows
NUMBERS = (pyarrow.int64(), pyarrow.float32(), pyarrow.float64())


def opened(handle: BufferedReader | BytesIO, rows: int) -> ParquetFile:
    """The file, of at most so many rows. `ValueError`, or whatever pyarrow says, where it declares more than is
    read."""
    file = ParquetFile(handle, thrift_string_size_limit=bounds.FOOTER, thrift_container_size_limit=bounds.PARTS)
    told = file.metadata
    expect(told.num_rows <= rows, f"{told.num_rows} rows, at most {rows} are read")
    groups = [told.row_group(i) for i in range(told.num_row_groups)]
    large = sum(group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns))
    expect(large <= bounds.UNPACKED, f"{large} bytes unpacked, at most {bounds.UNPACKED} are read")
    return file


def batches(handle: BufferedReader | BytesIO, rows: int, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """A few rows of these columns at a time, of at most `bounds.PROMPTS` bytes in all."""
    with opened(handle, rows) as file:
        size = 0
        for batch in file.iter_batches(AT_ONCE, columns=list(columns), use_threads=False):
            size += batch.nbytes
            expect(size <= bounds.PROMPTS, f"its texts have more than {outside.size(bounds.PROMPTS)}")
            yield batch


def numbers(handle: BufferedReader | BytesIO, rows: int) -> pyarrow.Table:
    """The whole of a file that holds numbers, and lists of them, alone."""
    with opened(handle, rows) as file:
        for field in file.schema_arrow:
            kind = field.type.value_type if types.is_list(field.type) else field.type
            expect(kind in NUMBERS, f"{field.name}: the type")
        return file.read(use_threads=False)  # small files, many of them: threads and datasets only cost
