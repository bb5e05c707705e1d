"""The app as its users have it, for measurements and tests: the server in processes of its own, and a Chromium that
reports what it should not do.

Playwright is among the packages for tests; where it or a Chromium is missing, one sentence says so.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ed_core.errors import JobError

ROOT = Path(__file__).resolve().parents[2]
# Every window would start two pages of Chromium's own, for suggestions below its address bar: a second of a core each.
# Only the last such switch counts, so those that Playwright turns off stand here too.
OFF = (
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "TcpPortRandomizationWin",
    "ThirdPartyStoragePartitioning",
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    f"--disable-features={','.join(OFF)}",
]
START_SECONDS = 180


class App:
    """The app on a free port of 127.0.0.1 with its own cache folder, in a process group of its own: its worker dies
    with it."""

    def __init__(self, cache: Path, more: Mapping[str, str] = {}, script: Path | str = "app.py"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.port", str(port)]
        environment = os.environ | {"ED_CACHE": str(cache)} | dict(more)
        self.address = f"http://127.0.0.1:{port}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **quiet)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                if urllib.request.urlopen(f"{self.address}/_stcore/health", timeout=1).status == 200:
                    return
            except OSError:
                time.sleep(0.1)
        self.kill()
        raise JobError(f"The app did not answer within {START_SECONDS} s; start it by hand to see why.")

    def kill(self) -> None:
        """SIGKILL to the server and to everything that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def serving(cache: Path, script: Path | str = "app.py", **more: str) -> Iterator[App]:
    """A running app, stopped in the end."""
    app = App(cache, more, script)
    try:
        yield app
    finally:
        app.stop()


@contextmanager
def chromium(*more: str) -> Iterator:
    """A browser without a window, started with these switches too."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise JobError("This measurement drives a browser: pip install -r requirements.txt.") from None
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise JobError(
            "This measurement drives a browser and finds no Chromium; install the system's chromium package."
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *more])
        try:
            yield browser
        finally:
            browser.close()
