"""One case study, from its own file: words, figures, origin, and what can be done with it. It asks neither the model
nor the worker."""

import re
import time
from functools import partial
from html import escape
from typing import Any

import streamlit as st

from ed_core import settings
from ed_core.cases.case_study import ID, Case, edited
from ed_core.cases.drawings import Section, says, sections
from ed_core.cases.export import exported, tables
from ed_core.cases.report import to_html
from ed_core.cases.snippet import snippet
from ed_core.depth import say
from ed_core.errors import CaseError, EffectiveDepthError
from ed_ui import case_studies, inputs, link, session, show
from ed_ui.session import Editing


def page() -> None:
    """Draw the page: one case study with its words, figures, and what can be done with it."""
    id = chosen()
    under_edit = session.current().editing.get(id)
    try:
        case, state = case_studies.kept().open(id)
    except CaseError as error:
        missing(id, error)
        if under_edit is not None:
            edit(under_edit)
        return
    with st.container(key="case"):
        st.page_link(case_studies.GALLERY, label="All case studies", icon=":material/arrow_back:")
        head(case)
        verdicts(case.verdict.splitlines())
        actions(case, state)
        if under_edit is not None:
            edit(under_edit)
        if case.notes.strip() and under_edit is None:
            notes(case.notes)
        for i, one in enumerate(sections(case)):
            section(i, one)
        again(case)


def chosen() -> str:
    """Return the id in the URL; without one that of the case study this session opened last: leaving by a button takes
    the id out of the history, and the browser's Back must find it again."""
    id = st.query_params.get("id") or session.current().case_id
    session.current().case_id = id
    if id:
        link.put({"id": id})
    return id


def missing(id: str, error: CaseError) -> None:
    """Show that a case study cannot be opened, with the way to the others and, for a damaged one, Delete."""
    text = show.plain(str(error)) if id else "This link names no case study; choose one from the list."
    st.error(text, icon=":material/link_off:")
    if ID.fullmatch(id or "") and case_studies.kept().exists(id) and not undeletable(id):
        with st.popover("Delete", key="case.delete", icon=":material/delete:"):
            delete(id, id)
    st.page_link(case_studies.GALLERY, label="All case studies", icon=":material/collections_bookmark:")


def head(case: Case) -> None:
    """Draw a case study's title, dates and tags."""
    st.subheader(show.plain(case.title), anchor=False)
    changed = f", changed {when(case.changed)}" if case.changed - case.created >= 60 else ""
    shipped = " :gray-badge[comes with the app]" if case_studies.kept().is_shipped(case.id) else ""
    tags = "".join(f" :blue-badge[{show.plain(tag)}]" for tag in case.tags)
    st.caption(f"Kept {when(case.created)}{changed}{shipped}{tags}")


def when(seconds: float) -> str:
    """Return a time (Unix seconds) as text in UTC."""
    return time.strftime("%d %b %Y, %H:%M UTC", time.gmtime(seconds))


def verdicts(lines: list[str]) -> None:
    """Show the verdicts that the case study was saved with, behind a click where they are more than `AT_ONCE`."""
    with st.expander(f"{len(lines)} verdicts") if len(lines) > AT_ONCE else st.container(gap="xsmall"):
        for line in lines:
            st.markdown(f"**{show.plain(line)}**" if len(lines) <= AT_ONCE else show.plain(line))


def actions(case: Case, state: str) -> None:
    """Draw what can be done with a case study, always in the same place. `state`: that of its file, by which a later
    save notices a change by somebody else."""
    row = st.container(horizontal=True, key="case-actions")
    barrier, not_here = case_studies.why_not(), case_studies.why_not(case.id)
    look: dict[str, Any] = {"icon": ":material/edit:"} | off(not_here, "Title, tags and notes")
    row.button("Edit", key="case.edit", on_click=begin_edit, args=(case, state), **look)
    look = {"icon": ":material/play_arrow:", "help": ABOUT_LIVE}
    if row.button("Open live", key="case.live", **look):
        page, parameters = case_studies.open_live(case)
        st.switch_page(page, query_params=parameters)
    with row.popover("Share", icon=":material/share:", key="case.share"):
        st.markdown(f"**Copy link**{'' if settings.current().hosted else ' (this computer)'}")
        st.code(f"{st.context.url or ''}?id={case.id}", language=None, wrap_lines=True)
        st.markdown("**Download for a colleague**")
        downloads(case)
    look = {"icon": ":material/content_copy:"} | off(barrier, "A copy of your own to edit")
    if row.button("Duplicate", key="case.duplicate", **look):
        case_studies.attempt(lambda: go(case_studies.writable().duplicate(case)))
    reason = undeletable(case.id)
    look = {"icon": ":material/delete:"} | off(reason, "Deletes this case study")
    with row.popover("Delete", key="case.delete", **look):
        if not reason:
            delete(case.id, case.title)


def undeletable(id: str) -> str:
    """Return why this visitor may not delete a case study; "" where they may."""
    hosted = "Nothing can be deleted here from the browser."
    return hosted if settings.current().hosted else case_studies.why_not(id)


def delete(id: str, title: str) -> None:
    """Draw the question whether to delete a case study, and delete it when confirmed."""
    st.markdown("Delete this case study? This cannot be undone.")
    pressed = st.button("Delete it", type="primary", key="case.delete.yes")
    if pressed and case_studies.attempt(lambda: case_studies.writable(id).delete(id)):
        st.toast(f"Deleted: {show.plain(title)}", icon=":material/delete:")
        st.switch_page(case_studies.GALLERY)


def off(reason: str, told: str) -> dict[str, Any]:
    """Return a button's arguments: off, with the `reason` as its help, or on, with `told` as its help."""
    return {"disabled": bool(reason), "help": show.plain(reason) or told}


