"""Sessions: who has gone leaves nothing behind, the one too many is told so, and every way of starting reads the same
configuration. What the app patches or calls behind Streamlit's public interface is as it was when it was looked at."""

from __future__ import annotations

import ast
import asyncio
import gc
import hashlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import prepared
import psutil
import pytest
import streamlit
import uvicorn
from hosted_app import ROOT, free_port, hosted, until
from load.session import Session
from streamlit.runtime.app_session import AppSessionState
from streamlit.testing.v1 import AppTest
from streamlit.web.server.starlette import starlette_server
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.exceptions import InvalidStatus

from ed_core.cases import report
from ed_ui import server, streamlit_edges


class Runtime:
    """Stands in for Streamlit's: `here` are the sessions with a browser, `kept` those without."""

    def __init__(self):
        self.here, self.kept, self.closed, self._session_mgr = {}, {}, [], self

    def list_sessions(self):
        return [SimpleNamespace(session=session) for session in (*self.here.values(), *self.kept.values())]

    def is_active_session(self, id):
        return id in self.here

    def close_session(self, id):
        self.closed.append(id)
        self.kept.pop(id, None)


def session(id):
    made = SimpleNamespace(id=id, _state=AppSessionState.APP_NOT_RUNNING, ended=0)
    made.shutdown = lambda: setattr(made, "ended", made.ended + 1)
    return made


@pytest.fixture
def house(monkeypatch):
    """Streamlit's runtime, a clock to set, what looks after the departed, and how often it collected."""
    made, clock, collected = Runtime(), SimpleNamespace(now=100.0), []
    monkeypatch.setattr(streamlit_edges.runtime, "get_instance", lambda: made)
    departed = streamlit_edges.Departed(lambda: clock.now, lambda: collected.append(clock.now))

    def later(seconds: float) -> None:
        clock.now += seconds
        departed.look()

    clock.later = later
    return made, clock, departed, collected


def test_who_has_gone_for_long_is_shut_down_and_who_is_there_is_not(house):
    made, clock, departed, _ = house
    made.here["a"], made.kept["b"], made.kept["c"] = session("a"), session("b"), session("c")
    stays, goes = made.here["a"], made.kept["b"]
    departed.look()
    clock.later(streamlit_edges.LEFT_SECONDS - 1)
    assert made.closed == [] and goes.ended == 0
    made.here["c"] = made.kept.pop("c")  # came back
    departed.look()
    clock.later(1)
    assert made.closed == ["b"] and goes.ended == 1 and stays.ended == made.here["c"].ended == 0
    made.kept["c"] = made.here.pop("c")
    departed.look()
    clock.later(streamlit_edges.LEFT_SECONDS - 1)
    assert made.closed == ["b"], "its time begins anew"


def test_a_session_that_streamlit_dropped_is_shut_down(house):
    made, _, departed, _ = house
    made.kept["b"] = gone = session("b")
    departed.look()
    del made.kept["b"]
    departed.look()
    assert gone.ended == 1


def test_memory_is_collected_after_somebody_was_shut_down_rarely_and_in_an_idle_moment(house):
    made, clock, departed, collected = house
    made.here["a"] = busy = session("a")
    clock.later(streamlit_edges.ANYWAY_SECONDS - 1)
    assert collected == [], "nobody has gone"
    made.kept["b"] = session("b")
    departed.look()
    clock.now += streamlit_edges.LEFT_SECONDS
    busy._state = AppSessionState.APP_IS_RUNNING
    departed.look()
    assert made.closed == ["b"] and collected == [], "a page is being drawn"
    busy._state = AppSessionState.APP_NOT_RUNNING
    departed.look()
    departed.look()
    assert collected == [clock.now]
    made.kept["c"] = session("c")
    departed.look()
    del made.kept["c"]
    clock.later(streamlit_edges.COLLECT_SECONDS - 1)
    assert len(collected) == 1
    clock.later(1)
    assert len(collected) == 2
    clock.later(streamlit_edges.ANYWAY_SECONDS - 1)
    assert len(collected) == 2
    clock.later(1)
    assert len(collected) == 3, "pages that stay open leave something behind, too"
    made.here.clear()
    clock.later(2 * streamlit_edges.ANYWAY_SECONDS)
    assert len(collected) == 3, "nobody is there"


