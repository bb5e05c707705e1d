"""Every place where the app works around Streamlit (1.67). Each says what it cures, and how to see that it is needed no
longer: take it out, do what is said there, and look.

Two things are cured where they belong: a widget's value is gone once a page without it has been opened (`inputs`),
and an exception inside a fragment never reaches the page that drew it (`live.fragment`).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ctypes
import gc
import hashlib
import json
import logging
import math
import re
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import h11
import pandas  # noqa: F401 (see below)
import streamlit as st
from streamlit import config, runtime
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.app_session import AppSession, AppSessionState
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.runtime import Runtime
from streamlit.runtime.scriptrunner import RerunData, get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_run_context import ThreadState
from streamlit.web.server.starlette import starlette_websocket
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

log = logging.getLogger(__name__)

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


_pages: dict[tuple, Any] = {}


def page(file: str, **more: Any):
    """`st.Page`, its file looked for once in a process.

    Cures: it resolves the path of each of twenty pages in every run, which takes a tenth of what a page takes.
    Not needed: where `st.Page` touches no file."""
    context = get_script_run_ctx()
    key = context and context.pages_manager.main_script_path, file, *more.items()
    if key not in _pages:
        _pages[key] = st.Page(file, **more)
    return copy.copy(_pages[key])  # `st.navigation` writes into the one that runs


# -------------------------------------------------------------------- figures

STATIC = Path(st.__file__).parent / "static" / "static" / "js"
HEAD = 16384  # bytes of a script that hold what it imports


def plotly_script() -> str:
    """The file in which Streamlit's browser side keeps plotly, which stands in `window` once that file is loaded.

    Cures: `st.plotly_chart` gives a figure a new identity with each new version, and the browser takes the old one down
    and builds another; `show.draw` draws into the old one, with the plotly that is there anyway.
    Not needed: where `st.plotly_chart` with a key redraws in place (a page of one figure that changes every second;
    its `.js-plotly-plot` stays the same element)."""
    return next(STATIC.glob("PlotlyChart.*.js")).name


# Loads a component's own script; `document.baseURI` may lie below the app's root.
LOADED = """const streamlit = document.querySelector('script[src*="static/js/"]').src;
const { default: show } = await import(new URL('%s', streamlit));
export default given => {
  let end;
  const later = setTimeout(() => { end = show(given); });
  return () => { clearTimeout(later); end?.(); };
};
"""
ours: dict[str, bytes] = {}  # the app's own scripts by the names under which the server has them beside Streamlit's


def component(name: str, script: str) -> Any:
    """A component whose script the browser loads once; its rules are those of the page. The script comes from `server`,
    so an app that draws by it is an `App` with what `server.around` gives.

    Cures: Streamlit sends a component's script with every version of everything that is drawn by it, and the browser
    counts its digest each time: 17 kB for each of the dozen figures of a page. While the script loads, versions that
    came meanwhile are handed over in any order, so that a half-filled map could stay for good over the whole one; one
    that a later version overtook is ended at once, and so is not shown.
    Not needed: where two figures of a page are `ForwardMsg`s without the script, or with its address alone, and where
    `BidiComponent` does not call a version that was overtaken."""
    file = f"{name}.{hashlib.sha256(script.encode()).hexdigest()[:12]}.js"
    ours[file] = script.encode()
    return st.components.v2.component(name, js=LOADED % file, isolate_styles=False)


def script(*names: str) -> str:
    """One of the app's own scripts, and behind it those whose functions it calls."""
    first, *others = ((Path(__file__).parent / name).read_text("utf-8") for name in names)
    return first + "".join(others).replace("export ", "")


def scripts(*names: str) -> list[str]:
    """The files of Streamlit's browser side with these names, and those that they import."""
    found: list[str] = []
    wanted = [file.name for name in names for file in sorted(STATIC.glob(f"{name}.*.js"))]
    while wanted:
        if (name := wanted.pop(0)) not in found:
            found.append(name)
            begin = (STATIC / name).read_bytes()[:HEAD].decode(errors="ignore")
            wanted += re.findall(r"""\b(?:from|import)["']\./([\w.-]+\.js)["']""", begin)
    return found


