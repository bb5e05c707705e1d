"""What a session looks at: the model in the sidebar, the prompt in its box, and the part of it that the URL carries."""
from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import streamlit as st

from ed_core import lookup, sources, tokens
from ed_core.demo import MODELS, load_prompts
from ed_core.errors import EffectiveDepthError, PromptError
from ed_core.prompts import check_text, max_tokens
from ed_core.types import ModelSpec, Prompt
from ed_ui import show

PRECISIONS = ("fp32", "bf16", "fp16")
TASKS = {"sum_mod10": "Sums mod 10", "lookup": "Look-ups", "lookup_names": "Who follows whom", "copy": "Copying", "english": "Plain English"}


@dataclass(frozen=True)
class Scope:
    """One session's choice: `spec` is None (and `trouble` says why) where the model cannot be had."""

    spec: ModelSpec | None
    trouble: str = ""


def sidebar() -> None:
    """Model and precision, on every page and in the URL."""
    with st.sidebar:
        st.selectbox(
            "Model",
            list(MODELS),
            key="model",
            accept_new_options=True,
            bind="query-params",
            help="A bundled model; or type the path of a model folder or a hub id like Qwen/Qwen2.5-1.5B and press Enter.",
        )
        st.segmented_control("Precision", PRECISIONS, default="fp32", required=True, key="precision", bind="query-params")
        scope = current()
        if scope.trouble:
            st.error(show.plain(scope.trouble), icon=":material/error:")
        else:
            card = sources.describe(scope.spec)
            if trouble := lookup.trouble():
                st.warning(show.plain(trouble), icon=":material/database_off:")
            st.caption(show.plain(" · ".join(f"{value} {name}".strip() for name, value in card.items())))


def current() -> Scope:
    """The model chosen in the sidebar."""
    source = (st.session_state.get("model") or next(iter(MODELS), "")).strip()
    try:
        return Scope(sources.resolve(source, st.session_state.get("precision") or "fp32"))
    except EffectiveDepthError as error:
        return Scope(None, str(error))


# -------------------------------------------------------------------- the prompt


def prompt() -> Prompt:
    """What stands in the prompt box."""
    return Prompt(text=st.session_state.get("text", ""), answer=st.session_state.get("answer", ""))


def set_prompt(text: str, answer: str = "", example: str = "") -> None:
    """Put a prompt into the box; only from a callback, or before the box is drawn."""
    st.session_state.update(text=text, answer=answer, example=example)


@st.cache_data
def examples() -> dict[str, dict]:
    """Bundled prompts by id, in the file's order: by task, easiest first."""
    return {p["id"]: p for p in load_prompts()}


def task_name(task: str) -> str:
    return TASKS.get(task, task.replace("_", " ").capitalize() + "s")


def harder(example: str) -> str | None:
    """The bundled prompt of the same task at the next difficulty, if there is one."""
    known = examples()
    if example not in known:
        return None
    here = known[example]
    above = (p["id"] for p in known.values() if p["task"] == here["task"] and p["difficulty"] > here["difficulty"])
    return next(above, None)


def pick(example: str) -> None:
    """Put a bundled prompt into the box."""
    chosen = examples()[example]
    set_prompt(chosen["text"], chosen["answer"], example)


def open_link() -> None:
    """Once per session: a run named in the URL puts its model and prompt into the boxes; else the first bundled prompt stands there."""
    if "text" in st.session_state:
        return
    key = st.query_params.get("run", "")
    stored = lookup.by_key(key) if key else None
    if stored is not None:
        asked = stored.request.prompts[0]
        set_prompt(asked.text, asked.answer, next((i for i, p in examples().items() if p["text"] == asked.text), ""))
        return
    if key:
        st.session_state["link_trouble"] = f"No stored result has the id {key[:32]!r}: it was removed, or computed elsewhere. Choose model and prompt anew."
    wanted = st.query_params.get("example", "")
    pick(wanted if wanted in examples() else next(iter(examples())))


def prompt_box() -> None:
    """Prompt, answer and example pills, shared by all pages."""
    left, right = st.columns([4, 1])
    left.text_area("Prompt", key="text", height=104, persist_state="session", on_change=_edited, help="Every probe runs on prompt + answer, encoded jointly.")
    right.text_input(
        "Answer",
        key="answer",
        persist_state="session",
        on_change=_edited,
        help="Optional. Appended to the prompt without a separator, so begin it with a space where the language does.",
    )
    right.caption(_counted())
    tasks = [task for task, _ in groupby(examples().values(), key=lambda p: p["task"])]
    here = examples().get(st.session_state.get("example", ""), {})
    row = st.container(horizontal=True, vertical_alignment="bottom")
    st.session_state["task"] = here.get("task")
    row.pills("Examples", tasks, format_func=task_name, key="task", on_change=_task_picked, label_visibility="collapsed")
    levels = [p["id"] for p in examples().values() if p["task"] == here.get("task")]
    if len(levels) > 1:
        st.session_state["level"] = here["id"]
        row.selectbox("Level", levels, format_func=lambda i: examples()[i]["title"], key="level", on_change=_level_picked, label_visibility="collapsed", width=240)


def n_tokens() -> int | None:
    """How many tokens the box holds, by the model's own tokenizer file; None where only the model could tell."""
    scope = current()
    return tokens.count(scope.spec, prompt()) if scope.spec else None


def ready() -> bool:
    """Whether what stands in the box can be run."""
    return not _trouble()


def _trouble() -> str:
    try:
        check_text(prompt())
    except PromptError as error:
        return str(error)
    return ""


def _counted() -> str:
    if trouble := _trouble():
        return f":red[{show.plain(trouble)}]"
    n, limit = n_tokens(), max_tokens()
    if n is None:
        return ""
    return f":red[{n} tokens: over the limit of {limit}]" if n > limit else f"{n} tokens"


def _edited() -> None:
    st.session_state["example"] = ""


def _task_picked() -> None:
    if task := st.session_state.get("task"):
        pick(next(p["id"] for p in examples().values() if p["task"] == task))


def _level_picked() -> None:
    pick(st.session_state["level"])
