"""The depth ruler: L blocks in a row, and where each criterion says that the model turns from composing to refining."""
from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..depth import Criterion
from . import colours
from .panel import STEADY, tick_step
from .text import number, visible

ROWS = {"cosine": 3.0, "kl": 2.0, "overlap": 1.0}  # above the bar, which lies at 0; each criterion has its own, so labels cannot meet
LABEL_SHARE = 0.12  # of the width, that a label may take
PUBLISHED_ROW = -0.62


@dataclass(frozen=True)
class Published:
    """One published effective depth (Hu et al. 2025, arXiv 2512.14064)."""

    model: str
    n_layers: int
    dataset: str
    criterion: str
    effective_depth: int
    ratio: float


@cache
def published() -> tuple[Published, ...]:
    """The published table: 12 models, three sets, three criteria.

    Source: Y. Hu, C. Zhou, M. Zhang, "What Affects the Effective Depth of Large Language Models?", arXiv 2512.14064, from the authors'
    notebook; every ratio is `(ED + 1) / L`, rounded.
    """
    with open(Path(__file__).with_name("published.csv"), encoding="utf-8", newline="") as file:
        return tuple(
            Published(r["model"], int(r["n_layers"]), r["dataset"], r["criterion"], int(r["effective_depth"]), float(r["effective_depth_ratio"]))
            for r in csv.DictReader(file)
        )


def published_marks(
    model: str = "", dataset: str | None = None, n_layers: int | None = None, criterion: str | None = None
) -> list[tuple[str, str, float, str]]:
    """Published verdicts as (model, criterion, ratio, dataset), for `depth_ruler`: those whose model's name contains `model`."""
    return [
        (p.model.rsplit("/", 1)[-1], p.criterion, p.ratio, p.dataset)
        for p in published()
        if model.lower() in p.model.lower() and dataset in (None, p.dataset) and n_layers in (None, p.n_layers) and criterion in (None, p.criterion)
    ]


def depth_ruler(
    criteria: Mapping[str, Criterion], n_layers: int, *, bands: Mapping[str, tuple[int, int] | None] = {},
    published: Sequence[tuple[str, str, float, str]] = (), ghost: Mapping[str, Criterion] = {}, n_layers_ghost: int | None = None,
    height: int = 110,
) -> go.Figure:
    """One mark per criterion above a bar of blocks, with the range it takes as its threshold moves.

    A criterion that is not defined is a hollow mark at the right end, its reason on hover. Marks stand on block `depth`; another model's
    verdict (published, or the `ghost` of the prompt before) stands where its ratio falls on this one, at `ratio * L - 1`.
    """
    fig = go.Figure()
    _bar(fig, n_layers)
    _published(fig, published, n_layers)
    for name, row in ROWS.items():
        _ghost(fig, name, row, ghost.get(name), n_layers, n_layers_ghost)
        _mark(fig, name, row, criteria, n_layers, bands.get(name))
    step = tick_step(n_layers, 24)
    axis = dict(showgrid=False, zeroline=False, automargin=False, fixedrange=True)
    fig.update_layout(
        height=height, margin=dict(l=8, r=8, t=2, b=18, autoexpand=False), paper_bgcolor=colours.CLEAR, plot_bgcolor=colours.CLEAR, showlegend=False,
        hovermode="closest", dragmode=False, uirevision="ruler", hoverlabel=dict(align="left", namelength=0),
        xaxis=dict(range=[-0.5, n_layers - 0.5], tickvals=list(range(0, n_layers, step)), ticks="", tickfont_size=10, **axis),
        yaxis=dict(range=[-0.85, 3.6], visible=False, **axis),
    )
    return fig


def _bar(fig: go.Figure, n_layers: int) -> None:
    """The blocks; the gradient is a legend of the direction, not a measurement."""
    scale = [[0, colours.COMPOSING], [0.5, "#8A8A8A"], [1, colours.REFINING]]
    z = np.arange(n_layers)[None] + 0.5
    hover = "layer %{x}<extra></extra>"
    fig.add_trace(
        go.Heatmap(
            z=z, y=[0], dy=0.8, name="blocks", zmin=0, zmax=n_layers, colorscale=scale, showscale=False, xgap=1, hovertemplate=hover,
        )
    )
    for text, x, anchor in (("composing", 0, "left"), ("refining", 1, "right")):
        fig.add_annotation(text=text, x=x, xref="paper", xanchor=anchor, y=0, showarrow=False, font=dict(size=11, color="#FFFFFF"), borderpad=3)


