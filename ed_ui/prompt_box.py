"""The prompt that all pages share: its box, its answer, the bundled examples, and how it is encoded."""

from __future__ import annotations

import streamlit as st

from ed_core.depth import say
from ed_core.errors import PromptError
from ed_core.models import tokens
from ed_core.models.bundled import CHARACTERS, MODELS, load_prompts
from ed_core.models.encoder import spaced
from ed_core.prompts import check_length, check_text
from ed_core.types import Encoding, Prompt
from ed_ui import inputs, picker, session, show
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
    """What stands in the prompt box, and how it is to be encoded."""
    return Prompt(
        inputs.value("text", ""),
        inputs.value("answer", ""),
        template=TEMPLATE.value,
        special_tokens=SPECIAL_TOKENS.value,
    )


def fill(text: str, answer: str = "", example: str = "", side: str = "") -> None:
    """Put a prompt into the box; only from a callback, or before the box is drawn. `side`: "two." for that of side
    B."""
    inputs.put({f"{side}text": text, f"{side}answer": answer, f"{side}example": example})


@st.cache_data(show_spinner=False)
def examples() -> dict[str, dict]:
    """Bundled prompts by id, those in words and those in characters, in their files' order: by task, easiest first."""
    return {p["id"]: p for model in ("", CHARACTERS[0]) for p in load_prompts(model)}


def task_name(task: str) -> str:
    return (TASKS | KINDS).get(task, task.replace("_", " ").capitalize() + "s")


def group() -> str:
    """By what the examples are sorted: by task, for a model that knows English by kind."""
    return "task" if picker.model() in MODELS else "kind"


def grouped() -> dict[str, list[str]]:
    """The ids of the examples for the chosen model by task or kind, in their order."""
    by, known = group(), load_prompts(picker.model())
    names = KINDS if by == "kind" else dict.fromkeys(p["task"] for p in known)
    return {name: [p["id"] for p in known if p.get(by) == name] for name in names}


def harder(example: str) -> str | None:
    """The bundled prompt of the same task at the next difficulty, if there is one."""
    known = examples()
    if example not in known:
        return None
    here = known[example]
    above = (p["id"] for p in known.values() if p["task"] == here["task"] and p["difficulty"] > here["difficulty"])
    return next(above, None)


def pick(example: str, side: str = "") -> None:
    """Put a bundled prompt into the box; what was typed there can be had back."""
    chosen = examples()[example]
    if inputs.value(f"{side}text", "") and not inputs.value(f"{side}example", ""):
        _undoable(side, "Back to the prompt that was typed before this example.")
    fill(chosen["text"], chosen["answer"], example, side)


def boxes(side: str, label: str, answer: str, help_: tuple[str, str], bare: bool = False):
    """Boxes for a prompt and its answer; gives the column below the answer. What is typed is no bundled prompt, and the
    answer of the example it was is not its answer. `bare`: without labels above, for a page with little room."""

    def edited(key: str) -> None:
        if _echo(key, st.session_state[key]):
            return
        answer_of_another = key == f"{side}text" and inputs.value(f"{side}example", "")
        if answer_of_another:
            _undoable(side, "Back to the example and its answer, which was cleared as the prompt is another now.")
        inputs.note(key)
        inputs.put({f"{side}example": ""} | ({f"{side}answer": ""} if answer_of_another else {}))

    left, right = st.container(key=f"{side.replace('.', '-')}prompt-box").columns([4, 1])
    common = dict(default="", changed=edited)
    if bare:
        common |= dict(label_visibility="collapsed")
        more = [dict(placeholder=label, height=68), dict(placeholder=answer)]
    else:
        more = [dict(help=help_[0], height=104), dict(help=help_[1])]
    inputs.widget(left.text_area, label, f"{side}text", **more[0], **common)
    inputs.widget(right.text_input, answer, f"{side}answer", **more[1], **common)
    return right


def draw() -> None:
    """Prompt, answer and example pills, as most pages have them; at the pills' end what is wrong with them, and how
    they are encoded."""
    with st.container(key="asked"):
        boxes("", "Prompt", "Answer", ABOUT, bare=True)
        with draw_examples():
            if said := _said():
                st.caption(said)
            _offer_space(st)
            _how_encoded()


def draw_boxes() -> None:
    """The prompt, its answer, and how they are encoded; what is wrong with them has no room there (`say_trouble`)."""
    with boxes("", "Prompt", "Answer", ABOUT, bare=True):
        _how_encoded()


def say_trouble() -> None:
    """What is wrong with the prompt, in a line of its own where there is something."""
    if said := _said():
        row = st.container(key="prompt-trouble")
        row.caption(said)
        _offer_space(row)


