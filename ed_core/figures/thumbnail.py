"""A case study's picture for lists: a measure as a few whole numbers, drawn from the numbers themselves. Numpy only."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..probes import find
from ..types import ProbeResult

ROWS, COLUMNS = 24, 36


def thumbnail(results: Sequence[ProbeResult]) -> list[list[int]]:
    """Rows from layer 0 up, columns tokens or layers: 0 (least) to 255 (most), -1 where there is no value; empty where
    nothing is a map. The first result that is pictured stands for all; large maps are thinned to at most `ROWS` ×
    `COLUMNS` by taking evenly spaced cells."""
    pictured = [(find(r.request.probe).thumbnail, r) for r in results]
    pictured = [((rank, measure), r) for (rank, measure), r in pictured if measure in r.measures]
    if pictured:
        (_, measure), result = max(pictured, key=lambda found: found[0][0])
        values = result[measure].astype(np.float64)
        return _thin(values[..., 0] if values.ndim > 2 else values)  # the best of a list
    return []


def _thin(values: np.ndarray) -> list[list[int]]:
    if not values.size:
        return []
    rows, columns = (
        np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))
        for n, most in zip(values.shape, (ROWS, COLUMNS))
    )
    small = values[np.ix_(rows, columns)]
    known = np.isfinite(small)
    low, high = (small[known].min(), small[known].max()) if known.any() else (0.0, 1.0)
    scaled = np.where(known, (small - low) / ((high - low) or 1.0), 0.0)
    return np.where(known, (scaled * 255).round(), -1).astype(int).tolist()


def png(rows: Sequence[Sequence[int]], palette: bytes) -> bytes:
    """The thumbnail as a PNG, a pixel per cell, layer 0 at the bottom; nothing where there is no value. `palette`: 256
    colours of three bytes."""
    width, height = len(rows[0]), len(rows)
    colour = lambda value: b"\0\0\0\0" if value < 0 else palette[3 * value : 3 * value + 3] + b"\xff"  # noqa: E731
    lines = b"".join(b"\0" + b"".join(map(colour, row)) for row in reversed(rows))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    pack = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    return b"\x89PNG\r\n\x1a\n" + b"".join(pack(*chunk) for chunk in chunks)


def data_uri(rows: Sequence[Sequence[int]]) -> str:
    """`png` in the colours of all maps, as an address that a browser needs to ask nobody for."""
    import base64

    return f"data:image/png;base64,{base64.b64encode(png(rows, _palette())).decode()}"


@lru_cache(maxsize=1)
def _palette() -> bytes:
    from plotly.colors import sample_colorscale, unlabel_rgb

    from .colours import SEQUENTIAL

    colours = map(unlabel_rgb, sample_colorscale(SEQUENTIAL, np.linspace(0, 1, 256)))
    return bytes(round(part) for colour in colours for part in colour)
