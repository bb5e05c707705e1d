"""A case study's picture for lists: a measure as a few whole numbers, drawn from the numbers themselves."""

from __future__ import annotations

import base64
import io
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


def png(rows: Sequence[Sequence[int]], colours: np.ndarray) -> bytes:
    """The thumbnail as a PNG, a pixel per cell, layer 0 at the bottom. `colours`: 256 of red, green, blue and opacity;
    a last one for where there is no value (-1)."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(colours[np.asarray(rows)[::-1]]).save(buffer, "PNG")
    return buffer.getvalue()


def data_uri(rows: Sequence[Sequence[int]]) -> str:
    """`png` in the colours of all maps, as an address that a browser needs to ask nobody for."""
    return f"data:image/png;base64,{base64.b64encode(png(rows, _colours())).decode()}"


@lru_cache(maxsize=1)
def _colours() -> np.ndarray:
    from plotly.colors import sample_colorscale, unlabel_rgb

    from .colours import SEQUENTIAL

    scale = [unlabel_rgb(colour) for colour in sample_colorscale(SEQUENTIAL, np.linspace(0, 1, 256))]
    return np.array([*((*map(round, colour), 255) for colour in scale), (0, 0, 0, 0)], np.uint8)