def light(file: Path) -> bytes:
    """One of Streamlit's files as a browser gets it: in the one that keeps plotly, plotly's bundle of maps, curves and
    bars (`cases.report`), which are all that pages draw, stands in the whole one's place.

    Cures: a third of what a first visit loads, packed, are globes, maps of streets and calendars.
    Not needed: where Streamlit's own is no larger. Where it no longer looks as it does here, it is served as it is."""
    from ed_core.cases import report

    script = file.read_bytes()
    if file.name != plotly_script():
        return script
    before, begins, rest = script.partition(b"((e,t,n)=>{(function(e,n){typeof t==`object`&&t.exports?")
    _, ends, after = rest.rpartition(b"return window.Plotly=e,e})")
    return before + b"((e,module)=>{" + report.plotly_script().encode() + after if begins and ends else script


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


def this_run() -> object | None:
    """What stands for the run of a page, or of a part of it, that is under way; None outside of one."""
    return getattr(get_script_run_ctx(suppress_warning=True), "cursors", None)  # new with every run


def looks_for_news() -> bool:
    """Whether this run is one of parts of the page: of those that run by themselves, or that hold what was clicked.

    Not needed: where Streamlit has a public name for it."""
    return bool(getattr(get_script_run_ctx(), "fragment_ids_this_run", None))


def named(key: str) -> bool:
    """Whether the browser's last word for the whole page named the box of this key: it has drawn it then.

    Not needed: where the browser says which page it has drawn."""
    manager = getattr(runtime.get_instance(), "_session_mgr", None) if runtime.exists() else None  # AppTest has none
    known = manager and manager.get_session_info(session_id())
    return bool(known) and any(id.endswith(f"-{key}") for id in vars(known.session).get("_named", ()))


def kept(name: str, make: Callable[[], Any]) -> Any:
    """The object of this name in `st.session_state`, made where there is none; looked up there once a run.

    Cures: a page asks for it 200 times, and every look takes Streamlit's locks.
    Not needed: where a look into `st.session_state` takes as long as one into a dictionary."""
    context = get_script_run_ctx(suppress_warning=True)
    known = {} if context is None else vars(context).setdefault("kept", {})
    if name not in known:
        if name not in st.session_state:
            st.session_state[name] = make()
        known[name] = st.session_state[name]
    return known[name]


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
ANYWAY_SECONDS = 60.0  # until the next one where nobody has gone: eleven visitors leave some 40 MB behind in that time
BUSY_SECONDS = 120.0  # until no idle moment is waited for: on a machine that is busy there may be none for an hour


def collect() -> None:
    """Collect what nobody refers to, and give its pages back to the system: glibc keeps them else."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def spare_imports() -> None:
    """What is imported by now is never garbage: a full collection, which stops every page, looks at the rest alone. Of
    150,000 objects it takes 0.2 s."""
    gc.collect()
    gc.freeze()


class Departed:
    """Sessions whose browser has gone: shut down, and their memory collected.

    Cures: Streamlit keeps such sessions, 128 at most, for two minutes in case they come back, but drops those whose
    time is up only when the next tab closes: whoever came last stays until then, each with an event loop of three
    descriptors. One that is dropped is shut down when a full collection finds it, which is rare: figures that
    pages have drawn wait for it too, as they refer to themselves.
    Not needed: where two minutes after the last of many tabs was closed the server has as many descriptors open as
    before they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, collect: Callable[[], None] = collect):
        self._clock, self._collect = clock, collect
        self._since: dict[str, tuple[float, AppSession]] = {}
        self._collected, self._due = clock(), False

    def look(self) -> None:
        """Shut down who has been gone for long; then collect, when no page is being drawn, or when one always is.
        Called every now and then, on the server's own event loop."""
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
                self._due = True
        idle = all(session._state is not AppSessionState.APP_IS_RUNNING for session in known.values())
        self._due |= bool(known) and now - self._collected >= ANYWAY_SECONDS
        if self._due and now - self._collected >= (COLLECT_SECONDS if idle else BUSY_SECONDS):
            self._collect()
            self._collected, self._due = now, False


