"""The frame all heatmap panels share: layers upwards, a strip of means beside them, depth lines at one height, cells that can be clicked.

All panels have the same margins and the same y range, from half a row below row 0 to half a row above row `L`: a panel of blocks leaves
the topmost row empty, a panel of depths (the lens) has the output there. So a depth line lies at one height in every panel of a grid.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from . import colours
from .colours import Shade
from .text import number, visible, width

LEFT, RIGHT, TOP, BOTTOM = 46, 40, 36, 76
TITLE = 24  # further pixels on top where a panel has a title
HEATMAP, STRIP = (0.0, 0.84), (0.87, 1.0)
OVERLAY_LIMIT = 6000  # cells; above it hover comes from the heatmap itself and only the lowest row can be clicked
MANY_ROWS = 14  # pixels a row label needs
STEADY = {"selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}}}  # a click must not fade anything


@dataclass(frozen=True)
class View:
    """How a panel is shown; no part of any number. Tokens count from 0; `window` holds the first and the last one shown."""

    title: str = ""
    height: int = 420
    width_px: int = 600
    window: tuple[int, int] | None = None
    selected: int | None = None
    answer_start: int | None = None
    depth_lines: Mapping[str, int | None] = field(default_factory=dict)
    uirevision: str = "panel"

    def span(self, n_tokens: int) -> tuple[int, int]:
        """First and last token shown."""
        if self.window is None:
            return 0, n_tokens - 1
        first = min(max(self.window[0], 0), n_tokens - 1)
        return first, min(max(self.window[1], first), n_tokens - 1)

    def cell(self, n_tokens: int, n_rows: int, domain: tuple[float, float] = HEATMAP) -> tuple[float, float]:
        """Rough width and height of a cell in pixels."""
        first, last = self.span(n_tokens)
        across = (self.width_px - LEFT - RIGHT) * (domain[1] - domain[0])
        return across / (last - first + 1), (self.height - TOP - BOTTOM - TITLE * bool(self.title)) / n_rows


@dataclass(frozen=True)
class Strip:
    """The curve beside a heatmap: one value per row."""

    values: np.ndarray
    low: float
    high: float
    title: str
    colour: str = colours.BOTH
    log: bool = False


def mean_over_tokens(z: np.ndarray, first_token: bool = True) -> np.ndarray:
    """Mean of each row over the tokens computed so far; NaN where there is none yet."""
    rows = z if first_token or z.shape[1] < 2 else z[:, 1:]
    count = np.isfinite(rows).sum(1)
    return np.where(count > 0, np.nansum(rows, 1, dtype=np.float64) / np.maximum(count, 1), np.nan)


def token_panel(
    result: ProbeResult, view: View, z: np.ndarray, shade: Shade, unit: str, strip: Strip, hover: Callable[[int, int], str], row: str = "layer"
) -> go.Figure:
    """Heatmap of `z` [row, token] with its strip. `hover(row, token)` gives what stands below the cell's place."""
    fig = frame(view, result.n_layers, row)
    n_rows, n_tokens = z.shape
    add_heatmap(fig, z, shade, unit, gap=min(view.cell(n_tokens, n_rows)) >= 8)
    first, last = view.span(n_tokens)
    names = [visible(token) for token in result.tokens]
    if n_rows * (last - first + 1) > OVERLAY_LIMIT:
        fig.data[0].update(hoverinfo=None, hovertemplate=f"{row} %{{y}} · token %{{x}}<br>%{{z:.3g}} {unit}<extra></extra>")
        fig.update_layout(hoverdistance=8)
        cells = [(0, token) for token in range(first, last + 1)]
    else:
        cells = [(y, x) for y in range(n_rows) for x in range(first, last + 1)]
    add_cells(fig, cells, [f"{row} {y} · token {x} <b>{names[x]}</b><br>{hover(y, x)}" for y, x in cells])
    add_strip(fig, strip, row)
    label_tokens(fig, view, result.tokens)
    mark_tokens(fig, view, n_tokens)
    draw_depths(fig, view.depth_lines)
    return fig


