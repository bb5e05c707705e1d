"""Every place where the app works around Streamlit (1.67). Each says what it cures, and how to see that it is needed no
longer: take it out, do what is said there, and look.

Two things are cured where they belong: a widget's value is gone once a page without it has been opened (`remembered`),
and an exception inside a fragment never reaches the page that drew it (`guard.fragment`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas  # noqa: F401 (see below)
import streamlit as st
from streamlit import runtime
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.app_session import AppSession, AppSessionState
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner import RerunData, get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_run_context import ThreadState

# -------------------------------------------------------------------- pandas

# `import pandas` above, before anything is drawn.
# Cures: Streamlit imports pandas when the first table is drawn, which takes seconds; plotly, in the thread of another
# visitor, finds it half imported meanwhile, and the figure fails.
# Not needed: where plotly's `get_module` leaves a module alone that is still being imported.

# -------------------------------------------------------------------- the first deep link after a server's start


def begin_with_navigation() -> None:
    """Before the server starts: say that the app uses `st.navigation`.

    Cures: Streamlit takes an app with a `pages/` folder for one without `st.navigation` until that has been called,
    does not find the page that a link names, and covers the right one with a "page not found" dialog.
    Not needed: where `python -m ed_ui.server` shows no such dialog when /skip is the first address it is asked for."""
    PagesManager.uses_pages_directory = False


def navigation(pages: Mapping[str, list]):
    """`st.navigation`, with the same cure where `streamlit run app.py` started the server, which runs nothing of ours
    before the first visitor comes: the page is loaded once more, for every visitor who came that early.

    In such a run Streamlit has listed one page itself, the app, before it ran the app; in every other run none is
    listed yet, or all of ours are.
    Not needed: where `streamlit run app.py` shows no such dialog when /skip is the first address it is asked for."""
    context = get_script_run_ctx()
    manager = context.pages_manager if context is not None else None
    early = manager is not None and ["url_pathname" in page for page in manager.get_pages().values()] == [True]
    page = st.navigation(pages, expanded=True)  # else it hides some of the pages behind "View 3 more"
    if early and manager.intended_page_name:
        st.html("<script>window.location.reload()</script>", unsafe_allow_javascript=True)
        st.stop()
    return page


# -------------------------------------------------------------------- figures

STATIC = Path(st.__file__).parent / "static" / "static" / "js"


def plotly_script() -> str:
    """The file in which Streamlit's browser side keeps plotly, which stands in `window` once that file is loaded.

    Cures: `st.plotly_chart` gives a figure a new identity with each new version, and the browser takes the old one down
    and builds another; `chart` draws into the old one, with the plotly that is there anyway.
    Not needed: where `st.plotly_chart` with a key redraws in place (a page of one figure that changes every second;
    its `.js-plotly-plot` stays the same element)."""
    return next(STATIC.glob("PlotlyChart.*.js")).name


# -------------------------------------------------------------------- the browser's history

STEPS = """if (!window.stepsArePages) {
  window.stepsArePages = true;
  const push = history.pushState;
  history.pushState = function (state, title, url) {
    const stays = new URL(url, location.href).pathname === location.pathname;
    return (stays ? history.replaceState : push).call(history, state, title, url);
  };
}"""
WRITE = """const [id, path, query] = %s;
if (window.lastWritten !== id) {
  window.lastWritten = id;
  const write = tries => {
    if (window.lastWritten !== id) return;
    if (location.pathname.replace(/[/]$/, '') === path) history.replaceState({}, '', location.pathname + query);
    else if (tries) setTimeout(write, 50, tries - 1);
  };
  write(100);
}"""


def steps_are_pages(path: str, values: Mapping[str, str]) -> None:
    """At the end of every run: teach the browser that a page change is a step in its history and a changed parameter
    is not. `values`: what a page's first run puts into the URL, written once that has become the page's `path`.

    Cures: Streamlit makes a step of every changed parameter, so that the browser's Back undoes parameters one by one.
    It writes them behind whatever path the URL has when its message comes, and changes the path only once the page is
    drawn, which on a busy machine is later: the page just left got the parameters of the new one, and Back found it
    without its own. In a session's first run its message also comes before this script.
    Not needed: where Back leads to the former page, as it was left, after two parameters were changed and a page was
    opened while other programs kept the machine busy."""
    now = ""
    if values:
        what = [secrets.token_hex(4), path.removesuffix("/"), "?" + urlencode(values)]
        now = WRITE % json.dumps(what).replace("<", "\\u003c")
    st.html(f"<script>{{{STEPS}{now}}}</script>", unsafe_allow_javascript=True)


def came_by_history() -> bool:
    """Whether Back or Forward caused this run, which Streamlit knows and has no public name for.

    Not needed: where its API says so."""
    return bool(getattr(get_script_run_ctx(), "is_history_navigation", False))


# -------------------------------------------------------------------- who is there


def session_id() -> str:
    """Streamlit's id of the session that runs; "" outside of one."""
    return getattr(get_script_run_ctx(), "session_id", "")