# -------------------------------------------------------------------- many visitors at once

SWITCH_SECONDS = 0.0005  # after which a thread that computes hands the interpreter's lock to one that waits for it
GATHER_SECONDS = 0.01  # what a run says is handed over this often; Streamlit itself waits as long before it sends
AT_ONCE = 64  # messages handed to a connection in one go; Streamlit takes 500 in its queue for a sign of a dead one

# Streamlit draws every page in a thread of its own, and one loop sends what they draw; that loop gives the lock of the
# interpreter away at every system call, and by Python's own interval waits 5 ms to get it back while a page is drawn.
# Not needed: where `make load` gives the same seconds for a stored page without it.
sys.setswitchinterval(SWITCH_SECONDS)


def option(key: str, locked: Callable[[str], Any] = config.get_option) -> Any:
    """`config.get_option`, which is asked for every message, without its lock.

    Cures: the lock changes hands, between all threads that draw pages, 200 times a page.
    Not needed: where Streamlit's `populate_hash_if_needed` asks for no option."""
    known = config._config_options or {}
    return known[key].value if key in known else locked(key)


def hand_over(self: AppSession, callback: Callable[[], None]) -> None:
    """`AppSession._call_soon_on_event_loop`: what a run tells the loop, in its order, gathered for a moment.

    Cures: the loop is woken twice for each of a page's 200 messages, and each time takes part of the core from the
    threads that draw.
    Not needed: where a script thread hands over more than one message at a time."""
    self.__dict__.setdefault("_told", deque()).append(callback)
    if not self.__dict__.get("_woken"):
        self._woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server ends
            self._event_loop.call_soon_threadsafe(self._event_loop.call_later, GATHER_SECONDS, look_again, self)


def take_over(self: AppSession) -> None:
    """On the loop: take what a session's run has told so far."""
    told: deque[Callable[[], None]] = self.__dict__.get("_told", deque())
    while told:
        try:
            told.popleft()()
        except Exception:  # of one of them; the others are not lost with it
            log.exception("What a page's thread told could not be taken.")


def look_again(self: AppSession) -> None:
    """Take over every now and then, until the run has ended: only the first of a page's messages wakes the loop, which
    costs the thread that draws a system call."""
    if self._told or self._state is AppSessionState.APP_IS_RUNNING:
        take_over(self)
    else:
        self._woken = False  # what comes from here on wakes the loop again
        if not self._told:  # and what came just before that word is not forgotten
            return
        self._woken = True
    self._event_loop.call_later(GATHER_SECONDS, look_again, self)


def asked(self: AppSession, data: Any, ask: Callable = AppSession.request_rerun) -> None:
    """`AppSession.request_rerun`, after what was told before; which boxes the browser names is kept."""
    if asyncio._get_running_loop() is self._event_loop:
        take_over(self)
    if data and not data.fragment_id:
        self._named = [one.id for one in data.widget_states.widgets]
    ask(self, data)


def begun(self: AppSession, data: Any, begin: Callable = AppSession._create_scriptrunner) -> None:
    """`AppSession._create_scriptrunner`, after what the thread told that it takes the place of.

    Cures: a part of the page asks to run just when the whole page has been drawn; the page's end is then the word of a
    thread that is no longer in charge, and the browser is never told.
    Not needed: where `request_rerun` does not tell of that itself, in a comment."""
    if self._scriptrunner is not None and asyncio._get_running_loop() is self._event_loop:
        take_over(self)
    begin(self, data)


