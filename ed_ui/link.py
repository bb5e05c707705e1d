"""What the URL carries, and how it finds its way back into the boxes.

A page change is a step in the browser's history, a changed parameter is not: Back always leads to the former page, as
it was left. What is at its default is left out, and a prompt's text never enters: addresses end in the logs of proxies.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any
from urllib.parse import urlencode, urlsplit

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from ed_core.errors import ParameterError
from ed_core.probes import Probe

LONGEST = 300  # characters of a value
LARGEST = 2**53  # what a browser's number box can hold
CARRIED = "Opens this view in a fresh session: model, prompt, parameters, and the run where it is stored here."
NOT_CARRIED = (
    "**Not the prompt**: a text never enters a link, and this one is neither bundled nor stored. Once it has "
    "run alone, the link names the run."
)
# Streamlit makes every change of a parameter a step in the history: the browser's Back would then undo parameters one
# by one.
REPLACE = """if (!window.stepsArePages) {
  window.stepsArePages = true;
  const push = history.pushState;
  history.pushState = function (state, title, url) {
    const stays = new URL(url, location.href).pathname === location.pathname;
    return (stays ? history.replaceState : push).call(history, state, title, url);
  };
}"""

FIRST = """const named = (path, values) => JSON.stringify([path, [...values].sort()]);
if (named(location.pathname, new URLSearchParams(location.search)) === named(...%s)) history.replaceState({}, '', %s);"""


@dataclass(frozen=True)
class Parameter:
    """One value: `name` in the URL, `key` in the session. `read` makes it of its text or raises a `ParameterError`,
    `write` the reverse."""

    name: str
    key: str
    default: Any
    read: Callable[[str], Any]
    write: Callable[[Any], str] = str


def text(name: str, key: str, default: str = "") -> Parameter:
    return Parameter(name, key, default, lambda value: value.strip())


def choice(name: str, key: str, default: Any, options: Mapping[Any, str] | Iterable[str]) -> Parameter:
    """One of `options`, perhaps under a shorter name."""
    short = dict(options) if isinstance(options, Mapping) else {option: option for option in options}
    long = {value: option for option, value in short.items()}

    def read(value: str) -> Any:
        if value not in long:
            raise ParameterError(f"{name} is {value!r}; expected one of {', '.join(long)}.")
        return long[value]

    return Parameter(name, key, default, read, lambda value: short.get(value, ""))


def several(name: str, key: str, default: list, options: Iterable) -> Parameter:
    """Any of `options`, with commas between them."""
    known = {str(option): option for option in options}

    def read(value: str) -> list:
        if strange := [part for part in value.split(",") if part not in known]:
            raise ParameterError(f"{name} names {strange[0]!r}; expected some of {', '.join(known)}.")
        return [known[part] for part in dict.fromkeys(value.split(","))]

    return Parameter(name, key, default, read, lambda value: ",".join(map(str, value)))


def number(name: str, key: str, default: Any, low: float, high: float, kind: type = float) -> Parameter:
    def read(value: str) -> Any:
        try:
            found = kind(value)
        except ValueError:
            found = math.nan
        if not low <= found <= high:
            raise ParameterError(
                f"{name} is {value!r}; expected {'a whole number' if kind is int else 'a number'} from {low:g} to "
                f"{high:g}."
            )
        return found

    return Parameter(name, key, default, read, lambda value: f"{value:g}" if kind is float else str(value))


def flag(name: str, key: str, default: bool) -> Parameter:
    return choice(name, key, default, {True: "true", False: "false"})


def span(name: str, key: str) -> Parameter:
    """First and last of a window of tokens."""

    def read(value: str) -> tuple[int, int]:
        first, _, last = value.partition("-")
        if not (first.isdecimal() and last.isdecimal() and len(value) < 20 and int(first) < int(last)):
            raise ParameterError(f"{name} is {value!r}; expected the first and the last token, like 12-59.")
        return int(first), int(last)

    return Parameter(name, key, None, read, lambda value: f"{value[0]}-{value[1]}")


def of_probe(probe: type[Probe], names: Iterable[str] | None = None) -> tuple[Parameter, ...]:
    """A probe's own parameters, checked as the command line checks them; a file's path is never taken from a link."""
    return tuple(
        _of_field(probe, f) for f in fields(probe) if (names is None or f.name in names) and not f.metadata["file"]
    )


def _of_field(probe: type[Probe], f: Field) -> Parameter:
    boxed = lambda value: (",".join(map(str, value)) or f.metadata["empty"]) if isinstance(value, tuple) else value  # noqa: E731

    def read(value: str) -> Any:
        found = getattr(probe.make({f.name: value}), f.name)
        if isinstance(found, (int, float)) and not abs(found) < LARGEST:
            raise ParameterError(f"{probe.name}.{f.name} is {value!r}; expected a number that a box can hold.")
        return boxed(found)

    write = lambda value: str(value).lower() if isinstance(value, bool) else str(value)  # noqa: E731
    return Parameter(f.name, f"kept.{probe.name}.{f.name}", boxed(f.default), read, write)


# -------------------------------------------------------------------- reading


def arrived(page: str) -> bool:
    """Whether in this run the URL decides: in a session's first, after Back or Forward, and where a link of ours opened
    another page. `link.cut` then says whether the run before was cut short, so that the browser may not know what it
    set."""
    state, first = st.session_state, "link.page" not in st.session_state
    context = get_script_run_ctx()
    moved = first or state["link.page"] != page
    if first:
        state["link.base"], state["link.opened"] = (st.context.url or "").removesuffix(page), st.query_params.to_dict()
    by_history = bool(context and getattr(context, "is_history_navigation", False))
    state["link.cut"], state["link.whole"] = state.get("link.whole", False), True
    state["link.page"], state["link.own"], state["link.first"], state["link.place"] = page, (), first, None
    state["link.arrived"] = first or by_history or (moved and bool(st.query_params))
    return state["link.arrived"]


def take(parameters: Iterable[Parameter], reset: bool = True) -> None:
    """Put the URL's values where the boxes find them. `reset`: what it does not name goes back to its default, except
    in a session's first run. A value that cannot be is left out, with one sentence in `troubles`."""
    for parameter in parameters:
        given = st.query_params.get(parameter.name)
        if given is not None:
            try:
                if len(given) > LONGEST or not given.isprintable():
                    raise ParameterError(
                        f"{parameter.name} is {given[:20]!r}…; expected at most {LONGEST} printable characters."
                    )
                st.session_state[parameter.key] = parameter.read(given)
            except ParameterError as error:
                trouble(f"The link is not followed in one point: {error}")
        elif (
            reset
            and not st.session_state["link.first"]
            and st.session_state.pop(parameter.key, None) is not None
            and not parameter.key.startswith("kept.")
        ):
            st.session_state[parameter.key] = (
                parameter.default
            )  # a box that is drawn on every page keeps what it holds until it is told


