"""The depth ruler: L layers in a row; above it where the lens settles and the answer leads, and the papers' rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..depth.answer import Seen
from ..depth.continuous import MeanDepth, Turn
from ..depth.rules import RULES, Criterion
from ..depth.wording import Statement, Twins
from . import colours
from .canvas import PLAIN, STEADY, Canvas, number, tick_step, visible

ANSWER = "answer"
ROWS = {ANSWER: 4.0, "kl": 3.0, "overlap": 2.0, "cosine": 1.0}  # above the bar, which lies at 0
NAMES = {ANSWER: ANSWER} | {name: rule.label for name, rule in RULES.items()}
HALF = 0.4  # of the bar's height, in rows
PUBLISHED_ROW = -0.62
NUMBERS = 24  # layer numbers below the bar, at most
LEFT = 58  # pixels for the rows' names
MEAN_DEPTH = "mean depth {} of {} by {}, over all thresholds"


def depth_ruler(
    criteria: Mapping[str, Criterion],
    n_layers: int,
    *,
    bands: Mapping[str, tuple[int, int] | None] = {},
    statements: Mapping[str, Statement] = {},
    cosine: np.ndarray | None = None,
    means: Mapping[str, MeanDepth] = {},
    turn: Turn | None = None,
    seen: Sequence[Seen] = (),
    twins: Twins = Twins(),  # noqa: B008 (frozen)
    published: Sequence[tuple[str, str, float, str]] = (),
    ghost: Mapping[str, MeanDepth] = {},
    height: int = 110,
    passes: int = 1,
) -> go.Figure:
    """A row above the bar of layers for each of: the depth from which the answer is the best guess for good (of several
    tokens the last of them), the mean depths, and the cosine's turn where there is one, as filled marks, the latter
    with their figure. In the same rows, lighter, what the papers' rules give (`criteria`), with the range of their
    variants and other thresholds; hollow where they are not clear.

    The bar is painted with the mean `cosine` that rule and turn read, `[layer]`, and plain without it. A depth lies
    between layers: depth d at the left edge of layer d, `d - 0.5`; a papers' mark on its layer. Grey bands: the range
    of the twins' mean depths. Rings: the mean depths of the prompt before (`ghost`), where their ratio falls here.
    Another model's published figure stands at `ratio * L - 1`. `passes`: of a looped model, which lines part."""
    canvas = Canvas(height, (LEFT, 8, 2, 22), uirevision="ruler", width_px=1100)
    rows = Rows(canvas, n_layers)
    rows.bar(cosine, bound(cosine))
    for end in range(1, passes):
        rows.part(end * n_layers // passes)
    _published(canvas, published, n_layers)
    for name in ROWS:
        rows.name(name)
        _twins(canvas, name, ROWS[name], twins)
        _ghost(canvas, name, ROWS[name], ghost.get(name), n_layers)
        rows.rule(name, criteria.get(name), bands.get(name), statements.get(name))
    rows.leading(means, turn, seen)
    ticks = list(range(0, n_layers, tick_step(n_layers, NUMBERS)))
    canvas.layout["xaxis"] = dict(PLAIN, range=[-0.5, n_layers - 0.5], tickvals=ticks, tickangle=0)
    canvas.layout["yaxis"] = dict(PLAIN, range=[-0.85, 4.6], visible=False)
    canvas.along("x", "layer", n_layers)
    return canvas.figure()


def bound(*curves: np.ndarray | None) -> float:
    """The end of the bar's colour scale that holds these curves of the cosine."""
    found = [np.asarray(curve, np.float64) for curve in curves if curve is not None]
    return colours.ceiling(np.concatenate(found) if found else np.full(1, np.nan), (0.25, 0.5, 1.0))


@dataclass(frozen=True)
class Rows:
    """The rows of one model's marks on a canvas, and its bar of layers around `centre`; the rows stand above it, or
    below where `sign` is -1. `relative`: x is the share of the depth, d / L, and a rule's mark stands at its ratio, the
    right edge of its layer; else x counts layers, depth d lies at `d - 0.5` and the mark on its layer. `side` begins
    the traces' names, `called` what hovering says."""

    canvas: Canvas
    n_layers: int
    relative: bool = False
    centre: float = 0.0
    sign: int = 1
    side: str = ""
    called: str = ""

    def depth(self, depth: float | int) -> float:
        """Where a depth stands on the x axis, 0 to L."""
        return depth / self.n_layers if self.relative else depth - 0.5

    def row(self, name: str) -> float:
        return self.centre + self.sign * ROWS[name]

    def bar(self, cosine: np.ndarray | None, bound: float) -> None:
        """The blocks, in the colours of the cosine map where there is a curve."""
        values = np.full(self.n_layers, np.nan) if cosine is None else np.asarray(cosine, np.float64)
        shade, wide = colours.signed(bound), self.depth(1) - self.depth(0)
        hover = [
            f"{self.called}layer {i}" + (f"<br>mean cosine {number(v)}" if np.isfinite(v) else "")
            for i, v in enumerate(values)
        ]
        look = dict(zmin=shade.low, zmax=shade.high, colorscale=shade.colours, showscale=False, xgap=1)
        self.canvas.add(
            "heatmap",
            z=[[v if np.isfinite(v) else None for v in values]],
            x0=self.depth(0.5),
            dx=wide,
            y=[self.centre],
            dy=2 * HALF,
            name=f"blocks {self.side}".strip(),
            customdata=[hover],
            hovertemplate="%{customdata}<extra></extra>",
            **look,
        )
        low, high = self.centre - HALF, self.centre + HALF
        for i in range(self.n_layers + 1):
            self.canvas.line(colours.FAINT, 1, x0=self.depth(i), x1=self.depth(i), y0=low, y1=high)
        for y in (low, high):
            self.canvas.line(colours.FAINT, 1, x0=self.depth(0), x1=self.depth(self.n_layers), y0=y, y1=y)

    def part(self, depth: int) -> None:
        """A line through all rows, where a pass of a looped model ends."""
        at = self.depth(depth)
        low, high = sorted((self.centre - self.sign * HALF, self.row(ANSWER) + self.sign * 0.5))
        self.canvas.line(colours.GREY, 1, x0=at, x1=at, y0=low, y1=high, layer="below")

    def write(self, text: str, y: float, colour: str | None = None) -> None:
        """Text left of the rows."""
        place = dict(xref="paper", x=0, xanchor="right", xshift=-6, y=y, yanchor="middle")
        self.canvas.write(text, 11, colour, **place)

    def name(self, name: str) -> None:
        """What a row is about."""
        self.write(NAMES[name], self.row(name), colours.CRITERIA.get(name))

    def leading(self, means: Mapping[str, MeanDepth], turn: Turn | None, seen: Sequence[Seen]) -> None:
        """The answer's depth, the mean depths and the turn, each where there is one."""
        self._answer(seen)
        for name, mean in means.items():
            if mean.depth is not None:
                said = MEAN_DEPTH.format(number(mean.depth), self.n_layers, NAMES[name])
                self._mark(name, self.depth(mean.depth), f"{mean.depth:.1f}", said)
        if turn is not None and turn.layer is not None:
            said = f"layers turn from erasing to strengthening after layer {turn.layer} of 0–{self.n_layers - 1}"
            self._mark("cosine", self.depth(turn.layer + 1), f"turn {turn.layer}", said)

    def _answer(self, seen: Sequence[Seen]) -> None:
        """From where the answer, or the model's own next token, is the best guess for good; nothing where it is not."""
        if not seen or any(one.best is None for one in seen):
            return
        best, last = max(((one.best, one) for one in seen if one.best is not None), key=lambda found: found[0])
        what = f"{'answer' if last.given else 'next token'} {visible(last.token, 30)}"
        said = f"{what}: the best guess for good from depth {best} of {last.n_layers}"
        self._mark(ANSWER, self.depth(best), "", said)

    def _mark(self, name: str, x: float, text: str, said: str) -> None:
        """A leading mark, with what is written beside it and a stem to the bar."""
        row, colour = self.row(name), colours.CRITERIA.get(name, colours.GREY)
        near, far = (x + share * (self.depth(self.n_layers) - self.depth(0)) for share in (0.01, 0.08))  # of the number
        ruled = [at for trace in self.canvas.data if trace["name"] == f"{self.side}{name} rule" for at in trace["x"]]
        covered = any(near < at < far for at in ruled)
        side = "left" if covered or x > self.depth(0.9 * self.n_layers) else "right"
        self.canvas.line(colour, 1, x0=x, x1=x, y0=self.centre + self.sign * HALF, y1=row, opacity=0.6)
        _marks(
            self.canvas,
            f"{self.side}{name}",
            [(x, row, f"{self.called}{said}")],
            dict(symbol="circle", size=10, color=colour, line=dict(color=colour, width=2)),
            mode="markers+text",
            text=[text],
            textposition=f"middle {side}",
            textfont=dict(size=11),
            cliponaxis=False,
        )

    def rule(
        self,
        name: str,
        verdict: Criterion | None,
        band: tuple[int, int] | None = None,
        said: Statement | None = None,
    ) -> None:
        """What the papers' rule gives, smaller and fainter than what leads; nothing where it gives no layer."""
        if verdict is None or verdict.depth is None or verdict.ratio is None:
            return
        clear, colour, row = said is None or said.clear, colours.CRITERIA[name], self.row(name)
        hover = f"{self.called}the papers' {NAMES[name]} rule: layer {verdict.depth} of 0–{verdict.n_layers - 1}"
        hover += f", ratio {number(verdict.ratio)}" if self.relative else ""
        if said is not None:
            hover += "" if clear else " (clear so far)" if said.so_far else " (not clear)"
            band = band if said.low is None or said.high is None else (said.low, said.high)
        if band:
            hover += f"<br>rule, variants and other thresholds: {band[0]} to {band[1]}"
            y = row - 0.38  # below the mark
            low, high = (self.depth(band[0] + 0.1), self.depth(band[1] + 0.9))
            self.canvas.line(colour, 2, name=f"{self.side}{name} band", opacity=0.35, x0=low, x1=high, y0=y, y1=y)
        place = [(verdict.ratio if self.relative else verdict.depth, row, hover)]
        marker = dict(symbol="diamond" if clear else "diamond-open", size=7, color=colour, line=dict(width=1.5))
        _marks(self.canvas, f"{self.side}{name} rule", place, marker, opacity=0.7, cliponaxis=False)


def _marks(
    canvas: Canvas,
    name: str,
    places: Sequence[tuple[float | int, float | int, str]],
    marker: dict[str, Any],
    mode: str = "markers",
    **look: Any,
) -> None:
    """Marks at x and y, each with what hovering says."""
    x, y, said = ([place[i] for place in places] for i in range(3))
    told = dict(customdata=said, hovertemplate="%{customdata}<extra></extra>")
    canvas.add("scatter", x=x, y=y, mode=mode, name=name, marker=marker, **told, **look, **STEADY)


def _twins(canvas: Canvas, name: str, row: float, twins: Twins) -> None:
    """The range of the twins' mean depths, as a faint band in its row."""
    found = twins.means(name)
    if not found:
        return
    low, high = min(found) - 0.5, max(found) - 0.5
    look = dict(x0=low, x1=high, y0=row - 0.3, y1=row + 0.3, name=f"{name} twins")
    canvas.shapes.append(dict(type="rect", fillcolor=colours.FAINT, line=dict(width=1, color=colours.FAINT), **look))
    hover = f"{twins.called}: {number(low + 0.5)} to {number(high + 0.5)} by {NAMES[name]}"
    _marks(canvas, f"{name} twins", [((low + high) / 2, row, hover)], dict(size=12, opacity=0))


def _ghost(canvas: Canvas, name: str, row: float, before: MeanDepth | None, n_layers: int) -> None:
    """The mean depth of the prompt before, as a faint ring."""
    if before is None or before.depth is None or before.ratio is None:
        return
    ring = dict(symbol="circle-open", size=9, color=colours.CRITERIA[name], opacity=0.55, line=dict(width=1.5))
    hover = f"before: {NAMES[name]} {number(before.depth)} of {before.n_layers}<extra></extra>"
    place = dict(x=[before.ratio * n_layers - 0.5], y=[row], mode="markers", name=f"{name} before", cliponaxis=False)
    canvas.add("scatter", marker=ring, hovertemplate=hover, **place)


def _published(canvas: Canvas, marks: Sequence[tuple[str, str, float, str]], n_layers: int) -> None:
    """Faint ticks below the bar, in the criterion's colour."""
    tints = [colours.CRITERIA.get(criterion, colours.GREY) for _, criterion, _, _ in marks]
    hover = [
        f"{visible(m, 60)}, {visible(d, 30)}<br>{NAMES.get(c, visible(c))} at ratio {number(r)} (published)"
        for m, c, r, d in marks
    ]
    places = [(ratio * n_layers - 1, PUBLISHED_ROW, said) for (_, _, ratio, _), said in zip(marks, hover)]
    _marks(canvas, "published", places, dict(symbol="line-ns", size=8, opacity=0.6, line=dict(width=1.5, color=tints)))
