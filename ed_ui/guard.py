"""What happens when a page fails: one sentence in its place, the traceback in the log, and everything else stays."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from hashlib import sha256

import streamlit as st

from ed_core.errors import EffectiveDepthError
from ed_ui import metrics, session, show

log = logging.getLogger(__name__)
FAILED = (
    "This part of the page failed for a reason nobody foresaw. What was stored stays stored; the server's log tells "
    "more under **{}**."
)


class Said(EffectiveDepthError):
    """What stands in the way is on the page already, and is not said twice."""


def guarded(draw: Callable[[], object]) -> bool:
    """Draw, and say in one sentence what goes wrong; False where nobody foresaw it. Streamlit's own stops and reruns
    are no `Exception` and pass."""
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


def fragment(draw: Callable, seconds: float | None, key: str | None = None) -> Callable:
    """A part of a page that runs by itself, every so many `seconds` or when it is named by its `key`, and fails by
    itself."""

    @st.fragment(run_every=seconds, key=key)
    @functools.wraps(draw)
    def alone(*args) -> None:
        guarded(lambda: draw(*args))

    return alone


def _reported(error: Exception) -> str:
    """The id under which the log has this traceback, the same for the same failure; logged once in a session, as a
    part that runs three times a second fails as often."""
    told = "".join(traceback.format_exception(error))
    id = sha256(told.encode(errors="replace")).hexdigest()[:8]
    if id not in (known := session.current().failures):
        known.add(id)
        metrics.failed("page", type(error).__name__)
        log.error("%s\n%s", id, told)
    return id
