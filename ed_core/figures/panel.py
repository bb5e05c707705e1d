"""What all heatmap panels share: layers upwards, a strip of means next to them, depth lines at one height, cells that
tell what they hold.

All panels have the same margins. Layers count from 1 and depths from 0, so that layer n has the place of depth n."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..depth.spelling import spelled
from ..types import ProbeResult
from . import colours
from .canvas import (
    FONT,
    OVER,
    PLAIN,
    ROUND_STEPS,
    STEADY,
    Canvas,
    axis_title,
    first_place,
    letters,
    number,
    size,
    tick_step,
    visible,
    whole_ticks,
)
from .colours import Shade

LEFT, RIGHT, TOP, BOTTOM = 46, 44, 36, 64
HEATMAP, STRIP = (0.0, 0.84), (0.87, 1.0)  # shares of the width
MOST_TEXTS = 6000  # cells with words of their own: more would make megabytes
ROW_LABEL, TOKEN_LABEL = 14, 11  # pixels that a label needs
LETTER = 6.6  # pixels: width of a letter of a label
LONGEST = 8  # letters of a rotated label: more would leave the figure
SHORT = 2  # letters of a label that always is upright
BADGE = "◆"  # in front of a token that is a sink
CLIPPED = 1e-6  # share of the range that a value may lie beyond it


@dataclass(frozen=True)
class View:
    """How a heatmap panel is shown: its size, the tokens in view, marks and comparisons. Tokens count from 0; `window`:
    the first and the last one shown.

    `width_px`: the container's rough width, for which texts fit. `depth_lines`: rule to block, or None. `control`: the
    result on a control of the model; its curve is dashed in the strip. `beside`: a result with a panel next to this
    one; colours and strips then cover both. `sinks`: positions of attention sinks: they carry a badge, and no colour
    range counts them. `read_at`: the positions that the depth lines were read at (None: all), in words `read_for`.
    `count_sinks`: whether the strips count the sinks; a curve with them, as the papers read it, is else dotted. `side`:
    of two results on one page this one, "A" or "B"."""

    height: int = 420
    width_px: int = 600
    window: tuple[int, int] | None = None
    selected: int | None = None
    answer_start: int | None = None
    depth_lines: Mapping[str, int | None] = field(default_factory=dict)
    control: ProbeResult | None = None
    control_name: str = ""
    beside: ProbeResult | None = None
    sinks: tuple[int, ...] = ()
    read_at: Collection[int] | None = None
    read_for: str = ""
    count_sinks: bool = False
    side: str = ""

    @property
    def uncounted(self) -> tuple[int, ...]:
        """The attention sinks' positions that a strip leaves out."""
        return () if self.count_sinks else self.sinks

    def mean(self, z: np.ndarray, first_token: bool = True) -> np.ndarray:
        """Return the mean of each row over the tokens computed so far, without the sinks where they do not count;
        with them where no other token is left. `first_token`: whether the first token counts."""
        start = int(not first_token and z.shape[1] > 1)
        counted = [t for t in range(start, z.shape[1]) if t not in self.uncounted]
        return mean_over_tokens(z[:, counted] if counted else z[:, start:])

    def read(
        self, result: ProbeResult, measures: Callable[[ProbeResult], Sequence[np.ndarray]], first_token: bool = True
    ) -> tuple[dict[str, Any], np.ndarray]:
        """Return curves for a `Strip`, and all their numbers flat: means of these measures over the tokens that a rule
        was read at.

        `values`: without the sinks; `behind`: the control's; `counted`: with the sinks, where one was among the
        tokens."""
        n = result.n_tokens
        basis = range(int(not first_token and n > 1), n) if self.read_at is None else sorted(self.read_at)
        kept = [t for t in basis if t < n and t not in self.uncounted]

        some = 0 < len(kept) < len(basis)

        def mean(r: ProbeResult, sinks: bool) -> np.ndarray:
            """Return the mean of the measures, with the sinks or, if other tokens are left, without."""
            own = range(int(not first_token and r.n_tokens > 1), r.n_tokens) if self.read_at is None else basis
            at = own if sinks or not some else kept
            each = [mean_over_tokens(z[:, [t for t in at if t < z.shape[1]]]) for z in measures(r)]
            return np.asarray(np.mean(np.asarray(each, np.float64), axis=0))

        shown = partial(mean, sinks=False)
        curves = {"values": shown(result), **self.behind(shown)} | ({"counted": mean(result, True)} if some else {})
        both = [self.together(result, shown), *(curves[name] for name in ("behind", "counted") if name in curves)]
        return curves, np.concatenate(both)

    def coloured(
        self, result: ProbeResult, values: Callable[[ProbeResult], np.ndarray], first_token: bool = True
    ) -> np.ndarray:
        """Return the numbers `[…, pos]` that a colour range must cover, flat, of the result and its neighbour: without
        the sinks, and without the first token where it does not count."""

        first = set() if first_token else {0}
        return self.together(result, lambda r: without(values(r), first | {*(self.sinks if r is result else ())}))

    def together(self, result: ProbeResult, values: Callable[[ProbeResult], np.ndarray]) -> np.ndarray:
        """Return the numbers that a range must cover, flat: these values of the result and of the one next to it."""
        return np.concatenate([np.ravel(values(r)) for r in (result, self.beside) if r is not None])

    def behind(self, curve: Callable[[ProbeResult], np.ndarray]) -> dict[str, Any]:
        """Return the control's curve as arguments of a `Strip`; {} without a control."""
        return dict(behind=curve(self.control), behind_name=self.control_name) if self.control is not None else {}

    def span(self, n_tokens: int) -> tuple[int, int]:
        """Return the first and the last token shown."""
        if self.window is None:
            return 0, n_tokens - 1
        first = min(max(self.window[0], 0), n_tokens - 1)
        return first, min(max(self.window[1], first), n_tokens - 1)

    @property
    def plot_width(self) -> int:
        """Pixels between the left and the right margin, about."""
        return self.width_px - LEFT - RIGHT

    @property
    def plot_height(self) -> int:
        """Pixels between the upper and the lower margin."""
        return self.height - TOP - BOTTOM

    def square(self, most: float = HEATMAP[1]) -> tuple[float, float]:
        """Return the share of the width (start, end), `most` at most, in which a map of layers against layers is about
        square."""
        return 0.0, min(most, max(0.4, self.plot_height / self.plot_width))

    def column_px(self, n_tokens: int) -> float:
        """Return the rough width of a token's column in pixels."""
        first, last = self.span(n_tokens)
        return self.plot_width * (HEATMAP[1] - HEATMAP[0]) / (last - first + 1)


