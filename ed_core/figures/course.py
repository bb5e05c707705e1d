"""The course of an answer: its rank in the lens after every layer, the words that the lens reads on the way, and where
the average depth and the published rules are; and maps as small multiples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..depth.answer import Course
from ..depth.rules import RULES
from ..depth.say import COPIES
from ..depth.verdict import Verdict
from . import colours
from .canvas import AT_LEFT, FONT, OVER, PLAIN, STEADY, UNDER, Canvas, letters, visible

LEFT, RIGHT, TOP, BOTTOM = 84, 24, 58, 58  # pixels
LETTER = 7.0  # pixels that a letter of 12 px is wide, about
STRIP, GAP = 22, 26  # pixels: height of the words' strip, and from it to the plot
LINE = 17  # pixels of a line of words
BRACKET = 36  # pixels from the plot down to the bracket of rules


def course(
    found: Course,
    reached: Verdict | None = None,
    copies: Sequence[np.ndarray] = (),
    height: int = 330,
    width_px: int = 1120,
    decided: int | None = None,
) -> go.Figure:
    """Return the figure of an answer's course: the rank of the output's token after each layer, the first choice on
    top, by logarithm; above it the words that the lens reads.

    `reached`: a verdict, for the average depth and, below the axis, the published rules' layers. `copies`: ranks
    `[depth]` in untrained copies, each of its own last word, as a grey range. `decided`: the depth at which an answer
    that is patched in from another prompt is decided."""
    n, plot = len(found.ranks) - 1, height - TOP - BOTTOM
    canvas = Canvas(height, (LEFT, RIGHT, TOP, BOTTOM), width_px=width_px)
    lowest = math.log10(max(10.0, float(found.ranks.max()), *(float(one.max()) for one in copies)))
    room = (1 if decided is None else 2) * LINE / plot  # for the words below the lowest rank
    canvas.layout["xaxis"] = dict(PLAIN, range=[-0.5, n + 0.5], tickvals=_ticks(n), tickangle=0)
    canvas.write("after layer", FONT, **AT_LEFT, **UNDER, xshift=-8, yshift=-9)
    words = ["first choice", *(f"{10**p:,}th" for p in range(1, int(lowest) + 1))]
    ticks = dict(tickvals=[10**p for p in range(len(words))], ticktext=words)
    ends = [(lowest + 0.08 * lowest * room) / (1 - room), -0.08 * lowest]
    canvas.layout["yaxis"] = dict(PLAIN, type="log", range=ends, showgrid=True, gridcolor=colours.VEIL, **ticks)
    if len(copies):
        _band(canvas, copies, COPIES[reached.sample.control if reached is not None else "untrained"])
    depths = np.arange(n + 1)
    named = visible(found.word)
    sizes = [10 if d in (found.first, found.leap) else 4 for d in depths]
    look: dict[str, Any] = dict(line=dict(color=colours.ACCENT, width=2.5), cliponaxis=False, **STEADY)
    look |= dict(mode="lines+markers", marker=dict(size=sizes, color=colours.ACCENT))
    hover = f"after layer %{{x}}: “{named}” has rank %{{y:,}}<extra></extra>"
    canvas.add("scatter", name="rank", x=depths, y=found.ranks, hovertemplate=hover, **look)
    _expected(canvas, found, depths)
    _labels(canvas, found, n, plot / (ends[0] - ends[1]))
    if reached is not None:
        _average(canvas, reached, n)
        _rules(canvas, reached, plot, n)
    if decided is not None:
        _decided(canvas, decided, n)
    _strip(canvas, found, plot, (width_px - LEFT - RIGHT) / (n + 1))
    canvas.along("x", n)
    return canvas.figure()


def _side(x: float | int, n: int, shift: int) -> dict[str, Any]:
    """Return the place of a word next to `x` on an axis of `n` depths, towards the middle."""
    return dict(x=x, xanchor="right", xshift=-shift) if x > n / 2 else dict(x=x, xanchor="left", xshift=shift)


def _ticks(n: int) -> list[int]:
    """Return few round depths, and the last."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if n / step <= 10)
    return [*(d for d in range(0, n, step) if n - d >= 0.6 * step), n]


