"""What the pages of single probes share: prompt, the probe's own parameters as a form, Run, the live part, and how the
prompt compares."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace

import streamlit as st

from ed_core import compare, figures, lookup, permits
from ed_core.errors import ParameterError
from ed_core.figures import View
from ed_core.probes import Continuation, Probe
from ed_core.types import ModelSpec, ProbeResult
from ed_ui import among_others, case_studies, control_model, link, running, scope, show

WINDOW = 64
MAP_HEIGHT = 520
Panels = Callable[[ProbeResult, View], None]


@dataclass(frozen=True)
class Page:
    """A page for one probe.

    `figure` draws the main map of a result, partial or complete; `more` what stands below it. `teach` says what Run
    would do. `texts`: short paragraphs under headings of their own, what the papers saw, what to look for, what is
    fixed by construction, what to beware of. `controls` draws inputs that the map needs, `parameters` are what a link
    carries of them; `over_tokens`: whether the map has tokens to choose a window of; `sound`: whether a result may be
    compared with others. `needs_answer` tells whether the probe, with its parameters, reads the answer's tokens: the
    page then offers the model's own continuation as one."""

    probe: type[Probe]
    figure: Panels
    more: Panels
    teach: str
    texts: Mapping[str, str]
    controls: Callable[[], None] | None = None
    needs_answer: Callable[[Probe], bool] = lambda _: False
    over_tokens: bool = True
    sound: Callable[[ProbeResult], bool] = lambda _: True
    parameters: tuple[link.Parameter, ...] = ()


def show_page(page: Page) -> None:
    """Everything on such a page; what is below the map may come and go, the map itself stays where it is."""
    probe = page.probe
    st.subheader(probe.title, anchor=False)
    link.own((*link.of_probe(probe), *page.parameters, link.span("tokens", "kept.window.page")))
    scope.says()
    scope.prompt_box()
    chosen = scope.current()
    try:
        asked = form(probe)
    except ParameterError as error:
        st.error(show.plain(str(error)), icon=":material/error:")
        return
    if chosen.spec is None:
        st.error(show.plain(chosen.trouble), icon=":material/error:")
    elif page.needs_answer(asked) and not scope.prompt().answer:
        _ask_for_answer(chosen.spec)
        texts(page.texts)
    else:
        batch = running.batch(
            probe.name, control_model.with_control({probe.name: asked.request(chosen.spec, scope.prompt())})
        )
        row = running.controls(probe.name, batch, ready=scope.ready(), n_tokens=scope.n_tokens())
        control_model.picker(row, batch)
        case_studies.button(row, probe.name, batch)
        st.fragment(_live, run_every=running.POLL_SECONDS if batch.running else None)(page, batch)
        result = batch.result(probe.name)
        if result is not None and result.complete and page.sound(result):
            said = control_model.sentence(batch, probe.name, getattr(asked, "first_token", True))
            among_others.section(asked, result, control_model.result(batch, probe.name), said)
    with st.expander("What this measures, exactly", expanded=False):
        st.markdown(probe.__doc__)


def _live(page: Page, batch: running.Batch) -> None:
    if batch.jobs and running.poll(batch):
        st.rerun()
    result = batch.result(page.probe.name)
    scope.remember(result.request.key if result is not None and result.complete else "")
    status(batch, page.probe.name)
    if page.controls is not None:
        with st.container(key="map-controls"):
            page.controls()
    place, below = (
        st.container(),
        st.container(),
    )  # what is drawn while a result arrives stays in the place of what stood there before
    texts(page.texts)
    if result is None:
        with place:
            show.empty(page.probe.title, "" if batch.running else page.teach, MAP_HEIGHT, first=True)
        return
    seen = replace(
        view(result), control=control_model.result(batch, page.probe.name), control_name=control_model.name()
    )
    with place:
        page.figure(result, seen)
    with below:
        if page.over_tokens:
            window(result, seen)
        for note in result.notes:
            st.info(show.plain(note), icon=":material/info:")
    page.more(result, seen)


def texts(paragraphs: Mapping[str, str]) -> None:
    """Short paragraphs side by side."""
    for column, (heading, text) in zip(st.columns(len(paragraphs)), paragraphs.items()):
        column.caption(f"**{heading}:** {text}")


