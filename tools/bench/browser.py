"""The app as its users have it, for measurements and tests: the server in processes of its own, and a Chromium without
a window. Playwright is among the packages for tests; where it or a Chromium is missing, one sentence says so."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ed_core.errors import JobError
from ed_core.settings import ROOT

# Every window would start two pages of Chromium's own, for suggestions below its address bar: a second of a core each.
# Only the last such switch counts, so those that Playwright turns off are here too.
OFF = (
    "WebUIOmniboxPopup,WebUIOmniboxAimPopup,AimEnabled,AvoidCorsURLLoaderRestartOnRedirect,HttpsUpgrades,LensOverlay,"
    "AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,HttpsFirstBalancedModeAutoEnable,MediaRouter,"
    "NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,PreconnectToSearch,TcpPortRandomizationWin,"
    "ThirdPartyStoragePartitioning"
)
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync", f"features={OFF}")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in QUIET)]
START_SECONDS = 180


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(cache: Path, *options: str, port: int = 0, log: Path | None = None, **environment: str) -> Iterator[str]:
    """The address of the app, served on 127.0.0.1 with this cache folder until the block ends. `options`: of streamlit;
    `port`: a free one by default; `log`: a file for what the server prints."""
    port = port or free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), *options]
    with open(log or os.devnull, "wb") as printed:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"ED_CACHE": str(cache)} | environment,
            start_new_session=True,  # the workers end with the server
            stdout=printed,
            stderr=printed,
        )
        try:
            _wait(f"{address}/_stcore/health")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _wait(health: str) -> None:
    """Wait until the app answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(health, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise JobError(f"The app did not answer within {START_SECONDS} s; start it by hand to see why.")


@contextmanager
def chromium(*more: str) -> Iterator:
    """A browser without a window, started with these switches too."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise JobError("This drives a browser: pip install -r requirements.txt.") from None
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise JobError("This drives a browser and finds no Chromium; install the system's chromium package.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *more])
        try:
            yield browser
        finally:
            browser.close()
