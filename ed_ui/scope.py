"""What a session looks at: the prompt in its box beside the model in the sidebar (`picker`), and the part of it that
the URL carries."""

from __future__ import annotations

from itertools import groupby

import streamlit as st

from ed_core.errors import EffectiveDepthError, ParameterError, PromptError
from ed_core.prompts import check_text
from ed_core.results import lookup
from ed_core.service.resolve import twin
from ed_core.sources import controls, tokens
from ed_core.sources.bundled import EXAMPLE, MODELS, load_prompts
from ed_core.types import ModelSpec, Prompt, Request
from ed_ui import downloads, link, picker, show
from ed_ui.picker import current

TASKS = {
    "sum_mod10": "Sums mod 10",
    "lookup": "Look-ups",
    "lookup_names": "Who follows whom",
    "copy": "Copying",
    "english": "Plain English",
}
SHOWN = 512  # tokens in the preview
MOST_TOKENS = 10**6  # a token's number in a link; one beyond the prompt's end is simply not marked


def kept(key: str, default=None):
    """What a widget held when it was last on the screen; Streamlit forgets a widget's value when another page is
    opened."""
    return st.session_state.get(f"kept.{key}", default)


def keep(key: str) -> None:
    """A widget's `on_change`: remember its value across pages."""
    st.session_state[f"kept.{key}"] = st.session_state[key]


def keeping(widget, label: str, key: str, default, **more):
    """A widget whose value outlives a page change."""
    st.session_state[key] = kept(key, default)
    return widget(label, key=key, on_change=keep, args=(key,), **more)


def prompt() -> Prompt:
    """What stands in the prompt box, and how it is to be encoded."""
    return Prompt(
        kept("text", ""),
        kept("answer", ""),
        template=kept("template", "raw"),
        special_tokens=kept("special_tokens", True),
    )


def window(key: str, n: int, most: int) -> tuple[int, int] | None:
    """First and last of the tokens shown where a figure holds only the `most` of `n`: as chosen where that fits the
    prompt, else the last."""
    if n <= most:
        return None
    if (chosen := kept(key)) is not None and chosen[1] < n:
        return chosen
    st.session_state.pop(f"kept.{key}", None)
    return n - most, n - 1


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


OF_A_RUN = (  # what a stored run decides
    link.text("model", "model"),
    link.choice("precision", "precision", picker.AUTO, picker.PRECISIONS),
    link.text("adapter", "adapter"),
    link.text("revision", "revision"),
    link.text("device", "device", "cpu"),
    link.choice("template", "kept.template", "raw", ("raw", "chat")),
    link.flag("special_tokens", "kept.special_tokens", True),
)
BESIDE_IT = (
    link.choice("control", "kept.control", "none", tuple(controls.KINDS)),
    link.number("control_seed", "kept.control.seed", 0, 0, controls.MOST, int),
    link.number("token", "token", None, 0, MOST_TOKENS, int),
)


def open_link(page) -> None:
    """Before anything is drawn, where the URL decides: the run or the bundled prompt that it names fills the boxes, and
    what it says beside them holds. A session that nothing fills begins with the shipped example."""
    if not link.arrived(page.url_path):
        return
    key, example = st.query_params.get("run", ""), st.query_params.get("example", "")
    complete = "model" in st.query_params
    link.take(OF_A_RUN, reset=complete)
    by_run = st.session_state["link.by_run"] = bool(key) and _open_run(key)
    link.take(BESIDE_IT, reset=complete and not by_run)
    if (device := st.session_state.get("device")) and device not in picker.devices():
        st.session_state["device"] = "cpu"
        link.trouble(f"The link asks for the device {device!r}, which is not here: it is shown for the CPU.")
    if example in examples() and not by_run:
        pick(example)
    elif example and example not in examples():
        link.trouble(f"No bundled prompt has the id {example[:32]!r}, so another one stands in the box.")
    if kept("text") is None:
        pick(EXAMPLE)


def _open_run(short: str) -> bool:
    """Open the stored run that a link names; False, with the reason noted, where there is none."""
    try:
        open_live(lookup.by_short(short).request)
    except ParameterError as error:
        link.trouble(str(error))
        return False
    return True


