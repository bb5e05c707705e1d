"""Parts of a page that run alone. What fails in one, or in a page, is one sentence in its place and a traceback
in the log, and everything else stays. One that fills while jobs run is drawn again at intervals."""

from __future__ import annotations

import functools
import logging
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import streamlit as st

from ed_core.errors import EffectiveDepthError
from ed_ui import running, session, show
from ed_ui.session import Batch

log = logging.getLogger(__name__)
FAILED = (
    "This part of the page failed unexpectedly. What was stored stays stored; the server's log has the details "
    "under **{}**."
)
YOUNG_SECONDS = 5.0  # what runs for longer is drawn less often: figures take their share of the cores that compute
SOON, LATER = 0.5, 1.5  # seconds until it is drawn again


class Said(EffectiveDepthError):
    """Raised for an obstacle that the page shows already, so that it is not shown again."""


def guarded(draw: Callable[[], object]) -> bool:
    """Call `draw` and show in one sentence what goes wrong; return False for an unexpected error, else True.
    Streamlit's own stops and reruns are no `Exception` and pass."""
    try:
        draw()
    except Said:
        pass
    except EffectiveDepthError as error:
        show.error(error)
    except Exception as error:
        st.error(FAILED.format(_reported(error)), icon=":material/error:")
        return False
    return True


def fragment(draw: Callable[..., object], seconds: float | None) -> Callable[..., None]:
    """Return `draw` as a part of a page that runs by itself, every so many `seconds` (None: never) or when something in
    it is clicked, and fails by itself."""

    @st.fragment(run_every=seconds)
    @functools.wraps(draw)
    def part(*args: Any) -> None:
        if not session.current().link.under_way:  # a run of the whole page has begun already
            session.begin_run()
        guarded(lambda: draw(*args))

    return part


def _reported(error: Exception) -> str:
    """Return the id under which the log has this traceback, the same for the same failure; it is logged once in a
    session, as a part that runs three times a second fails as often."""
    text = "".join(traceback.format_exception(error))
    id = sha256(text.encode(errors="replace")).hexdigest()[:8]
    if id not in (known := session.current().failures):
        known.add(id)
        log.error("%s\n%s", id, text)
    return id


# -------------------------------------------------------------------- while jobs run


def follow(batch: Batch, draw: Callable[..., object], *more: Any) -> None:
    """Call `draw` with the batch and `more`, again and again while its jobs run. When the last one has ended the page
    runs as a whole."""
    if batch.jobs and running.poll(batch):
        st.rerun()
    first, young = True, time.monotonic() - batch.begun < YOUNG_SECONDS

    def part() -> None:
        nonlocal first
        other = session.current().batches.get(batch.page, batch) is not batch  # a click in here asked for another
        aged = young and time.monotonic() - batch.begun >= YOUNG_SECONDS
        if other or (not first and batch.running and (running.poll(batch) or aged)):
            st.rerun()
        first = False
        draw(batch, *more)

    fragment(part, (SOON if young else LATER) if batch.running else None)()


def status(batch: Batch, words: Callable[[str], str] = "**{}**".format) -> None:
    """Draw a line on how far a batch's jobs are. `words`: puts the line into a sentence."""
    if text := words(running.status(batch)):
        st.markdown(text, width="content")