def _band(canvas: Canvas, copies: Sequence[np.ndarray], names: tuple[str, str]) -> None:
    """Draw the range of the copies' ranks, or the line of the only one. `names`: of one copy, of several."""
    ranks = np.stack([np.asarray(one, float) for one in copies])
    best, worst, depths = ranks.min(0), ranks.max(0), np.arange(ranks.shape[1])
    canvas.band(depths, best, worst, "#808080", "copies")
    if len(copies) == 1:
        canvas.points("copies", depths, best, mode="lines", line=dict(color=colours.GREY, dash="dash", width=1))
    thick = np.log10(worst / best)
    inner = slice(len(best) // 5, max(len(best) * 3 // 5, 1))
    d = inner.start + int(thick[inner].argmax())
    many = f"grey: {len(copies)} {names[1]}, each" if len(copies) > 1 else f"grey: one {names[0]}"
    y = math.log10(best[d]) + 0.5 * float(thick[d])
    canvas.write(
        f"{many} with its own word",
        FONT,
        colours.MUTED,
        x=d,
        y=y,
        xanchor="center",
        yanchor="middle",
        name="wide copies",
    )


def _expected(canvas: Canvas, found: Course, depths: np.ndarray) -> None:
    """Draw the ranks of the expected answer's token, where the output's is another."""
    if not found.expected:
        return
    look: dict[str, Any] = dict(line=dict(color=colours.WRONG, width=2, dash="dot"), marker=dict(size=6))
    canvas.points("expected", depths, found.expected_ranks, mode="lines+markers", **look)
    last = found.expected_ranks[-1]
    where = f"rank {last:.0f} at the end" if np.isfinite(last) else f"not among the best {found.listed}"
    place = dict(x=depths[-1], xanchor="right", yref="paper", y=0.1, yanchor="bottom")
    word = visible(found.expected.strip() or found.expected)
    canvas.write(f"expected “{word}”: {where}", FONT, colours.WRONG, **place)


def _labels(canvas: Canvas, found: Course, n: int, decade: float) -> None:
    """Write labels at the first choice and, where a line fits between them, at the largest leap. `decade`: the pixels
    from rank 1 to 10."""

    def label(d: int, text: str, shift: int, **more: Any) -> None:
        """Write a label at depth `d`."""
        place = _side(d, n, 9)
        canvas.write(text, FONT + 1, colours.ACCENT, y=math.log10(found.ranks[d]), yshift=shift, **place, **more)

    word, leap = visible(found.word.strip() or found.word), found.leap
    lifted = "" if leap is None else f"from rank {found.ranks[leap - 1]:,.0f}"
    if leap == found.first:
        label(found.first, f"<b>“{word}” is the first choice</b>, lifted {lifted}", 13)
        return
    label(found.first, f"<b>“{word}” is the first choice</b>", 13)
    if leap is not None and math.log10(found.ranks[leap]) * decade > LINE:
        label(leap, f"<b>layer {leap} lifts it {lifted} to {found.ranks[leap]:,.0f}</b>", 9, name="wide leap")


def _average(canvas: Canvas, reached: Verdict, n: int) -> None:
    """Draw a line at the average depth."""
    depth = next((mean.depth for mean in reached.means.values() if mean.depth is not None), None)
    if depth is None:
        return
    canvas.line(colours.MUTED, 1, "4px,3px", layer="below", x0=depth, x1=depth, y0=0, y1=1, yref="paper")
    text = f"average: the prompt's words settle by layer {depth:.0f}"
    canvas.write(text, FONT, colours.MUTED, y=0, yref="paper", yanchor="bottom", **_side(depth, n, 5))


def _decided(canvas: Canvas, depth: int, n: int) -> None:
    """Draw a mark on the axis where a patched answer is decided."""
    y = 10 ** canvas.layout["yaxis"]["range"][0]
    marker = dict(symbol="triangle-up", size=10, color=colours.MUTED)
    canvas.points("decided", [depth], [y], mode="markers", marker=marker, cliponaxis=False)
    place = dict(y=0, yref="paper", yanchor="bottom", yshift=LINE - 1)
    canvas.write(f"a patched answer is decided by layer {depth}", FONT, colours.MUTED, **place, **_side(depth, n, 8))


def _rules(canvas: Canvas, reached: Verdict, plot: int, n: int) -> None:
    """Draw a bracket below the axis over what the published rules give; the papers' layer l is after layer l, where the
    lens is read, and the cosine's own block is layer l + 1."""
    given = {name: r.depth + (name == "cosine") for name, r in reached.rules.items() if r.depth is not None}
    if not given:
        return
    places = sorted(given.values())
    robust = [rule for rule in reached.rules.values() if rule.clear or rule.so_far]
    y = -BRACKET / plot
    canvas.line(colours.GREY, 1, x0=places[0], x1=places[-1], y0=y, y1=y, yref="paper")
    for depth in places:
        canvas.line(colours.GREY, 1, x0=depth, x1=depth, y0=y - 4 / plot, y1=y + 4 / plot, yref="paper")
    word = "robust" if len(robust) == len(places) else f"{len(robust)} robust" if robust else "none robust"
    each = ", ".join(f"{RULES[name].label} {depth}" for name, depth in given.items())
    text = f"rules: {each} · {word}"
    side = dict(x=places[0], xanchor="left") if places[0] < 2 * n / 3 else dict(x=places[-1], xanchor="right")
    canvas.write(text, FONT, colours.MUTED, **UNDER, yshift=-BRACKET - 4, **side)


def _strip(canvas: Canvas, found: Course, plot: int, depth_px: float) -> None:
    """Draw the lens's words, each over the depths at which it is the first choice."""
    low, high = 1 + GAP / plot, 1 + (GAP + STRIP) / plot
    middle: dict[str, Any] = dict(y=(low + high) / 2, yref="paper", yanchor="middle")
    canvas.write("it would say", FONT, colours.MUTED, **AT_LEFT, **middle, xshift=-8)
    for first, last, token in found.spans():
        own = last == len(found.words) - 1
        fill = colours.TINT if own else colours.VEIL
        box = dict(type="rect", x0=first - 0.46, x1=last + 0.46, y0=low, y1=high, yref="paper", line=dict(width=0))
        canvas.shapes.append(dict(box, fillcolor=fill, name="word"))
        word, fit = token.removeprefix(" ") or "␣", int((last - first + 1) * depth_px / LETTER)
        if letters(word) > fit + 1 and fit < 3:
            continue
        text = visible(word, max(fit + own, 1))
        place = dict(x=(first + last) / 2, xanchor="center", **middle)
        # `figure.js` leaves out what does not fit a narrower figure: the depths that a word has for itself
        name = f"word {last - first + 1}"
        canvas.write(f"<b>{text}</b>" if own else text, FONT, colours.ACCENT if own else None, name=name, **place)


def small_map(figure: go.Figure, height: int = 178, sinks: Sequence[int] = ()) -> go.Figure:
    """Return a panel's map for a row of small multiples: no colour bar, strip or labels, a badge over `sinks`. Hover
    and the depth cursor stay."""
    z, meta = figure.data[0], figure.layout.meta
    canvas = Canvas(height, (0, 0, 14, 0), width_px=280)
    for trace in (z, *figure.data[1:]):
        if trace.name in ("z", "echo", "zero by construction"):
            gaps = dict(showscale=False, xgap=0, ygap=0) if trace.type == "heatmap" else {}
            canvas.data.append(trace.to_plotly_json() | gaps)
    for pos in sinks:
        canvas.write("◆", FONT, **OVER, x=pos)
    canvas.layout["meta"] = {**meta, "width_px": 280}
    rows = [(z.y0 or 0) - 0.5, meta["along"]["n"] + 0.5]
    for name, ends in (("xaxis", figure.layout.xaxis.range), ("yaxis", rows)):
        canvas.layout[name] = dict(PLAIN, range=ends, visible=False)
    return canvas.figure()
