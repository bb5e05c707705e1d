"""Whatever is kept: one sealed container, one writer, one reader, a schema and bounds for each kind."""

from .checked import exactly, expect, parse, wrong
from .sealed import Bounds, Head, Kind, Sealed, open_sealed, seal, write_sealed

__all__ = [
    "Bounds",
    "Head",
    "Kind",
    "Sealed",
    "exactly",
    "expect",
    "open_sealed",
    "parse",
    "seal",
    "write_sealed",
    "wrong",
]
