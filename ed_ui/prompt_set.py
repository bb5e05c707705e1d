"""Which prompts a page over several, or a fit, runs on: the one in the box, bundled ones, or lines of a .jsonl file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import streamlit as st

from ed_core import untrusted
from ed_core.cases.snippet import run_command
from ed_core.errors import PromptError
from ed_core.models import tokens
from ed_core.models.bundled import MIXED, SETS, default_set, load_prompts, reads_characters, set_names
from ed_core.models.ref import ModelRef
from ed_core.probes import Probe
from ed_core.prompts import parse_jsonl, read_jsonl
from ed_core.types import ModelSpec, Prompt
from ed_ui import inputs, picker, prompt_box, running, show
from ed_ui.inputs import Input, choice, number, several

WORDS = show.words(__file__)
MOST = 20
MEGABYTES = 1  # of an uploaded file
BUNDLED, ONE, LINES = "bundled", "one", "lines"
SOURCES = {BUNDLED: "A set", ONE: "This prompt", LINES: "A file or pasted lines"}
EXAMPLES = "examples"  # the bundled prompts of all tasks
MOST_TO_FIT = 1000  # prompts of a fit
HOLDER = '{"text": "5 + 7 + 5 = ", "answer": "17"}\n{"text": "The capital of France is", "answer": " Paris"}'


def source_of(page: str, *sources: str) -> Input:
    """Return a page's input that chooses where its prompts come from."""
    return choice("prompts", f"{page}.source", BUNDLED, sources or (BUNDLED, LINES), "Prompts", SOURCES)


def of_set(page: str) -> tuple[Input, Input]:
    """Return the inputs of `set_or_lines` that a page's link carries."""
    return source_of(page), choice("set", f"{page}.set", "", set_names(), "Prompt set")


def of_fit(page: str) -> tuple[Input, Input]:
    """Return the inputs of `to_fit` that a page's link carries."""
    return source_of(page), several("sets", f"{page}.sets", [EXAMPLES], [EXAMPLES, *set_names()], "Prompt sets")


OF = of_set("prompts")[1]
HOW_MANY = number("n_prompts", "prompts.n", 12, 1, MOST, int, "How many")
PARAMETERS = (source_of("prompts", *SOURCES), OF, HOW_MANY)  # of `choose`: pasted lines and files no link carries


