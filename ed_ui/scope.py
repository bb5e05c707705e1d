"""What a session looks at: the prompt in its box beside the model in the sidebar (`picker`), and the part of it that the URL carries."""
from __future__ import annotations

from itertools import groupby

import streamlit as st

from ed_core import figures, lookup, tokens
from ed_core.demo import EXAMPLE, load_prompts
from ed_core.errors import PromptError
from ed_core.prompts import check_text, max_tokens
from ed_core.types import Prompt, Request
from ed_ui import picker, show
from ed_ui.picker import current

TASKS = {"sum_mod10": "Sums mod 10", "lookup": "Look-ups", "lookup_names": "Who follows whom", "copy": "Copying", "english": "Plain English"}


_served = False  # whether this server has answered anybody yet


def mend_first_deep_link(page) -> None:
    """Load the page once more where a server's very first visitor opens a link to a page other than Home.

    Streamlit takes an app with a `pages/` folder for one without `st.navigation` until that has been called once, and puts a "page not found"
    dialog over the right page.
    """
    global _served
    first, _served = not _served, True
    if first and page.url_path:
        st.html("<script>window.location.reload()</script>", unsafe_allow_javascript=True)
        st.stop()


# -------------------------------------------------------------------- the prompt


def kept(key: str, default=None):
    """What a widget held when it was last on the screen; Streamlit forgets a widget's value when another page is opened."""
    return st.session_state.get(f"kept.{key}", default)


def keep(key: str) -> None:
    """A widget's `on_change`: remember its value across pages."""
    st.session_state[f"kept.{key}"] = st.session_state[key]


def prompt() -> Prompt:
    """What stands in the prompt box, and how it is to be encoded."""
    return Prompt(kept("text", ""), kept("answer", ""), template=kept("template", "raw"), special_tokens=kept("special_tokens", True))


def set_prompt(text: str, answer: str = "", example: str = "") -> None:
    """Put a prompt into the box; only from a callback, or before the box is drawn."""
    st.session_state.update({"kept.text": text, "kept.answer": answer, "example": example})


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
    """Once per session, before anything is drawn: a run or an example named in the URL fills the boxes; else the shipped example does."""
    if kept("text") is not None:
        return
    key, wanted = st.query_params.get("run", ""), st.query_params.get("example", "")
    stored = lookup.by_key(key) if key else None
    if stored is not None:
        _open_run(stored.request)
        return
    if key:
        st.session_state["link_trouble"] = f"No stored result has the id {key[:32]!r}: it was removed, or computed elsewhere. Choose model and prompt anew."
    pick(wanted if wanted in examples() else EXAMPLE)


def _open_run(request: Request) -> None:
    """Put a stored run's model, prompt and parameters into the boxes."""
    spec, asked = request.models[0], request.prompts[0]
    picker.choose(spec)
    st.session_state.update({"kept.template": asked.template, "kept.special_tokens": asked.special_tokens})
    set_prompt(asked.text, asked.answer, next((i for i, p in examples().items() if p["text"] == asked.text), ""))
    for name, value in request.parameters:
        st.session_state[f"kept.{request.probe}.{name}"] = ",".join(map(str, value)) if isinstance(value, tuple) else value
    now = current().spec
    if now is None or now.identity() != spec.identity():
        st.session_state["link_trouble"] = (
            f"The linked run was made with other weights than {spec.name} has now, so it is not shown. Run computes it for the present ones."
        )


def remember(run: str = "") -> None:
    """Put what is on the screen into the URL: the run where there is one, else the bundled prompt; never a prompt's text."""
    example = st.session_state.get("example", "")
    for name, value in (("run", run), ("example", "" if run else example)):
        if value and st.query_params.get(name) != value:
            st.query_params[name] = value
        elif not value and name in st.query_params:
            del st.query_params[name]


