"""What the app patches or calls behind Streamlit's public interface is as it was when it was looked at."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import streamlit
import uvicorn
from streamlit.testing.v1 import AppTest
from streamlit.web.server.starlette import starlette_server
from uvicorn.config import Config
from uvicorn.server import ServerState

from ed_core.cases import report
from ed_ui import streamlit_edges

ROOT = Path(__file__).parent.parent
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
