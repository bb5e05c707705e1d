"""Whatever is kept: one sealed container, one writer, one reader, a schema and bounds for each kind."""

from .checked import check_parquet, exactly, expect, parse, wrong
from .sealed import Bounds, Head, Kind, Sealed, open_sealed, seal, write_sealed

__all__ = [
    "Bounds",
    "Head",
    "Kind",
    "Sealed",
    "check_parquet",
    "exactly",
    "expect",
    "open_sealed",
    "parse",
    "seal",
    "write_sealed",
    "wrong",
]
