"""The depth ruler: L blocks in a row, and where each criterion says that the model turns from composing to refining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..depth.criteria import Criterion
from ..depth.wording import Statement
from . import colours
from .canvas import PLAIN, STEADY, Canvas, tick_step
from .text import escaped, number, visible

ROWS = {
    "cosine": 3.0,
    "kl": 2.0,
    "overlap": 1.0,
}  # above the bar, which lies at 0; each criterion has its own, so labels cannot meet
LABEL_SHARE = 0.12  # of the width, that a label may take
PUBLISHED_ROW = -0.62
NUMBERS = 24  # layer numbers below the bar, at most


def depth_ruler(
    criteria: Mapping[str, Criterion],
    n_layers: int,
    *,
    bands: Mapping[str, tuple[int, int] | None] = {},
    statements: Mapping[str, Statement] = {},
    cosine: np.ndarray | None = None,
    twin: Mapping[str, Criterion] = {},
    published: Sequence[tuple[str, str, float, str]] = (),
    ghost: Mapping[str, Criterion] = {},
    n_layers_ghost: int | None = None,
    height: int = 110,
) -> go.Figure:
    """One mark per criterion above a bar of blocks, with the range it takes as its threshold moves.

    A criterion that is not defined is a hollow mark at the right end, its reason on hover; one that is not computed
    yet is its name alone; one whose statement is not clear is a hollow mark at its place, with its variants' range.
    The bar is painted with the mean `cosine` the criterion reads, `[layer]`, and plain without it. Marks stand on
    block `depth`, a control's (`twin`) as grey diamonds; another model's verdict (published, or the `ghost` of the
    prompt before) stands where its ratio falls on this one, at `ratio * L - 1`."""
    canvas = Canvas(height, (8, 8, 2, 22), uirevision="ruler", width_px=1100)
    _bar(canvas, n_layers, cosine)
    _published(canvas, published, n_layers)
    for name, row in ROWS.items():
        _ghost(canvas, name, row, ghost.get(name), n_layers, n_layers_ghost)
        _twin(canvas, name, row, twin.get(name))
        _mark(canvas, name, row, criteria, n_layers, bands.get(name), statements.get(name))
    ticks = list(range(0, n_layers, tick_step(n_layers, NUMBERS)))
    canvas.layout["xaxis"] = dict(PLAIN, range=[-0.5, n_layers - 0.5], tickvals=ticks)
    canvas.layout["yaxis"] = dict(PLAIN, range=[-0.85, 3.6], visible=False)
    return canvas.figure()


def _bar(canvas: Canvas, n_layers: int, cosine: np.ndarray | None) -> None:
    """The blocks, in the colours of the cosine map where there is a curve."""
    values = np.full(n_layers, np.nan) if cosine is None else np.asarray(cosine, np.float64)
    shade = colours.signed(colours.ceiling(values, (0.25, 0.5, 1.0)))
    hover = [f"layer {i}" + (f"<br>mean cosine {number(v)}" if np.isfinite(v) else "") for i, v in enumerate(values)]
    look = dict(zmin=shade.low, zmax=shade.high, colorscale=shade.colours, showscale=False, xgap=1)
    canvas.add(
        "heatmap",
        z=[[v if np.isfinite(v) else None for v in values]],
        y=[0],
        dy=0.8,
        name="blocks",
        customdata=[hover],
        hovertemplate="%{customdata}<extra></extra>",
        **look,
    )
    for x in range(n_layers + 1):
        canvas.line(colours.FAINT, 1, x0=x - 0.5, x1=x - 0.5, y0=-0.4, y1=0.4)
    for y in (-0.4, 0.4):
        canvas.line(colours.FAINT, 1, x0=-0.5, x1=n_layers - 0.5, y0=y, y1=y)


def _mark(
    canvas: Canvas,
    name: str,
    row: float,
    criteria: Mapping[str, Criterion],
    n_layers: int,
    band: tuple[int, int] | None,
    said: Statement | None,
) -> None:
    """A criterion's verdict in its own row, with a stem down to the bar; hollow where it is not clear."""
    verdict, colour, label = criteria.get(name), colours.CRITERIA[name], colours.CRITERION_NAMES[name]
    if verdict is None or verdict.depth is None:
        x, side, symbol = n_layers - 0.5, "left", "circle-open"
        text = f"{label} not defined" if verdict else f"{label} …"
        hover = f"{label}: {escaped(verdict.reason) if verdict else 'not computed yet'}"
    else:
        x, side, symbol, text = verdict.depth, _side(name, criteria, n_layers), "circle", f"{label} {verdict.depth}"
        stable = "not defined" if verdict.stable is None else str(verdict.stable)
        hover = f"<b>{text}</b> of {n_layers} layers, ratio {number(verdict.ratio)}<br>stable variant: {stable}"
        if said is not None and not said.clear:
            symbol, hover = "circle-open", f"{hover}<br>not clear: its variants differ"
        canvas.line(colour, 2, x0=x, x1=x, y0=-0.4, y1=row, opacity=0.75)
    if said is not None and not said.clear and said.low is not None:
        band = (said.low, said.high)
        hover += f"<br>rule, variants and other thresholds: {band[0]} to {band[1]}"
    elif band:
        hover += f"<br>as the threshold moves: {band[0]} to {band[1]}"
    if band:
        y = row - 0.42  # below mark and label
        canvas.line(colour, 4, name=f"{name} band", x0=band[0] - 0.4, x1=band[1] + 0.4, y0=y, y1=y, opacity=0.45)
    look = dict(
        marker=dict(symbol=symbol, size=10, color=colour, line=dict(color=colour, width=2)),
        textfont=dict(size=12),
        cliponaxis=False,
    )
    words = dict(
        text=[text], textposition=f"middle {side}", customdata=[hover], hovertemplate="%{customdata}<extra></extra>"
    )
    mode = "text" if verdict is None else "markers+text"
    canvas.add("scatter", x=[x], y=[row], mode=mode, name=name, **words, **look, **STEADY)