def open_live(request: Request) -> None:
    """Put a result's model, control, prompt and parameters into the boxes; only from a callback, or before they are
    drawn. How a kept one was looked at is put back by `views.open_live`."""
    spec, asked = request.models[0], request.prompts[0]
    if not _is_chosen(spec):  # what "auto" comes to may be this very model
        picker.choose(spec)
    st.session_state.update({"kept.template": asked.template, "kept.special_tokens": asked.special_tokens})
    st.session_state.update({"kept.control": spec.control or "none", "kept.control.seed": spec.control_seed})
    set_prompt(asked.text, asked.answer, next((i for i, p in examples().items() if p["text"] == asked.text), ""))
    for name, value in request.parameters:
        st.session_state[f"kept.{request.probe}.{name}"] = (
            ",".join(map(str, value)) if isinstance(value, tuple) else value
        )
    if not _is_chosen(spec):
        if current().spec is None or downloads.absent(picker.source()) is not None:
            link.trouble(
                f"The linked run is of {spec.name}, which is not here now, so it is not shown; the sidebar says more."
            )
        else:
            link.trouble(
                f"The linked run was made with other weights than {spec.name} has now, so it is not shown. Run "
                "computes it for the present ones."
            )


def _is_chosen(spec: ModelSpec) -> bool:
    """Whether the sidebar's model, or this control of it, is the one of a run."""
    try:
        now = current().spec
        now = twin(now, spec.control, spec.control_seed) if now is not None and spec.control else now
    except EffectiveDepthError:
        return False
    return now is not None and now.identity() == spec.identity()


def remember(run: str = "") -> None:
    """Put what is on the screen into the URL: model, control, bundled prompt, what is off its default, and the run
    where there is one; never a prompt's text."""
    model = {"model": st.session_state.get("model") or next(iter(MODELS))}
    prompts = {"example": st.session_state.get("example", ""), "run": run[: lookup.SHORT]}
    link.put(model | link.carried((*OF_A_RUN, *BESIDE_IT)) | {name: value for name, value in prompts.items() if value})


def says() -> None:
    """What a link asked for and did not get."""
    if troubles := link.troubles():
        more = f" And {len(troubles) - 2} more." if len(troubles) > 2 else ""
        st.warning(show.plain(" ".join(troubles[:2]) + more), icon=":material/link_off:")


def prompt_box() -> None:
    """Prompt, answer and example pills, shared by all pages."""
    left, right = st.container(key="prompt-box").columns([4, 1])
    st.session_state.update(text=kept("text", ""), answer=kept("answer", ""))
    left.text_area(
        "Prompt",
        key="text",
        height=104,
        on_change=_edited,
        args=("text",),
        help="Every probe runs on prompt + answer, encoded jointly.",
    )
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
    row.pills(
        "Examples", tasks, format_func=task_name, key="task", on_change=_task_picked, label_visibility="collapsed"
    )
    if here and not here["known"]:
        row.markdown(":orange-badge[outside what the bundled models know]", width="content")
    levels = [p["id"] for p in examples().values() if p["task"] == here.get("task")]
    if len(levels) > 1:
        st.session_state["level"] = here["id"]
        row.selectbox(
            "Level",
            levels,
            format_func=lambda i: examples()[i]["title"],
            key="level",
            on_change=_level_picked,
            label_visibility="collapsed",
            width=240,
        )


def preview() -> list[str] | None:
    """The tokens in the box, by the model's own tokenizer file; None where only the model could tell."""
    scope = current()
    return tokens.preview(scope.spec, prompt()) if scope.spec and not _trouble() else None


def n_tokens() -> int | None:
    """How many tokens the box holds."""
    texts = preview()
    return None if texts is None else len(texts)


def ready() -> bool:
    """Whether what stands in the box can be run: it is text, and as far as its tokens can be counted here not too
    long."""
    return not _trouble() and not _too_long(preview())


def _too_long(texts: list[str] | None) -> str:
    return tokens.too_long(current().spec, len(texts)) if texts else ""


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
    texts = preview()
    if trouble := _too_long(texts):
        st.caption(f":red[{show.plain(trouble)}]")
    with st.popover("Encoding" if texts is None else f"{len(texts)} tokens", type="tertiary"):
        st.session_state.update(template=kept("template", "raw"), special_tokens=kept("special_tokens", True))
        _template()
        st.toggle(
            "Special tokens, as the tokenizer adds them",
            key="special_tokens",
            on_change=keep,
            args=("special_tokens",),
            disabled=kept("template") == "chat",
        )
        if texts is not None:
            marked = tokens.special(current().spec)
            st.markdown(" ".join(show.token(t, t in marked) for t in texts[:SHOWN]))
            if len(texts) > SHOWN:
                st.caption(f"The first {SHOWN} of {len(texts)}.")
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
    told = (
        "chat: one user message through the model's own template, which brings its special tokens; the tokens are "
        "shown once it has run"
    )
    st.segmented_control(
        "Template",
        list(names),
        format_func=names.get,
        required=True,
        key="template",
        on_change=keep,
        args=("template",),
        help=told,
    )
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