@dataclass(frozen=True)
class Strip:
    """The curve drawn next to a heatmap: one value per row, on an axis from `low` to `high`.

    `behind`: a control's curve; `counted`: the curve with the sinks, where `values` leave them out. `bars`: bars, no
    line."""

    values: np.ndarray
    low: float
    high: float
    title: str
    colour: str = colours.BOTH
    log: bool = False
    behind: np.ndarray | None = None
    behind_name: str = ""
    counted: np.ndarray | None = None
    bars: bool = False


def without(z: np.ndarray, tokens: Collection[int]) -> np.ndarray:
    """Return the columns of all tokens but these; all, where none would be left."""
    kept = [t for t in range(z.shape[-1]) if t not in tokens]
    return z[..., kept] if kept else z


def mean_over_tokens(z: np.ndarray, first_token: bool = True) -> np.ndarray:
    """Return the mean of each row over the tokens computed so far; NaN where none is yet."""
    rows = z if first_token or z.shape[1] < 2 else z[:, 1:]
    count = np.isfinite(rows).sum(1)
    return np.where(count > 0, np.nansum(rows, 1, dtype=np.float64) / np.maximum(count, 1), np.nan)


class Panel(Canvas):
    """The canvas of a map of layers or depths, upwards, as a view says, with a strip next to it."""

    def __init__(
        self,
        view: View,
        n_layers: int = 0,
        row: str = "",
        above: int = 0,
        margin: tuple[int, int, int, int] = (LEFT, RIGHT, TOP, BOTTOM),
    ):
        """Begin a panel whose rows are called `row`, and labelled (0 layers: without rows). `above`: pixels left free
        between the map and its colour bar; `margin`: as of a canvas."""
        left, right, top, bottom = margin
        super().__init__(view.height, (left, right, top + above, bottom), width_px=view.width_px)
        self.view, self.row, self.above = view, row, above
        if not n_layers:
            return
        first, height = first_place(row), view.plot_height - above
        self.row_px, fit = height / (n_layers + 1 - first), height / ROW_LABEL
        rows = [place for place in range(0, n_layers + 1, tick_step(n_layers + 1, fit)) if place >= first]
        self.layout["yaxis"] = dict(PLAIN, range=[first - 0.5, n_layers + 0.5], tickvals=rows, title=axis_title(row))
        self.along("y", n_layers, **({"side": view.side} if view.side else {}))

    def heatmap(
        self, z: np.ndarray, shade: Shade, unit: str, domain: tuple[float, float], gap: bool, **cell: int
    ) -> None:
        """Add the measure itself as trace 0, untouched, its first cell at `cell` (`x0`, `y0`), with its colour bar over
        the map; a logarithmic bar hangs on an invisible trace of its own."""
        size = dict(
            orientation="h", thickness=8, len=domain[1] - domain[0], outlinewidth=0, xpad=0, ypad=6 + self.above
        )
        place = dict(x=domain[0], xanchor="left", y=1, yanchor="bottom")
        ticks = dict(tickvals=[shade.low]) if shade.log else _ends(shade, z, _even(shade))
        # without a title of its own plotly shifts all other titles
        bar: dict[str, Any] = dict(**size, **place, tickfont=dict(size=FONT), ticks="", title=dict(text=""), **ticks)
        scale = dict(zmin=shade.low, zmax=shade.high, colorscale=shade.colours, showscale=not shade.log, colorbar=bar)
        self.add("heatmap", z=z, name="z", xgap=int(gap), ygap=int(gap), **cell, **scale)
        if shade.log:
            low, high = (float(np.log10(end)) for end in (shade.low, shade.high))
            powers = _logarithmic(low, high)
            bar |= _ends(shade, z, [10.0**power for power in powers]) | dict(tickvals=powers)
            even = [[i / (len(shade.colours) - 1), colour] for i, (_, colour) in enumerate(shade.colours)]
            marker = dict(color=[low], cmin=low, cmax=high, colorscale=even, showscale=True, colorbar=bar)
            self.add("scatter", x=[None], y=[None], mode="markers", name="scale", hoverinfo="skip", marker=marker)
        self.write(unit, FONT, **OVER, x=domain[1], xref="paper", xanchor="left", xshift=4, yshift=15 + self.above)

    def hover(
        self,
        place: str,
        text: Callable[[int, int], str],
        brief: str,
        columns: range | None = None,
        complete: bool = True,
    ) -> None:
        """Set the hover text of the heatmap's cells: `place`, and `text(row, column)` of the `columns` shown; `brief`
        instead for many cells, and while a panel fills and is drawn again and again."""
        z = self.data[0]["z"]
        shown = range(z.shape[1]) if columns is None else columns
        if worded := complete and len(z) * len(shown) <= MOST_TEXTS:
            self.data[0]["text"] = [
                [text(y, x) if x in shown else "" for x in range(shown.stop)] for y in range(len(z))
            ]
        self.data[0]["hovertemplate"] = f"{place}{'%{text}' if worded else brief}<extra></extra>"

    def strip(self, strip: Strip, heatmap: tuple[float, float] = HEATMAP) -> None:
        """Draw the strip's curves on the second x axis, row by row next to the heatmap."""
        curves: list[tuple[str, str, np.ndarray, dict[str, Any]]] = []
        if strip.counted is not None:
            look = dict(mode="lines", line=dict(color=strip.colour, width=1.5, dash="dot"))
            curves.append(("with sinks", f"{strip.title} with sinks", strip.counted, look))
        if strip.behind is not None:
            look = dict(mode="lines", line=dict(color=colours.CONTROL, width=1.5, dash="dash"))
            curves.append(("control", strip.behind_name, strip.behind, look))
        look = dict(mode="lines+markers", marker=dict(size=4), line=dict(color=strip.colour, width=1.5))
        if strip.bars:
            look = dict(orientation="h", marker=dict(color=strip.colour), textposition="none")
        curves.append(("mean", strip.title, strip.values, look))
        for name, title, values, look in curves:
            self.add(
                "bar" if strip.bars and name == "mean" else "scatter",
                x=values,
                y=np.arange(len(values)) + first_place(self.row),
                xaxis="x2",
                name=name,
                text=[f"{self.row} {i}<br>{title} {number(v)}" for i, v in enumerate(values, first_place(self.row))],
                hovertemplate="%{text}<extra></extra>",
                **look,
                **STEADY,
            )
        named = axis_title(strip.title if strip.behind is None else f"{strip.title}<br>┄ {strip.behind_name}", 4)
        ends = [strip.low, strip.high] if strip.low >= 0 else [strip.low, 0.0, strip.high]
        ticks: dict[str, Any] = dict(tickvals=ends, ticktext=[size(v) for v in ends], tickangle=0)
        ticks["range"] = np.log10([strip.low, strip.high]).tolist() if strip.log else [strip.low, strip.high]
        ticks |= dict(type="log") if strip.log else {}
        domain = (heatmap[1] + STRIP[0] - HEATMAP[1], STRIP[1])
        self.layout["xaxis2"] = dict(PLAIN, domain=domain, anchor="y", title=named, **ticks)
        if strip.low < 0:
            low = first_place(self.row) - 0.5
            high = low + len(strip.values)
            self.line(colours.GREY, 1.0, x0=0, x1=0, y0=low, y1=high, xref="x2", yref="y", layer="below")

    def layers_across(self, n: int, title: str, domain: tuple[float, float]) -> None:
        """Set the x axis of a map of layers against layers."""
        ends = [0.5, n + 0.5]
        self.layout["xaxis"] = dict(PLAIN, range=ends, title=axis_title(title, 9), domain=domain, **whole_ticks(n, 1))

    def label_tokens(self, tokens: Sequence[str]) -> None:
        """Label the columns with token texts, the sinks' with a badge."""

        def words(most: int) -> list[str]:
            """Return the labels, of so many letters at most."""
            return [
                BADGE * (i in self.view.sinks) + visible(token, most - (i in self.view.sinks))
                for i, token in enumerate(tokens)
            ]

        widths = [
            (i in self.view.sinks) + letters(token, 10 - (i in self.view.sinks)) for i, token in enumerate(tokens)
        ]
        self.label_columns(words(10), widths, ("xaxis", "xaxis3"), rotated_words=words(LONGEST))

    def label_columns(
        self,
        words: Sequence[str],
        widths: Sequence[float | int],
        axes: tuple[str, str],
        side: str = "bottom",
        rotated_words: Sequence[str] = (),
    ) -> None:
        """Label columns with `words`, `widths` letters each, as many as fit: upright, on two lines by turns if need be;
        else the long ones rotated (`rotated_words` in their place) on the first of the `axes`, short ones upright on
        the second. Columns stay numbers: tokens repeat."""
        first, last = self.view.span(len(words))
        column = self.view.column_px(len(words))
        widest = max(widths[first : last + 1]) + 0.5
        step = next((n for n in ROUND_STEPS if column * n >= min(TOKEN_LABEL, widest * LETTER / 2)), len(words))
        positions, room = list(range(first, last + 1, step)), column * step / LETTER
        upright = [i for i in positions if widths[i] <= SHORT + (i in self.view.sinks) or widths[i] + 0.5 <= room]
        short = upright if widest > 2 * room else positions
        turns = max((widths[i] for i in short), default=0) + 0.5 > room

        def text(i: int, turn: int) -> str:
            """Return a label, bold if selected, on its line."""
            word = rotated_words[i] if rotated_words and i in rotated else words[i]
            word = f"<b>{word}</b>" if i == self.view.selected else word
            if not turns or i not in short or not turn % 2:
                return word
            return f"<br>{word}" if side == "bottom" else f"{word}<br>\u00a0"

        own = dict(PLAIN, range=[first - 0.5, last + 0.5], side=side)
        rotated = [i for i in positions if i not in short]
        for name, shown, angle in ((axes[0], rotated or positions, -90 if rotated else 0), (axes[1], short, 0)):
            if name == axes[1] and not (rotated and short):
                continue
            texts = [text(i, positions.index(i)) for i in shown]
            place = dict(domain=HEATMAP) if name == "xaxis" else dict(overlaying="x", anchor="y")
            self.layout[name] = {**own, **place, "tickvals": shown, "ticktext": texts, "tickangle": angle}
            if name != "xaxis":
                self.add("scatter", x=[None], y=[None], xaxis=name.replace("axis", ""), name="labels", hoverinfo="skip")

    def mark_tokens(self, n_tokens: int) -> None:
        """Draw a box around the selected token's column, and a line where the answer begins."""
        first, last = self.view.span(n_tokens)
        low = self.data[0].get("y0", 0) - 0.5
        place: dict[str, Any] = dict(xref="x", yref="y", y0=low, y1=low + len(self.data[0]["z"]))
        if self.view.answer_start is not None and first < self.view.answer_start <= last:
            self.edge(3, 1, x0=self.view.answer_start - 0.5, x1=self.view.answer_start - 0.5, **place)
        if self.view.selected is not None and first <= self.view.selected <= last:
            self.edge(3, 1, **place | dict(type="rect", x0=self.view.selected - 0.5, x1=self.view.selected + 0.5))

    def mark_passes(self, result: ProbeResult, upright: bool = False) -> None:
        """Draw lines between rows where a pass of a looped model ends; if `upright` between columns, too."""
        passes = int(result.provenance.get("passes", 1))
        for end in range(1, passes):
            edge = end * result.n_layers / passes + 0.5
            self.edge(2, 0.7, xref="x domain", yref="y", x0=0, x1=1, y0=edge, y1=edge)
            if upright:
                self.edge(2, 0.7, xref="x", yref="y", x0=edge, x1=edge, y0=0.5, y1=result.n_layers + 0.5)