def test_memory_is_collected_in_the_end_where_a_page_is_always_drawn(house):
    made, clock, departed, collected = house
    made.here["a"] = busy = session("a")
    busy._state = AppSessionState.APP_IS_RUNNING
    clock.later(streamlit_edges.BUSY_SECONDS - 1)
    assert collected == []
    clock.later(1)
    departed.look()
    assert collected == [clock.now]


# -------------------------------------------------------------------- what a browser says


def test_the_boxes_that_a_browser_names_are_those_it_has_drawn(monkeypatch):
    from streamlit.proto.ClientState_pb2 import ClientState

    tab, other = SimpleNamespace(_event_loop=None), SimpleNamespace(_event_loop=None)
    known = {"tab": SimpleNamespace(session=tab), "other": SimpleNamespace(session=other)}
    served = SimpleNamespace(_session_mgr=SimpleNamespace(get_session_info=known.get))
    monkeypatch.setattr(streamlit_edges.runtime, "exists", lambda: True)
    monkeypatch.setattr(streamlit_edges.runtime, "get_instance", lambda: served)
    monkeypatch.setattr(streamlit_edges, "session_id", lambda: "tab")
    passed = []

    def told(session, key, **more) -> None:
        message = ClientState(**more)
        message.widget_states.widgets.add(id=f"$$ID-0123-{key}", string_value="2")
        streamlit_edges.asked(session, message, lambda session, data: passed.append(data))
        assert passed[-1] is message

    assert not streamlit_edges.named("task.1")
    told(tab, "task.1", fragment_id="part")
    told(other, "task.1")
    assert not streamlit_edges.named("task.1"), "a part of the page, and another tab"
    told(tab, "task.1")
    assert streamlit_edges.named("task.1") and not streamlit_edges.named("task.11")
    told(tab, "task.2")
    assert streamlit_edges.named("task.2") and not streamlit_edges.named("task.1")
    monkeypatch.setattr(streamlit_edges, "session_id", lambda: "nobody")
    assert not streamlit_edges.named("task.2")


# -------------------------------------------------------------------- one too many


def test_the_one_too_many_is_told_so_and_finds_a_place_later(tmp_path):
    page = {"accept": "text/html"}

    async def visit(app):
        async with Session(app.address):
            status, headers, body = await asyncio.to_thread(app.get, "/skip", **page)
            assert status == 503 and headers["Retry-After"] == str(server.RETRY) and "frame-ancestors" in str(headers)
            assert "Server at capacity" in body and "1 page is open" in body and "&lt;b&gt;Lab" in body
            with pytest.raises(InvalidStatus) as refused:
                await Session(app.address).__aenter__()
            assert refused.value.response.status_code == 503
            for path in ("/metrics", "/_stcore/health"):
                assert (await asyncio.to_thread(app.get, path, **page))[0] == 200, path
            assert "problems" in (await asyncio.to_thread(app.get, "/ready", **page))[2]
        await asyncio.to_thread(until, lambda: app.get("/skip", **page)[0] == 200, 60.0)
        async with Session(app.address) as second:
            assert second.done

    with hosted(tmp_path, 'max_sessions = 1\nmetrics = true\ntitle = "<b>Lab"') as app:
        asyncio.run(visit(app))


def test_without_a_limit_everybody_comes_in(tmp_path):
    async def visit(app):
        async with Session(app.address), Session(app.address) as second:
            assert second.done

    with hosted(tmp_path, "max_sessions = 0") as app:
        asyncio.run(visit(app))


# -------------------------------------------------------------------- the configuration


