"""The app as others reach it: `python -m ed_ui.server`, or `streamlit run app.py`. Around the pages a readiness check,
metrics, security headers, words for a login that did not succeed, and limits on what one visitor may take: places,
uploads, patience, and what the server says of its own disk. It starts the worker at once and refuses to start with
settings that are wrong, which under `streamlit run` every page says instead.

It takes the options of `streamlit run` (`--server.port`, …) and their variables (`STREAMLIT_SERVER_PORT`, …).
"""

from __future__ import annotations

import asyncio
import gzip
import html
import ipaddress
import logging
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import click
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config
from streamlit.starlette import App
from streamlit.url_util import make_url_path
from streamlit.web.cli import configurator_options

from ed_core import settings
from ed_core.errors import SettingsError
from ed_ui import metrics, navigation, running, show, streamlit_edges

log = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parent
APP = next(place for place in (HERE / "app" / "app.py", HERE.parent / "app.py") if place.is_file())  # wheel; checkout
# In the page itself, behind what Streamlit puts into its head: the app's own style (`app.py`) reaches the browser after
# its first figures, which then move.
STYLE = b"<style>%s</style>" % (HERE / "style.css").read_bytes()
# What draws words, figures and widgets comes on demand, behind what stands below it, which then moves: the browser is
# told to fetch it at once.
PARTS = ("BidiComponent", "PlotlyChart", "StreamlitMarkdown", "Html", "rehype-raw", "rehype-katex", "remark-emoji")
WIDGETS = ("PageLink", "ButtonGroup", "Button", "TextArea", "TextInput", "Selectbox", "Checkbox", "Slider")
FETCHED = streamlit_edges.scripts(*PARTS, *WIDGETS)
# Streamlit looks for the server below the page's own name first, which a browser's console shows as two errors.
BELOW = """<script>(window.__streamlit ??= {}).BACKEND_BASE_URL ??=
location.origin + location.pathname.replace(/\\/(%s)?\\/?$/, '/');</script>"""
PLACED = (BELOW % "|".join(navigation.ADDRESSES)).encode()
FULL = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{retry}">
<meta name="viewport" content="width=device-width"><title>{title}</title><style>:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 20vh auto; padding: 0 1rem }}</style></head>
<body><h1>Server at capacity</h1><p>{why}.
A place becomes free when somebody closes a tab.</p><p>This page tries again every {retry} seconds.</p></body></html>"""
RETRY = 20  # seconds until somebody who found no place tries again
SCRIPTS = streamlit_edges.STATIC.parent  # with styles and fonts
PACKED = {f"{kind}/{file.name}": file for kind in ("js", "css") for file in (SCRIPTS / kind).glob(f"*.{kind}")}
FOR_GOOD = "public, immutable, max-age=31536000"  # as Streamlit says: each version of a file has its own name
PASSES = "oauth2callback$|(_stcore|auth|static|media|component)/"  # served to everybody
LOGGED_IN = "_streamlit_user="  # the cookie of somebody who is
FIRST_SECONDS = 30.0  # in which a page must ask for its first run after it has connected
TOGETHER = 10  # times what one session may upload is what all of them may
UPLOAD = re.compile(r"/_stcore/upload_file/([^/]+)/[^/]+")
MEGABYTE = 1 << 20


def headers() -> dict[str, str]:
    """What browsers are told: nothing is loaded from elsewhere, and nobody else puts these pages into a frame."""
    frames = " ".join(settings.current().frames)
    policy = (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self' data: blob:; worker-src 'self' blob:; frame-src 'self' data: blob:; "
        f"object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors {frames}"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }


class Door:
    """Every answer with the security headers; a login that did not succeed leads back to the pages with the reason
    (`visitor.CAME_BACK`), where Streamlit would say nothing, or show a bare error. Whoever comes when as many pages are
    open as may be is told so."""

    def __init__(self, app: ASGIApp):
        self.app, self.headers = app, headers()
        self.places, self.uploads = Places(), Uploads()
        self.base = make_url_path(config.get_option("server.baseUrlPath") or "", "")
        self.scripts = self.base + f"{SCRIPTS.name}/"
        self.passes = re.compile(re.escape(self.base) + f"({PASSES})")
        self.largest_upload = config.get_option("server.maxUploadSize") * MEGABYTE
        self.own: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        is_page = scope["type"] == "websocket" or self._asks_for_page(scope)
        if is_page and (why := self.places.full(scope)):
            return await full(why, self.headers)(scope, receive, send)
        if scope["type"] == "websocket":
            with self.places.taken(scope):
                return await self.app(scope, asked_in_time(receive, send), send)
        begins_login = scope["path"].endswith("/auth/login")
        scope = _uncompressed(scope)
        failed, page, begun = False, bytearray(), None

        async def answer(message: Message) -> None:
            nonlocal failed, begun
            if message["type"] == "http.response.start" and scope["method"] == "GET" and _is_page(message):
                begun = message  # it begins once all of it is there
            if begun is not None and message["type"] == "http.response.body":
                page.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                whole = (
                    bytes(page)
                    .replace(b"</head>", PLACED + fetched() + b"</head>", 1)
                    .replace(b"</body>", STYLE + b"</body>", 1)
                )
                message = {"type": "http.response.body", "body": whole}
                found = MutableHeaders(scope=begun)
                found["content-length"] = str(len(message["body"]))
                del found["etag"], found["last-modified"]  # they are the file's
                await send(begun)
            if message["type"] == "http.response.start":
                failed = begins_login and message["status"] >= 400
                found = MutableHeaders(scope=message)
                found.update(self.headers)
                if (reason := _came_back(scope, found)) and found.get("location"):
                    found["location"] += f"?login={reason}"
            if not failed and message is not begun:
                await send(message)

        try:
            with self.uploads.room(scope, self.largest_upload) as refused:
                if refused:
                    await drop(receive, self.largest_upload)
                    await PlainTextResponse(refused, 413)(scope, receive, answer)
                elif (own := self.own.get(scope["path"])) and scope["raw_path"] == scope["path"].encode():
                    allowed = scope["method"] in ("GET", "HEAD")
                    await (own if allowed else PlainTextResponse("Only GET.", 405))(scope, receive, answer)
                elif script := await self._script(scope):
                    await script(scope, receive, answer)
                else:
                    await self.app(scope, receive, answer)
        except ClientDisconnect:
            return  # in the middle of an upload
        except Exception:
            if not begins_login:
                raise
            failed = True
        if failed:
            home = scope["path"].removesuffix("auth/login")
            await RedirectResponse(f"{home}?login=unreachable", status_code=302, headers=self.headers)(
                scope, receive, send
            )

    async def _script(self, scope: Scope) -> Response | None:
        """The script or style that is asked for: Streamlit's by a browser that takes it packed, the app's own by all.
        Streamlit packs none, since it would pack anew for every browser; here each is packed once, to a quarter."""
        name, asked = scope["path"].removeprefix(self.scripts), dict(scope["headers"])
        ours = streamlit_edges.ours.get(name.removeprefix("js/"))
        if scope["method"] != "GET" or b"range" in asked or (ours is None and name not in PACKED):
            return None
        told = {"Cache-Control": FOR_GOOD, "Vary": "Accept-Encoding"}
        if takes := b"gzip" in asked.get(b"accept-encoding", b""):
            ours, told["Content-Encoding"] = await run_in_threadpool(_packed, name), "gzip"
        kind = "application/javascript" if name.endswith(".js") else "text/css"
        return Response(ours, media_type=kind, headers=told) if takes or ours else None

    def _asks_for_page(self, scope: Scope) -> bool:
        wanted = dict(scope["headers"]).get(b"accept", b"")
        return scope["method"] == "GET" and b"text/html" in wanted and not self.passes.match(scope["path"])


@cache
def _packed(name: str) -> bytes:
    script = streamlit_edges.ours.get(name.removeprefix("js/")) or streamlit_edges.light(PACKED[name])
    return gzip.compress(script, 6, mtime=0)


def fetched() -> bytes:
    """In a page's head: what to fetch at once."""
    names = (*FETCHED, *streamlit_edges.ours)
    return b"".join(b'<link rel="modulepreload" crossorigin href="./static/js/%s">' % name.encode() for name in names)