def _twin(canvas: Canvas, name: str, row: float, verdict: Criterion | None) -> None:
    """What the same rule gives on a control of the model."""
    if verdict is None or verdict.depth is None:
        return
    hover = f"control: {colours.CRITERION_NAMES[name]} {verdict.depth} of {verdict.n_layers}<extra></extra>"
    look = dict(symbol="diamond-open", size=9, color=colours.CONTROL, line=dict(width=1.5))
    place = dict(x=[verdict.depth], y=[row], mode="markers", name=f"{name} control", cliponaxis=False)
    canvas.add("scatter", marker=look, hovertemplate=hover, **place)


def _side(name: str, criteria: Mapping[str, Criterion], n_layers: int) -> str:
    """Right of the mark unless the label would leave the ruler or meet the stem of a criterion above."""
    depth, room = criteria[name].depth, LABEL_SHARE * n_layers
    above = [c.depth for n, c in criteria.items() if ROWS.get(n, 0) > ROWS[name] and c.depth is not None]
    right_taken = depth + room > n_layers - 1 or any(depth < d < depth + room for d in above)
    return "left" if right_taken and depth > room else "right"


def _ghost(
    canvas: Canvas, name: str, row: float, verdict: Criterion | None, n_layers: int, n_layers_ghost: int | None
) -> None:
    """The verdict of the prompt before, as a faint ring."""
    if verdict is None or verdict.depth is None:
        return
    total = n_layers_ghost or verdict.n_layers
    ring = dict(symbol="circle-open", size=9, color=colours.CRITERIA[name], opacity=0.55, line=dict(width=1.5))
    hover = f"before: {colours.CRITERION_NAMES[name]} {verdict.depth} of {total}<extra></extra>"
    x = (verdict.depth + 1) / total * n_layers - 1
    canvas.add(
        "scatter",
        x=[x],
        y=[row],
        mode="markers",
        name=f"{name} before",
        marker=ring,
        cliponaxis=False,
        hovertemplate=hover,
    )


def _published(canvas: Canvas, marks: Sequence[tuple[str, str, float, str]], n_layers: int) -> None:
    """Faint ticks below the bar, in the criterion's colour."""
    names, tints = (
        colours.CRITERION_NAMES,
        [colours.CRITERIA.get(criterion, colours.GREY) for _, criterion, _, _ in marks],
    )
    hover = [
        f"{visible(m, 60)}, {visible(d, 30)}<br>{names.get(c, visible(c))} at ratio {number(r)} (published)"
        for m, c, r, d in marks
    ]
    canvas.add(
        "scatter",
        x=[ratio * n_layers - 1 for _, _, ratio, _ in marks],
        y=[PUBLISHED_ROW] * len(marks),
        mode="markers",
        name="published",
        marker=dict(symbol="line-ns", size=8, opacity=0.6, line=dict(width=1.5, color=tints)),
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
        **STEADY,
    )
