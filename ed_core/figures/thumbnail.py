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
HEIGHT, WIDTH = 224, 640  # pixels, about twice what a list shows: the lines between cells stay visible
CLIPPED = 0.02  # of the cells at either end share one colour: a single huge one would leave the rest dark


def thumbnail(results: Sequence[ProbeResult]) -> list[list[int]]:
    """Rows from layer 0 up, columns tokens or layers: 0 (least) to 255 (most), -1 where there is no value; empty where
    nothing is a map. What the case study is about stands for all: of its probes the one that few have (erasure,
    gradients), else the lens, whose reading the verdict begins with. Large maps are thinned to at most `ROWS` ×
    `COLUMNS` by taking evenly spaced cells."""
    pictured = [(find(r.request.probe).thumbnail, r) for r in results]
    pictured = [((rank, measure), r) for (rank, measure), r in pictured if measure in r.measures]
    if pictured:
        (_, measure), result = max(pictured, key=lambda found: found[0][0])
        values = result[measure].astype(np.float64)
        if result.measures[measure].spec.unit == "ratio":  # of many sizes, as its own map has them
            values = np.log(np.where(values > 0, values, np.nan))
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
    low, high = np.quantile(small[known], (CLIPPED, 1 - CLIPPED)) if known.any() else (0.0, 1.0)
    if low == high and known.any():  # nearly all are equal: the few that are not must show
        low, high = small[known].min(), small[known].max()
    scaled = np.where(known, np.clip((small - low) / ((high - low) or 1.0), 0.0, 1.0), 0.0)
    cells: list[list[int]] = np.where(known, (scaled * 255).round(), -1).astype(int).tolist()
    return cells


def png(rows: Sequence[Sequence[int]], colours: np.ndarray, cell: tuple[int, int] = (1, 1)) -> bytes:
    """The thumbnail as a PNG, layer 0 at the bottom. `colours`: 256 of red, green, blue and opacity; a last one for
    where there is no value (-1). `cell`: height and width of one in pixels; between larger ones a line is left free."""
    from PIL import Image

    buffer, (height, width) = io.BytesIO(), cell
    pixels = colours[np.asarray(rows)[::-1]].repeat(height, 0).repeat(width, 1)
    if min(cell) > 4:
        pixels[height - 1 :: height], pixels[:, width - 1 :: width] = 0, 0
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def data_uri(rows: Sequence[Sequence[int]]) -> str:
    """`png` in the colours of all maps, as an address that a browser needs to ask nobody for."""
    return _uri(tuple(map(tuple, rows)))


@lru_cache(maxsize=256)
def _uri(rows: tuple[tuple[int, ...], ...]) -> str:
    cell = max(1, HEIGHT // len(rows)), max(1, WIDTH // len(rows[0]))
    return f"data:image/png;base64,{base64.b64encode(png(rows, _colours(), cell)).decode()}"


@lru_cache(maxsize=1)
def _colours() -> np.ndarray:
    from plotly.colors import sample_colorscale, unlabel_rgb

    from .colours import SEQUENTIAL

    scale = [unlabel_rgb(colour) for colour in sample_colorscale(SEQUENTIAL, np.linspace(0, 1, 256))]
    return np.array([*((*map(round, colour), 255) for colour in scale), (0, 0, 0, 0)], np.uint8)
