"""What the model writes, as it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import streamlit as st

from ed_core import figures
from ed_core.depth import exits
from ed_core.figures import View
from ed_core.figures.pictures import pictures
from ed_core.probes import Generation
from ed_core.types import ProbeResult
from ed_ui import inputs, running, show
from ed_ui.session import Batch

WINDOW = 40  # tokens on the map
TEXT_HEIGHT = 145  # pixels of the text, five lines: what is below it stays where it is while it is written


def generation() -> Generation:
    """What its boxes hold, on whatever page they stand."""
    return Generation.make({f.name: inputs.value(f"generation.{f.name}", f.default) for f in fields(Generation)})


def written(key: str, result: ProbeResult, view: View, again: Callable[[], Batch]) -> None:
    """The text so far and the map. `again` gives the page's batch for what the boxes hold."""
    _text(result, again)
    n, begin = len(result["ids"]), figures.first_position(result)
    chosen = inputs.value("token")
    step = chosen - begin if chosen is not None and 0 <= chosen - begin < n else None
    window = inputs.window("writing.window", n, WINDOW)
    if not result.complete and window is not None:  # the token that is being written stays in sight
        last = max(exits.written(result["ids"]), WINDOW)
        window = (last - WINDOW, last - 1)
    look = replace(view, window=window, selected=step, sinks=())
    (one,) = pictures(result)
    fig, caption = show.once(figures.writing_map, result, look), one.caption[:1].upper() + one.caption[1:]
    show.figure(key, fig, caption, result, "jsd", one.reading, select=True)
    if window is not None and result.complete:
        limits = dict(min_value=0, max_value=n - 1, width=420)
        inputs.widget(st.slider, "Tokens shown", "writing.window", window, **limits)


def _text(result: ProbeResult, again: Callable[[], Batch]) -> None:
    """What is written; while it is written, a way to stop there."""
    n = exits.written(result["ids"])
    left, right = st.columns([6, 1], vertical_alignment="center")
    left.code(exits.text(result) or " ", language=None, wrap_lines=True, height=TEXT_HEIGHT)
    if result.complete or not n:
        return
    if right.button("Stop here", icon=":material/stop_circle:", on_click=_stop, args=(n, again), help=STOP):
        st.rerun()


def _stop(n: int, again: Callable[[], Batch]) -> None:
    """Ask for the tokens written so far: a result like any other, and there in a moment."""
    inputs.put_over({"generation.n_tokens": n})
    if (batch := again()).missing:
        running.submit(batch)


STOP = """Ends the text here and keeps it: the same tokens, as a result of its own."""
