"""What a page that fits something asks for, and the panel that runs it."""

from __future__ import annotations

import streamlit as st

from ed_core.fits import measured
from ed_core.fits.file import Fit
from ed_core.prompts import read_jsonl
from ed_core.sources.bundled import MIXED, SETS, load_prompts, set_names
from ed_core.types import Prompt
from ed_ui import inputs, picker, prompt_box, prompt_set, run_panel, show
from ed_ui.runs import Fitted

EXAMPLES = "examples"  # the bundled prompts of all tasks
MOST = 1000  # prompts
SOURCES = ("Bundled sets", prompt_set.LINES)
ABOUT_SETS = (
    "Examples: the bundled prompts of all tasks. Mixed: 120 prompts in plain English. The others hold 80 to 200 "
    "prompts of one task each. Maps need more tokens than the model has dimensions, and a lens should have them: "
    "better ten times as many. A real model takes a file of its own."
)


def sets() -> list[str]:
    """The bundled prompt sets: examples of all tasks, and one a task."""
    return [EXAMPLES, *set_names()]


def named(name: str) -> str:
    """What a set is called on its button."""
    tail = ", worked" if name.endswith("_worked") else ""
    own = {EXAMPLES: "Examples", MIXED: "Mixed"}
    return own[name] if name in own else prompt_box.task_name(name.removesuffix("_worked")) + tail


def prompts(page: str, row) -> list[Prompt]:
    """The prompts to fit on, chosen behind a click in the `row`; every fifth of them is held out. Pasted lines stand
    below it."""
    names = inputs.value(f"{page}.sets", [EXAMPLES]) or []
    own = inputs.value(f"{page}.source", SOURCES[0]) != SOURCES[0]
    said = "own" if own else named(names[0]) if len(names) == 1 else f"{len(names)} sets"
    box = row.popover(f"Prompts: {said}", key=f"box-{page}-prompts")
    source = inputs.widget(
        box.segmented_control,
        "Prompts",
        f"{page}.source",
        SOURCES[0],
        options=SOURCES,
        required=True,
        label_visibility="collapsed",
    )
    if source != SOURCES[0]:
        return prompt_set.lines(MOST)
    about = dict(options=sets(), format_func=named, selection_mode="multi", help=ABOUT_SETS)
    names = inputs.widget(box.pills, "Prompt sets", f"{page}.sets", [EXAMPLES], **about)
    if not names:
        st.info("No prompt set is chosen; choose at least one.", icon=":material/playlist_add:")
    found = [Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts(picker.model())] if EXAMPLES in names else []
    return found + [p for name in names if name != EXAMPLES for p in read_jsonl(SETS / f"{name}.jsonl")]


def run(
    wanted: Fitted, page: str, takes: str, linked: bool = True
) -> measured.Maps | measured.Replacement | Fit | None:
    """The panel of a fit, with what it `takes`; returns what came of it."""
    found = wanted.found()
    told = "stored" if found is not None else takes
    run_panel.draw(wanted.run, page, {page: ("Run", wanted.begin)}, told, found is not None, linked)
    return found


def command(wanted: Fitted, out: str) -> None:
    """The same fit from the command line, and the file of prompts that it needs."""
    st.code(wanted.spec("prompts.jsonl", out).command, language="bash")
    show.prompts_file(wanted.prompts)