def go(case: Case) -> None:
    """Open the page of a case study."""
    st.switch_page(case_studies.CASE, query_params={"id": case.id})


def begin_edit(case: Case, opened: str) -> None:
    """Open the boxes for a case study's words. `opened`: the state of its file now."""
    session.current().editing[case.id] = Editing(case, opened)
    fields = {"title": case.title, "tags": ", ".join(case.tags), "notes": case.notes}
    inputs.put({f"edit.{case.id}.{name}": text for name, text in fields.items()})


def end_edit(id: str) -> None:
    """Close the boxes for a case study's words, and forget what is typed."""
    session.current().editing.pop(id, None)
    inputs.forget(*(f"edit.{id}.{name}" for name in case_studies.WORDS))


def edit(editing: Editing) -> None:
    """Draw the boxes for title, tags and notes with a preview, and below them what saving came to. What is typed
    survives page changes and a conflict, and nobody's words are overwritten unseen."""
    case, prefix = editing.case, f"edit.{editing.case.id}"
    with st.container(border=True, key="editing"):
        left, right = st.columns(2)
        with left:
            case_studies.word_boxes(prefix, "")
        with right:
            st.caption("The notes as they will read")
            notes(inputs.value(f"{prefix}.notes", ""))
        row = st.container(horizontal=True)
        if row.button("Save", type="primary", key=f"{prefix}.save", icon=":material/check:"):
            save(editing)
        row.button("Discard changes", key=f"{prefix}.end", on_click=end_edit, args=(case.id,))
        if editing.trouble:
            show.error(editing.trouble)
            if st.button("Keep mine as a copy", key=f"{prefix}.copy", icon=":material/content_copy:"):
                save(editing, as_copy=True)


def notes(text: str) -> None:
    """Show a stranger's Markdown, as text that can do nothing."""
    st.html(f'<div class="ed-notes" dir="auto">{to_html(text)}</div>')


def save(editing: Editing, as_copy: bool = False) -> None:
    """Write the edited words, or keep them as another case study; where this fails they stay in their boxes."""
    id = editing.case.id
    try:
        changed = edited(editing.case, **case_studies.typed_words(f"edit.{id}"))
        if as_copy:
            changed = case_studies.writable().duplicate(changed)
        else:
            case_studies.writable(id).save(changed, editing.opened)
    except EffectiveDepthError as error:
        editing.trouble = str(error)
        st.rerun()
    end_edit(id)
    if as_copy:
        go(changed)
    st.toast("Saved.", icon=":material/check:")
    st.rerun()


def downloads(case: Case) -> None:
    """Draw the downloads: whole files first, then one measure as a table, made when asked for."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", case.title).strip("-").lower()[:40] or "case"
    for ending, label in FILES.items():
        archive = partial(case_studies.kept().read, case.id)
        make = archive if ending == ".edcase" else partial(exported, case, ending)
        st.download_button(label, make, f"{name}-{case.id}{ending}", key=f"case{ending}", **FILE)
    measures = [name for name, (result, measure) in tables(case).items() if measure in result.measures]
    measure = st.selectbox("One measure as a table", measures, key="case.measure")
    make, file = partial(exported, case, ".csv", measure), f"{measure}-{case.id}.csv".replace("/", "-")
    st.download_button("Table (.csv)", make, file, key="case.csv", **FILE)


def section(i: int, one: Section) -> None:
    """Draw a section of a case study: prompts, tokens, sentences and figures. `i`: its number, in keys."""
    st.markdown(f"##### {show.plain(one.heading)}")
    answers = (f"<mark>{escape(prompt.answer)}</mark>" if prompt.answer else "" for prompt in one.prompts)
    boxes = [
        f'<pre class="ed-prompt" dir="auto" translate="no">{escape(prompt.text)}{answer}</pre>'
        for prompt, answer in zip(one.prompts, answers, strict=True)
    ]
    st.html("".join(boxes[:AT_ONCE]))
    if len(boxes) > AT_ONCE:
        with st.expander(f"{len(boxes) - AT_ONCE} more prompts"):
            st.html("".join(boxes[AT_ONCE:]))
    for view in one.views:
        if "continuation" in view.by_probe:
            text, known = says(view.by_probe["continuation"].result)
            st.markdown(f"The model continues {show.code(text, 80)}{MARKS[known]}")
    of_one = {view.prompts: view.first.result for view in one.views}.values()
    with st.expander(say.count(sum(result.n_tokens for result in of_one), "token")):
        for result in of_one:
            st.markdown(" ".join(show.token(text) for text in result.tokens))
    show.notes(one.notes)
    for line in one.says:
        st.markdown(f"**{show.plain(line)}**")
    for text in one.written:
        st.code(text or " ", language=None, wrap_lines=True)
    for j, drawing in enumerate(one.drawings):
        show.drawing(f"figure-{i}-{j}", drawing)


def again(case: Case) -> None:
    """Show the commands that compute the numbers again."""
    with st.expander("Compute it again"):
        st.code(snippet(case), language=None, wrap_lines=True)


AT_ONCE = 3  # prompts or verdicts that are open
FILE: dict[str, Any] = {"icon": ":material/download:", "on_click": "ignore"}
FILES = {
    ".edcase": "Case study (.edcase), to import elsewhere",
    ".html": "Report (.html), one file",
    ".npz": "All numbers (.npz)",
}
MARKS = {True: " :green[✓ the known answer]", False: " :orange[✗ not the known answer]", None: ""}
ABOUT_LIVE = (
    "Puts its model, prompt, parameters and view into the page it was kept from. Nothing runs until you press Run."
)

page()
