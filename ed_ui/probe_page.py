"""What the pages of single probes share: prompt, the probe's own parameters as a form, Run, and the live part."""
from __future__ import annotations

import typing
from dataclasses import fields
from typing import Callable

import streamlit as st

from ed_core import figures
from ed_core.errors import ParameterError
from ed_core.figures import View
from ed_core.probes import Continuation, Probe
from ed_core.types import ModelSpec, ProbeResult
from ed_ui import running, scope, show

WINDOW = 64


def page(probe: type[Probe], panels: Callable[[ProbeResult, View], None], teach: str, needs_answer: Callable[[Probe], bool] = lambda _: False) -> None:
    """A page for one probe. `panels` draws a result, partial or complete; `teach` stands where there is none yet. `needs_answer` tells
    whether the probe, with its parameters, reads the answer's tokens: the page then offers the model's own continuation as one."""
    st.subheader(probe.title, anchor=False)
    scope.prompt_box()
    chosen = scope.current()
    try:
        asked = form(probe)
    except ParameterError as error:
        st.error(show.plain(str(error)), icon=":material/error:")
        return
    if chosen.spec is None:
        st.error(show.plain(chosen.trouble), icon=":material/error:")
    elif needs_answer(asked) and not scope.prompt().answer:
        _ask_for_answer(chosen.spec)
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
    status(batch)
    if result is None:
        if not batch.errors and not batch.running:
            st.info(teach, icon=":material/play_circle:")
        return
    for note in result.notes:
        st.info(show.plain(note), icon=":material/info:")
    panels(result, view(result))


def status(batch: running.Batch) -> None:
    """What is going on, and what went wrong: the same room whether there is anything or not."""
    with st.container(key="status"):
        if batch.running:
            st.markdown(f"**{running.status(batch)}**")
        for error in batch.errors.values():
            st.error(show.plain(str(error)), icon=":material/error:")


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


def _ask_for_answer(spec: ModelSpec) -> None:
    """This probe reads the answer's tokens: type one, or take what the model itself would write."""
    st.info("This measures the effect on an **answer**, and there is none. Type one beside the prompt, or take the model's own.", icon=":material/help:")
    n_tokens = st.number_input("Tokens of the model's continuation", min_value=1, max_value=16, value=2, key="continuation.n_tokens", width=260)
    batch = running.batch("continuation", {"continuation": Continuation(n_tokens=n_tokens).request(spec, scope.prompt())})
    running.controls("continuation", batch, ready=scope.ready(), n_tokens=scope.n_tokens())
    st.fragment(_offer_answer, run_every=running.POLL_SECONDS if batch.running else None)(batch)


def _offer_answer(batch: running.Batch) -> None:
    if batch.jobs and running.poll(batch):
        st.rerun()
    status(batch)
    result = batch.result("continuation")
    if result is not None and result.complete:
        text = result.provenance["continuation"]
        use = lambda: scope.set_prompt(result.request.prompts[0].text, text, "")  # noqa: E731
        st.button(f"Use `{figures.shown(text, 60).replace('`', 'ˋ')}` as the answer", icon=":material/check:", on_click=use)


def form(probe: type[Probe]) -> Probe:
    """The probe with the parameters chosen in a row of inputs; a `ParameterError` says what is wrong with one."""
    hints = typing.get_type_hints(probe)
    row = st.container(horizontal=True, vertical_alignment="bottom", key=f"form-{probe.name}")
    values = {}
    for f in fields(probe):
        key, label, meta = f"{probe.name}.{f.name}", f.name.replace("_", " "), f.metadata
        common = {"key": key, "help": meta["help"], "on_change": scope.keep, "args": (key,)}
        is_list = hints[f.name] not in (bool, int, float, str)
        st.session_state[key] = scope.kept(key, meta["empty"] if is_list else f.default)
        if meta["file"]:
            values[f.name] = row.text_input(label, width=260, **common)
        elif meta["choices"]:
            values[f.name] = row.segmented_control(label, meta["choices"], required=True, **common)
        elif hints[f.name] is bool:
            values[f.name] = row.toggle(label, **common)
        elif is_list:
            values[f.name] = row.text_input(label, width=150, **common)
        else:
            values[f.name] = row.number_input(label, min_value=meta["low"], max_value=meta["high"], width=150, **common)
    return probe.make(values)