def token_panel(
    result: ProbeResult,
    view: View,
    z: np.ndarray,
    shade: Shade,
    unit: str,
    strip: Strip,
    hover: Callable[[int, int], str],
    row: str = "layer",
    above: int = 0,
    more: Callable[[Panel], None] = lambda _: None,
) -> go.Figure:
    """Return a heatmap of `z` [row, token] with its strip. `row`: "depth", or "layer", which counts from 1.

    `hover(row, token)`: a cell's text after its place; `more` draws on the cells and in the `above` pixels over
    them."""
    panel = Panel(view, result.n_layers, row, above)
    n_tokens, (first, last) = z.shape[1], view.span(z.shape[1])
    panel.layout["meta"].get("along", {})["tokens"] = True
    gap = min(view.column_px(n_tokens), panel.row_px) >= 8
    panel.heatmap(z, shade, unit, HEATMAP, gap, y0=first_place(row))
    more(panel)
    names = [
        f"<b>{visible(token)}</b>{' ' + BADGE + ' sink' if i in view.sinks else ''}<br>"
        for i, token in enumerate(spelled(result.tokens))
    ]
    panel.hover(
        row + " %{y} · token %{x:d}",
        lambda y, x: f" {names[x]}{hover(y, x)}{beyond(shade, z[y, x])}",
        f"<br>%{{z:.3g}} {unit}",
        range(first, last + 1),
        result.complete,
    )
    panel.strip(strip)
    panel.label_tokens(spelled(result.tokens))
    panel.mark_tokens(n_tokens)
    panel.mark_passes(result)
    panel.draw_depths(view.depth_lines, panel.row_px)
    return panel.figure()