def _mark(fig: go.Figure, name: str, row: float, criteria: Mapping[str, Criterion], n_layers: int, band: tuple[int, int] | None) -> None:
    verdict, colour, label = criteria.get(name), colours.CRITERIA[name], colours.CRITERION_NAMES[name]
    if verdict is None or verdict.depth is None:
        reason = visible(verdict.reason, 200) if verdict else "not computed yet"
        text = f"{label} not defined" if verdict else f"{label} …"
        x, side, symbol, hover = n_layers - 0.5, "left", "circle-open", f"{label}: {reason}"
    else:
        x, symbol, text = verdict.depth, "circle", f"{label} {verdict.depth}"
        side = _side(name, criteria, n_layers)
        stable = "not defined" if verdict.stable is None else str(verdict.stable)
        hover = f"<b>{text}</b> of {n_layers} layers, ratio {number(verdict.ratio)}<br>stable variant: {stable}"
        fig.add_shape(type="line", x0=x, x1=x, y0=-0.4, y1=row, line=dict(color=colour, width=2), opacity=0.75)
    if band:
        hover += f"<br>as the threshold moves: {band[0]} to {band[1]}"
        fig.add_shape(type="line", name=f"{name} band", x0=band[0] - 0.4, x1=band[1] + 0.4, y0=row, y1=row, line=dict(color=colour, width=5), opacity=0.35)
    fig.add_trace(
        go.Scatter(
            x=[x], y=[row], mode="markers+text", text=[text], textposition=f"middle {side}", textfont_size=12, cliponaxis=False, name=name,
            marker=dict(symbol=symbol, size=10, color=colour, line=dict(color=colour, width=2)), customdata=[hover],
            hovertemplate="%{customdata}<extra></extra>", **STEADY,
        )
    )


def _side(name: str, criteria: Mapping[str, Criterion], n_layers: int) -> str:
    """Right of the mark unless the label would leave the ruler or meet the stem of a criterion above."""
    depth = criteria[name].depth
    above = [c.depth for n, c in criteria.items() if ROWS.get(n, 0) > ROWS[name] and c.depth is not None]
    taken = any(depth < d < depth + LABEL_SHARE * n_layers for d in above)
    beyond = depth > (1 - LABEL_SHARE) * n_layers - 1
    return "left" if beyond or (taken and depth > LABEL_SHARE * n_layers) else "right"


def _ghost(fig: go.Figure, name: str, row: float, verdict: Criterion | None, n_layers: int, n_layers_ghost: int | None) -> None:
    if verdict is None or verdict.depth is None:
        return
    total = n_layers_ghost or verdict.n_layers
    ring = dict(symbol="circle-open", size=9, color=colours.CRITERIA[name], opacity=0.55, line_width=1.5)
    hover = f"before: {colours.CRITERION_NAMES[name]} {verdict.depth} of {total}<extra></extra>"
    x = (verdict.depth + 1) / total * n_layers - 1
    fig.add_trace(go.Scatter(x=[x], y=[row], mode="markers", name=f"{name} before", marker=ring, cliponaxis=False, hovertemplate=hover))


def _published(fig: go.Figure, marks: Sequence[tuple[str, str, float, str]], n_layers: int) -> None:
    """Faint ticks below the bar, in the criterion's colour."""
    names = colours.CRITERION_NAMES
    fig.add_trace(
        go.Scatter(
            x=[ratio * n_layers - 1 for _, _, ratio, _ in marks],
            y=[PUBLISHED_ROW] * len(marks),
            mode="markers",
            name="published",
            marker=dict(symbol="line-ns", size=8, opacity=0.6, line=dict(width=1.5, color=[colours.CRITERIA.get(c, colours.GREY) for _, c, _, _ in marks])),
            customdata=[f"{visible(m, 60)}, {visible(d, 30)}<br>{names.get(c, visible(c))} at ratio {number(r)} (published)" for m, c, r, d in marks],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
