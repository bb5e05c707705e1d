"""The tokens that a model writes: what the lens would say at every depth, where each settles, where it would leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from ..types import ProbeResult
from . import colours
from .canvas import STEADY, Canvas
from .lens import ROW, cell_letters, lens_height
from .panel import Strip, View, mean_over_tokens, token_panel
from .text import number, visible


def first_position(result: ProbeResult) -> int:
    """Where the first written token stands: behind the question."""
    return result.answer_start or result.n_tokens


def writing_map(result: ProbeResult, view: View, small: bool = False) -> go.Figure:
    """Written tokens to the right, depths upwards, as on the lens: bright is near the output, and what the lens would
    say stands in a cell where it is another token than in the row below. A bar stands at the depth from which the best
    token stays, a cross where the token would leave, red where it would say another. `view.window` and `selected` count
    written tokens; a click tells a token's position in the whole text. `small`: as low as the view says; where a row is
    too low for letters there are none."""
    height = view.height if small else lens_height(result.n_layers, view)
    view = replace(view, height=height, answer_start=None, sinks=())
    z, best = result["jsd"], result["best_ids"]
    ids, names = result["ids"].tolist(), result.token_text
    texts = tuple(names.get(i, f"id {i}") if i >= 0 else "…" for i in ids)
    told = replace(result, tokens=texts, token_ids=tuple(ids), answer_start=None)
    shade = colours.linear(0.0, 1.0, reverse=True)

    def hover(depth: int, step: int) -> str:
        if ids[step] < 0:
            return "not written yet"
        lens = visible(names.get(int(best[depth, step]), f"id {best[depth, step]}"))
        here = f"{number(result['confidence'][depth, step])}  {lens}<br>{number(z[depth, step])} bits from the output"
        settles, leaves = int(result["settle_depth"][step]), int(result["exit_depth"][step])
        left = visible(names.get(int(result["exit_ids"][step]), ""))
        share = f"{result['deep_thinking_ratio'][step]:.0%} of the tokens so far settle late by their divergence"
        return f"{here}<br>settles at depth {settles}<br>would leave at depth {leaves} with {left}<br>{share}"

    def marks(canvas: Canvas) -> None:
        if view.plot_height >= ROW * len(z):
            cell_letters(canvas, told, view, best, shade, z, 0)
        _settled(canvas, result["settle_depth"])
        _left(canvas, result["exit_depth"], result["exit_agrees"])

    strip = Strip(mean_over_tokens(z), 0.0, 1.0, "mean<br>divergence")
    fig = token_panel(told, view, z, shade, "bits", strip, hover, row="depth", more=marks)
    begin, (n_rows, n_tokens) = first_position(result), z.shape
    fig.data[0].customdata = [[[depth, begin + step] for step in range(n_tokens)] for depth in range(n_rows)]
    return fig


def _settled(canvas: Canvas, settle: np.ndarray) -> None:
    """A bar per column on the lower edge of the row from which the best token stays."""
    at = np.flatnonzero(np.isfinite(settle))
    x = np.stack([at - 0.45, at + 0.45, np.full(len(at), np.nan)], 1).ravel()
    y = np.repeat(settle[at] - 0.5, 3)
    for name, colour, width in (("settled edge", colours.LIGHT_EDGE, 5), ("settled", colours.DARK_EDGE, 2.5)):
        line = dict(color=colour, width=width)
        canvas.add("scatter", x=x, y=y, mode="lines", name=name, hoverinfo="skip", line=line, connectgaps=False)


def _left(canvas: Canvas, leave: np.ndarray, agrees: np.ndarray) -> None:
    """A cross per column in the row that is sure enough to leave at."""
    at = np.flatnonzero(np.isfinite(leave))
    ink = [colours.DARK_EDGE if agrees[step] else colours.FAILED for step in at]
    for name, colour, width in (("exit edge", colours.LIGHT_EDGE, 4.0), ("exit", ink, 2.0)):
        marker = dict(symbol="x-thin", size=8, color=colour, line=dict(width=width, color=colour))
        canvas.add("scatter", x=at, y=leave[at], mode="markers", name=name, hoverinfo="skip", marker=marker, **STEADY)
