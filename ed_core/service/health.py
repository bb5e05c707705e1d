"""Whether this installation can do its work now: what an orchestrator asks before it sends visitors. Torch-free."""

from __future__ import annotations

import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from .. import bounds, settings
from ..disk import why
from ..errors import SettingsError
from ..machine import gigabytes
from ..types import from_json
from .jobs import Jobs
from .pool import Pool

ROOM = 200_000_000  # bytes that must be free where results and case studies are written


def problems(jobs: Jobs | Pool) -> list[str]:
    """What stands in the way, a line each; empty where all is well."""
    try:
        cache = settings.current().cache
    except SettingsError as error:
        return [str(error)]
    return [*filter(None, (jobs.trouble(), _folder(cache)))]


def ask(url: str) -> list[str]:
    """The same of a running server, over its `/ready`."""
    place = f"{url.rstrip('/')}/ready"
    if not place.lower().startswith(("http://", "https://")):  # the library opens files too, and waits for pipes
        return [f"{place!r} is no address of a server; give --url http://…"]
    try:
        with urllib.request.urlopen(place, timeout=10) as answer:
            body = answer.read(bounds.STATUS)
    except urllib.error.HTTPError as error:
        body = error.read(bounds.STATUS)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return [f"{place!r} does not answer ({error}); start it with python -m ed_ui.server, or give --url"]
    try:
        return list(map(str, from_json(body)["problems"]))
    except (ValueError, KeyError, TypeError):
        return [f"{place} is no readiness check; serve with python -m ed_ui.server"]


def _folder(cache: Path) -> str:
    """Why nothing can be kept in the cache folder, or ""."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache) as handle:
            handle.write(b"ready?")
            os.fsync(handle.fileno())
        free = shutil.disk_usage(cache).free
    except OSError as error:
        return f"the cache folder cannot be written: {why(error)}"
    return (
        f"{gigabytes(free)} are free where results are kept, expected {gigabytes(ROOM)} at least" if free < ROOM else ""
    )
