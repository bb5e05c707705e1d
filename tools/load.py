"""The app under load (`make load`): serves it in a process of its own, sends visitors over Streamlit's websocket, and
prints seconds.

A visitor is a browser tab as far as the server can see. *Readers* go among stored pages, *prompters* run fresh prompts
on Home, *sweepers* erase every token of a long prompt at every depth. Chromium makes a cold visit of Home; its text is
counted as the proxy's gzip would send it."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import connect

from tools.bench.browser import chromium, serving

MODELS = ("ed-demo-8", "ed-demo-16")
STORED = ("sum-mod10-2-a", "lookup-1-a")  # prompts with stored results
COMPUTED = ("", "contributions", "logit_lens", "skip", "erase")  # pages that show results
READ = (*COMPUTED, "studies", "cases")
PAGE, PANELS, FIRST = "stored page", "four fresh panels during sweeps", "Run to first map, idle machine"
TARGETS = {PAGE: "0.25, 1.0", PANELS: "2.5, 8.0", FIRST: "0.5"}  # seconds: p50, p99
GZIPPED = ("text/", "javascript", "json", "svg")


class Tab:
    """An open browser tab, from `async with` on. `errors`: what the page says that it should not."""

    def __init__(self, address: str, path: str = "", query: str = ""):
        self.address, self.path, self.query = address, path, query
        self.elements: dict[tuple[int, ...], tuple[str, Any, str, str]] = {}  # by place: kind, what, fragment, run
        self.errors: set[str] = set()
        self._pages: dict[str, str] = {}  # hash by path
        self._page = self._run = ""
        self._drawing, self._begun, self._done = False, 0, 0
        self._cached: dict[str, ForwardMsg] = {}  # by hash
        self._values: dict[str, WidgetState] = {}
        self._timers: dict[str, tuple[float, asyncio.Task[None]]] = {}
        self._news = asyncio.Event()

    async def __aenter__(self) -> Tab:
        where = self.address.replace("http", "ws", 1) + "/_stcore/stream"
        self._socket = await connect(where, subprotocols=["streamlit"], origin=self.address, max_size=None)  # type: ignore
        self._reader = asyncio.create_task(self._read())
        await self._whole(page_name=self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, timer in self._timers.values():
            timer.cancel()
        self._reader.cancel()
        await self._socket.close()

    async def open(self, path: str) -> float:
        self._values.clear()
        return await self._whole(page_script_hash=self._pages[path])

    async def press_run(self) -> float:
        return await self._whole(WidgetState(id=self.widget("run.").id, trigger_value=True))

    async def type(self, text: str) -> float:
        state = WidgetState(id=self.widget("text").id, string_value=text)
        self._values = {state.id: state}
        return await self._whole()

    async def until(self, holds: Callable[[], object], seconds: float = 240.0) -> None:
        async with asyncio.timeout(seconds):
            while not holds():
                if self._reader.done():
                    raise ConnectionError("the server closed the connection")
                self._news.clear()
                await self._news.wait()

    def widget(self, key: str) -> Any:
        """The widget whose key begins so."""
        return next(w for _, w, *_ in self.elements.values() if getattr(w, "id", "").split("-", 2)[-1].startswith(key))

    def figures(self) -> dict[str, bytes]:
        components = [what for kind, what, *_ in self.elements.values() if kind == "bidi_component"]
        return {one.id: one.SerializeToString() for one in components if one.component_name.endswith("figure")}

    def idle(self) -> bool:
        return not self._drawing and not self._timers and not self.widget("run.").disabled

    async def _whole(self, *triggers: WidgetState, **where: str) -> float:
        """Ask for a run of the whole page; seconds until its end."""
        before, start = self._begun, time.monotonic()
        await self._send(triggers, **({"page_script_hash": self._page} | where))
        await self.until(lambda: self._done > before and not self._drawing)
        return time.monotonic() - start

    async def _send(self, triggers: tuple[WidgetState, ...] = (), **where: Any) -> None:
        message = BackMsg()
        rerun = message.rerun_script
        for name, value in where.items():
            setattr(rerun, name, value)
        rerun.query_string, rerun.context_info.url = self.query, f"{self.address}/"
        rerun.widget_states.widgets.extend([*self._values.values(), *triggers])
        rerun.cached_message_hashes.extend(self._cached)
        await self._socket.send(message.SerializeToString())

    async def _again(self, seconds: float, fragment: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._send(page_script_hash=self._page, fragment_id=fragment, is_auto_rerun=True)

    async def _read(self) -> None:
        try:
            async for data in self._socket:
                self._take(ForwardMsg.FromString(data))  # type: ignore[arg-type]
                self._news.set()
        finally:
            self._news.set()

    def _take(self, message: ForwardMsg) -> None:
        metadata = message.metadata
        if message.WhichOneof("type") == "ref_hash":
            message = self._cached[message.ref_hash]
        elif metadata.cacheable:
            self._cached[message.hash] = message
        kind, run = message.WhichOneof("type"), metadata.run
        if kind == "new_session":
            self._drawing, self._run = True, run.script_run_id
            if not run.fragment_ids:
                self._begun += 1
                self._set_timer(0.0, *self._timers)
        elif kind == "navigation":
            self._pages = {page.url_pathname: page.page_script_hash for page in message.navigation.app_pages}
            self._page = message.navigation.page_script_hash
        elif kind == "delta" and message.delta.WhichOneof("type") in ("new_element", "add_block"):
            self._draw(tuple(metadata.delta_path), message.delta)
        elif kind == "page_info_changed":
            self.query = message.page_info_changed.query_string
        elif kind == "auto_rerun":
            self._set_timer(message.auto_rerun.interval, message.auto_rerun.fragment_id)
        elif kind == "stop_auto_rerun":
            self._set_timer(0.0, *message.stop_auto_rerun.fragment_ids)
        elif kind == "script_finished" and message.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
            self._end(run.script_run_id, list(run.fragment_ids))

    def _set_timer(self, seconds: float, *fragments: str) -> None:
        for fragment in fragments:
            if self._timers.get(fragment, (0.0,))[0] != seconds:
                if fragment in self._timers:
                    self._timers.pop(fragment)[1].cancel()
                if seconds:
                    self._timers[fragment] = seconds, asyncio.create_task(self._again(seconds, fragment))

    def _draw(self, path: tuple[int, ...], delta: Any) -> None:
        kind, what = "block", delta.add_block
        if delta.WhichOneof("type") == "new_element":
            kind = delta.new_element.WhichOneof("type")
            what = getattr(delta.new_element, kind)
            for below in [one for one in self.elements if one[: len(path)] == path]:
                del self.elements[below]
        if getattr(what, "set_value", False):
            self._values.pop(what.id, None)
        if kind == "exception" or (kind == "alert" and what.format == what.ERROR):
            self.errors.add(str(what.message if kind == "exception" else what.body)[:200])
        self.elements[path] = kind, what, delta.fragment_id, self._run

    def _end(self, run: str, fragments: list[str]) -> None:
        self._drawing = False
        for path, (_, _, fragment, drawn) in list(self.elements.items()):
            if drawn != run and (not fragments or fragment in fragments):
                del self.elements[path]
        if not fragments:
            self._done = self._begun


class Load:
    """The visitors of one app, the seconds that things took, and errors."""

    def __init__(self, address: str):
        self.address, self.end = address, 0.0
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []

    async def rest(self, *between: float) -> bool:
        """Wait so many seconds; whether to go on."""
        await asyncio.sleep(max(0.0, min(random.uniform(*between), self.end - time.monotonic())))
        return time.monotonic() < self.end

    async def visit(self, work: Callable[[Tab], Any], path: str, query: str) -> None:
        try:
            async with Tab(self.address, path, query) as tab:
                await work(tab)
                self.errors += tab.errors
        except Exception as error:
            self.errors.append(f"{work.__name__}: {error!r}")

    async def first_time(self, tab: Tab) -> None:
        """Have computed what readers look at."""
        for page in COMPUTED:
            await tab.open(page)
            if tab.idle():
                await tab.press_run()
            await tab.until(tab.idle)

    async def reader(self, tab: Tab) -> None:
        while await self.rest(4.0, 10.0):
            page = random.choice(READ)
            self.seconds[PAGE].append(await tab.open(page))
            if page in COMPUTED and not tab.figures():
                self.errors.append(f"no figure on {page or 'Home'}")

    async def prompter(self, tab: Tab) -> None:
        while await self.rest(3.0, 8.0):
            await self.fresh(tab, PANELS)

    async def fresh(self, tab: Tab, what: str) -> None:
        """Type a prompt and press Run: until the first map changes, or until all of the page is there."""
        await tab.type(sums(3))
        before, start = tab.figures(), time.monotonic()
        run = asyncio.create_task(tab.press_run())
        await tab.until(lambda: any(before.get(name) != data for name, data in tab.figures().items()))
        first = time.monotonic() - start
        await run
        await tab.until(tab.idle)
        self.seconds[what].append(first if what is FIRST else time.monotonic() - start)

    async def sweeper(self, tab: Tab) -> None:
        while await self.rest(0.0, 1.0):
            await tab.type(sums(14))
            await tab.press_run()
            await tab.until(tab.idle)

    async def idle_machine(self, tab: Tab) -> None:
        for _ in range(6):
            await self.fresh(tab, FIRST)

    async def run(self, seconds: float) -> None:
        query = [f"model={model}&example={text}" for model in MODELS for text in STORED]
        await self.visit(self.idle_machine, "", f"model={MODELS[0]}")
        del self.seconds[FIRST][:1]  # it waited for the worker
        await asyncio.gather(*(self.visit(self.first_time, "", one) for one in query))
        self.end = time.monotonic() + seconds
        await asyncio.gather(
            *(self.visit(self.reader, "", query[i % 4]) for i in range(14)),
            *(self.visit(self.prompter, "", f"model={MODELS[i % 2]}") for i in range(4)),
            *(self.visit(self.sweeper, "erase", "model=ed-demo-16&target=future") for _ in range(2)),
        )


def sums(lines: int) -> str:
    """A prompt that nobody else has."""
    rows = [[random.randrange(10) for _ in range(3)] for _ in range(lines)]
    return "Sums mod 10:\n" + "".join(f"{a} + {b} + {c} = {(a + b + c) % 10}\n" for a, b, c in rows) + "7 + 5 + 1 ="


def cold(address: str) -> str:
    """Seconds to the first figure of Home and bytes until then, in a fresh browser."""
    with chromium() as browser:
        page, answers, frames = browser.new_page(), [], []
        page.on("response", lambda answer: answers.append(answer))  # a built-in cannot be wrapped
        page.on("websocket", lambda socket: socket.on("framereceived", lambda data: frames.append(len(data))))
        start = time.monotonic()
        page.goto(address)
        page.wait_for_selector(".js-plotly-plot .main-svg")
        took, n = time.monotonic() - start, sum(frames)
        for answer in answers:
            with suppress(Exception):  # a redirect has no body
                kind = answer.headers.get("content-type", "")
                body = answer.body()
                n += len(gzip.compress(body, 5)) if any(part in kind for part in GZIPPED) else len(body)
    return f"cold Home: first figure {took:.2f} s, {n / 1e6:.2f} MB (text as gzip, by this tool)"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as address:
        load = Load(address)
        lines = [cold(address)]
        asyncio.run(load.run(60 * minutes))
    for what, took in load.seconds.items():
        took.sort()
        p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(0.99 * len(took)))]
        lines.append(f"{what}: p50 {p50:.2f} s, p99 {p99:.2f} s of {len(took)} (to reach: {TARGETS[what]})")
    print("\n".join([*lines, f"{len(load.errors)} errors", *load.errors[:20], f"load average {os.getloadavg()}"]))
    return int(bool(load.errors))


if __name__ == "__main__":
    sys.exit(main())
