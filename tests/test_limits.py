"""What one visitor may take of the server, asked of its counters themselves; `test_attacks` asks a running server."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from streamlit import config

from ed_core import settings
from ed_ui import server, streamlit_edges


def scope(client: str | None = None, path: str = "/", method: str = "PUT", length: str = "") -> dict:
    headers = [(b"content-length", length.encode())] if length else []
    return {"client": client and (client, 1), "path": path, "method": method, "headers": headers}


@pytest.mark.parametrize(
    "client, whose",
    [
        ("127.0.0.1", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        (None, ""),
        ("a name", ""),
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
    ],
)
def test_an_address_is_one_customers(client, whose):
    assert server.address(scope(client)) == whose


def test_pages_are_counted_in_all_and_by_address(monkeypatch):
    monkeypatch.setenv("ED_MAX_SESSIONS", "3")
    monkeypatch.setenv("ED_MAX_SESSIONS_PER_ADDRESS", "1")
    places, here, one, two = server.Places(), scope("127.0.0.1"), scope("10.0.0.1"), scope("10.0.0.2")
    with ExitStack() as open_now:
        open_now.enter_context(places.taken(one))
        assert places.full(one).startswith("1 page is open from your address") and not places.full(two)
        open_now.enter_context(places.taken(here))
        assert not places.full(here), "this machine itself has as many as there are"
        open_now.enter_context(places.taken(here))
        assert all(places.full(who).startswith("3 pages are open, as many") for who in (here, one, two))
        monkeypatch.setenv("ED_MAX_SESSIONS", "0")
        monkeypatch.setenv("ED_MAX_SESSIONS_PER_ADDRESS", "0")
        assert not places.full(one), "0 is no limit"
    assert places.all == 0 and not places._by


MB = server.MEGABYTE
FILE = "/_stcore/upload_file/{}/1"


def asked(uploads: server.Uploads, session: str, size: int | str, **more: str) -> str:
    """Whether one more file may come, which is not taken."""
    with uploads.room(scope(path=FILE.format(session), length=str(size), **more), 900 * MB) as refused:
        return refused


def test_files_on_their_way_and_there_count_by_session_and_together(monkeypatch):
    there: dict[str, list[int]] = {"a": [100 * MB]}
    monkeypatch.setattr(streamlit_edges, "uploaded", lambda: there)
    monkeypatch.setenv("ED_MAX_UPLOADS", "2")
    monkeypatch.setenv("ED_UPLOAD_MEMORY", str(1000 * MB))
    uploads = server.Uploads()
    assert asked(uploads, "a", 900 * MB) == ""
    assert asked(uploads, "a", 900 * MB + 1).startswith(
        "This page holds 1 uploaded files of 100 MB, and this one has 900.0"
    )
    assert asked(uploads, "a", "x") == "", "of unknown size as large as one may be"
    assert asked(uploads, "a", 10**9, method="GET") == "" and asked(uploads, "", 10**9) == ""
    with uploads.room(scope(path=FILE.format("a"), length="10"), 900 * MB) as refused:
        assert refused == "" and asked(uploads, "a", 1).startswith("This page holds 2 uploaded files")
        assert asked(uploads, "b", 1) == ""
    assert asked(uploads, "a", 1) == "" and not uploads._coming, "it has come, or was given up"
    there |= {str(i): [1000 * MB] for i in range(10)}
    assert asked(uploads, "b", 1).startswith("All pages together hold 11 uploaded files of 10100 MB")
    assert "at most 20 files" in asked(uploads, "b", 1)


def test_a_file_of_unknown_size_is_refused_as_if_it_were_the_largest(monkeypatch):
    monkeypatch.setenv("ED_UPLOAD_MEMORY", str(7 * MB))
    monkeypatch.setattr(streamlit_edges, "uploaded", dict)
    largest, sent = config.get_option("server.maxUploadSize"), []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        sent.append(message)

    asked = scope(path=FILE.format("a")) | {"type": "http", "raw_path": FILE.format("a").encode(), "query_string": b""}
    try:
        for allowed in (8, 7):
            config.set_option("server.maxUploadSize", allowed)
            asyncio.run(server.Door(app)(asked, receive, send))
    finally:
        config.set_option("server.maxUploadSize", largest)
    assert [one["status"] for one in sent if "status" in one] == [413, 204]
    assert b"this one has 8.0 MB" in sent[1]["body"]


def test_what_is_sent_is_read_to_its_end_or_to_a_limit():
    left = [{"body": b"x" * 10, "more_body": True}] * 5 + [{"body": b"x"}, {"body": b"never"}]

    async def receive():
        return left.pop(0)

    asyncio.run(server.drop(receive, 25))
    assert len(left) == 4, "three times ten reach 25"
    asyncio.run(server.drop(receive, 1000))
    assert left == [{"body": b"never"}]


def test_a_page_that_asks_for_nothing_is_closed():
    sent = []

    async def talk(*messages: str | None) -> list[str]:
        coming = list(messages)

        async def receive():
            if coming[0] is None:
                await asyncio.sleep(60)
            return {"type": coming.pop(0)}

        async def send(message):
            sent.append(message)

        heard = server.asked_in_time(receive, send, 0.01)
        return [(await heard())["type"] for _ in messages]

    assert asyncio.run(talk("websocket.connect", "websocket.receive")) == ["websocket.connect", "websocket.receive"]
    assert not sent and asyncio.run(talk("websocket.connect", None))[-1] == "websocket.disconnect"
    assert sent[0]["type"] == "websocket.close" and sent[0]["code"] == 1008


def test_the_servers_folders_have_names(monkeypatch, tmp_path):
    monkeypatch.setenv("ED_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("ED_LOCAL_FOLDERS", "true")
    assert server.places_of_the_server() == {}
    monkeypatch.setenv("ED_LOCAL_FOLDERS", "false")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(tempfile, "tempdir", "/elsewhere")
    found = {place.decode(): name.decode() for place, name in server.places_of_the_server().items()}
    assert found[str(tmp_path / "kept")] == "cache" and found[str(tmp_path / "hub")] == "models"
    assert found[str(settings.ROOT)] == "app" and found[sys.prefix] == "python" and found["/elsewhere/"] == "tmp/"
    assert list(found) == sorted(found, key=len, reverse=True), "a folder before the one that it lies in"
    assert Path("/") not in map(Path, found)
