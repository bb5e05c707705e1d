"""The panel of a run: begin, cancel, resume, how far it is and how long it takes, what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st

from ed_core.runs.launch import Run
from ed_core.service.estimate import duration
from ed_ui import browser, inputs, show

POLL = 1.0  # seconds between two looks at a run


def pause(run: Run) -> float | None:
    """How often a part of a page with a panel is drawn again: every second while the run is under way."""
    return POLL if run.running else None


def draw(
    run: Run,
    page: str,
    begin: Mapping[str, tuple[str, Callable[[], None]]],
    told: str = "",
    complete: bool = False,
    linked: bool = True,
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Buttons in a row, `told` beside them; progress or trouble below. `begin`: by the name in their keys the buttons
    that start it, label and what they do; the first says Resume where the run ended in the middle. `complete`: there is
    nothing left to run. `ended` is called once when it has ended; the page is drawn as a whole when it begins and
    ends."""
    watch(run, page, ended)
    running = run.running
    row = st.container(horizontal=True, vertical_alignment="center", key=f"run-row-{page}")
    for i, (name, (label, start)) in enumerate(begin.items()):
        look = {"type": "secondary" if i else "primary", "icon": ":material/play_arrow:"}
        label = label if i or not run.unfinished else "Resume"
        if row.button(label, key=f"run.{name}", disabled=running or complete, **look):
            start()
            inputs.put({f"{page}.watched": str(run.folder)})  # it may end before the page is drawn again
            st.rerun()
    if row.button("Cancel", key=f"cancel.{page}", icon=":material/stop:", disabled=not running):
        run.stop()
        st.rerun()
    if told:
        row.markdown(f":gray-badge[{show.plain(told)}]", width="content")
    if linked:
        browser.share(row)
    if running:
        st.progress(run.status.share if run.status else 0.0, show.plain(progress(run)))
    elif run.trouble:
        show.error(run.trouble)


def watch(run: Run, page: str, ended: Callable[[], None] = lambda: None) -> None:
    """Draw the page as a whole when a run that was seen here has ended."""
    watched = f"{page}.watched"
    if run.running:
        inputs.put({watched: str(run.folder)})
    elif inputs.value(watched) == str(run.folder):
        inputs.forget(watched)
        ended()
        st.rerun()


def progress(run: Run) -> str:
    """One line on how far a run is: its place in the line and when it begins, or its share and the time left."""
    status = run.status
    if status is None or run.waiting:
        what, left, tail = status.what if status else "", run.begins, "begins in about {}"
        said = [f"waiting for {what}" if what == "memory" else f"waiting, {what}" if what else "starting"]
        left = left if what else None
    else:
        said = [f"{100 * status.share:.0f} %", status.what or "models and prompts are looked up"]
        left, tail = run.left, "about {} left"
    return " · ".join([*said, *([tail.format(duration(left))] if left is not None else [])])
