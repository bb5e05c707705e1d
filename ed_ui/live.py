"""The part of a page that fills while jobs run, drawn anew as far as there is something new, and no more often than the
browser keeps up with: what is drawn takes its share of the cores that compute."""

from __future__ import annotations

import time
from collections.abc import Callable

import streamlit as st

from ed_ui import guard, running, streamlit_edges
from ed_ui.session import Batch

POLL_SECONDS = 0.5
REST = 5  # figures are drawn again after so many times the time that drawing them took, at the earliest


def follow(batch: Batch, draw: Callable, *more) -> None:
    """Call `draw` with the batch and `more`; as a whole again when a result begins or ends, else only those of its
    parts (`part`, `status`) that have something new. When the last job has ended the page runs as a whole."""
    if batch.jobs and running.poll(batch):
        st.rerun()

    def whole() -> None:
        _drawn(batch)
        batch.screen.parts.clear()
        batch.screen.failed = len(batch.errors)
        draw(batch, *more)

    asked = False

    def watch() -> None:
        nonlocal asked
        if asked and batch.jobs and running.poll(batch):
            st.rerun()
        if asked and (parts := news(batch, time.monotonic())):
            streamlit_edges.run_fragments([_key(batch, part) for part in parts])
        asked = True  # the first time it is part of the whole page's run, which has just drawn everything

    guard.fragment(whole, None, _key(batch))()
    if batch.running:
        guard.fragment(watch, POLL_SECONDS)()


def part(batch: Batch, name: str, results: tuple[str, ...], draw: Callable[[], None]) -> None:
    """A part of a live page that shows these results, the first of them at any rate: drawn by itself while that one
    fills."""
    found = batch.result(results[0])
    if not batch.running or found is None or found.complete:
        with st.container():  # as a fragment has one: what is drawn keeps its place
            return draw()

    def alone() -> None:
        _drawn(batch, results)
        draw()

    batch.screen.parts[name] = results
    guard.fragment(alone, None, _key(batch, name))()


def status(batch: Batch, words: Callable[[str], str] = "**{}**".format) -> None:
    """The line on what is going on while jobs run, by itself; `words` puts it into a sentence."""

    def alone() -> None:
        batch.screen.said = running.status(batch)
        st.markdown(words(batch.screen.said))

    batch.screen.parts["status"] = ()
    guard.fragment(alone, None, _key(batch, "status"))()


def news(batch: Batch, now: float) -> list[str]:
    """The parts that have something new and may be drawn `now`; "" is the whole."""
    screen = batch.screen
    if screen.cost is None:
        screen.cost = now - screen.begun  # it asks again once it has drawn
    said = ["status"] if "status" in screen.parts and running.status(batch) != screen.said else []
    changed = [name for name, version in _versions(batch).items() if screen.seen.get(name) != version]
    begins = bool(changed) and not screen.seen
    if not begins and now < screen.begun + REST * screen.cost:
        return said
    if begins or set(screen.seen) - set(batch.results) or screen.failed != len(batch.errors):
        return [""]
    parts = {name: [p for p, shows in screen.parts.items() if name in shows] for name in changed}
    if any(not parts[name] or name not in screen.seen or batch.results[name].complete for name in changed):
        return [""]
    if not said and not changed and "status" not in screen.parts and running.status(batch) != screen.said:
        return [""]
    return said + list(dict.fromkeys(p for found in parts.values() for p in found))


def _drawn(batch: Batch, names: tuple[str, ...] | None = None) -> None:
    """Note what is drawn now: these results, or all."""
    screen, versions = batch.screen, _versions(batch)
    if names is None:
        screen.seen, screen.said = versions, running.status(batch)
    else:
        screen.seen |= {name: versions[name] for name in names if name in versions}
    screen.begun, screen.cost = time.monotonic(), None


def _versions(batch: Batch) -> dict[str, tuple[int, bool]]:
    return {name: (result.version, result.complete) for name, result in batch.results.items()}


def _key(batch: Batch, part: str = "") -> str:
    return f"live.{batch.page}.{part}"
