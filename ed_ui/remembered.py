"""What inputs hold while they are not on the screen: Streamlit forgets a widget's value when another page is opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from ed_ui import session, streamlit_edges

ECHO = 4.0  # seconds after a page was sent in which its browser may still say what it said before; chosen


def value(key: str, default: Any = None) -> Any:
    """What this input holds, on whatever page it stands."""
    return session.current().inputs.get(key, default)


def put(values: Mapping[str, Any]) -> None:
    """Let inputs hold these values; only from a callback, or before they are drawn."""
    session.current().inputs.update(values)


def replace(values: Mapping[str, Any]) -> None:
    """As `put`, over what a browser may still say for a moment: it looks for news of a run by itself, and what it sends
    on the way holds the values that it knew."""
    inputs, now = session.current().inputs, time.monotonic()
    session.current().replaced |= {key: (inputs.get(key, st.session_state.get(key)), now) for key in values}
    put(values)


def forget(*keys: str) -> None:
    for key in keys:
        session.current().inputs.pop(key, None)


def note(key: str) -> None:
    """A widget's `on_change`: remember its value, unless it is the echo of one that was just replaced."""
    replaced = session.current().replaced.get(key)
    if replaced is not None and st.session_state[key] == replaced[0] and unheard(replaced[1]):
        return
    session.current().inputs[key] = st.session_state[key]


def unheard(at: float) -> bool:
    """Whether the browser may not know yet what was set `at` this moment: no whole page has been sent since, or the
    first one only just."""
    sent = next((end for end in session.current().ended if end > at), None)
    return sent is None or time.monotonic() - sent < ECHO


def followed(name: str, value: Any) -> str:
    """The key of a box for choices that the page sets too, as an example's level follows its task; the box, drawn or
    not, holds `value` from now on. Where the page sets another value it is another box: `chosen` then tells what a
    browser that has not heard of it says of the former one."""
    boxes = session.current().boxes.setdefault(name, [value])
    if boxes[-1] != value:
        boxes.append(value)
    key = f"{name}.{len(boxes) - 1}"
    st.session_state[key] = value
    return key


def chosen(name: str, key: str) -> Any:
    """What a visitor has chosen in the box `followed` by this name: from its callback, which gives its key. None for
    what a former box held when another took its place."""
    value, boxes, n = st.session_state[key], session.current().boxes[name], int(key.rsplit(".", 1)[1])
    if n < len(boxes) - 1 and value == boxes[n]:
        return None
    boxes[n] = value
    return value


def widget(
    draw: Callable,
    label: str,
    key: str,
    default: Any = None,
    words: bool = False,
    changed: Callable[[str], None] = note,
    **more: Any,
) -> Any:
    """Draw a widget that holds its value over page changes. `words`: one to type in, whose value is set only where it
    is another. `changed` is called with the key in place of `note`."""
    if draw.__name__ in streamlit_edges.AROUND and "width" not in more:  # buttons, whose place is kept
        more["width"] = streamlit_edges.width(draw, map(more.get("format_func", str), more["options"]))
    streamlit_edges.tell(key, value(key, default), always=not words)
    return draw(label, key=key, on_change=changed, args=(key,), **more)


def one_of(draw: Callable, label: str, key: str, options: list[str], **more: Any) -> str:
    """Draw a box of names; where the remembered one is not among them, it holds the first."""
    if value(key) not in options:
        put({key: options[0]})
    return widget(draw, label, key, options[0], options=options, **more)


def window(key: str, n: int, most: int) -> tuple[int, int] | None:
    """First and last of the tokens shown where a figure holds only the `most` of `n`: as chosen where that fits the
    prompt, else the last."""
    if n <= most:
        return None
    if (chosen := value(key)) is not None and chosen[1] < n:
        return chosen
    forget(key)
    return n - most, n - 1


def token(n_tokens: int) -> int | None:
    """The token that all panels mark; None for none, or where the prompt has no such token."""
    chosen = value("token")
    return chosen if chosen is not None and chosen < n_tokens else None