@pytest.mark.parametrize("command", [["ed_ui.server"], ["streamlit", "run", str(ROOT / "app.py")]])
def test_every_way_of_starting_reads_the_configuration(tmp_path, command):
    """From another folder too: no collection of the whole process after every run, and browsers forget late."""
    code = """
import os, runpy, sys
from streamlit import config
from streamlit.runtime import Runtime
NAMES = "runner.postScriptGC", "server.maxUploadSize", "global.maxCachedMessageAge"
async def start(self):
    print("read:", *(config.get_option(name) for name in NAMES), flush=True)
    os._exit(0)
Runtime.start = start
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""
    done = prepared.run(
        [sys.executable, "-c", code, *command, "--server.port", str(free_port())],
        tmp_path,
        os.environ | {"ED_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)},
    )
    assert "read: False 20 20" in done.stdout, done.stdout + done.stderr


def test_make_and_the_container_start_it_in_one_of_these_ways():
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^app:.*\n(?:\t.*\n)*\t\$\(BIN\)/python -m ed_core app ", made, re.MULTILINE)
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert re.search(r'^CMD .*"ed_ui\.server"', image, re.MULTILINE) and "COPY --chown=lab:lab . ." in image
    assert [name for name in left_out if name.startswith(".streamlit")] == [".streamlit/secrets.toml"]


# -------------------------------------------------------------------- for long


@pytest.mark.slow
def test_after_many_visitors_came_and_went_nothing_of_them_is_left(tmp_path):
    async def visit(app, number):
        gate = asyncio.Semaphore(8)

        async def one():
            async with gate, Session(app.address, "", "model=ed-demo-8") as tab:
                await tab.open("contributions")

        await asyncio.gather(*(one() for _ in range(number)))

    with hosted(tmp_path) as app:
        process = psutil.Process(app.process.pid)
        asyncio.run(visit(app, 8))
        before = process.num_fds()
        asyncio.run(visit(app, 200))
        assert process.num_fds() > before + 200, "they are kept for a while, should they come back"
        gone = time.monotonic()
        until(lambda: process.num_fds() <= before, 120.0)
        assert time.monotonic() - gone < 120


# -------------------------------------------------------------------- what a page's thread tells the server's loop


class Told:
    """Stands in for Streamlit's session: `heard` is what its loop was told, `wakes` how often that was woken."""

    def __init__(self, loop):
        self._event_loop, self._state, self.heard, self.wakes = self, AppSessionState.APP_NOT_RUNNING, [], 0
        self.loop, self._scriptrunner = loop, None

    def call_soon_threadsafe(self, *what):
        self.wakes += 1
        self.loop.call_soon_threadsafe(*what)

    def call_later(self, *what):
        self.loop.call_later(*what)

    def tell(self, what):
        streamlit_edges.hand_over(self, lambda: self.heard.append(what))


def test_what_a_page_tells_is_heard_in_its_order_and_wakes_the_server_once():
    async def run():
        told = Told(asyncio.get_running_loop())
        told._state = AppSessionState.APP_IS_RUNNING
        await asyncio.to_thread(lambda: [told.tell(n) for n in range(200)])
        while len(told.heard) < 200:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(told.tell, 200)
        told.tell(201)  # on the loop itself
        while len(told.heard) < 202:
            await asyncio.sleep(0.001)
        assert told.wakes == 1, "while a page is drawn the server looks by itself"
        told._state = AppSessionState.APP_NOT_RUNNING
        while told._woken:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(told.tell, 202)
        while len(told.heard) < 203:
            await asyncio.sleep(0.001)
        assert told.heard == list(range(203)) and told.wakes == 2

    asyncio.run(asyncio.wait_for(run(), 60))


def test_one_word_that_cannot_be_taken_takes_no_other_with_it(caplog):
    async def run():
        told = Told(asyncio.get_running_loop())
        told.tell(1)
        streamlit_edges.hand_over(told, lambda: 1 / 0)
        told.tell(2)
        while len(told.heard) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("asks", [streamlit_edges.asked, streamlit_edges.begun])
def test_the_end_of_a_page_is_heard_before_another_thread_takes_its_place(asks):
    """Else it is the word of a thread that is no longer in charge, and the browser never hears of it."""

    async def run():
        told, heard_then = Told(asyncio.get_running_loop()), []
        told._event_loop, told._scriptrunner = told.loop, "the one before"
        told.tell("the end")
        asks(told, None, lambda *_: heard_then.extend(told.heard))
        assert heard_then == ["the end"]

    asyncio.run(run())