def full(why: str, more: Mapping[str, str]) -> Response:
    """What the one too many is told, in place of a page or of a websocket."""
    told = FULL.format(title=html.escape(settings.current().title), why=why, retry=RETRY)
    return HTMLResponse(told, 503, {**more, "Retry-After": str(RETRY), "Cache-Control": "no-store"})


def _uncompressed(scope: Scope) -> Scope:
    """A request for a page as plain text, whatever packing the browser offers: Streamlit packs the page of every path
    but the root, and a packed one cannot be given the style."""
    if b"text/html" not in dict(scope["headers"]).get(b"accept", b""):
        return scope
    return {**scope, "headers": [one for one in scope["headers"] if one[0] != b"accept-encoding"]}


def _is_page(start: Message) -> bool:
    """Whether this begins the page that loads the app, as plain text; an error's page is left as it is."""
    found = MutableHeaders(scope=start)
    return (
        start["status"] == 200
        and found.get("content-type", "").startswith("text/html")
        and "content-encoding" not in found
    )


def _came_back(scope: Scope, found: MutableHeaders) -> str:
    """Why a return from the identity provider logged nobody in; "" for everything else. Without a state it returns from
    a logout."""
    query = parse_qs(scope["query_string"].decode("latin-1"))
    if not scope["path"].endswith("/oauth2callback") or "state" not in query:
        return ""
    if any(
        cookie.startswith(LOGGED_IN) and not cookie.startswith(f'{LOGGED_IN}""')
        for cookie in found.getlist("set-cookie")
    ):
        return ""
    return "denied" if "error" in query else "failed"


