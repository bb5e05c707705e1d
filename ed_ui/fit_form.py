"""What a page that fits something asks for, and the row that starts it (`fit_runs`)."""

from __future__ import annotations

import shlex

import streamlit as st

from ed_core.fits import measured
from ed_core.fits.file import Fit
from ed_core.prompts import read_jsonl, to_jsonl
from ed_core.sources.bundled import MIXED, SETS, load_prompts, set_names
from ed_core.types import Prompt
from ed_ui import link, prompt_box, prompt_set, remembered, show
from ed_ui.fit_runs import Wanted

EXAMPLES = "examples"  # the bundled prompts of all tasks
MOST = 1000  # prompts
SOURCES = ("Bundled sets", "A file or pasted lines")
POLL = 1.0  # seconds
ABOUT_SETS = (
    "Examples: the bundled prompts of all tasks. Mixed: 120 prompts in plain English. The others hold 120 to 200 "
    "prompts of one task each. A fit needs more tokens than the model has dimensions, ten times as many at best; a "
    "real model takes a file of its own."
)


def sets() -> list[str]:
    """The bundled prompt sets: examples of all tasks, and one a task."""
    return [EXAMPLES, *set_names()]


def named(name: str) -> str:
    """What a set is called on its button."""
    tail = ", worked" if name.endswith("_worked") else ""
    own = {EXAMPLES: "Examples", MIXED: "Mixed"}
    return own[name] if name in own else prompt_box.task_name(name.removesuffix("_worked")) + tail


def prompts(page: str) -> list[Prompt]:
    """The prompts to fit on; every fifth of them is held out."""
    source = remembered.widget(
        st.segmented_control,
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
    names = remembered.widget(st.pills, "Prompt sets", f"{page}.sets", [EXAMPLES], **about)
    if not names:
        st.info("No prompt set is chosen; choose at least one.", icon=":material/playlist_add:")
    found = [Prompt(p["text"], p["answer"], p["id"]) for p in load_prompts()] if EXAMPLES in names else []
    return found + [p for name in names if name != EXAMPLES for p in read_jsonl(SETS / f"{name}.jsonl")]


def pause(wanted: Wanted) -> float | None:
    """How often `run` is drawn again: every second while the fit runs."""
    return POLL if wanted.running else None


def run(
    wanted: Wanted, page: str, takes: str, linked: bool = True
) -> measured.Maps | measured.Replacement | Fit | None:
    """Run, what it `takes`, Cancel, how far it is, why it ended; returns what came of it. The page is drawn as a whole
    when the fit begins and ends."""
    running, found, watched = wanted.running, wanted.found(), f"{page}.watched"
    if not running and remembered.value(watched) == str(wanted.out):
        remembered.forget(watched)
        st.rerun()
    if running:
        remembered.put({watched: str(wanted.out)})
    row = st.container(horizontal=True, vertical_alignment="center", key="run-row" if linked else f"run-row-{page}")
    off = running or found is not None
    if row.button("Run", key=f"run.{page}", type="primary", icon=":material/play_arrow:", disabled=off):
        wanted.begin()
        st.rerun()
    if row.button("Cancel", key=f"cancel.{page}", icon=":material/stop:", disabled=not running):
        wanted.stop()
        st.rerun()
    told = "stored" if found is not None else takes
    row.markdown(f":gray-badge[{show.plain(told)}]" if told else "", width="content")
    if linked:
        link.share(row)
    if running:
        names = show.plain(" and ".join(model.name for model in wanted.models))
        st.progress(wanted.share(), f"{100 * wanted.share():.0f} % · prompts run through {names}, sums are solved")
    elif trouble := wanted.trouble():
        show.error(trouble)
    return found


def command(wanted: Wanted, out: str) -> None:
    """The same fit from the command line, and the file of prompts that it needs."""
    arguments = wanted.arguments("prompts.jsonl", out)
    st.code(f"python -m ed_core {shlex.join(arguments)}", language="bash")
    lines = to_jsonl(wanted.prompts)
    st.download_button("prompts.jsonl", lines, "prompts.jsonl", "application/jsonl", icon=":material/download:")
