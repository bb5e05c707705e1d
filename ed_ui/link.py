"""What the URL carries, and how it finds its way back into the boxes.

A page change is a step in the browser's history, a changed parameter is not: Back always leads to the former page, as
it was left. What is at its default is left out, and a prompt's text never enters: addresses end in the logs of proxies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st

from ed_core.errors import ParameterError
from ed_ui import inputs, session, streamlit_edges
from ed_ui.inputs import Input

CARRIED = "Opens this view in a fresh session: model, prompt, parameters, and the run where it is stored here."
NOT_CARRIED = (
    "Not the prompt: a text never enters a link, and this one is neither bundled nor stored. Once it has run "
    "alone, the link names the run."
)

_script = "".join((Path(__file__).parent / name).read_text("utf-8") for name in ("link.js", "picture.js"))
_mount = st.components.v2.component(
    "link", js=_script.replace("export async function", "async function"), isolate_styles=False
)

# -------------------------------------------------------------------- reading


def state() -> session.Link:
    return session.current().link


def arrived(page: str) -> bool:
    """Whether in this run the URL decides: in a session's first, after Back or Forward, and where a link of ours opened
    another page."""
    link = state()
    moved, link.first = link.page != page, link.page is None
    if link.first:
        link.bare, link.open = not st.query_params, not {"example", "run"} & st.query_params.keys()
        link.base = (st.context.url or "").removesuffix(page).removesuffix("/") + "/"
    if moved:
        link.moved, link.values = True, {}
    link.cut, link.under_way = link.under_way, True
    link.page, link.own = page, ()
    link.arrived = link.first or streamlit_edges.came_by_history() or (moved and bool(st.query_params))
    link.due = link.arrived or (link.due and not moved)
    return link.arrived


def take(parameters: Iterable[Input], reset: bool = True) -> None:
    """Put the URL's values where the boxes find them. `reset`: what it does not name goes back to its default, except
    in a session's first run. A value that cannot be is left out, with one sentence in `troubles`."""
    for parameter in parameters:
        given = st.query_params.get(parameter.name)
        if given is not None:
            try:
                inputs.put({parameter.key: parameter.read(given)})
            except ParameterError as error:
                trouble(f"One parameter of the link was ignored: {error}")
        elif reset and not state().first:
            inputs.forget(parameter.key)


def own(parameters: Iterable[Input]) -> None:
    """A page's own parameters: call it before their boxes are drawn. Where the URL decided in a run that was begun anew
    before it came to the page, as the download box does when the hub answers, it decides on these now."""
    link = state()
    link.own = tuple(parameters)
    link.arrived, link.due = link.arrived or link.due, False
    if link.arrived:
        take(link.own, reset=not link.by_run)


def follows(parameter: Input) -> bool:
    """Whether in this run the URL decides, and says something valid of this parameter."""
    return bool(state().arrived and st.query_params.get(parameter.name) and inputs.value(parameter.key))


def among(parameter: Input, there: Collection[str], what: str) -> None:
    """Note where a link names what the page cannot show: its box then holds the first that it can."""
    asked = inputs.value(parameter.key)
    if state().arrived and parameter.name in st.query_params and asked and asked not in there:
        trouble(f"The link asks for the {what} {asked[:32]!r}, which is not here to show; another one is shown.")


def trouble(sentence: str) -> None:
    """Note what a link asked for and did not get; `troubles` hands it out."""
    state().troubles.append(sentence)


def troubles() -> list[str]:
    found, state().troubles = state().troubles, []
    return list(dict.fromkeys(found))


# -------------------------------------------------------------------- writing


def carried(parameters: Iterable[Input]) -> dict[str, str]:
    """What is off its default, as text."""
    held = ((p, inputs.value(p.key, p.default)) for p in parameters)
    return {p.name: p.write(value) for p, value in held if value not in (p.default, None)}


def put(values: Mapping[str, str]) -> None:
    """Make these the URL's parameters, with those of the page. A fragment that runs by itself writes only what has
    changed: it may be one of a page that the browser has just left. A page that was just opened writes at the end."""
    link = state()
    before, link.values = link.values, dict(values) | carried(link.own)
    if not link.moved and (link.values != before or (link.under_way and st.query_params.to_dict() != link.values)):
        st.query_params.from_dict(link.values)


def end_of_run() -> None:
    """After the page: what its first run puts into the URL is written by a script, which sees what the path is."""
    link = state()
    path = urlsplit(link.base).path + (link.page or "")
    streamlit_edges.steps_are_pages(path, link.values if link.moved else {})
    link.first = link.moved = link.under_way = link.due = False


def share(row) -> None:
    """A button at the end of a row that shows the link to what is on the screen. The browser reads it from its own
    address: a part of a page that runs by itself cannot safely write into what stands outside of it."""
    with row.popover("Link", icon=":material/link:", type="tertiary", key="share"):
        _mount(key="share-link", data={"whole": CARRIED, "partly": NOT_CARRIED})