def _even(shade: Shade) -> list[float]:
    """Return where a colour bar is labelled."""
    if shade.high == 2**0.5:
        return [0.0, 0.5, 1.0, shade.high]
    return [float(tick) for tick in np.linspace(shade.low, shade.high, 5)]


def _logarithmic(low: float, high: float) -> list[float]:
    """Return where a logarithmic colour bar is labelled, as exponents of ten: both ends, and between them powers, where
    these are few 1, 2 and 5 of each."""
    steps = (1, 2, 5) if high - low < 2 else (1,)
    every = (p + float(np.log10(s)) for p in range(int(np.floor(low)), int(np.ceil(high)) + 1) for s in steps)
    return [low, *(power for power in every if low + 0.15 < power < high - 0.15), high]


def _ends(shade: Shade, z: np.ndarray, at: list[float]) -> dict[str, Any]:
    """Return the labels of a colour bar, "≥" and "≤" in front of the ends that values exceed."""
    words = [size(v) for v in at]
    if np.nanmin(z, initial=np.inf) < shade.low - CLIPPED * abs(shade.low):
        words[0] = f"≤ {words[0]}"
    if np.nanmax(z, initial=-np.inf) > shade.high * (1 + CLIPPED):
        words[-1] = f"≥ {words[-1]}"
    return dict(tickvals=at, ticktext=words)


def beyond(shade: Shade, value: float | np.floating) -> str:
    """Return the hover text added where a cell's colour is clipped; "" where it is not."""
    if value > shade.high * (1 + CLIPPED):
        return f"<br>≥ {size(shade.high)}: beyond the colours"
    return f"<br>≤ {size(shade.low)}: beyond the colours" if value < shade.low - CLIPPED * abs(shade.low) else ""
