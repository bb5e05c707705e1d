"""A plotly figure in the page, as a component of our own: a new version is drawn into the figure that stands there,
where `st.plotly_chart` takes it down and builds another (0.45 s of the browser's time each, a dozen in a run)."""

from __future__ import annotations

import json
from pathlib import Path

import plotly.io
import streamlit as st
from plotly.basedatatypes import BaseFigure

from ed_ui import streamlit_edges

_mount = st.components.v2.component(
    "figure",
    js=(Path(__file__).parent / "chart.js").read_text("utf-8").replace("PLOTLY", streamlit_edges.plotly_script()),
    isolate_styles=False,  # plotly writes its own rules into the page's head, where a shadow root does not see them
)


def draw(key: str, fig: BaseFigure, alt: str, clickable: bool = False) -> list[int] | None:
    """Draw a figure here; `alt` says what it shows to those who cannot see it. Returns row and column of the cell
    of its heatmap that was clicked just now, or that cell's own `customdata`, if it is `clickable`."""
    figure = fig.to_dict()
    figure["layout"].pop("template", None)  # the browser puts the page's own colours and letters there
    told = json.dumps({"alt": alt, "clickable": clickable})
    sent = f'{told[:-1]}, "figure": {plotly.io.to_json(figure, validate=False)}}}'.encode()
    room = figure["layout"]["height"]  # at once, so that nothing moves when it is drawn
    return _mount(key=key, data=sent, height=room, on_clicked_change=lambda: None).clicked
