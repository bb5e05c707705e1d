"""Showing a measure: one caption line, the figure at its fixed height, and behind a button how to read it, its CSV and its origin."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import streamlit as st

from ed_core import export
from ed_core.figures import describe, shown
from ed_core.probes import find
from ed_core.types import ProbeResult

CAPTION = 44  # pixels that a figure's caption line takes
CONFIG = {"displayModeBar": False, "displaylogo": False}


def figure(
    key: str, fig, caption: str, result: ProbeResult | None = None, measure: str = "", reading: str = "", select: bool = False,
    about: Callable[[], None] | None = None,
) -> None:
    """One figure. `about` fills Details where the figure is not one result's measure. `select`: a click on a cell chooses its token for all panels (once complete: a figure that can be clicked is made anew
    by the browser with every new version)."""
    select = select and (result is None or result.complete)
    with st.container(key=f"box-{key}", gap="xxsmall"):
        row = st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"caption-{key}")
        row.caption(caption)
        if result is not None or about is not None:
            with row.popover("Details", icon=":material/info:", type="tertiary", key=f"about-{key}"):
                about() if about is not None else details(key, result, measure, reading)
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


def details_of_many(key: str, name: str, dim: str, values, results: Sequence[ProbeResult], meaning: str, reading: str = "") -> None:
    """The same of a curve over several prompts: what it is, its numbers, and the runs it is made of."""
    st.markdown(f"**`{name}`**, dims ({dim}): {meaning}.")
    if reading:
        st.markdown(reading)
    csv = export.curve_csv(name, dim, values)
    st.download_button("CSV", csv, f"{name}.csv", "text/csv", key=f"csv-{key}", icon=":material/download:")
    st.markdown(f"**Where it came from**: {len(results)} prompt{'s' * (len(results) != 1)}, {sum(r.n_tokens for r in results)} tokens")
    st.json([dict(r.provenance) for r in results], expanded=1)


def _chosen(key: str, event) -> None:
    """Make the token of a newly clicked cell the selected one, for every panel."""
    points = event.selection.points if event else []
    clicked = points[0].get("customdata") if points else None
    token = int(clicked[1]) if clicked else None
    if token is not None and st.session_state.get(f"clicked.{key}") != clicked:
        st.session_state[f"clicked.{key}"] = clicked
        st.session_state["token"] = token
        st.rerun(scope="fragment")


def empty(title: str, text: str, height: int = 420, first: bool = False) -> None:
    """A panel that has nothing yet, and says what would fill it; the `first` of a page says it louder."""
    with st.container(height=height + CAPTION, border=True):
        st.markdown(f"**{title}**")
        if first and text:
            st.info(text, icon=":material/play_circle:")
        else:
            st.caption(text)


def token(text: str, special: bool = False) -> str:
    """A token as Markdown: code, or orange where it is a special one."""
    code = f"`{shown(text, 40).replace('`', 'ˋ')}`"
    return f":orange-background[{code}]" if special else code


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
