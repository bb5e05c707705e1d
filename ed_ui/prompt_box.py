"""The prompt that all pages share: its box, its answer, the bundled examples, and how it is encoded."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core.depth import say
from ed_core.depth.spelling import spelled
from ed_core.errors import PromptError
from ed_core.models import tokens
from ed_core.models.bundled import CHARACTERS, MODELS, load_prompts
from ed_core.models.encoder import spaced
from ed_core.prompts import check_length, check_text
from ed_core.types import Encoding, Prompt
from ed_ui import inputs, picker, running, session, show
from ed_ui.inputs import choice, flag

TASKS = {
    "sum_mod10": "Sums mod 10",
    "lookup": "Look-ups",
    "lookup_names": "Who follows whom",
    "copy": "Copying",
    "english": "Plain English",
    "sums": "Sums",
    "chains": "Chains of permutations",
}
KINDS = {  # of prompts for a model that knows English
    "question": "Question and answer",
    "two_hops": "Two hops",
    "arithmetic": "Arithmetic",
    "fact": "Fact",
    "plain_text": "Plain text",
}
TEMPLATE = choice("template", "template", "raw", ("raw", "chat"), "Template", {"raw": "raw text", "chat": "chat"})
SPECIAL_TOKENS = flag("special_tokens", "special_tokens", True, "Special tokens, as the tokenizer adds them")
SHOWN = 512  # tokens in the preview


def prompt() -> Prompt:
    """Return the prompt in the box, with a space in front of an answer that would run together with it."""
    text, answer = inputs.value("text", ""), inputs.value("answer", "")
    return Prompt(text, spaced(text, answer) or answer, template=TEMPLATE.value, special_tokens=SPECIAL_TOKENS.value)


def fill(text: str, answer: str = "", example: str = "", side: str = "") -> None:
    """Put a prompt into the box, before it is drawn. `side`: "two." for that of side B."""
    inputs.put({f"{side}text": text, f"{side}answer": answer, f"{side}example": example})


@st.cache_data(show_spinner=False)
def examples() -> dict[str, dict[str, Any]]:
    """Return the bundled prompts by id, in their files' order: by task, easiest first."""
    return {p["id"]: p for model in ("", CHARACTERS[0]) for p in load_prompts(model)}


def task_name(task: str) -> str:
    """Return the name of a task in menus."""
    return TASKS.get(task, task.replace("_", " ").capitalize() + "s")


def ids() -> list[str]:
    """Return the ids of the examples for the chosen model; for one that knows English by kind."""
    known = load_prompts(picker.model())
    if picker.model() not in MODELS:
        known = [p for kind in KINDS for p in known if p.get("kind") == kind]
    return [p["id"] for p in known]


def _titled(example: str) -> str:
    """Return an example's title in its menu."""
    one = examples()[example]
    return f"{KINDS[one['kind']]}: {one['title']}" if "kind" in one else one["title"]


def harder(example: str) -> str | None:
    """Return the id of the bundled prompt of the same task at the next difficulty; None where none is harder."""
    known = examples()
    if example not in known:
        return None
    here = known[example]
    above = (p["id"] for p in known.values() if p["task"] == here["task"] and p["difficulty"] > here["difficulty"])
    return next(above, None)


def pick(example: str, side: str = "") -> None:
    """Put a bundled prompt into the box; Undo brings back a prompt that was typed there. `side`: as `fill` takes it."""
    chosen = examples()[example]
    if inputs.value(f"{side}text", "") and not inputs.value(f"{side}example", ""):
        _undoable(side, "Back to the prompt that was typed before this example.")
    fill(chosen["text"], chosen["answer"], example, side)


def edited(key: str, side: str = "") -> None:
    """Note that a prompt or its answer was edited, as its box's `on_change`: the prompt is no bundled one then, and the
    answer of another prompt is cleared."""
    if _echo(key, st.session_state[key]):
        return
    answer_of_another = key == f"{side}text" and inputs.value(f"{side}answer", "")
    if answer_of_another:
        _undoable(side, "Back to the former prompt and its answer, which was cleared as the prompt is another now.")
    inputs.note(key)
    inputs.put({f"{side}example": ""} | ({f"{side}answer": ""} if answer_of_another else {}))


def boxes(side: str, label: str, answer: str, help_: tuple[str, str]) -> DeltaGenerator:
    """Draw boxes for a second prompt and its answer; return the column below the answer. `side`: prefix of the inputs'
    keys. `help_`: the help of both."""
    left, right = st.container(key=f"{side.replace('.', '-')}prompt-box").columns([4, 1])
    changed = partial(edited, side=side)
    inputs.widget(left.text_area, label, f"{side}text", "", help=help_[0], height=104, changed=changed)
    inputs.widget(right.text_input, answer, f"{side}answer", "", help=help_[1], changed=changed)
    return right


def draw() -> None:
    """Draw the prompt, the expected answer and the place of Run in one box; below it examples, number of tokens, what
    is wrong, and places for time, Options and Share (`running.row_begins`)."""
    with st.container(key="asked"):
        with st.container(horizontal=True, vertical_alignment="bottom", key="prompt-box", border=True):
            more: dict[str, Any] = dict(label_visibility="collapsed", height="content", placeholder="Type a prompt")
            inputs.widget(st.text_area, "Prompt", "text", "", changed=edited, **more)
            inputs.widget(st.text_input, "expected", "answer", "", changed=edited, placeholder="none")
            run = st.container(width="content", key="run-buttons")
        row = st.container(horizontal=True, vertical_alignment="center", key="run-row")
        with row:
            _examples()
            if (result := preview()) is not None:
                st.caption(say.count(len(result), "token"), width="content")
        session.current().place = running.Place(run, row.empty(), row, st.empty(), encoded=True)
        remarks = [f":red[{show.plain(wrong)}]"] if (wrong := trouble()) else []
        remarks += [f":orange[{show.plain(note)}]" for note in result.notes] if result and not wrong else []
        if remarks:
            st.container(key="prompt-trouble").caption(" ".join(remarks))