def choose() -> list[Prompt]:
    """Draw the choice of prompts and return those chosen, [] for none; a `PromptError` says what is wrong."""
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-prompts")
    source = PARAMETERS[0].draw(row.segmented_control)
    if source == ONE:
        prompt_box.draw()
        return [prompt_box.prompt()]
    if source == LINES:
        return lines()
    own = own_sets(picker.model())
    name = OF.draw_of(row.selectbox, own, format_func=_set_name, width=230) if len(own) > 1 else own[0]
    known = read_jsonl(SETS / f"{name}.jsonl")
    n = min(HOW_MANY.draw(row.number_input, width=130), len(known))
    # the kinds of a mixed set take turns; others are sorted by level
    return known[:n] if name == MIXED else [known[i * len(known) // n] for i in range(n)]


def own_sets(model: str) -> list[str]:
    """Return the bundled sets that suit a model: those of a bundled one's training, else plain English."""
    if default_set(model) == MIXED:
        return [MIXED]
    characters = ("chains", "sums")
    own = characters if reads_characters(model) else (n for n in set_names() if n not in (*characters, MIXED))
    return sorted(own, key=lambda name: name != default_set(model))


def set_or_lines(row: Any, page: str, model: ModelSpec) -> str | None:
    """Draw the choice between bundled sets and lines; return the name of the set, the model's own (`default_set`)
    unless another is chosen, or None where the prompts are `lines`."""
    source, which = of_set(page)
    if source.draw(row.segmented_control) != BUNDLED:
        return None
    usual = default_set(model.source)
    options = ["", *(name for name in set_names() if name != usual)]
    return which.draw_of(row.selectbox, options, format_func=lambda name: name or usual, width=260) or usual


def lines(most: int = MOST) -> list[Prompt]:
    """Draw boxes for a .jsonl file and pasted lines, and return at most `most` of their prompts, [] while nothing is
    pasted. A file fills the box below it, so that what runs is always visible. A `PromptError` says what is wrong."""
    left, right = st.columns([1, 2])
    kinds = ["jsonl", "json", "txt"]
    left.file_uploader("A .jsonl file", kinds, key="prompts.file", on_change=_uploaded, max_upload_size=MEGABYTES)
    look: dict[str, Any] = dict(height=150, placeholder=HOLDER, help=WORDS["Lines"])
    inputs.widget(right.text_area, "Prompts, one JSON object a line", "prompts.lines", "", changed=_pasted, **look)
    if trouble := inputs.value("prompts.trouble"):
        raise PromptError(trouble)
    if not inputs.value("prompts.lines", "").strip():
        what = "No prompts yet: choose a file, or paste lines like those shown in grey."
        st.info(what, icon=":material/playlist_add:")
        return []
    prompts = parse_jsonl(inputs.value("prompts.lines"), "The list")
    if len(prompts) > most:
        what = f"The list holds {len(prompts)} prompts; the first {most} are measured."
        st.warning(f"{what} The command line takes any number.", icon=":material/content_cut:")
    return prompts[:most]


def _set_name(name: str) -> str:
    """Return a prompt set's name on its button."""
    task = name.removesuffix("_worked")
    own = {EXAMPLES: "Examples", MIXED: "Mixed"}
    return own.get(name) or prompt_box.task_name(task) + ", worked" * (name != task)


def to_fit(page: str, row: Any) -> list[Prompt]:
    """Draw the choice of prompts for a fit, behind a button in the `row`, and return them; those that judge the fit are
    among them. Boxes for pasted lines appear below the row."""
    source, sets = of_fit(page)
    names = sets.value or []
    summary = "own" if source.value == LINES else _set_name(names[0]) if len(names) == 1 else f"{len(names)} sets"
    box = row.popover(f"Prompts: {summary}", key=f"box-{page}-prompts")
    if source.draw(box.segmented_control, label_visibility="collapsed") == LINES:
        return lines(MOST_TO_FIT)
    names = sets.draw(box.pills, format_func=_set_name, selection_mode="multi", help=WORDS["Sets"])
    if not names:
        st.info("No prompt set is chosen; choose at least one.", icon=":material/playlist_add:")
    own = [Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts(picker.model())] if EXAMPLES in names else []
    return own + [p for name in names if name != EXAMPLES for p in read_jsonl(SETS / f"{name}.jsonl")]


def _pasted(key: str) -> None:
    """Note the pasted lines, and forget the error of an upload."""
    inputs.note(key)
    inputs.forget("prompts.trouble")


def _uploaded() -> None:
    """Put the file's lines into the box, or remember why not: it is no text, or larger than `MEGABYTES`, which the
    browser refuses and somebody else may send."""
    inputs.forget("prompts.trouble")
    if (file := st.session_state["prompts.file"]) is not None:
        try:
            text = untrusted.decoded(file.getvalue(), "The file", MEGABYTES << 20, PromptError)
            inputs.put({"prompts.lines": text})
        except PromptError as error:
            inputs.put({"prompts.trouble": str(error)})


def run_when(spec: ModelRef, prompts: list[Prompt]) -> dict[str, Any]:
    """Return whether these prompts can be run, and their tokens, as arguments of `running.run_row`."""
    if prompts == [prompt_box.prompt()]:
        return {"ready": prompt_box.ready(), "n_tokens": prompt_box.n_tokens()}
    return {"ready": True, "n_tokens": n_tokens(spec, prompts)}


def n_tokens(spec: ModelRef, prompts: Sequence[Prompt]) -> int | None:
    """Return the mean number of tokens of prompts, by the model's tokenizer file; None where that is not here. A
    `PromptError` names a prompt that is over the limit."""
    texts = [t for prompt in prompts if (t := tokens.preview(spec, prompt)) is not None]
    if len(texts) < len(prompts):
        return None
    for i, t in enumerate(texts):
        if why := tokens.too_long(spec, len(t)):
            raise PromptError(f"Prompt {i} ({prompts[i].text[:30]!r}…): {why}")
    return round(sum(map(len, texts)) / len(texts))


def command(batch: running.Batch, probes: Iterable[Probe], prompts: list[Prompt]) -> None:
    """Show the commands that do the same in the shell, for the model and its control, and the prompts' file."""
    with st.expander("The same from the command line"):
        for spec in dict.fromkeys(r.models[0] for r in batch.requests.values()):
            line = run_command(probes, spec, "prompts.jsonl", f"{spec.control or 'result'}.npz")
            st.code(line, language=None)
        show.prompts_file(prompts)


def source(spec: ModelSpec) -> str:
    """Return a model's name with its commit, as the command line takes it."""
    return f"{spec.source}@{spec.revision}" if spec.revision else spec.source