def prompt_box() -> None:
    """Prompt, answer and example pills, shared by all pages."""
    if trouble := st.session_state.pop("link_trouble", ""):
        st.warning(show.plain(trouble), icon=":material/link_off:")
    left, right = st.container(key="prompt-box").columns([4, 1])
    st.session_state.update(text=kept("text", ""), answer=kept("answer", ""))
    left.text_area("Prompt", key="text", height=104, on_change=_edited, args=("text",), help="Every probe runs on prompt + answer, encoded jointly.")
    right.text_input(
        "Answer",
        key="answer",
        on_change=_edited,
        args=("answer",),
        help="Optional. Appended to the prompt without a separator, so begin it with a space where the language does.",
    )
    with right:
        _tokens()
    tasks = [task for task, _ in groupby(examples().values(), key=lambda p: p["task"])]
    here = examples().get(st.session_state.get("example", ""), {})
    row = st.container(horizontal=True, vertical_alignment="bottom")
    st.session_state["task"] = here.get("task")
    row.pills("Examples", tasks, format_func=task_name, key="task", on_change=_task_picked, label_visibility="collapsed")
    if here and not here["known"]:
        row.markdown(":orange-badge[outside what the bundled models know]", width="content")
    levels = [p["id"] for p in examples().values() if p["task"] == here.get("task")]
    if len(levels) > 1:
        st.session_state["level"] = here["id"]
        row.selectbox("Level", levels, format_func=lambda i: examples()[i]["title"], key="level", on_change=_level_picked, label_visibility="collapsed", width=240)


def preview() -> list[str] | None:
    """The tokens in the box, by the model's own tokenizer file; None where only the model could tell."""
    scope = current()
    return tokens.preview(scope.spec, prompt()) if scope.spec and not _trouble() else None


def n_tokens() -> int | None:
    """How many tokens the box holds."""
    texts = preview()
    return None if texts is None else len(texts)


def ready() -> bool:
    """Whether what stands in the box can be run."""
    return not _trouble()


def _trouble() -> str:
    try:
        check_text(prompt())
    except PromptError as error:
        return str(error)
    return ""


def _tokens() -> None:
    """Token count, and behind it how the prompt is encoded: every token, template, special tokens."""
    if trouble := _trouble():
        st.caption(f":red[{show.plain(trouble)}]")
        return
    texts, limit = preview(), max_tokens()
    if texts is not None and len(texts) > limit:
        st.caption(f":red[{len(texts)} tokens: over the limit of {limit}]")
    with st.popover("Encoding" if texts is None else f"{len(texts)} tokens", type="tertiary"):
        st.session_state.update(template=kept("template", "raw"), special_tokens=kept("special_tokens", True))
        _template()
        st.toggle("Special tokens, as the tokenizer adds them", key="special_tokens", on_change=keep, args=("special_tokens",), disabled=kept("template") == "chat")
        if texts is not None:
            marked = tokens.special(current().spec)
            st.markdown(" ".join(show.token(t, t in marked) for t in texts[:limit]))
            if marked.intersection(texts):
                st.caption("Orange: special tokens, added by the tokenizer or written in the text.")


def _template() -> None:
    """Raw text or the model's chat template, where it has one."""
    spec = current().spec
    has = spec is not None and tokens.chats(spec)
    if has is False and kept("template", "raw") == "raw":
        st.caption("Raw text: this model has no chat template.")
        return
    names = {"raw": "raw text", "chat": "chat"}
    told = "chat: one user message through the model's own template, which brings its special tokens; the tokens are shown once it has run"
    st.segmented_control("Template", list(names), format_func=names.get, required=True, key="template", on_change=keep, args=("template",), help=told)
    if has is False:
        st.caption(":red[This model has no chat template: choose raw text.]")


def _edited(box: str) -> None:
    keep(box)
    st.session_state["example"] = ""


def _task_picked() -> None:
    if task := st.session_state.get("task"):
        pick(next(p["id"] for p in examples().values() if p["task"] == task))


def _level_picked() -> None:
    pick(st.session_state["level"])


def open_live(request: Request) -> None:
    """Put a kept result's model, prompt and parameters into the boxes; only from a callback. How it was looked at is `views.open_live`'s."""
    _open_run(request)
