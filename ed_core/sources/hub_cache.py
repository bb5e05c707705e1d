"""What of the model hub is on this machine already, and whether the hub answers. Torch-free."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from urllib.parse import ParseResult, urlparse

from ..errors import HubUnreachable

HUB_SECONDS = 5.0


def hub_cache(hub_id: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / ("models--" + hub_id.replace("/", "--"))


def cached_commit(hub_id: str, revision: str = "") -> str:
    """The commit the local hub cache holds for this id and revision, or "" where it holds none."""
    place = hub_cache(hub_id)
    if revision and (place / "snapshots" / revision).is_dir():
        return revision
    ref = place / "refs" / (revision or "main")
    return ref.read_text().strip() if ref.is_file() else ""


def ensure_reachable(source: str, even_if_cached: bool = False) -> None:
    """Raise `HubUnreachable` within seconds where a hub id is neither cached nor any network answers (the library
    itself takes half a minute)."""
    if Path(source).is_dir() or (cached_commit(source) and not even_if_cached):
        return
    from huggingface_hub import constants

    hint = (
        "choose a bundled model or a local folder, or download it where there is a network (huggingface-cli download)"
    )
    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE") == "1":
        raise HubUnreachable(f"'{source}' is not in the local hub cache and offline mode is on; {hint}.")
    if error := _no_answer(urlparse(constants.ENDPOINT)):
        raise HubUnreachable(f"'{source}' is not a local folder, and the model hub does not answer ({error}); {hint}.")


def _no_answer(address: ParseResult) -> str:
    """Why a host cannot be reached within `HUB_SECONDS`, or "". In a thread of its own, because looking up a name knows
    no time limit."""
    found = [f"nothing within {HUB_SECONDS:g} s"]

    def knock() -> None:
        try:
            socket.create_connection((address.hostname, address.port or 443), timeout=HUB_SECONDS).close()
            found.append("")
        except OSError as error:
            found.append(error.strerror or str(error))

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return found[-1]
