"""Figures as files, and thumbnails. Torch-free.

In the app the browser that shows a figure saves it (`figure.js`); in the shell kaleido draws it in Chromium. Either way
it is dark on white, with its caption above and its origin below (`printing`)."""

from __future__ import annotations

import base64
import html
import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..errors import ImageFailed
from ..models.controls import full_name
from ..probes import find
from ..types import ProbeResult

SECONDS = 60  # a start of Chromium takes 3 to 5 s on two busy cores
SCALE = {"png": 2, "svg": 1}  # pixels of the file for one on the screen
INK, FAINT, PAPER = "#1f2430", "#5a6070", "#ffffff"
FONT = "Arial, Helvetica, 'Liberation Sans', sans-serif"  # named, not embedded: every reader has one of them
LINE, EDGE = 17, 8  # pixels


def render(figure: go.Figure, kind: str, caption: str = "", origin: str = "") -> bytes:
    """Return the figure as an image, `kind` "png" (twice as fine as on the screen) or "svg". `caption`, `origin`: plain
    text above and below. An `ImageFailed` where Chromium cannot draw."""
    import kaleido

    spec = json.loads(figure.to_json())
    for trace in spec["data"]:
        if trace.get("type") == "heatmap":
            trace.pop("text", None)  # only the mouse reads it
    layout, changes = spec["layout"], printing(spec["layout"], caption, origin)
    notes = [*layout.get("annotations", ()), *changes["annotations"]]
    spec["layout"] = layout | changes | {"annotations": notes, "font": layout.get("font", {}) | changes["font"]}
    size = {"format": kind, "width": changes["width"], "height": changes["height"], "scale": SCALE[kind]}
    page = kaleido.PageGenerator(mathjax=False)  # which would be fetched from the network
    try:
        image: bytes = kaleido.calc_fig_sync(spec, size, kopts={"page_generator": page, "timeout": SECONDS})
    except Exception as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ImageFailed(
            f"PNG and SVG are drawn by Chromium, which did not draw this figure ({last[:200]}); install it (on Debian: "
            "apt install chromium), or set BROWSER_PATH to the one to use."
        ) from error
    return image


def printing(layout: Mapping[str, Any], caption: str = "", origin: str = "") -> dict[str, Any]:
    """Return the changes to a figure's layout for print: size, colours, and `caption` and `origin` as annotations, with
    room above and below."""
    width = int((layout.get("meta") or {}).get("width_px", 600))
    above, below = _wrapped(caption, width, 7.0), _wrapped(origin, width, 5.3)
    margin, notes = layout.get("margin", {}), []
    left = EDGE - margin.get("l", 0)
    look = dict(showarrow=False, xref="paper", yref="paper", x=0, xanchor="left", xshift=left, align="left")
    for lines, y, anchor, shift, size, ink in (
        (above, 1, "bottom", margin.get("t", 0), 13, INK),
        (below, 0, "top", -margin.get("b", 0), 10, FAINT),
    ):
        if lines:
            font = {"size": size, "color": ink}
            notes.append({**look, "text": "<br>".join(lines), "y": y, "yanchor": anchor, "yshift": shift, "font": font})
    top, bottom = (LINE * len(lines) + EDGE if lines else 0 for lines in (above, below))
    return {
        "annotations": notes,
        "margin": {**margin, "t": margin.get("t", 0) + top, "b": margin.get("b", 0) + bottom},
        "width": width,
        "height": int(layout.get("height", 420)) + top + bottom,
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "autosize": False,
        "font": {"color": INK, "family": FONT},
    }


def _wrapped(text: str, width: int, letter: float) -> list[str]:
    """Return plain text as escaped lines that fit `width` pixels; `letter`: pixels that one takes."""
    return [
        html.escape(line, quote=False)
        for line in textwrap.wrap(" ".join(text.split()), max(20, int((width - 2 * EDGE) / letter)))
    ]


def origin(results: Sequence[ProbeResult]) -> str:
    """Return where a figure came from, in one line: model, precision, run and time; of several results their number."""
    if not results:
        return ""
    models = dict.fromkeys(full_name(m) for r in results for m in r.request.models)
    probes = dict.fromkeys(r.request.probe for r in results)
    parts = [", ".join(list(models)[:4]), ", ".join(list(probes)[:4])]
    if len(results) == 1:
        made = results[0].provenance
        parts += [
            f"{results[0].n_tokens} tokens",
            f"run {results[0].request.key}",
            f"{str(made.get('time', ''))[:16].replace('T', ' ')} UTC" if made.get("time") else "",
        ]
    else:
        parts += [f"{len(results)} runs, {results[0].request.key[:12]} the first"]
    return " · ".join(filter(None, parts))


# ---------------------------------------------------------------- thumbnails


ROWS, COLUMNS = 24, 36
HEIGHT, WIDTH = 224, 640  # pixels, about twice what a list shows: the lines between cells stay visible
CLIPPED = 0.02  # of the cells at either end share one colour: a single huge one would leave the rest dark


def thumbnail(results: Sequence[ProbeResult]) -> list[list[int]]:
    """Return a case study's thumbnail: rows from layer 0 up, columns tokens or layers, 0 (dark end of their map) to
    255, -1 for no value; empty where nothing is a map.

    One result represents all: of the probe that fewest studies have (erasure, gradients), else the lens. Large maps are
    thinned to at most `ROWS` × `COLUMNS` evenly spaced cells."""
    pictured = [(find(r.request.probe).thumbnail, r) for r in results]
    pictured = [((rank, measure), r) for (rank, measure), r in pictured if measure in r.measures]
    if pictured:
        (_, measure), result = max(pictured, key=lambda found: found[0][0])
        values = result[measure].astype(np.float64)
        if result.measures[measure].spec.unit == "ratio":  # of many sizes, as its own map has them
            values = np.log(np.where(values > 0, values, np.nan))
        elif result.measures[measure].spec.unit == "nats":  # from the output: bright is near it, as on the lens's map
            values = -values
        return _thin(values[..., 0] if values.ndim > 2 else values)  # the best of a list
    return []


def _thin(values: np.ndarray) -> list[list[int]]:
    """Return an array thinned and scaled to 0 to 255, -1 for no value."""
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


def data_uri(rows: Sequence[Sequence[int]]) -> str:
    """Return the thumbnail as a PNG in a data address, layer 0 at the bottom, in the colours of all maps."""
    return _uri(tuple(map(tuple, rows)))


@lru_cache(maxsize=256)
def _uri(rows: tuple[tuple[int, ...], ...]) -> str:
    """Return the data address of these rows, from a cache."""
    from PIL import Image

    height, width = max(1, HEIGHT // len(rows)), max(1, WIDTH // len(rows[0]))
    pixels = _colours()[np.asarray(rows)[::-1]].repeat(height, 0).repeat(width, 1)
    if min(height, width) > 4:  # a line between cells
        pixels[height - 1 :: height], pixels[:, width - 1 :: width] = 0, 0
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


@lru_cache(maxsize=1)
def _colours() -> np.ndarray:
    """Return the colours of all maps, red, green, blue and opacity: 256, and a clear one, which is no value (-1)."""
    from plotly.colors import sample_colorscale, unlabel_rgb

    from .colours import SEQUENTIAL

    scale = [unlabel_rgb(colour) for colour in sample_colorscale(SEQUENTIAL, np.linspace(0, 1, 256))]
    return np.array([*((*map(round, colour), 255) for colour in scale), (0, 0, 0, 0)], np.uint8)