def frame(view: View, n_layers: int, row: str, domain: tuple[float, float] = HEATMAP) -> go.Figure:
    """An empty panel: axes, margins and title, the same for every panel."""
    room = view.height - TOP - BOTTOM - TITLE * bool(view.title)
    step = tick_step(n_layers + 1, room / MANY_ROWS)
    plain = dict(showgrid=False, zeroline=False, automargin=False, fixedrange=True, ticks="", tickfont_size=10, title_font_size=11)
    fig = go.Figure()
    fig.update_layout(
        height=view.height,
        margin=dict(l=LEFT, r=RIGHT, t=TOP + TITLE * bool(view.title), b=BOTTOM, autoexpand=False),
        title=dict(text=view.title, x=0, xref="paper", y=1, yref="container", yanchor="top", pad_t=6, font_size=14),
        paper_bgcolor=colours.CLEAR,
        plot_bgcolor=colours.CLEAR,
        showlegend=False,
        hovermode="closest",
        hoverdistance=-1,
        hoverlabel=dict(align="left", namelength=0),
        dragmode=False,
        uirevision=view.uirevision,
        xaxis=dict(domain=domain, **plain),
        xaxis2=dict(domain=(domain[1] + STRIP[0] - HEATMAP[1], STRIP[1]), anchor="y", **plain),
        yaxis=dict(range=[-0.5, n_layers + 0.5], tickvals=list(range(0, n_layers + 1, step)), title_text=row, title_standoff=6, **plain),
    )
    return fig


def tick_step(n: int, fit: float) -> int:
    """The distance between labels, a round number, so that at most `fit` of `n` are drawn."""
    return next((step for step in (1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 256) if n / step <= max(fit, 1)), 500)


def add_heatmap(fig: go.Figure, z: np.ndarray, shade: Shade, unit: str, gap: bool) -> None:
    """The measure itself as trace 0, untouched; a logarithmic colour bar hangs on an invisible trace of its own."""
    domain = fig.layout.xaxis.domain
    bar = dict(
        orientation="h", thickness=8, len=domain[1] - domain[0], x=domain[0], xanchor="left", y=1, yanchor="bottom", ypad=2, xpad=0,
        outlinewidth=0, tickfont_size=9, ticks="", title=dict(text=""),
    )
    scale = dict(zmin=shade.low, zmax=shade.high, colorscale=shade.colours)
    fig.add_trace(go.Heatmap(z=z, name="z", hoverinfo="skip", xgap=int(gap), ygap=int(gap), showscale=not shade.log, colorbar=bar, **scale))
    if shade.log:
        low, high = np.log10([shade.low, shade.high])
        ticks = np.arange(round(low), round(high) + 1)
        bar.update(tickvals=ticks.tolist(), ticktext=[f"{10.0**t:g}" for t in ticks])
        even = [[i / (len(shade.colours) - 1), colour] for i, (_, colour) in enumerate(shade.colours)]
        marker = dict(color=[low], cmin=low, cmax=high, colorscale=even, showscale=True, colorbar=bar)
        fig.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name="scale", hoverinfo="skip", marker=marker))
    fig.add_annotation(text=unit, x=0, xref="paper", xanchor="right", y=1, yref="paper", yanchor="bottom", yshift=14, font_size=9, showarrow=False)


def add_cells(fig: go.Figure, cells: Sequence[tuple[int, int]], texts: Sequence[str]) -> None:
    """Invisible markers over the cells: they carry hover and clicks, which a heatmap does not hand on. `customdata` is [row, column]."""
    fig.add_trace(
        go.Scatter(
            x=[x for _, x in cells], y=[y for y, _ in cells], customdata=[list(cell) for cell in cells], text=list(texts),
            mode="markers", name="cells", opacity=0, hovertemplate="%{text}<extra></extra>",
        )
    )


