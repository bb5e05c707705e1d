"""What the pages of single probes share: prompt, the probe's own parameters as a form, Run, and the live part."""
from __future__ import annotations

import typing
from dataclasses import fields
from typing import Callable

import streamlit as st

from ed_core.errors import ParameterError
from ed_core.figures import View
from ed_core.probes import Probe
from ed_core.types import ProbeResult
from ed_ui import running, scope, show

WINDOW = 64


def page(probe: type[Probe], panels: Callable[[ProbeResult, View], None], teach: str, skip_fields: tuple[str, ...] = ()) -> None:
    """A page for one probe. `panels` draws a result, partial or complete; `teach` stands where there is none yet."""
    st.subheader(probe.title, anchor=False)
    scope.prompt_box()
    chosen = scope.current()
    try:
        asked = form(probe, skip_fields)
    except ParameterError as error:
        st.error(show.plain(str(error)), icon=":material/error:")
        return
    if chosen.spec is None:
        st.error(show.plain(chosen.trouble), icon=":material/error:")
    else:
        batch = running.batch(probe.name, {probe.name: asked.request(chosen.spec, scope.prompt())})
        running.controls(probe.name, batch, ready=scope.ready(), n_tokens=scope.n_tokens())
        scope.remember(batch.requests[probe.name].key if batch.results and not batch.running else "")
        st.fragment(_live, run_every=running.POLL_SECONDS if batch.running else None)(probe, batch, panels, teach)
    with st.expander("What this measures, and what the papers saw", expanded=False):
        st.markdown(probe.__doc__)


def _live(probe: type[Probe], batch: running.Batch, panels, teach: str) -> None:
    if batch.jobs and running.poll(batch):
        st.rerun()
    result = batch.result(probe.name)
    with st.container(key="status"):
        if batch.running:
            st.markdown(f"**{running.status(batch)}**")
        for error in batch.errors.values():
            st.error(show.plain(str(error)), icon=":material/error:")
    if result is None:
        if not batch.errors and not batch.running:
            st.info(teach, icon=":material/play_circle:")
        return
    for note in result.notes:
        st.info(show.plain(note), icon=":material/info:")
    panels(result, view(result))


def view(result: ProbeResult) -> View:
    """Window and selected token of a full-width panel."""
    n = result.n_tokens
    window = st.slider("Tokens shown", 0, n - 1, (n - WINDOW, n - 1), key=f"window.page.{n}") if n > WINDOW else None
    token = st.session_state.get("token")
    return View(
        window=window,
        selected=token if token is not None and token < n else None,
        answer_start=result.answer_start,
        width_px=1100,
        height=520,
        uirevision="page",
    )


def form(probe: type[Probe], without: tuple[str, ...] = ()) -> Probe:
    """The probe with the parameters chosen in a row of inputs; a `ParameterError` says what is wrong with one."""
    hints = typing.get_type_hints(probe)
    row = st.container(horizontal=True, vertical_alignment="bottom", key=f"form-{probe.name}")
    values = {}
    for f in fields(probe):
        if f.name in without:
            continue
        key, label, meta = f"{probe.name}.{f.name}", f.name.replace("_", " "), f.metadata
        common = {"key": key, "help": meta["help"], "on_change": scope.keep, "args": (key,)}
        is_list = hints[f.name] not in (bool, int, float, str)
        st.session_state[key] = scope.kept(key, "auto" if is_list else f.default)
        if meta["choices"]:
            values[f.name] = row.segmented_control(label, meta["choices"], required=True, **common)
        elif hints[f.name] is bool:
            values[f.name] = row.toggle(label, **common)
        elif is_list:
            values[f.name] = row.text_input(label, width=150, **common)
        else:
            values[f.name] = row.number_input(label, min_value=meta["low"], max_value=meta["high"], width=150, **common)
    return probe.make(values)