def to_send(self: Runtime, wake: Callable[[Runtime], None] = Runtime._enqueued_some_message) -> None:
    """`Runtime._enqueued_some_message`: on the loop itself its event is set at once.

    Cures: the loop wakes itself through a pipe, once a message."""
    known = self._get_async_objs()
    if asyncio._get_running_loop() is known.eventloop:
        known.need_send_data.set()
    else:
        wake(self)


class Together(tuple):
    """Messages of one session that are sent without a look at anything else in between."""


def flushed(self: AppSession, flush: Callable = AppSession.flush_browser_queue) -> list:
    """`AppSession.flush_browser_queue`, in portions.

    Cures: Streamlit's loop makes a turn, with a system call, after every single message.
    Not needed: where it does not."""
    found = flush(self)
    return [Together(found[at : at + AT_ONCE]) for at in range(0, len(found), AT_ONCE)]


def sent(self: Runtime, whose: Any, message: Any, send: Callable = Runtime._send_message) -> None:
    """`Runtime._send_message`, of a portion."""
    for one in message if isinstance(message, Together) else (message,):
        send(self, whose, one)


class Corked:
    """A connection that writes what it is given within one turn of the loop in one go.

    Cures: a system call for every message.
    Not needed: where uvicorn, or its loop, gathers what is written."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop, self._kept = transport, loop, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._kept:
            self._loop.call_soon(self._write)
        self._kept.append(data)

    def _write(self) -> None:
        kept, self._kept = self._kept, []
        if kept:
            self._transport.write(b"".join(kept))

    def close(self) -> None:
        self._write()
        self._transport.close()


def made(self: WebSocketsSansIOProtocol, transport: Any, begin: Callable = WebSocketsSansIOProtocol.connection_made):
    begin(self, transport)
    self.transport = Corked(transport, self.loop)


if config.get_option.__module__ == config.__name__:  # Streamlit's own, and not what its AppTest has in that place
    config.get_option = option
AppSession._call_soon_on_event_loop, AppSession.flush_browser_queue = hand_over, flushed
AppSession.request_rerun, AppSession._create_scriptrunner = asked, begun
Runtime._enqueued_some_message, Runtime._send_message = to_send, sent
WebSocketsSansIOProtocol.connection_made = made

# -------------------------------------------------------------------- what a stranger's connection may take

PATIENCE = 20.0  # seconds that a request may take to arrive,
PACE = 10_000  # and one more for as many bytes of it


class Patient(H11Protocol):
    """A connection that is closed when its request arrives too slowly, or none does, and that sends at once.

    Cures: uvicorn waits for the rest of a request without end, and for a connection's first one. Streamlit's socket
    names no protocol, so that asyncio leaves Nagle's algorithm on: an answer's body waits 40 ms for its head's receipt.
    Not needed: where uvicorn has a timeout for both, and Streamlit's connections have TCP_NODELAY."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if (one := transport.get_extra_info("socket")) is not None and one.family != socket.AF_UNIX:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self._since, self._bytes = self.loop.time(), 0
        if self._timer is None:
            self._timer = self.loop.call_later(PATIENCE, self._look)

    def data_received(self, data: bytes) -> None:
        if self._since is None:
            self._begin()
        self._bytes += len(data)
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._since = None  # all of it is here

    def _look(self) -> None:
        self._timer = None
        if self._since is None or self.transport.is_closing():
            return
        if self.flow.read_paused:  # by the app, which has not read what is here
            self._since = self.loop.time()
        left = self._since + PATIENCE + self._bytes / PACE - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._look)
        else:
            self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def serve_within(limits: Mapping[str, Any]) -> None:
    """Before the server starts, or while it imports the app: how connections are served, and options of uvicorn that
    Streamlit does not set.

    Cures: a message of a browser may have 200 MB, which are read, and parsed up to 25 MB, on the loop that serves all;
    whoever connects from this machine is believed whose address he forwards. `streamlit run` has made uvicorn's
    `Config` by then, so its class answers for these names.
    Not needed: where Streamlit takes uvicorn's options."""
    for name, value in ({"http_protocol_class": Patient} | dict(limits)).items():
        setattr(Config, name, property(lambda self, value=value: value, lambda self, value: None))