def add_strip(fig: go.Figure, strip: Strip, row: str) -> None:
    """The curve on the second x axis, row by row beside the heatmap."""
    y = np.arange(len(strip.values))
    fig.add_trace(
        go.Scatter(
            x=strip.values, y=y, xaxis="x2", mode="lines+markers", name="mean", marker_size=4, line=dict(color=strip.colour, width=1.5),
            text=[f"{row} {i}<br>{strip.title}: {number(v)}" for i, v in enumerate(strip.values)], hovertemplate="%{text}<extra></extra>", **STEADY,
        )
    )
    if strip.log:
        axis = dict(type="log", range=np.log10([strip.low, strip.high]).tolist(), tickvals=[strip.low, strip.high])
    else:
        axis = dict(range=[strip.low, strip.high], tickvals=[strip.low, strip.high] if strip.low >= 0 else [strip.low, 0, strip.high])
    axis["ticktext"] = [number(v) for v in axis["tickvals"]]
    fig.update_layout(xaxis2=dict(title_text=strip.title, title_standoff=4, **axis))
    fig.update_xaxes(tickfont_size=9, title_font_size=10, tickangle=0, selector=dict(anchor="y", type=axis.get("type")))
    if strip.low < 0:
        fig.add_shape(type="line", xref="x2", yref="y domain", x0=0, x1=0, y0=0, y1=1, line=dict(color=colours.GREY, width=1), layer="below")


def label_tokens(fig: go.Figure, view: View, tokens: Sequence[str]) -> None:
    """Token texts below the columns, upright where they fit, and only as many as there is room for. Columns stay numbers: tokens repeat."""
    first, last = view.span(len(tokens))
    across, _ = view.cell(len(tokens), 1)
    step = tick_step(last - first + 1, (last - first + 1) * across / 9)
    at = list(range(first, last + 1, step))
    flat = all(6.5 * width(tokens[i], 10) + 4 <= across * step for i in at)
    names = [f"<b>{visible(tokens[i], 10)}</b>" if i == view.selected else visible(tokens[i], 10) for i in at]
    fig.update_layout(xaxis=dict(range=[first - 0.5, last + 0.5], tickvals=at, ticktext=names, tickangle=0 if flat else -90))
    fig.update_layout(xaxis_tickfont_size=10 if across * step >= 11 else 9)


def mark_tokens(fig: go.Figure, view: View, n_tokens: int) -> None:
    """A box around the selected token's column, a line where the answer begins."""
    first, last = view.span(n_tokens)
    place = dict(xref="x", yref="y domain", y0=0, y1=1)
    for colour, thick in ((colours.LIGHT_EDGE, 3), (colours.DARK_EDGE, 1)):
        if view.answer_start is not None and first < view.answer_start <= last:
            at = view.answer_start - 0.5
            fig.add_shape(type="line", x0=at, x1=at, line=dict(color=colour, width=thick), **place)
        if view.selected is not None and first <= view.selected <= last:
            box = dict(x0=view.selected - 0.5, x1=view.selected + 0.5)
            fig.add_shape(type="rect", line=dict(color=colour, width=thick), **box, **place)


def draw_depths(fig: go.Figure, lines: Mapping[str, int | None], upright: bool = False) -> None:
    """A dashed line per criterion at `depth + 0.5`, named in the margin; `upright` where layers run along x.

    `depth` is a block, and `depth + 1` blocks count as effective: the line lies on the upper edge of block `depth`, that is at `ratio * L`
    blocks from the bottom, for all three criteria and in all panels. In the lens it lies above row `depth`, the first one past the threshold.
    Criteria that agree share one line, their dashes taking turns.
    """
    for depth in sorted({d for d in lines.values() if d is not None}):
        names = [name for name in colours.CRITERIA if lines.get(name) == depth]
        at = dict(y0=0, y1=1, x0=depth + 0.5, x1=depth + 0.5, yref="paper") if upright else dict(x0=0, x1=1, y0=depth + 0.5, y1=depth + 0.5, xref="paper")
        if not upright:
            fig.add_shape(type="line", line=dict(color=colours.LIGHT_EDGE, width=3.5), opacity=0.7, **at)
        for i, name in enumerate(names):
            dash = f"{6 * (len(names) - i)}px,{6 * i + 4}px"
            fig.add_shape(type="line", name=name, line=dict(color=colours.CRITERIA[name], width=2, dash=dash), **at)
        text = "<br>".join(f'<span style="color:{colours.CRITERIA[n]}">{colours.CRITERION_NAMES[n]}</span>' for n in names)
        place = dict(x=depth + 0.5, y=1, yref="paper", yanchor="bottom") if upright else dict(x=1, y=depth + 0.5, xref="paper", xanchor="left")
        fig.add_annotation(text=text, showarrow=False, font_size=9, align="left", borderpad=1, **place)