def connected(session: str) -> bool:
    """Whether a session's browser is connected: a closed tab is not. From any thread.

    Not needed: where Streamlit has a public name for it."""
    return bool(session) and runtime.exists() and runtime.get_instance().is_active_session(session)


# -------------------------------------------------------------------- sessions that end

LEFT_SECONDS = 60.0  # how long a tab that was closed, or lost its connection, finds its session when it comes back
COLLECT_SECONDS = 30.0  # between two collections, at least


def collect() -> None:
    """Collect what nobody refers to, and give its pages back to the system: glibc keeps them else."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Departed:
    """Sessions whose browser has gone: shut down, and their memory collected.

    Cures: Streamlit keeps such sessions, 128 at most, for two minutes in case they come back, but drops those whose
    time is up only when the next tab closes: whoever came last stays until then, each with an event loop of three
    descriptors. One that is dropped is shut down when a full collection finds it, which is rare.
    Not needed: where two minutes after the last of many tabs was closed the server has as many descriptors open as
    before they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, collect: Callable[[], None] = collect):
        self._clock, self._collect = clock, collect
        self._since: dict[str, tuple[float, AppSession]] = {}
        self._collected, self._dropped = clock(), False

    def look(self) -> None:
        """Shut down who has been gone for long; then collect, when no page is being drawn. Called every now and then,
        on the server's own event loop."""
        served, now = runtime.get_instance(), self._clock()
        known = {info.session.id: info.session for info in served._session_mgr.list_sessions()}
        for id, session in known.items():
            if not served.is_active_session(id):
                self._since.setdefault(id, (now, session))
        for id, (since, session) in list(self._since.items()):
            if served.is_active_session(id):
                del self._since[id]
            elif id not in known or now - since >= LEFT_SECONDS:
                del self._since[id]
                served.close_session(id)
                session.shutdown()  # nothing where it has been; one that was dropped has not
                self._dropped = True
        idle = all(session._state is not AppSessionState.APP_IS_RUNNING for session in known.values())
        if self._dropped and idle and now - self._collected >= COLLECT_SECONDS:
            self._collect()
            self._collected, self._dropped = now, False


# -------------------------------------------------------------------- fragments


def run_fragments(keys: Sequence[str]) -> None:
    """Run the fragments of these keys, once the run that asks for it has ended.

    Cures: a fragment that looks for news every now and then can run itself or the whole page, and what it runs is built
    and sent as a whole; `st.rerun` takes other fragments' keys only from a widget's callback.
    Not needed: where `st.rerun` takes a key inside a fragment."""
    context = get_script_run_ctx()
    if context is not None and context.script_requests is not None:
        context.script_requests.request_rerun(
            RerunData(
                query_string=context.query_string,
                page_script_hash=context.page_script_hash,
                fragment_id_queue=context.fragment_storage.resolve_target(keys),
                cached_message_hashes=context.cached_message_hashes,
                context_info=context.context_info,
            )
        )


def run_every(seconds: float) -> None:
    """Let the fragment that is running run by itself at this interval from now on.

    Cures: a fragment's interval is fixed until what is around it is drawn again.
    Not needed: where `run_every` can be changed from inside."""
    context, fragment = get_script_run_ctx(), ThreadState.get().fragment_id
    if context is not None and fragment:
        message = ForwardMsg()
        message.auto_rerun.interval, message.auto_rerun.fragment_id = seconds, fragment
        context.enqueue(message)


# -------------------------------------------------------------------- boxes


def tell(key: str, value: Any, always: bool = True) -> None:
    """Give a widget its value before it is drawn; without `always` only where it has another one.

    Cures: the browser is told a value once, in a message that Streamlit throws away when the next run begins before it
    was sent; so it is told in every run. A box for words is not: the message would throw away what is being typed.
    Not needed: where a link's model stands in the box although somebody clicked while the page was being opened."""
    if always or key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value


# -------------------------------------------------------------------- words

WORD_JOINER = "\u2060"  # invisible


def unrewritten(text: str) -> str:
    """Text in which Streamlit's Markdown finds nothing to rewrite: emoji, icons, arrows and dashes get a word joiner
    into their middle.

    Cures: a backslash does not keep `:smile:` or `->` as they are.
    Not needed: where `st.markdown` shows `\\:smile:` and `-\\>` as `:smile:` and `->`."""
    return re.sub(
        r":(?=(?!\d+:)[\w+/-]+:)|(?<!\S)(?=(?:<->|->|<-|--|>=|<=|~=)(?!\S))[<>~-]", rf"\g<0>{WORD_JOINER}", text
    )
