"""A plotly figure in the page, as a component of our own: a new version is drawn into the figure that stands there,
where `st.plotly_chart` takes it down and builds another (0.45 s of the browser's time each, a dozen in a run).

What makes a figure is a pure function, so one that somebody has looked at is not made again (`once`): to make it takes
the server 25 ms, its thread and everybody else's, to hand it over 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plotly.io
from plotly.basedatatypes import BaseFigure

from ed_core.figures import describe_curves
from ed_core.results.shelf import Shelf, frozen
from ed_core.types import ProbeResult
from ed_ui import streamlit_edges

HELD = 32 << 20  # bytes of figures that stay ready

# plotly writes its own rules into the page's head, where a shadow root does not see them
_script = streamlit_edges.script("chart.js", "cursor.js").replace("PLOTLY", streamlit_edges.plotly_script())
_mount = streamlit_edges.component("figure", _script)


@dataclass(frozen=True)
class Ready:
    """A figure as the browser gets it, with its height and the width it was made for, in pixels, and its curves in
    words ("" where it has none)."""

    json: bytes
    height: int
    width: int
    words: str


_shelf: Shelf[Ready] = Shelf(HELD, lambda ready: len(ready.json))


@dataclass(frozen=True)
class Once:
    """A figure that is made when it has to be, by a function of what it is given."""

    make: Callable[..., BaseFigure]
    given: tuple
    named: dict[str, Any]

    def figure(self) -> BaseFigure:
        """The figure itself, made anew: for a picture file."""
        return self.make(*self.given, **self.named)

    def ready(self) -> Ready:
        """As it goes to the browser, out of what is ready where it is."""
        if any(isinstance(one, ProbeResult) and not one.complete for one in self.given):
            return made(self.figure())  # nobody asks for it again
        try:
            key = self.make, frozen(self.given), frozen(self.named)
        except TypeError:
            return made(self.figure())
        return _shelf.get(key, lambda: made(self.figure()))


def once(make: Callable[..., BaseFigure], *given: Any, **named: Any) -> Once:
    """The figure that a pure function makes of these, made once for all who look at it."""
    return Once(make, given, named)


def made(figure: BaseFigure) -> Ready:
    """A figure as it goes to the browser."""
    told = figure.to_dict()
    told["layout"].pop("template", None)  # the browser puts the page's own colours and letters there
    layout = told["layout"]
    sent = plotly.io.to_json(told, validate=False).encode()
    return Ready(sent, layout["height"], layout.get("meta", {}).get("width_px", 0), describe_curves(figure, ""))


def draw(key: str, ready: Ready, alt: str, clickable: bool = False, over: tuple[Ready, str] | None = None) -> Any:
    """Draw a figure here; `alt` says what it shows to those who cannot see it. Returns row and column of the cell
    of its heatmap that was clicked just now, or the `customdata` of a cell or mark, if it is `clickable`. `over`: a
    second figure of the same size, with its own words, which lies over it right of a line that can be dragged."""
    told = json.dumps({"alt": alt, "clickable": clickable}).encode()
    sent = told[:-1] + b', "figure": ' + ready.json
    if over is not None:
        sent += b', "over": ' + json.dumps({"alt": over[1]}).encode()[:-1] + b', "figure": ' + over[0].json + b"}"
    sent += b"}"
    # the height at once, so that nothing moves when it is drawn
    return _mount(key=key, data=sent, height=ready.height, on_clicked_change=lambda: None).clicked
