"""One browser tab, as far as the server can tell: Streamlit's websocket with its own messages, the XSRF cookie, the
cache of messages by their hash, and fragments that run again at the interval the server names.

It keeps what the page shows as the browser would (streamlit 1.67, `App.tsx`, `ForwardMessageCache.ts`,
`ClearStaleNodeVisitor.ts`), draws nothing, and talks to this machine alone."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

HERE = ("127.0.0.1", "localhost")
Path = tuple[int, ...]


class Gone(Exception):
    """The server ended the connection."""


@dataclass
class Node:
    """One thing on the page. `kind`: an element's type, or "block"; `key`: the app's own name for it, where it has
    one."""

    kind: str
    key: str
    what: object
    fragment: str
    run: str


@dataclass
class Cached:
    message: ForwardMsg
    run: int
    fragment: str


def require_local(address: str) -> None:
    """Refuse to put anybody else's server under load."""
    if (host := urlsplit(address).hostname) not in HERE:
        raise ValueError(f"The load goes to {host!r}; expected this machine, {' or '.join(HERE)}.")


class Session:
    """A tab that is open, from `async with` on. `open` changes the page, `press` and `type` use a widget by its key."""

    def __init__(self, address: str, path: str = "", query: str = ""):
        require_local(address)
        self.address, self._first = address, (path, query)
        self.nodes: dict[Path, Node] = {}
        self.pages: dict[str, str] = {}  # hash of a page, by its path
        self.page, self.query = "", query
        self.ended = ""  # why the connection ended
        self.missed = 0  # messages by a hash that this side does not have
        self.begun = self.done = 0  # runs of the whole page
        self.drawing = False  # a run is under way: what is on the page is half of it
        self.looks: Callable[[], None] = lambda: None  # called whenever something has been drawn to its end
        self._runs: dict[str, int] = {}
        self._shown = ""  # the page that the run under way has come to
        self._run, self._cached, self._count, self._most = "", {}, 0, 2
        self._set: dict[str, WidgetState] = {}
        self._timers: dict[str, tuple[float, asyncio.Task]] = {}
        self._news = asyncio.Event()

    async def __aenter__(self) -> Session:
        cookie = await asyncio.to_thread(_cookie, self.address)
        token = cookie.partition("=")[2].strip('"')
        more = dict(origin=self.address, additional_headers={"Cookie": cookie}, max_size=None, compression=None)
        where = self.address.replace("http", "ws", 1) + "/_stcore/stream"
        self._socket = await connect(where, subprotocols=["streamlit", token], **more)
        self._reading = asyncio.create_task(self._read())
        await self._whole(page_name=self._first[0])
        return self

    async def __aexit__(self, *_) -> None:
        self._stop_timers()
        self._reading.cancel()
        await self._socket.close()

    # ---------------------------------------------------------------- what a visitor does

    async def open(self, path: str, seconds: float = 120.0) -> float:
        """Change the page; seconds until it is drawn to its end."""
        self._stop_timers()
        self._set = {}
        return await self._whole(seconds, page_script_hash=self.pages[path])

    async def press(self, key: str, seconds: float = 120.0) -> float:
        """A button; seconds until the page is drawn to its end."""
        return await self._whole(seconds, WidgetState(id=self.widget(key).id, trigger_value=True))

    async def type(self, key: str, text: str, seconds: float = 120.0) -> float:
        """Words into a box; seconds until the page is drawn to its end."""
        state = WidgetState(id=self.widget(key).id, string_value=text)
        self._set[state.id] = state
        return await self._whole(seconds)

    async def until(self, holds: Callable[[], object], seconds: float = 120.0):
        """Wait until something is so; its value. `TimeoutError` with what is on the page."""
        end = time.monotonic() + seconds
        while not (found := holds()):
            if self.ended:
                raise Gone(self.ended)
            if (left := end - time.monotonic()) <= 0:
                said = [word for key in ("headline", "status") for word in self.within(key, "markdown")]
                said = [what.body for what in said] + [what.body for _, what in self.elements("alert")]
                state = f"{self.done} of {self.begun} runs, {len(self._timers)} parts run by themselves"
                raise TimeoutError(f"not within {seconds:g} s: {state}{', drawing' * self.drawing}: {said}")
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                pass
        return found

    # ---------------------------------------------------------------- what is on the page

    def elements(self, kind: str) -> Iterator[tuple[str, object]]:
        """Everything of one kind: the app's key and the message."""
        return ((node.key, node.what) for node in list(self.nodes.values()) if node.kind == kind)

    def widget(self, key: str):
        """What has this key."""
        return next(node.what for node in self.nodes.values() if node.key == key and node.kind != "block")

    def within(self, key: str, kind: str) -> Iterator[object]:
        """Everything of one kind inside the container of this key."""
        outer = next((path for path, node in self.nodes.items() if node.key == key), None)
        for path, node in list(self.nodes.items()) if outer is not None else ():
            if node.kind == kind and path[: len(outer)] == outer:
                yield node.what

    @property
    def follows(self) -> bool:
        """Whether a part of the page runs by itself."""
        return bool(self._timers)

    # ---------------------------------------------------------------- sending

    async def _whole(self, seconds: float = 120.0, *triggers: WidgetState, **where: str) -> float:
        """Ask for a run of the whole page and wait for its end."""
        before, asked = self.begun, where.get("page_script_hash")
        start = time.monotonic()
        await self._send(triggers, **({"page_script_hash": self.page} | where))
        await self.until(lambda: self.done > before and (not asked or self.page == asked), seconds)
        return time.monotonic() - start

    async def _send(self, triggers: tuple[WidgetState, ...] = (), **where: object) -> None:
        message = BackMsg()
        asked = message.rerun_script
        for name, value in where.items():
            setattr(asked, name, value)
        asked.query_string, asked.context_info.url = self.query, self.address + "/"
        asked.widget_states.widgets.extend([*self._set.values(), *triggers])
        asked.cached_message_hashes.extend(self._cached)
        try:
            await self._socket.send(message.SerializeToString())
        except ConnectionClosed as closed:
            raise Gone(str(closed)) from None

    async def _every(self, seconds: float, fragment: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._send(page_script_hash=self.page, fragment_id=fragment, is_auto_rerun=True)

    def _stop_timers(self) -> None:
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # ---------------------------------------------------------------- hearing

    async def _read(self) -> None:
        try:
            async for data in self._socket:
                message = ForwardMsg.FromString(data)
                self._take(self._whole_message(message))
                self._news.set()
            self.ended = f"closed by the server ({self._socket.close_code})"
        except ConnectionClosed as closed:
            self.ended = str(closed)
        except Exception as error:  # of ours: whoever waits must hear of it
            self.ended = repr(error)
            raise
        finally:
            self._news.set()

    def _whole_message(self, message: ForwardMsg) -> ForwardMsg:
        """A message that came as its hash is the one that came before."""
        if message.WhichOneof("type") == "ref_hash":
            found = self._cached.get(message.ref_hash)
            if found is None:
                self.missed += 1
                return message
            found.run, metadata = self._count, message.metadata
            message = ForwardMsg.FromString(found.message.SerializeToString())
            message.metadata.CopyFrom(metadata)
        elif message.metadata.cacheable:
            self._cached[message.hash] = Cached(message, self._count, message.delta.fragment_id)
        return message

    def _take(self, message: ForwardMsg) -> None:
        kind, run = message.WhichOneof("type"), message.metadata.run
        if kind == "new_session":
            self._begins(message, run.script_run_id, bool(run.fragment_ids))
        elif kind == "navigation":
            self.pages = {page.url_pathname: page.page_script_hash for page in message.navigation.app_pages}
            self._shown = message.navigation.page_script_hash
        elif kind == "delta":
            self._draw(tuple(message.metadata.delta_path), message.delta)
        elif kind == "page_info_changed":
            self.query = message.page_info_changed.query_string
        elif kind == "auto_rerun":
            self._again(message.auto_rerun.interval, message.auto_rerun.fragment_id)
        elif kind == "stop_auto_rerun":
            for fragment in message.stop_auto_rerun.fragment_ids:
                self._again(0.0, fragment)
        elif kind == "script_finished":
            self._ends(message.script_finished, run.script_run_id, list(run.fragment_ids))

    def _begins(self, message: ForwardMsg, run: str, fragment: bool) -> None:
        self.drawing, self._run, self._most = True, run, message.new_session.config.max_cached_message_age or self._most
        if not fragment:
            self._stop_timers()
            self.begun += 1
            self._runs[run] = self.begun

    def _again(self, seconds: float, fragment: str) -> None:
        before = self._timers.get(fragment)
        if before is not None and before[0] == seconds:
            return
        if before is not None:
            self._timers.pop(fragment)[1].cancel()
        if seconds:
            self._timers[fragment] = seconds, asyncio.create_task(self._every(seconds, fragment))

    def _draw(self, path: Path, delta) -> None:
        kind = delta.WhichOneof("type")
        if kind == "new_element":
            if (there := self.nodes.get(path)) is None or there.kind == "block":  # an element has nothing below it
                for below in [one for one in self.nodes if one[: len(path)] == path]:
                    del self.nodes[below]
            name = Element.WhichOneof(delta.new_element, "type")
            what = getattr(delta.new_element, name)
            if getattr(what, "set_value", False):
                self._set.pop(what.id, None)
        elif kind == "add_block":
            name, what = "block", delta.add_block
        else:
            return  # a spinner
        key = getattr(what, "id", "")
        self.nodes[path] = Node(name, key.split("-", 2)[-1] if key else "", what, delta.fragment_id, self._run)

    def _ends(self, status: int, run: str, fragments: list[str]) -> None:
        if status == ForwardMsg.FINISHED_EARLY_FOR_RERUN:
            return
        self.drawing = False
        for path, node in list(self.nodes.items()):
            if node.run != run and (not fragments or node.fragment in fragments):
                del self.nodes[path]
        self._count += 1
        for name, one in list(self._cached.items()):
            if (not fragments or one.fragment in fragments) and self._count - one.run > self._most:
                del self._cached[name]
        if not fragments and run in self._runs:
            self.done, self.page = self._runs[run], self._shown
            self._runs.clear()
        self.looks()


def _cookie(address: str) -> str:
    """The XSRF cookie, as a browser gets it with the first answer."""
    with urllib.request.urlopen(address + "/_stcore/health", timeout=60) as answer:
        return answer.headers["Set-Cookie"].partition(";")[0]
