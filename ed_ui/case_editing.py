"""Editing a case study's words: what is typed survives page changes, a conflict and a deletion, and nobody's words are
overwritten unseen."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from ed_core.cases.case_study import Case, edited
from ed_core.cases.report import to_html
from ed_core.errors import CaseError, EffectiveDepthError
from ed_ui import case_studies, inputs, session, show
from ed_ui.session import Editing


def of(id: str) -> Editing | None:
    """What this session is editing of that case study."""
    return session.current().editing.get(id)


def begin(case: Case, opened: str) -> None:
    session.current().editing[case.id] = Editing(case, opened)
    held = {"title": case.title, "tags": ", ".join(case.tags), "notes": case.notes}
    inputs.put({f"edit.{case.id}.{name}": text for name, text in held.items()})


def end(id: str) -> None:
    session.current().editing.pop(id, None)
    inputs.forget(*(f"edit.{id}.{name}" for name in case_studies.WORDS))


def form(editing: Editing, opened_copy: Callable[[Case], None]) -> None:
    """The boxes with a preview of the notes; below them what saving came to. `opened_copy` goes to the page of a
    copy."""
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
            _save(editing)
        row.button("Discard changes", key=f"{prefix}.end", on_click=end, args=(case.id,))
        if editing.trouble:
            show.error(editing.trouble)
        if editing.lost and st.button("Keep mine as a copy", key=f"{prefix}.copy", icon=":material/content_copy:"):
            _copy(editing, opened_copy)


def notes(text: str) -> None:
    """A stranger's Markdown, as text that can do nothing."""
    st.html(f'<div class="ed-notes" dir="auto">{to_html(text)}</div>')


def _changed(editing: Editing) -> Case:
    return edited(editing.case, **case_studies.typed_words(f"edit.{editing.case.id}"))


def _save(editing: Editing) -> None:
    """Write the words; where that fails they stay in their boxes, and where the case study is another by now, or gone,
    they may become a copy."""
    id, changed = editing.case.id, None
    try:
        changed = _changed(editing)
        case_studies.save(changed, editing.opened)
        end(id)
        st.toast("Saved.", icon=":material/check:")
    except EffectiveDepthError as error:
        editing.trouble, editing.lost = str(error), changed is not None and isinstance(error, CaseError)
    st.rerun()


def _copy(editing: Editing, opened_copy: Callable[[Case], None]) -> None:
    try:
        copy = case_studies.duplicate(_changed(editing))
    except EffectiveDepthError as error:
        editing.trouble, editing.lost = str(error), True
        st.rerun()
    end(editing.case.id)
    opened_copy(copy)