def draw_examples():
    """Pills of tasks and the levels of the one chosen; the way back from what was put over something typed. Gives
    their row."""
    known = examples()
    here = known.get(inputs.value("example", ""), {})
    row = st.container(horizontal=True, vertical_alignment="bottom", key="examples")
    sorted_by, of = grouped(), here.get(group())
    key = inputs.followed("task", of)
    row.pills(
        "Examples",
        list(sorted_by),
        format_func=task_name,
        key=key,
        on_change=_task_picked,
        args=(key,),
        label_visibility="collapsed",
    )
    if here and picker.model() in MODELS and not (here["known"] and here["task"] in sorted_by):
        row.markdown(":orange-badge[outside what this model was taught]", width="content")
    levels, key = sorted_by.get(of, []), inputs.followed("level", here.get("id"))
    if len(levels) > 1:
        row.selectbox(
            "Level",
            levels,
            format_func=lambda id: known[id]["title"],
            key=key,
            on_change=_level_picked,
            args=(key,),
            label_visibility="collapsed",
            width=200,
        )
    if (undo := session.current().undo) is not None:
        look = {"icon": ":material/undo:", "type": "tertiary", "help": undo.why}
        row.button("Undo", key="undo", on_click=_undo, **look)
    return row


def _undoable(side: str, why: str) -> None:
    """Remember what the boxes hold, before it is replaced."""
    held = {f"{side}{name}": inputs.value(f"{side}{name}", "") for name in ("text", "answer", "example")}
    session.current().undo = session.Undo(held, why)


def _echo(key: str, value: str) -> bool:
    """Whether the answer's box only says again what an edited example took along: sent with a press on Run by a browser
    that had not heard of it. Taken for typed it would be the answer to another prompt."""
    pressed = any(name.startswith("run.") and held is True for name, held in st.session_state.items())
    if not pressed or (undo := session.current().undo) is None:
        return False
    taken = undo.held.get(key) if any(held for name, held in undo.held.items() if name.endswith("example")) else None
    return key.endswith("answer") and value == taken and inputs.unheard(undo.at)


def _undo() -> None:
    inputs.put(session.current().undo.held)
    session.current().undo = None


def preview() -> Encoding | None:
    """The prompt in the box as it will be encoded; None where only the opened model could tell."""
    spec, asked = picker.current().spec, prompt()
    if not spec or wrong_with(asked):
        return None
    return session.once_a_run(("tokens", spec, asked), lambda: tokens.preview(spec, asked))


def n_tokens() -> int | None:
    """How many tokens the box holds."""
    found = preview()
    return None if found is None else len(found)


def ready() -> bool:
    """Whether what stands in the box can be run: it is text, and as far as its tokens can be counted here not too
    long."""
    return not wrong_with(prompt()) and not _too_long()


def _too_long() -> str:
    return tokens.too_long(picker.current().spec, len(found)) if (found := preview()) else ""


def wrong_with(asked: Prompt) -> str:
    """Why a prompt cannot be run; "" where it can."""
    try:
        check_length(asked)
        check_text(asked)
    except PromptError as error:
        return str(error)
    return ""


def _said() -> str:
    """What is wrong with the prompt, in colour; "" for nothing."""
    if trouble := wrong_with(prompt()) or _too_long():
        return f":red[{show.plain(trouble)}]"
    if not (found := preview()):
        return ""
    return " ".join(f":orange[{show.plain(note)}]" for note in found.notes)


def _offer_space(row) -> None:
    """A button that puts the space in front of the answer, where question and answer run together as one word."""
    asked = prompt()
    if better := spaced(asked.text, asked.answer):
        look = {"icon": ":material/space_bar:", "type": "tertiary"}
        row.button(f"Use “{show.plain(better)}”", key="spaced", on_click=_space, args=(better,), **look)


def _space(answer: str) -> None:
    inputs.put({"answer": answer})


def _how_encoded() -> None:
    """Token count, and behind it how the prompt is encoded: every token, template, special tokens."""
    if wrong_with(prompt()):
        return
    found = preview()
    with st.popover("Encoding" if found is None else say.count(len(found), "token"), type="tertiary"):
        _template()
        SPECIAL_TOKENS.draw(st.toggle, disabled=TEMPLATE.value == "chat")
        if found is not None:
            marked = tokens.special(picker.current().spec)
            st.markdown(" ".join(show.token(t, t in marked) for t in found.tokens[:SHOWN]))
            if len(found) > SHOWN:
                st.caption(f"The first {SHOWN} of {len(found)}.")
            if marked.intersection(found.tokens):
                st.caption("Orange: special tokens, added by the tokenizer or written in the text.")


def _template() -> None:
    """Raw text or the model's chat template, where it has one."""
    spec = picker.current().spec
    has = spec is not None and tokens.chats(spec)
    if has is False and TEMPLATE.value == "raw":
        st.caption("Raw text: this model has no chat template.")
        return
    TEMPLATE.draw(st.segmented_control, help=ABOUT_CHAT)
    if has is False:
        st.caption(":red[This model has no chat template: choose raw text.]")


def _task_picked(key: str) -> None:
    if task := inputs.chosen("task", key):
        pick(grouped()[task][0])
        session.current().picked = True


def _level_picked(key: str) -> None:
    if level := inputs.chosen("level", key):
        pick(level)
        session.current().picked = True


ABOUT = (
    "Every probe runs on prompt + answer, encoded jointly.",
    "Optional. Appended to the prompt without a separator, so begin it with a space where the language does.",
)
ABOUT_CHAT = (
    "chat: one user message through the model's own template, which brings its special tokens; the tokens are shown "
    "once it has run"
)