def uploaded() -> dict[str, list[int]]:
    """Bytes of the uploaded files that the server holds, by session."""
    held = runtime.get_instance().uploaded_file_mgr.file_storage if runtime.exists() else {}
    return {session: [len(file.data) for file in files.values()] for session, files in list(held.items())}


def forget_upload(file: Any) -> None:
    """Drop an uploaded file that was read.

    Cures: Streamlit keeps it until the page is closed, also where its box is gone.
    Not needed: where it is dropped with its box."""
    if runtime.exists():
        runtime.get_instance().uploaded_file_mgr.remove_file(session_id(), file.file_id)


def at_most_uploads(most: int, answer: Callable = AppSession._handle_file_urls_request) -> None:
    """Before the server starts: addresses for more files at once than a page may hold are not made.

    Cures: a short message asks for a million of them, which are made on the loop that serves all.
    Not needed: where Streamlit limits their number."""

    def limited(self: AppSession, asked: Any) -> None:
        if len(asked.file_names) <= most:
            answer(self, asked)

    AppSession._handle_file_urls_request = limited


def keep_paths(places: Mapping[bytes, bytes], write: Callable = starlette_websocket.serialize_forward_msg) -> None:
    """Before the server starts: folders of the server reach browsers under these names only, padded with blanks, as a
    message's parts carry their lengths.

    Cures: sentences of the system and of libraries name folders, and Streamlit names the app's.
    Not needed: nowhere; what errors say is not ours."""
    found = re.compile(b"(?:%s)(?![A-Za-z0-9_-])" % b"|".join(map(re.escape, places)))

    def written(message: ForwardMsg) -> bytes:
        data = write(message)
        if any(place in data for place in places):
            data = found.sub(lambda one: places[one[0]].rjust(len(one[0])), data)
        return data

    if places:
        starlette_websocket.serialize_forward_msg = written


def new_session(self: AppSession, *more: Any, make: Callable = AppSession._create_new_session_message) -> ForwardMsg:
    """`AppSession._create_new_session_message`, without the app's folder, of which browsers make an id for statistics
    alone."""
    message = make(self, *more)
    message.new_session.main_script_path = Path(message.new_session.main_script_path).name
    return message


AppSession._create_new_session_message = new_session

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

LETTERS = {  # pixels of the page's letters at 14 px, by width; what is not among them is taken for as wide as an "a"
    2.8: " ",
    3.5: "ijlI|',.:;",
    4.2: "()[]{}!-f",
    4.8: "rt/",
    5.9: "sz?*",
    6.5: "cvxyJYLF",
    6.9: "ekE",
    7.7: "bdghnopquASTUZRPVX",
    8.4: "BCDGK&",
    9.2: "HNOQw",
    11.2: "mMW%@",
}
WIDTHS = {letter: width for width, letters in LETTERS.items() for letter in letters}
AROUND = {"pills": 26.0, "segmented_control": 34.0, "page_link": 20.0}  # a button's edges, beside its letters
BETWEEN = {"pills": 4.0, "segmented_control": -1.0, "page_link": 0.0}


def width(draw: Callable, labels: Iterable[str]) -> int:
    """Pixels that a row of buttons takes, or a link.

    Cures: a widget's script comes after the page, a bare box of 24 by 40 pixels stands in its place until then, and
    what is behind it in a row moves aside.
    Not needed: where a page with `st.pills` and a select box in one row, opened in a fresh browser, does not move."""
    name, found = draw.__name__, [sum(WIDTHS.get(letter, 7.1) for letter in label) for label in labels]
    return math.ceil(sum(found) + len(found) * AROUND[name] + (len(found) - 1) * BETWEEN[name]) + 2


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
