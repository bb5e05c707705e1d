"""The app as `streamlit run app.py` serves it, in a process of its own, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass
class Hosted:
    address: str
    process: subprocess.Popen
    log: Path
    cache: Path

    def get(
        self, path: str = "/", method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, Mapping[str, str], str]:
        """Status, headers and body; no redirect is followed."""
        request = urllib.request.Request(
            self.address + path, body, {name.replace("_", "-"): value for name, value in headers.items()}, method=method
        )
        try:
            with urllib.request.build_opener(_Stay).open(request, timeout=20) as answer:
                return answer.status, answer.headers, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode(errors="replace")


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler], **given) -> Iterator[ThreadingHTTPServer]:
    """Serve with this handler, which writes no log, in a thread of this process until the block ends."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, **given))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def hosted(
    folder: Path,
    settings: str = "",
    port: int | None = None,
    base: str = "",
    options: tuple[str, ...] = (),
    **more: str,
) -> Iterator[Hosted]:
    """Serve the app with these settings (the lines of a lab.toml) until the block ends."""
    port = port or free_port()
    options += ("--server.baseUrlPath", base) if base else ()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lab.toml").write_text(settings)
    env = (
        os.environ
        | {"ED_CACHE": str(folder / "cache"), "ED_CONFIG": str(folder / "lab.toml"), "OMP_NUM_THREADS": "1"}
        | more
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), *options],
            cwd=ROOT,
            env=env,
            stdout=log,
            stderr=log,
        )
        app = Hosted(f"http://127.0.0.1:{port}/{base}".rstrip("/"), process, folder / "log", folder / "cache")
        try:
            until(lambda: answers(app))
            yield app
        finally:
            process.terminate()
            process.wait(20)


def answers(app: Hosted) -> bool:
    assert app.process.poll() is None, app.log.read_text()
    try:
        return app.get("/_stcore/health")[0] == 200
    except OSError:
        return False


def until(condition, seconds: float = 240.0):
    """Wait for a condition and give its value; the time is a bound for a busy machine, no promise."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {value!r}"
        time.sleep(0.05)
    return value
