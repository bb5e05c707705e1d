"""What the browser does for the app (`browser.js`): Ctrl+Enter in the prompt presses Run, a typed prompt survives a
reload, figures are drawn for paper, and no translator touches what a model reads or writes; and a button that shows the
page's link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_ui import inputs, session

KEY = "browser"
CARRIED = "Opens this view in a fresh session: model, prompt, parameters, and the run where it is stored here."
NOT_CARRIED = (
    "Not the prompt: a text never enters a link, and this one is neither bundled nor stored. Once it has run "
    "alone, the link names the run."
)


@st.cache_resource(show_spinner=False)
def _component() -> Callable[..., Any]:
    """Return the Streamlit component that runs `browser.js`."""
    return st.components.v2.component("browser", js=(Path(__file__).parent / "browser.js").read_text(encoding="utf-8"))


def listen() -> None:
    """Send the browser the typed prompt (None for a bundled one), and whether the session begins."""
    known = session.current()
    typed = None if inputs.value("example", "") else [inputs.value("text", ""), inputs.value("answer", "")]
    _component()(key=KEY, data={"begins": known.begins, "typed": typed}, on_typed_change=_restore)
    known.begins = False


def _restore() -> None:
    """Put the prompt that was typed before a reload into its boxes."""
    match st.session_state[KEY].typed:
        case [str(text), str(answer)]:
            inputs.put({"text": text, "answer": answer, "example": ""})


def share(row: DeltaGenerator, prompt: bool = True) -> DeltaGenerator:
    """Draw the Share button at the end of a `row` and return the box for a form above the link that `say_link` shows.
    `prompt`: whether the page is about the prompt in the box, which a link cannot always name."""
    box = row.popover("Share", icon=":material/share:", type="tertiary", key="share")
    form, session.current().share = box.container(), (box.empty(), prompt)
    say_link()
    return form


def say_link() -> None:
    """Show the page's link as it is now."""
    known = session.current()
    if known.share is None:
        return
    place, prompt = known.share
    with place.container():
        here = urlsplit(known.link.base).hostname in ("localhost", "127.0.0.1")
        st.markdown("**Link** for this computer" if here else "**Link**")
        query = f"?{urlencode(known.link.values)}" if known.link.values else ""
        st.code(f"{known.link.base}{known.link.page or ''}{query}", language=None, wrap_lines=True)
        st.caption(CARRIED if names_prompt(known.link.values, prompt) else NOT_CARRIED)


def names_prompt(values: Mapping[str, str], prompt: bool) -> bool:
    """Return whether a link with these parameters names all that its page is about. `prompt`: whether the page is about
    the prompt in the box, which only a bundled example or a stored run can name."""
    prompts = values.get("prompts")
    if prompts == "lines":
        return False
    first = not prompt or prompts == "bundled" or "run" in values or "example" in values
    return first and (values.get("compare") != "prompts" or "second_run" in values or "second_example" in values)