def test_a_connection_writes_in_one_go_what_comes_in_one_turn():
    class Transport:
        written, open = [], True

        def write(self, data):
            assert self.open
            self.written.append(data)

        def close(self):
            self.open = False

        def is_closing(self):
            return not self.open

    async def run():
        real = Transport()
        corked = streamlit_edges.Corked(real, asyncio.get_running_loop())
        for data in (b"a", b"b", b"c"):
            corked.write(data)
        assert real.written == [] and not corked.is_closing()
        await asyncio.sleep(0)
        assert real.written == [b"abc"]
        corked.write(b"d")
        corked.close()
        await asyncio.sleep(0)
        assert real.written == [b"abc", b"d"] and corked.is_closing(), "what was written comes before the end"

    asyncio.run(run())


def test_what_is_imported_is_spared_by_collections_and_what_visitors_leave_is_not():
    class Left:
        pass

    gc.collect()
    try:
        streamlit_edges.spare_imports()
        assert gc.get_freeze_count() > 10_000 and len(gc.get_objects()) < gc.get_freeze_count() / 10
        left = Left()
        left.itself, gone = left, weakref.ref(left)
        del left
        streamlit_edges.collect()
        assert gone() is None
    finally:
        gc.unfreeze()


# ---------------------------------------------------------------- behind the public interface


LOOKED_AT = {"streamlit": "1.67.0", "uvicorn": "0.54.0"}
# By what `ed_ui/streamlit_edges.py` replaces or reaches into: a digest of its source.
# Where one differs, read the new source beside what the edge says of it ("Cures", "Not needed"), then write the digest
# that the failure names.
EDGES = {
    "streamlit.config.get_option": "03fb16688601",
    "streamlit.runtime.app_session.AppSession._call_soon_on_event_loop": "6fad0e73454c",
    "streamlit.runtime.app_session.AppSession.flush_browser_queue": "fdbd9bd74129",
    "streamlit.runtime.app_session.AppSession.request_rerun": "53d1712a106c",
    "streamlit.runtime.app_session.AppSession._create_scriptrunner": "da9ede8b489e",
    "streamlit.runtime.app_session.AppSession.shutdown": "1d7763663764",
    "streamlit.runtime.runtime.Runtime._enqueued_some_message": "921c4d1e8be7",
    "streamlit.runtime.runtime.Runtime._send_message": "119c5db1f872",
    "streamlit.runtime.runtime.Runtime._get_async_objs": "e28452de5b91",
    "streamlit.runtime.runtime.Runtime.close_session": "e76c87cbd780",
    "streamlit.runtime.runtime.Runtime.is_active_session": "4fd3f5bd97d1",
    "streamlit.runtime.scriptrunner_utils.script_requests.ScriptRequests.request_rerun": "afefe32a10a6",
    "streamlit.runtime.fragment.MemoryFragmentStorage.resolve_target": "3b7d1cf433a2",
    "streamlit.runtime.pages_manager.PagesManager.get_pages": "f508616d8c92",
    "streamlit.runtime.app_session.AppSession._create_new_session_message": "25b6e2114fbb",
    "streamlit.runtime.app_session.AppSession._handle_file_urls_request": "42b1765676f3",
    "streamlit.runtime.runtime_util.serialize_forward_msg": "8e29da3ee7a7",
    "streamlit.runtime.memory_uploaded_file_manager.MemoryUploadedFileManager.remove_file": "1a391ebb0754",
    "streamlit.web.server.starlette.starlette_server._bind_socket": "a688999b5744",
    "uvicorn.config.Config.load": "18b38398dc8c",
    "uvicorn.middleware.proxy_headers._TrustedHosts.get_trusted_client_address": "b04559069218",
    "uvicorn.protocols.http.h11_impl.H11Protocol.connection_made": "90cf013eb407",
    "uvicorn.protocols.http.h11_impl.H11Protocol.data_received": "98f8b4defbd3",
    "uvicorn.protocols.http.h11_impl.H11Protocol.handle_websocket_upgrade": "7fc94ab6dbae",
    "uvicorn.protocols.http.h11_impl.H11Protocol.connection_lost": "d17adb97a2ff",
    "uvicorn.protocols.websockets.websockets_sansio_impl.WebSocketsSansIOProtocol.connection_made": "09b35f5f0826",
}


