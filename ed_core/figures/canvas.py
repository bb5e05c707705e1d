"""What every figure starts from: a canvas that is transparent and of fixed size, plain dictionaries until plotly
validates them once at the end; and text. Tokens are text from strangers: made visible, cut, and escaped before a figure
shows them.

Adding traces and shapes to a `go.Figure` one by one validates the whole layout each time and takes six times as long,
which a live page feels."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from ..depth import say
from ..depth.rules import RULES
from . import colours

MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}
ALSO_ESCAPED = {ord(char): f"&#{ord(char)};" for char in "\"'$"}  # plotly knows numbered entities, but not &quot;


def shown(token: str, limit: int = 24) -> str:
    """Return a token as plain text on one line: white space marked, invisible characters spelled out, at most `limit`
    characters."""
    text = "".join(_mark(char) for char in token[:limit])
    if len(token) > limit or len(text) > limit:
        text = text[: limit - 1] + "…"
    if any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in text):
        text = f"\u2068{text}\u2069"  # isolated, so that right-to-left text does not reorder its neighbours
    return text or "∅"


def visible(token: str, limit: int = 24) -> str:
    """Return a token for plotly and HTML: as `shown`, and escaped; quotes and the dollar too, as plotly hands $…$ to
    MathJax where it is loaded."""
    return html.escape(shown(token, limit), quote=False).translate(ALSO_ESCAPED)


def escaped(text: str) -> str:
    """Return a name or a sentence escaped for plotly: every word as `visible`, the spaces unchanged."""
    return " ".join(visible(word, 40) for word in text.split(" "))


def width(token: str, limit: int = 24) -> int:
    """Return how many columns the shown token takes: wide East Asian characters and emoji take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in shown(token, limit))


def letters(token: str, limit: int = 24) -> float:
    """Return how many letters wide the shown token is drawn: as `width`, but the mark of a space is half as wide."""
    return width(token, limit) - 0.5 * shown(token, limit).count(MARKS[" "])


def number(value: float | int | np.floating) -> str:
    """Return a number as text, of three digits; "√2" for the largest distance of two probability vectors; "not
    computed" for NaN."""
    if abs(value) == 2**0.5:
        return "√2" if value > 0 else "\u2212√2"
    return say.number(value) if value == value else "not computed"


def _mark(char: str) -> str:
    """Return a character; of a space or an invisible one a visible mark."""
    if char in MARKS:
        return MARKS[char]
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or char.isspace():
        return f"‹{ord(char):X}›"
    return char


LOGARITHMIC = ", logarithmic"  # ends the name of an axis of logarithms
FONT = 12  # pixels of every label
FEW = 9  # labels of an axis of layers, at most
LINE_LABEL = 12  # pixels that the name of a depth line needs
# Places of text next to the plot, in parts of plotly's: left of it, right of it, over it, under it
AT_LEFT: dict[str, Any] = dict(xref="paper", x=0, xanchor="right")
AT_RIGHT: dict[str, Any] = dict(xref="paper", x=1, xanchor="left")
OVER: dict[str, Any] = dict(yref="paper", y=1, yanchor="bottom")
UNDER: dict[str, Any] = dict(yref="paper", y=0, yanchor="top")
# A click must not fade anything
STEADY = {"selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}}}
# An axis, and one whose labels have lines across the plot
PLAIN = dict(automargin=False, fixedrange=True, zeroline=False, showgrid=False, ticks="", tickfont=dict(size=FONT))
GRID = dict(PLAIN, showgrid=True, gridcolor=colours.FAINT)
CURVES_MARGIN = (54, 44, 52, 46)  # left, right, top with title and legend, bottom
ROUND_STEPS = (1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 256, 512)


def tick_step(n: int, fit: float | int) -> int:
    """Return the distance between axis labels, a round number, so that at most `fit` of `n` are drawn."""
    return next((step for step in ROUND_STEPS if n / step <= max(fit, 1)), n)


def log_ticks(curves: Iterable[np.ndarray], form: Callable[[float], str] | None = None) -> dict[str, Any]:
    """Return the layout of a logarithmic axis over these values, labelled (as `form` says) at powers of ten, where
    these are few at 2 and 5 times them too: plotly's own labels between them are small digits that say no size."""
    numbers = np.concatenate([np.ravel(np.asarray(values, np.float64)) for values in curves] or [np.ones(1)])
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    low, high = (float(end(numbers)) if len(numbers) else 1.0 for end in (np.min, np.max))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if sum(low <= 10.0**p <= high for p in powers) < 2 else (1,)
    ticks = [(step, p) for p in powers for step in steps]
    return dict(
        type="log", tickvals=[s * 10.0**p for s, p in ticks], ticktext=[(form or size)(s * 10.0**p) for s, p in ticks]
    )


def size(value: float) -> str:
    """Return a number as an axis label: −0.02, 500, 20k, 5M; beyond that as a power, 5·10⁹."""
    if math.isinf(value):
        return "∞" if value > 0 else "\u2212∞"
    power = math.floor(math.log10(abs(value)) + 1e-9) if value else 0
    if not -4 < power < 9:
        return say.number(value)
    if abs(value) >= 1e4:
        return f"{number(value / 1e6)}M" if abs(value) >= 1e6 else f"{number(value / 1e3)}k"
    return number(value) if abs(value) < 999.5 else say.number(value, ".0f")


def first_place(axis: str) -> int:
    """Return where an axis begins: at 1 for layers, so that layer n ends at depth n; at 0 for depths and all else."""
    return int(bool({"layer", "skipped", "affected"} & set(axis.split())) and not axis.startswith("after"))


def whole_ticks(n: int, first: int = 0) -> dict[str, Any]:
    """Return the labels of an axis of `n` layers from `first`: few enough to be upright on a phone too."""
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100) if n / step <= FEW), n)
    return dict(tickvals=[place for place in range(0, n + first, step) if place >= first], tickangle=0)


