"""Parts of a page that run by themselves. What fails in one, or in a page, is one sentence in its place and a traceback
in the log, and everything else stays. One that fills while jobs run is drawn anew as far as there is something new, and
no more often than the browser keeps up with: what is drawn takes its share of the cores that compute."""

from __future__ import annotations

import functools
import logging
import time
import traceback
from collections.abc import Callable
from hashlib import sha256

import streamlit as st

from ed_core.errors import EffectiveDepthError
from ed_ui import metrics, running, session, show, streamlit_edges
from ed_ui.session import Batch

log = logging.getLogger(__name__)
FAILED = (
    "This part of the page failed for a reason nobody foresaw. What was stored stays stored; the server's log tells "
    "more under **{}**."
)
REST = 3  # figures are drawn again after so many times the time that drawing them took, at the earliest
LEAST = 0.15  # seconds that drawing is taken to last at least; chosen, not measured
POLLS = (0.1, 0.3, 0.5, 0.75, 1.0)  # seconds between two looks for news


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


# -------------------------------------------------------------------- while jobs run


def follow(batch: Batch, draw: Callable, *more) -> None:
    """Call `draw` with the batch and `more`; as a whole again when a result begins or ends, else only those of its
    parts (`part`) that have something new. When the last job has ended the page runs as a whole."""
    running.shown(batch)
    if batch.jobs and running.poll(batch):
        st.rerun()

    def whole() -> None:
        if _left(batch):
            st.rerun()
        _drawn(batch, tuple(batch.results))
        screen = batch.screen
        screen.parts.clear()
        screen.watched, screen.failed = False, len(batch.errors)
        try:
            draw(batch, *more)
        finally:
            if batch.running and not screen.watched:
                status(batch, lambda _: "")

    fragment(whole, None, _key(batch))()


def status(batch: Batch, words: Callable[[str], str] = "**{}**".format) -> None:
    """The line on what is going on while jobs run, which `words` puts into a sentence; it is this line that looks for
    news, ever more rarely as a run goes on."""
    screen, asked = batch.screen, False
    screen.watched = True

    def watch() -> None:
        nonlocal asked
        if _left(batch) or (asked and batch.jobs and running.poll(batch)):
            st.rerun()
        if said := words(running.status(batch)):
            st.markdown(said)
        if asked:
            if parts := news(batch, time.monotonic()):
                streamlit_edges.run_fragments([_key(batch, part) for part in parts])
            screen.pause = pause(time.monotonic() - batch.begun, running.left(batch))
            streamlit_edges.run_every(screen.pause)
        asked = True  # at first it is drawn with the rest, which has just been looked at

    screen.asked, screen.pause = time.monotonic(), pause(time.monotonic() - batch.begun, running.left(batch))
    fragment(watch, screen.pause)()


def part(batch: Batch, name: str, results: tuple[str, ...], draw: Callable[[], None]) -> None:
    """A part of a live page that shows these results, the first of them at any rate: drawn by itself while that one
    fills."""
    found = batch.result(results[0])
    if not batch.running or found is None or found.complete:
        with st.container():  # as a fragment has one: what is drawn keeps its place
            guarded(draw)  # what follows it on the page is drawn all the same
        return

    def alone() -> None:
        if _left(batch):
            st.rerun()
        _drawn(batch, results)
        draw()

    batch.screen.parts[name] = results
    fragment(alone, None, _key(batch, name))()


def pause(seconds: float, left: float | None = None) -> float:
    """Until the next look for news, this long after the beginning. A look takes the browser about 1/30 s of two cores,
    and half a pause passes before the end of a run is seen: both together are least near the root. Where it is known
    what is `left` of the run, the look is no later than its end."""
    usual = next((one for one in POLLS if one >= seconds**0.5 / 3), POLLS[-1])
    return usual if left is None else max(POLLS[0], min(usual, left))


def news(batch: Batch, now: float) -> list[str]:
    """The parts that have something new and may be drawn `now`; "" is the whole. A browser that is still drawing
    what came before looks for news later than it should, and so tells how long that takes."""
    screen = batch.screen
    if screen.cost is None:
        screen.cost = max(LEAST, now - screen.asked - screen.pause)
    screen.asked = now
    changed = [name for name, version in _versions(batch).items() if screen.seen.get(name) != version]
    first = bool(changed) and not screen.seen
    if not first and now < screen.begun + REST * screen.cost:
        return []
    if set(screen.seen) - set(batch.results) or screen.failed != len(batch.errors):
        return [""]
    parts = {name: [part for part, shown in screen.parts.items() if name in shown] for name in changed}
    if any(not parts[name] or name not in screen.seen or batch.results[name].complete for name in changed):
        return [""]
    return list(dict.fromkeys(part for found in parts.values() for part in found))


def _left(batch: Batch) -> bool:
    """Whether the page shows another batch by now, which a click in a part of it asked for: the page then runs as a
    whole, as nothing looks for this one's news any more."""
    return session.current().batches.get(batch.page, batch) is not batch


def _drawn(batch: Batch, names: tuple[str, ...]) -> None:
    """Note that these results are being drawn."""
    screen, versions = batch.screen, _versions(batch)
    screen.seen = {name: version for name, version in screen.seen.items() if name in versions}
    screen.seen |= {name: versions[name] for name in names if name in versions}
    screen.begun, screen.cost = time.monotonic(), None


def _versions(batch: Batch) -> dict[str, tuple[int, bool]]:
    return {name: (result.version, result.complete) for name, result in batch.results.items()}


def _key(batch: Batch, part: str = "") -> str:
    return f"live.{batch.page}.{part}"
