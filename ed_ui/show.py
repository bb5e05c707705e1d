"""Showing a measure: one caption line, the figure at its fixed height, and behind a button how to read it, its CSV and its origin."""
from __future__ import annotations

import re
from typing import Callable

import streamlit as st

from ed_core import export
from ed_core.figures import describe
from ed_core.probes import find
from ed_core.types import ProbeResult

CONFIG = {"displayModeBar": False, "displaylogo": False}


def figure(key: str, fig, caption: str, result: ProbeResult | None = None, measure: str = "", reading: str = "", select: bool = False) -> None:
    """One figure. `select`: a click on a cell chooses its token for all panels (once complete: a figure that can be clicked is made anew
    by the browser with every new version)."""
    select = select and (result is None or result.complete)
    with st.container(key=f"box-{key}", gap="xxsmall"):
        row = st.container(horizontal=True, vertical_alignment="center", gap="small")
        row.caption(caption)
        if result is not None:
            with row.popover("Details", icon=":material/info:", type="tertiary", key=f"about-{key}"):
                details(key, result, measure, reading)
        event = st.plotly_chart(
            fig,
            key=key,
            config=CONFIG,
            on_select="rerun" if select else "ignore",
            selection_mode="points",
            alt=describe(result, measure) if result is not None and measure else caption,
        )
    if select:
        _chosen(key, event)


def details(key: str, result: ProbeResult, measure: str, reading: str) -> None:
    """Formula, how to read it, the numbers and where they came from."""
    probe = find(result.request.probe)
    if measure:
        spec = probe.spec(measure)
        st.markdown(f"**`{result.request.probe}.{measure}`** ({spec.unit}), dims ({', '.join(spec.dims)}): {spec.meaning}.")
    if reading:
        st.markdown(reading)
    for note in result.notes:
        st.info(plain(note), icon=":material/info:")
    if measure and result.complete:
        st.download_button(
            "CSV",
            data=lambda: export.csv(result, measure),
            file_name=f"{result.request.probe}.{measure}.csv",
            mime="text/csv",
            key=f"csv-{key}",
            icon=":material/download:",
        )
    st.markdown("**Where it came from**")
    if result.complete:
        st.json(dict(result.provenance), expanded=1)
    else:
        st.caption("Written when the computation is complete.")


def _chosen(key: str, event) -> None:
    """Make the token of a newly clicked cell the selected one, for every panel."""
    points = event.selection.points if event else []
    clicked = points[0].get("customdata") if points else None
    token = int(clicked[1]) if clicked else None
    if token is not None and st.session_state.get(f"clicked.{key}") != clicked:
        st.session_state[f"clicked.{key}"] = clicked
        st.session_state["token"] = token
        st.rerun(scope="fragment")


def empty(title: str, text: str, height: int = 420) -> None:
    """A panel that has nothing yet, and says what would fill it."""
    with st.container(height=height + 56, border=True):
        st.markdown(f"**{title}**")
        st.caption(text)


def plain(text: str) -> str:
    """Text that may hold a stranger's words, so that Markdown shows it as it is: no links, no images, no colours."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~<>$:])", r"\\\1", text)


def guarded(page: Callable[[], None]) -> None:
    """Run a page; whatever goes wrong becomes one sentence, never a traceback."""
    from streamlit.runtime.scriptrunner import RerunException, StopException

    from ed_core.errors import EffectiveDepthError

    try:
        page()
    except (RerunException, StopException):
        raise
    except EffectiveDepthError as error:
        st.error(plain(str(error)), icon=":material/error:")