def axis_title(text: str, standoff: int = 11) -> dict[str, Any]:
    """Return an axis's title. Of `standoff` the template's padding of 8 (`chart.js`) is taken; the rest is the gap."""
    return dict(text=text, standoff=standoff, font=dict(size=FONT))


def layer_axis(n: int, title: str, **more: Any) -> dict[str, Any]:
    """Return the x axis of a curve of `n` layers, or depths, as its title says."""
    first = first_place(title)
    ends = [first - 0.5, first + n - 0.5]
    return PLAIN | dict(range=ends, title=axis_title(title, 8), **whole_ticks(n, first)) | more


def share_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of shares of the depth."""
    return PLAIN | dict(range=[-0.02, 1.02], tickvals=[0, 0.25, 0.5, 0.75, 1], title=axis_title(title, 8)) | more


def whiskers(values: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> dict[str, Any]:
    """Return plotly's error bars from `low` to `high` around `values`; none where these are NaN."""
    ends = dict(array=np.nan_to_num(high - values), arrayminus=np.nan_to_num(values - low))
    return dict(type="data", symmetric=False, **ends, color=colour, thickness=1.5, width=3)


def cut(name: str, most: int = 44) -> str:
    """Return a name of at most `most` letters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


class Canvas:
    """A plotly figure being drawn; `figure()` returns it."""

    def __init__(self, height: int, margin: tuple[int, int, int, int], title: str = "", width_px: int = 600):
        """Begin an empty figure. `margin`: left, right, top, bottom, in pixels; fixed, so that figures of one height
        have their plots at one height. `width_px`: about how wide it will be on the screen, and as wide as it is
        printed."""
        self.data: list[dict[str, Any]] = []
        self.shapes: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = dict(
            height=height,
            margin=dict(zip("lrtb", margin), autoexpand=False),
            title=dict(
                text=title, x=0, xref="paper", y=1, yref="container", yanchor="top", pad=dict(t=6), font=dict(size=14)
            ),
            paper_bgcolor=colours.CLEAR,
            plot_bgcolor=colours.CLEAR,
            showlegend=False,
            hovermode="closest",
            hoverlabel=dict(align="left", namelength=0),
            dragmode=False,
            uirevision="figure",
            meta=dict(width_px=width_px, dark=colours.DARK),
        )

    def add(self, kind: str, **trace: Any) -> None:
        """Add a trace of a plotly type."""
        self.data.append(dict(type=kind, **trace))

    def points(self, name: str, x: ArrayLike, y: ArrayLike, hover: Sequence[str] = (), **look: Any) -> None:
        """Add a line, marks or (of the `type` "bar") bars, each with its `hover` text."""
        says = dict(text=list(hover), hoverinfo="text") if len(hover) else dict(hoverinfo="skip")
        kind = look.pop("type", "scatter")
        self.add(kind, name=name, x=x, y=y, **says, **look, **STEADY)

    def band(self, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, name: str) -> None:
        """Add a shaded range from `low` to `high` behind a line, in the line's colour."""
        x, y = np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]])
        fill = colours.faint(colour)
        self.points(f"range {name}", x, y, mode="none", fill="toself", fillcolor=fill, showlegend=False)

    def line(self, colour: str, thickness: float | int, dash: str = "solid", **place: Any) -> None:
        """Add a straight line; `place`: plotly's coordinates `x0`, `y0`, …"""
        self.shapes.append(dict(type="line", line=dict(color=colour, width=thickness, dash=dash)) | place)

    def edge(self, light: float | int, dark: float | int, **place: Any) -> None:
        """Add a dark line on a lighter one, `dark` and `light` pixels thick, to be seen on any cell of a map."""
        self.line(colours.LIGHT_EDGE, light, **place)
        self.line(colours.DARK_EDGE, dark, **place)

    def across(self, y: float | int, colour: str, thickness: float | int, dash: str = "solid", **more: Any) -> None:
        """Add a line at height `y` from one side of the plot to the other."""
        self.line(colour, thickness, dash, xref="paper", x0=0, x1=1, y0=y, y1=y, **more)

    def across_zero(self, curves: Iterable[np.ndarray]) -> None:
        """Add a line at 0 if one of these curves goes below it."""
        if any(np.fmin.reduce(values, initial=0.0) < 0 for values in curves):
            self.across(0, colours.GREY, 1, layer="below")

    def legend(self, shown: bool = True, **more: Any) -> None:
        """Show the traces' names in one line above the plot, or none; on a phone in several, which the plot makes room
        for."""
        place = dict(orientation="h", x=0, xanchor="left", y=1, yanchor="bottom")
        self.layout["showlegend"], self.layout["margin"]["autoexpand"] = shown, True
        self.layout["legend"] = dict(place, font=dict(size=FONT), bgcolor=colours.CLEAR, **more)

    def write(self, text: str, size: int, colour: str | None = None, **place: Any) -> None:
        """Add text; without a colour, in the page's own."""
        font = dict(size=size, color=colour) if colour else dict(size=size)
        self.annotations.append(dict(text=text, font=font, showarrow=False, borderpad=1, **place))

    def along(self, axis: str, n_layers: int, **more: Any) -> None:
        """Record on which axis ("x" or "y") the depth runs, 0 to L, for the cursor that marks one depth in all figures
        of a page. `more`: what else the browser needs to know (`cursor.js`)."""
        self.layout["meta"]["along"] = dict(axis=axis, n=n_layers, **more)

    def figure(self) -> go.Figure:
        """Return the finished plotly figure."""
        return go.Figure(data=self.data, layout=dict(self.layout, shapes=self.shapes, annotations=self.annotations))

    def draw_depths(self, lines: Mapping[str, int | None], layer_px: float) -> None:
        """Draw a dashed line per rule at its layer (None: none), named next to it, over rows of `layer_px` pixels.

        Hu et al. count blocks from 0: the cosine's is layer `depth + 1` here, with the line on its upper edge; the
        rules of the lens read the stream before their block, and the line is above row `depth` of the lens, the first
        one past the threshold. Rules that agree share one line, their dashes taking turns; names that would meet are
        pushed apart."""
        depths = sorted((depth + 0.5 + (name == "cosine"), name) for name, depth in lines.items() if depth is not None)
        end = float(-LINE_LABEL)  # pixel where the last name was
        for y, name in depths:
            sharing = [other for place, other in depths if place == y]
            turn = sharing.index(name)
            if turn == 0:
                self.line(colours.SHADOW, 3.5, xref="x domain", x0=0, x1=1, y0=y, y1=y)
            dash = f"{6 * (len(sharing) - turn)}px,{6 * turn + 4}px"
            self.across(y, colours.CRITERIA.get(name, colours.GREY), 2.0, dash, name=name)
            end = max(y * layer_px - (len(sharing) - 1) * LINE_LABEL / 2, end + LINE_LABEL)
            label = RULES[name].label if name in RULES else name
            # in the page's own text colour: the line's would be hard to read on one of the themes
            self.write(label, FONT, **AT_RIGHT, y=y, yshift=end - y * layer_px)