def _examples() -> None:
    """Draw the menu of bundled prompts, and Undo where one replaced something typed."""
    choose_example("", width=250)
    here = examples().get(inputs.value("example", ""))
    if here and picker.model() in MODELS and not (here["known"] and here["id"] in ids()):
        st.markdown(":orange-badge[outside what this model was taught]", width="content")
    if (undo := session.current().undo) is not None:
        st.button("Undo", key="undo", type="tertiary", help=undo.why, on_click=_undo)


def choose_example(side: str, **look: Any) -> None:
    """Draw the menu of bundled prompts for a prompt. `side`: "" for the page's own, "two." for side B's."""
    known, here, key = examples(), inputs.value(f"{side}example", ""), f"{side}examples"
    options = ids()
    st.session_state[key] = here or None
    st.selectbox(
        "Example",
        options + [here] * (here in known and here not in options),
        format_func=_titled,
        key=key,
        on_change=_example_chosen,
        args=(side,),
        placeholder="Examples",
        label_visibility="collapsed",
        **look,
    )


def _example_chosen(side: str) -> None:
    """Put the example that was just chosen in the menu into its box."""
    if (example := st.session_state[key := f"{side}examples"]) and not _echo(key, example):
        pick(example, side)
        session.current().picked = not side


def _undoable(side: str, why: str) -> None:
    """Remember the boxes' content before it is replaced. `why`: the help of Undo."""
    contents = {f"{side}{name}": inputs.value(f"{side}{name}", "") for name in ("text", "answer", "example")}
    session.current().undo = session.Undo(contents, why)


def _echo(key: str, value: str) -> bool:
    """Return whether the answer's box or the menu only repeats what an edited example took along, sent with a press on
    Run by a browser that had not got the change. Taken as meant, it would be the answer to another prompt, or the
    example in place of what was typed."""
    pressed = any(str(name).startswith("run.") and item is True for name, item in st.session_state.items())
    if not pressed or (undo := session.current().undo) is None:
        return False
    taken = (
        undo.held.get(key.removesuffix("s")) if any(undo.held[n] for n in undo.held if n.endswith("example")) else None
    )
    return not key.endswith("text") and value == taken and time.monotonic() - undo.at < inputs.ECHO


def _undo() -> None:
    """Put back the content of the boxes before the last replacement."""
    if (undo := session.current().undo) is not None:  # the second half of a double click has none
        inputs.put(undo.held)
    session.current().undo = None


def preview() -> Encoding | None:
    """Return the prompt in the box as it will be encoded; None where it is invalid or only the opened model can."""
    spec, content = picker.current().spec, prompt()
    if not spec or wrong_with(content):
        return None
    return session.once_a_run(("tokens", spec, content), lambda: tokens.preview(spec, content))


def n_tokens() -> int | None:
    """Return the number of tokens of the prompt in the box; None where it is not known."""
    result = preview()
    return None if result is None else len(result)


def ready() -> bool:
    """Return whether the prompt in the box can be run."""
    return not trouble()


def trouble() -> str:
    """Return why the prompt in the box cannot be run, like a text that is too long; "" where it can."""
    if wrong := wrong_with(prompt()):
        return wrong
    spec, result = picker.current().spec, preview()
    return tokens.too_long(spec, len(result)) if spec and result else ""


def wrong_with(asked: Prompt) -> str:
    """Return why a prompt cannot be run, in a sentence; "" where it can."""
    try:
        check_length(asked)
        check_text(asked)
    except PromptError as error:
        return str(error)
    return ""


def encoding() -> None:
    """Draw how the prompt is encoded: template, special tokens, every token."""
    if wrong_with(prompt()):
        return
    spec, result = picker.current().spec, preview()
    st.markdown("**Encoding**")
    _template()
    SPECIAL_TOKENS.draw(st.toggle, disabled=TEMPLATE.value == "chat")
    if spec is not None and result is not None:
        marked = tokens.special(spec)
        names = spelled(result.tokens)[:SHOWN]
        st.markdown(" ".join(show.token(name, t in marked) for name, t in zip(names, result.tokens, strict=False)))
        if len(result) > SHOWN:
            st.caption(f"The first {SHOWN} of {len(result)}.")
        if marked.intersection(result.tokens):
            st.caption("Orange: special tokens, added by the tokenizer or written in the text.")


def _template() -> None:
    """Draw the choice between raw text and the model's chat template, where it has one."""
    spec = picker.current().spec
    has = spec is not None and tokens.chats(spec)
    if has is False and TEMPLATE.value == "raw":
        st.caption("Raw text: this model has no chat template.")
        return
    TEMPLATE.draw(st.segmented_control, help=ABOUT_CHAT)
    if has is False:
        st.caption(":red[This model has no chat template: choose raw text.]")


ABOUT_CHAT = (
    "chat: one user message through the model's own template, which brings its special tokens; the tokens are shown "
    "once it has run"
)