def status(batch: running.Batch, name: str = "") -> None:
    """What is going on, and what went wrong: always at least one line, so that nothing moves when there is something to
    say. `name`: whose result it is about, where a page shows several."""
    with st.container(key="status"):
        if batch.running:
            st.markdown(f"**{running.status(batch)}**")
        elif result := batch.results.get(name or next(iter(batch.results), "")):
            shipped = " · :gray-badge[stored example]" if lookup.is_shipped(result.request.key) else ""
            made = result.provenance
            st.markdown(
                f"Measured on {result.n_tokens} tokens, {made.get('time', '')[:16].replace('T', ' ')} UTC, in "
                f"{made.get('seconds', 0):.2g} s{shipped}"
            )
        elif not (troubles := running.troubles(batch)):
            st.markdown(
                "Cancelled: nothing of that run is kept."
                if batch.errors
                else "Nothing measured yet for this prompt, model and parameters."
            )
        else:
            for message in troubles:
                st.error(show.plain(message), icon=":material/error:")


def view(result: ProbeResult) -> View:
    """Window and selected token of a full-width panel."""
    n = result.n_tokens
    token = st.session_state.get("token")
    return View(
        window=scope.window("window.page", n, WINDOW),
        selected=token if token is not None and token < n else None,
        answer_start=result.answer_start,
        width_px=1100,
        height=MAP_HEIGHT,
        uirevision="page",
    )


def behind(probe: type[Probe], seen: View, curve: str, first_token: bool = True) -> dict:
    """The control's aggregate, under its name, where the view has one."""
    return (
        {seen.control_name: compare.curves_of(probe, seen.control.summary, first_token)[curve]}
        if seen.control is not None
        else {}
    )


def window(result: ProbeResult, seen: View) -> None:
    """Beside a figure over tokens: which ones it shows, and the way back from a selected one."""
    n = result.n_tokens
    row = st.container(horizontal=True, vertical_alignment="bottom", key="window")
    if n > WINDOW:
        scope.keeping(row.slider, "Tokens shown", "window.page", seen.window, min_value=0, max_value=n - 1, width=420)
    show.token_box(row, result.tokens)


def _ask_for_answer(spec: ModelSpec) -> None:
    """This probe reads the answer's tokens: type one, or take what the model itself would write."""
    st.info(
        "This measures the effect on an **answer**, and there is none. Type one beside the prompt, or take the model's "
        "own.",
        icon=":material/help:",
    )
    n_tokens = st.number_input(
        "Tokens of the model's continuation", min_value=1, max_value=16, value=2, key="continuation.n_tokens", width=260
    )
    batch = running.batch(
        "continuation", {"continuation": Continuation(n_tokens=n_tokens).request(spec, scope.prompt())}
    )
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
        st.button(
            f"Use `{figures.shown(text, 60).replace('`', 'ˋ')}` as the answer", icon=":material/check:", on_click=use
        )


def form(probe: type[Probe], names: Collection[str] | None = None, row=None, prefix: str = "") -> Probe:
    """The probe with the parameters chosen in a row of inputs, or in a `row` that is there already; of `names` only
    those. A `ParameterError` says what is wrong with one. `prefix`: of the inputs' keys, where a page has the same form
    twice."""
    hints = typing.get_type_hints(probe)
    row = (
        st.container(horizontal=True, vertical_alignment="bottom", key=f"form-{prefix}{probe.name}")
        if row is None
        else row
    )
    values = {}
    for f in (f for f in fields(probe) if names is None or f.name in names):
        key, label, meta = f"{prefix}{probe.name}.{f.name}", f.metadata["label"] or f.name.replace("_", " "), f.metadata
        common = {"key": key, "help": meta["help"], "on_change": scope.keep, "args": (key,)}
        is_list = hints[f.name] not in (bool, int, float, str)
        st.session_state[key] = scope.kept(key, meta["empty"] if is_list else f.default)
        if meta["file"]:
            off = (
                permits.why_not(permits.file, f"A path as {label.lower()}")
                if st.session_state[key] == f.default
                else ""
            )
            values[f.name] = row.text_input(
                label, width=260, disabled=bool(off), **common | {"help": off or meta["help"]}
            )
        elif meta["choices"]:
            values[f.name] = row.segmented_control(label, meta["choices"], required=True, **common)
        elif hints[f.name] is bool:
            values[f.name] = row.toggle(label, **common)
        elif is_list:
            values[f.name] = row.text_input(label, width=150, **common)
        else:
            values[f.name] = row.number_input(label, min_value=meta["low"], max_value=meta["high"], width=150, **common)
    return probe.make(values)