class Curves(Canvas):
    """A canvas for curves: layers, from 1, or depths (`x`) to the right, the `unit` upwards, the legend under the
    title."""

    def __init__(self, n: int, x: str, unit: str, height: int = 260, width_px: int = 600, title: str = ""):
        """Begin a figure of `n` layers or depths."""
        super().__init__(height, CURVES_MARGIN, title, width_px)
        self.x, self.unit = x, unit
        self.legend(shown=False)
        self.layout["xaxis"] = layer_axis(n, x)
        self.layout["yaxis"] = dict(GRID, title=axis_title(unit))
        if x in ("layer", "depth") or x.endswith(" layer"):
            self.along("x", n - (x == "depth"))

    def curve(self, kind: str, values: np.ndarray, name: str, *, unit: str = "", **look: Any) -> None:
        """Add a curve with the hover that all curves have, in the figure's unit unless it has another; `name` is
        escaped by the caller."""
        hover = f"{self.x} %{{x}}<br>%{{meta}} %{{y:.3g}} {unit or self.unit}<extra></extra>"
        look = dict(meta=name, x=np.arange(len(values)) + first_place(self.x)) | look
        self.add(kind, y=values, name=name, hovertemplate=hover, **look, **STEADY)

    def references(self, curves: Mapping[str, np.ndarray], unit: str = "") -> None:
        """Add curves for comparison, grey and dashed."""
        line = dict(color=colours.CONTROL, width=2, dash="dash")
        for name, values in curves.items():
            self.curve("scatter", values, escaped(name), unit=unit, mode="lines", line=line)

    def scale(self, curves: Sequence[np.ndarray], log: bool, behind: Sequence[np.ndarray] = (), **linear: Any) -> None:
        """Set the upright axis: logarithmic over these curves and those `behind` if `log`, else as `linear` says, with
        a line at 0 if one of the curves goes below it."""
        self.layout["yaxis"].update(log_ticks((*curves, *behind)) if log else linear)
        if not log:
            self.across_zero(curves)
