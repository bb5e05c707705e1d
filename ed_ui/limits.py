"""What one visitor may take of the server: places, uploads, patience, and what the server says of its own disk."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.types import Message, Receive, Scope, Send

from ed_core import settings
from ed_ui import show, streamlit_edges

FIRST_SECONDS = 30.0  # in which a page must ask for its first run after it has connected
TOGETHER = 10  # times what one session may upload is what all of them may
UPLOAD = re.compile(r"/_stcore/upload_file/([^/]+)/[^/]+")
MEGABYTE = 1 << 20


class Places:
    """How many pages are open, in all and by address."""

    def __init__(self) -> None:
        self.all, self._by = 0, Counter[str]()

    def full(self, scope: Scope) -> str:
        """Why no further page is opened for this address; "" where there is a place."""
        limits, whose = settings.current(), address(scope)
        if 0 < limits.max_sessions <= self.all:
            return f"{_pages(limits.max_sessions)} open, as many as this installation takes at once (max_sessions)"
        if whose and 0 < limits.max_sessions_per_address <= self._by[whose]:
            return (
                f"{_pages(limits.max_sessions_per_address)} open from your address, as many as one address may have "
                "(max_sessions_per_address)"
            )
        return ""

    @contextmanager
    def taken(self, scope: Scope) -> Iterator[None]:
        whose = address(scope)
        self.all += 1
        self._by[whose] += 1
        try:
            yield
        finally:
            self.all -= 1
            self._by[whose] -= 1
            if not self._by[whose]:
                del self._by[whose]


def address(scope: Scope) -> str:
    """Who asks: an IPv4 address or an IPv6 network of 64 bits, as one customer has; "" for this machine itself.
    uvicorn has put the forwarded address there, where a trusted proxy named one."""
    try:
        found = ipaddress.ip_address((scope.get("client") or ("",))[0])
    except ValueError:
        return ""
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback:
        return ""
    return str(found) if found.version == 4 else str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def _pages(number: int) -> str:
    return f"{number} page{'s are' if number > 1 else ' is'}"


class Uploads:
    """Files that pages have handed in and those on their way, counted before they are read."""

    def __init__(self) -> None:
        self._coming: dict[str, list[int]] = {}  # sizes, by session

    @contextmanager
    def room(self, scope: Scope, largest: int) -> Iterator[str]:
        """Reserve room for the file of this request; why there is none, or ""."""
        found = UPLOAD.search(scope["path"])
        if scope["method"] != "PUT" or found is None:
            yield ""
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        size = int(length) if length.isdigit() and len(length) < 16 else largest
        if refused := self._refused(found[1], size):
            yield refused
            return
        self._coming.setdefault(found[1], []).append(size)
        try:
            yield ""
        finally:
            self._coming[found[1]].remove(size)
            if not self._coming[found[1]]:
                del self._coming[found[1]]

    def _refused(self, session: str, size: int) -> str:
        limits, there = settings.current(), streamlit_edges.uploaded()
        own = [*there.get(session, ()), *self._coming.get(session, ())]
        every = [one for sizes in (*there.values(), *self._coming.values()) for one in sizes]
        for sizes, times, who in ((own, 1, "This page holds"), (every, TOGETHER, "All pages together hold")):
            number, most = times * limits.max_uploads, times * limits.upload_memory
            if len(sizes) >= number or sum(sizes) + size > most:
                return (
                    f"{who} {len(sizes)} uploaded files of {sum(sizes) / MEGABYTE:.0f} MB, and this one has "
                    f"{size / MEGABYTE:.1f} MB; at most {number} files and {most / MEGABYTE:.0f} MB are taken. Remove "
                    "some, or close the page and open it again."
                )
        return ""


async def drop(receive: Receive, most: int) -> None:
    """Read what is being sent, and keep nothing: a browser that still sends does not hear why it is refused."""
    while most > 0:
        message = await receive()
        if not message.get("more_body"):
            return
        most -= len(message["body"])


def asked_in_time(receive: Receive, send: Send, seconds: float | None = None) -> Receive:
    """A page's messages; where none comes in time after it has connected, the connection is closed."""
    heard = False

    async def next_message() -> Message:
        nonlocal heard
        if heard:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), FIRST_SECONDS if seconds is None else seconds)
        except TimeoutError:
            await send({"type": "websocket.close", "code": 1008, "reason": "nothing was asked for"})
            return {"type": "websocket.disconnect", "code": 1008}
        heard = message["type"] != "websocket.connect"
        return message

    return next_message


def places_of_the_server() -> dict[bytes, bytes]:
    """Names to show in place of the server's folders; none where paths may be typed: whoever may do that knows them."""
    found = settings.current()
    if found.local_folders:
        return {}
    hub = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    named = {
        Path.home(): "home",
        Path(tempfile.gettempdir()): "tmp",
        Path(sys.prefix): "python",
        hub: "models",
        settings.HOME: "app",
        settings.ROOT: "app",
        found.cache: "cache",
    }
    spelled = {}
    for place, name in named.items():
        for form in (place.absolute(), place.resolve()):
            end = "/" * (len(form.parts) == 2)  # "/app" alone may be any word's end
            if len(form.parts) > 1:
                spelled |= {way(f"{form}{end}"): f"{name}{end}" for way in (str, show.plain)}
    return {place.encode(): spelled[place].encode() for place in sorted(spelled, key=len, reverse=True)}
