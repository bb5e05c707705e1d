"""A model hub on 127.0.0.1, as far as its client asks: what a model consists of, and its files, with ranges. Run as a
program it prints its port; each behaviour that a test wants is an option."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def commit_of(revision: str) -> str:
    """The commit of one of a hub's further revisions."""
    return hashlib.sha1(revision.encode()).hexdigest()


class Hub(ThreadingHTTPServer):
    """`folder`: the model's files. `gated`: 401 or 403 without the token "good". `slow`: seconds per chunk. `silent`:
    never answers.
    `cut`: bytes after which a file's connection is closed, once per file. `lie`: bytes added to every size it states.
    `revisions`: further ones by name, each with a folder and a commit
    of its own. `asked`: what was asked for."""

    daemon_threads = True
    gated, slow, silent, cut, lie = 0, 0.0, False, 0, 0

    def __init__(self, folder: Path, revisions: dict[str, Path] | None = None, **behaviour):
        super().__init__(("127.0.0.1", 0), Handler)
        assert all(hasattr(Hub, name) for name in behaviour), behaviour
        vars(self).update(behaviour)
        self.folder, self.revisions = folder, revisions or {}
        self.asked: list[tuple[str, str, str]] = []
        self.was_cut: set[str] = set()
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server, unquote(urlparse(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        if hub.silent:
            hub.ended.wait()
            return
        if path.startswith(("/api/models/", "/api/datasets/")):
            self.describe(path.split("/", 3)[3])
        elif hub.gated and self.headers.get("Authorization") != "Bearer good":
            self.reply(
                hub.gated, b"gated", X_Error_Code="GatedRepo", X_Error_Message="Access to this model is restricted"
            )
        elif "/resolve/" in path:
            self.send_file(*path.split("/resolve/")[1].split("/", 1))
        else:
            self.reply(404)

    def describe(self, path: str) -> None:
        path, tree, commit = path.partition("/tree/")
        name, _, revision = path.partition("/revision/")
        revision = commit or revision
        if name != "org/model":
            self.reply(404, b"{}", X_Error_Code="RepoNotFound")
        elif revision not in ("", "main", "v1", COMMIT) and self.at(revision) == (self.server.folder, COMMIT):
            self.reply(404, b"{}", X_Error_Code="RevisionNotFound")
        else:
            folder, commit = self.at(revision)
            files = {f.name: f.stat().st_size + self.server.lie for f in sorted(folder.iterdir())}
            listed = [{"rfilename": name, "size": size} for name, size in files.items()]
            answer = {"id": name, "modelId": name, "sha": commit, "siblings": listed}
            if tree:
                answer = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in files.items()]
            self.reply(200, json.dumps(answer).encode(), Content_Type="application/json")

    def at(self, revision: str) -> tuple[Path, str]:
        """A revision's folder and commit; `revision`: its name or its commit."""
        for name, folder in self.server.revisions.items():
            if revision in (name, commit_of(name)):
                return folder, commit_of(name)
        return self.server.folder, COMMIT

    def send_file(self, revision: str, name: str) -> None:
        folder, commit = self.at(revision)
        file = folder / name
        if not file.is_file():
            self.reply(404, b"", X_Error_Code="EntryNotFound")
            return
        data = file.read_bytes()
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0] or 0)
        etag = hashlib.sha256(data).hexdigest()
        self.send_response(206 if first else 200)
        headers = {
            "ETag": f'"{etag}"',
            "X-Repo-Commit": commit,
            "Content-Length": str(len(data) - first),
            "Accept-Ranges": "bytes",
        }
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for at in range(first, len(data), 16384):
            if self.server.cut and at - first >= self.server.cut and name not in self.server.was_cut:
                self.server.was_cut.add(name)
                self.close_connection = True
                self.connection.close()
                return
            try:
                self.wfile.write(data[at : at + 16384])
            except OSError:
                return
            time.sleep(self.server.slow)


@contextmanager
def serving(folder: Path, **behaviour):
    """A running hub."""
    hub = Hub(Path(folder), **behaviour)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.ended.set()
        hub.shutdown()
        hub.server_close()