# -------------------------------------------------------------------- what one visitor may take


class Places:
    """How many pages are open, in all and by address."""

    def __init__(self) -> None:
        self.all, self._by = 0, Counter[str]()

    def full(self, scope: Scope) -> str:
        """Why no further page is opened for this address; "" where there is a place."""
        allowed, whose = settings.current(), address(scope)
        if 0 < allowed.max_sessions <= self.all:
            return f"{_pages(allowed.max_sessions)} open, as many as this installation takes at once (max_sessions)"
        if whose and 0 < allowed.max_sessions_per_address <= self._by[whose]:
            return (
                f"{_pages(allowed.max_sessions_per_address)} open from your address, as many as one address may have "
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
        allowed, there = settings.current(), streamlit_edges.uploaded()
        own = [*there.get(session, ()), *self._coming.get(session, ())]
        every = [one for sizes in (*there.values(), *self._coming.values()) for one in sizes]
        for sizes, times, who in ((own, 1, "This page holds"), (every, TOGETHER, "All pages together hold")):
            number, most = times * allowed.max_uploads, times * allowed.upload_memory
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


# -------------------------------------------------------------------- answers of its own, and the start


@asynccontextmanager
async def lifespan(_: App):
    """The worker imports torch before the first visitor comes, and ends with the server. Meanwhile its pulse beats, and
    who has gone is looked after."""
    jobs = running.jobs()
    streamlit_edges.spare_imports()
    beating = asyncio.create_task(_beat())
    yield {}
    beating.cancel()
    jobs.close()


async def _beat() -> None:
    departed = streamlit_edges.Departed()
    while True:
        running.pulse.beat()
        try:
            departed.look()
        except Exception:
            log.exception("Sessions that have ended could not be looked after.")
        await asyncio.sleep(running.BEAT_SECONDS)


def around() -> dict[str, Any]:
    """What `App` is given beside the script; before that what Streamlit has no option for."""
    chosen = settings.current()
    streamlit_edges.begin_with_navigation()
    streamlit_edges.serve_within(
        {"ws_max_size": chosen.max_message, "forwarded_allow_ips": list(chosen.trusted_proxies)}
    )
    streamlit_edges.at_most_uploads(chosen.max_uploads)
    streamlit_edges.keep_paths(places_of_the_server())
    if chosen.metrics:
        metrics.instruments()
    return {"middleware": [Middleware(Door)], "lifespan": lifespan}


def around_if_right() -> dict[str, Any]:
    """The same; nothing where the settings are wrong, which the pages then say."""
    try:
        return around()
    except SettingsError:
        return {}


@click.command
@configurator_options
def main(**options) -> None:
    """Serve the app; options as for `streamlit run`."""
    try:
        more = around()
    except SettingsError as error:
        print(f"ed_ui.server: {error}", file=sys.stderr)
        sys.exit(2)  # not 1: starting once more helps nothing
    sys.argv[:] = [str(APP)]  # so that .streamlit/ beside app.py is found wherever this was started
    given = {name.replace("_", ".", 1): value for name, value in options.items() if value not in (None, ())}
    App(APP, **more).run(config=given)


if __name__ == "__main__":
    main()