def digest(name: str) -> str:
    """Of the source of a function or method as it lies on disk, whatever was put in its place."""
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            spec = importlib.util.find_spec(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        if spec and spec.origin:
            source = Path(spec.origin).read_text(encoding="utf-8")
            body = ast.parse(source).body
            for part in parts[n:]:
                (found,) = [one for one in body if getattr(one, "name", "") == part]
                body = found.body
            return hashlib.sha256(ast.get_source_segment(source, found).encode()).hexdigest()[:12]
    raise LookupError(name)


@pytest.mark.parametrize("name", EDGES)
def test_what_is_patched_is_what_was_looked_at(name):
    versions = {"streamlit": streamlit.__version__, "uvicorn": uvicorn.__version__}
    assert digest(name) == EDGES[name], (
        f"{name} is another in {versions} than in {LOOKED_AT}: read it beside ed_ui/streamlit_edges.py"
    )


def test_both_ways_to_start_serve_within_the_same_limits():
    """`streamlit run` imports the app out of a `Config` that was made without them."""
    asked = "from uvicorn.config import Config; one = Config('app:app', http='h11'); one.load(); print("
    asked += "one.http_protocol_class.__name__, one.ws_max_size, one.forwarded_allow_ips)"
    env = os.environ | {"ED_MAX_MESSAGE": "3M", "ED_TRUSTED_PROXIES": "192.0.2.0/24"}
    done = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"Patient {3 << 20} ['192.0.2.0/24']"


def test_answers_are_sent_at_once():
    """Through a socket as Streamlit makes it, whose connections asyncio leaves with Nagle's algorithm."""
    config, found = Config(lambda scope: None), []
    config.load()

    class Connection(streamlit_edges.Patient):
        def connection_made(self, transport):
            super().connection_made(transport)
            found.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def connect():
        listening = starlette_server._bind_socket("127.0.0.1", 0, 1)
        made = await asyncio.get_running_loop().create_server(
            lambda: Connection(config, ServerState(), {}), sock=listening
        )
        _, writer = await asyncio.open_connection(*listening.getsockname())
        while not found:
            await asyncio.sleep(0.01)
        writer.close()
        made.close()

    asyncio.run(asyncio.wait_for(connect(), 20))
    assert found == [1]


def test_the_file_that_keeps_plotly_is_still_one_that_a_lighter_one_can_be_put_into(tmp_path):
    file = streamlit_edges.STATIC / streamlit_edges.plotly_script()
    script, light = file.read_text(encoding="utf-8"), streamlit_edges.light(file).decode()
    ours = report.plotly_script()
    begin = light.index(ours)
    assert light[:begin].endswith("=n(((e,module)=>{") and script.startswith(light[: begin - len("((e,module)=>{")])
    assert light[begin + len(ours) :].startswith("})),") and script.endswith(light[begin + len(ours) :])
    assert 2 * len(light) < len(script)
    (other := tmp_path / file.name).write_bytes(b"import of another make")
    assert streamlit_edges.light(other) == other.read_bytes()


def test_a_figure_is_sent_without_the_script_that_draws_it():
    draws = "show.draw('k', show.made(go.Figure().update_layout(height=100)), 'x')"
    page = AppTest.from_string(f"import plotly.graph_objects as go\nfrom ed_ui import show\n{draws}").run(timeout=60)
    (sent,) = [one.proto for one in page.get("bidi_component")]
    (file,) = re.findall(r"figure\.\w{12}\.js", sent.js_content)
    assert file in streamlit_edges.ours and sent.js_content == streamlit_edges.LOADED % file
    for script in ("one", "two", "two"):
        streamlit_edges.component("of-this-test", script)
    kept = [name for name in streamlit_edges.ours if name.startswith("of-this-test.")]
    assert [streamlit_edges.ours.pop(name) for name in kept] == [b"one", b"two"], "another script has another name"