def own(parameters: Iterable[Parameter]) -> None:
    """A page's own parameters: call it before their boxes are drawn."""
    parameters = st.session_state["link.own"] = tuple(parameters)
    if st.session_state.get("link.arrived"):
        take(parameters, reset=not st.session_state.get("link.by_run"))


def follows(parameter: Parameter) -> bool:
    """Whether in this run the URL decides, and says something valid of this parameter."""
    return bool(
        st.session_state.get("link.arrived")
        and st.query_params.get(parameter.name)
        and st.session_state.get(parameter.key)
    )


def trouble(sentence: str) -> None:
    """Note what a link asked for and did not get; `troubles` hands it out."""
    st.session_state["link.troubles"] = [*st.session_state.get("link.troubles", []), sentence]


def troubles() -> list[str]:
    return list(dict.fromkeys(st.session_state.pop("link.troubles", [])))


# -------------------------------------------------------------------- writing


def carried(parameters: Iterable[Parameter]) -> dict[str, str]:
    """What is off its default, as text."""
    state = st.session_state
    return {p.name: p.write(state[p.key]) for p in parameters if state.get(p.key, p.default) not in (p.default, None)}


def put(values: Mapping[str, str]) -> None:
    """Make these the URL's parameters, with those of the page. A fragment that runs by itself writes only what has
    changed: it may be one of a page that the browser has just left."""
    state = st.session_state
    values, before = dict(values) | carried(state.get("link.own", ())), state.get("link.values")
    state["link.values"] = values
    if not state.get("link.first") and (
        values != before or state.get("link.whole") and st.query_params.to_dict() != values
    ):
        st.query_params.from_dict(values)
    _show(values)


def frame() -> None:
    """At the end of the page: teach the browser what a step is. What a session's first run puts into the URL is put
    there by the same script, as Streamlit's own message would be a step before the browser has learned; unless somebody
    was faster, and is elsewhere by now."""
    state = st.session_state
    values = state.get("link.values") if state.get("link.first") else None
    here = [urlsplit(state.get("link.base", "")).path + state["link.page"], list(state["link.opened"].items())]
    now = FIRST % (json.dumps(here).replace("<", "\\u003c"), json.dumps("?" + urlencode(values))) if values else ""
    st.html(f"<script>{{{REPLACE}{now}}}</script>", unsafe_allow_javascript=True)
    state["link.first"] = state["link.whole"] = False


def address() -> str:
    """The link to what is on the screen."""
    state = st.session_state
    return f"{state.get('link.base', '')}{state.get('link.page', '')}?{urlencode(state.get('link.values', {}))}"


def share(row) -> None:
    """A button at the end of a row that shows the link to what is on the screen; `put` keeps it up to date, from within
    a fragment too."""
    st.session_state["link.place"] = row.popover("Link", icon=":material/link:", type="tertiary", key="share").empty()


def _show(values: Mapping[str, str]) -> None:
    if (place := st.session_state.get("link.place")) is None:
        return
    with place.container():
        st.code(address(), language=None, wrap_lines=True)
        st.caption(CARRIED if {"run", "example"} & values.keys() and values.get("prompts") != "pasted" else NOT_CARRIED)


def mend_first_deep_link() -> None:
    """Load the page once more where a link opened it before this server had run the app once.

    Streamlit takes an app with a `pages/` folder for one without `st.navigation` until that has been called, does not
    find the page by its name, and covers the right one with a "page not found" dialog. Whether this run is such a one
    is told by who called it: several visitors may be on their way at once."""
    context, caller = get_script_run_ctx(), sys._getframe()
    while caller is not None and caller.f_code.co_name != "_mpa_v1":
        caller = caller.f_back
    if caller is not None and context is not None and context.pages_manager.intended_page_name:
        st.html("<script>window.location.reload()</script>", unsafe_allow_javascript=True)
        st.stop()
