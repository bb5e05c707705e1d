"""Case studies: every write to their folder comes through here; and the Save button beside Run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from ed_core.cases import case_study
from ed_core.cases.case_study import ITEMS, Case
from ed_core.cases.kept import Kept
from ed_core.errors import CaseError, EffectiveDepthError
from ed_core.types import ProbeResult
from ed_ui import case_view, inputs, running, session, show, visitor

GALLERY, CASE = "pages/case_studies/gallery.py", "pages/case_studies/case.py"
WORDS = ("title", "tags", "notes")


@st.cache_resource
def kept() -> Kept:
    """This server's folder of case studies; one for all sessions."""
    return Kept()


# -------------------------------------------------------------------- writing


def add(case: Case) -> None:
    _allowed()
    kept().add(case, visitor.name())


def save(case: Case, opened: str) -> str:
    """Replace the case study that was in the state `opened`; its new state."""
    _allowed(case.id)
    return kept().save(case, opened)


def duplicate(case: Case) -> Case:
    _allowed()
    return kept().duplicate(case, owner=visitor.name())


def take_in(data: bytes) -> tuple[Case, bool]:
    _allowed()
    return kept().take_in(data, visitor.name())


def delete(id: str) -> None:
    _allowed(id)
    kept().delete(id)


def restore(id: str) -> None:
    _allowed(id)
    kept().restore(id)


def why_not(id: str = "") -> str:
    """Why this visitor may keep nothing, or not change the case study `id`; "" where they may."""
    if (barrier := visitor.why_not()) or not id:
        return barrier
    return NOT_SHIPPED if kept().is_shipped(id) else visitor.why_not(kept().owner(id))


def whose(id: str) -> str:
    """Who kept the case study, for people who are logged in themselves: addresses are not for everybody."""
    owner = kept().owner(id) if visitor.name() else ""
    return "you" if owner == visitor.name() and owner else owner


def _allowed(id: str = "") -> None:
    if reason := why_not(id):
        raise CaseError(reason)


# -------------------------------------------------------------------- the button beside Run


def save_button(row, page: str, batch: running.Batch) -> None:
    """Save, at the end of the row of Run and Cancel: title, tags and notes, and the way to the page of what was kept.
    `page` is one of `navigation.KEPT_FROM`."""
    found = [r for name in batch.requests if (r := batch.results.get(name)) is not None and r.complete]
    results = list({r.request.key: r for r in found}.values())  # both sides of a comparison may rest on one result
    reason, fits, left_out = why_not(), [], []
    try:
        fits, left_out = fitting(results) if results else ([], [])
    except CaseError as error:
        reason = reason or str(error)
    reason = reason or ("" if fits else "Nothing is complete yet: press Run, then save what it shows.")
    look = {"icon": ":material/bookmark_add:", "help": show.plain(reason) or ABOUT}
    with row.popover("Save", disabled=bool(reason), key=f"keep.{page}", **look):
        if not reason:
            with st.container(width=400):
                _form(page, fits, left_out)


def fitting(results: Sequence[ProbeResult]) -> tuple[list[ProbeResult], list[str]]:
    """As many as a case study holds: whole probes in their order, so that no prompt has what another lacks; and the
    probes left out. A `CaseError` where not even one probe fits."""
    probes = list(dict.fromkeys(r.request.probe for r in results))
    for n in range(len(probes), 0, -1):
        if len(found := [r for r in results if r.request.probe in probes[:n]]) <= ITEMS:
            return found, probes[n:]
    raise CaseError(
        f"This view has {len(found)} results of {probes[0]} alone, a case study holds {ITEMS}: choose fewer prompts or "
        "precisions to keep it."
    )


def suggestion(results: Sequence[ProbeResult]) -> str:
    """A title: the model, and how the prompt begins."""
    prompts = list(dict.fromkeys(r.request.prompts[0] for r in results))
    what = case_study.tidy(prompts[0].text) if len(prompts) == 1 else f"{len(prompts)} prompts"
    title = f"{results[0].request.models[0].name}: {what}"[:80]
    return case_study.tidy("".join(c for c in title if c not in case_study.REORDERING))


def _form(page: str, results: list[ProbeResult], left_out: list[str]) -> None:
    lengths, saved = {r.n_tokens for r in results}, session.current().saved
    # prompts of several lengths have no window in common
    shown = case_view.shown(page, lengths.pop() if len(lengths) == 1 else 0)
    seen = (tuple(r.request.key for r in results), shown, tuple(case_view.judged(page).items()))
    was_seen, id, its_title = saved.get(page, (None, "", ""))
    if was_seen == seen:
        st.success(f"Saved: **{show.plain(its_title)}**", icon=":material/bookmark_added:")
        st.page_link(CASE, label="Open the case study", icon=":material/open_in_new:", query_params={"id": id})
        st.button("Save it once more", key=f"again.{page}", type="tertiary", on_click=saved.pop, args=(page,))
        return
    title = word_boxes(f"keep.{page}", suggestion(results))
    without = f" without {', '.join(left_out)} (at most {ITEMS} fit)" if left_out else ""
    st.caption(f"Keeps copies of {len(results)} result{'s' * (len(results) != 1)}{without}.")
    if st.button("Save", type="primary", key=f"keep.{page}.save"):
        attempt(lambda: _save(page, results, shown, seen, title))


def _save(page: str, results: list[ProbeResult], shown, seen, title: str) -> None:
    typed = typed_words(f"keep.{page}")
    typed["title"] = typed["title"].strip() or title
    case = case_study.make(results=results, shown=shown, **typed, **case_view.judged(page))
    add(case)
    inputs.forget(*(f"keep.{page}.{name}" for name in WORDS))
    session.current().saved[page] = (seen, case.id, case.title)
    st.toast(f"Saved: {show.plain(case.title)}", icon=":material/bookmark_added:")
    st.rerun()


def word_boxes(prefix: str, title: str) -> str:
    """The boxes for title, tags and notes; what is typed survives page changes. Returns the title that stands there
    when nothing is typed."""
    _box(st.text_input, "Title", f"{prefix}.title", title, max_chars=case_study.TITLE)
    about = f"At most {case_study.TAGS}. In the list of case studies a tag is a search."
    _box(st.text_input, "Tags", f"{prefix}.tags", placeholder="separated by commas", help=about)
    _box(st.text_area, "Notes", f"{prefix}.notes", height=150, max_chars=case_study.NOTES, placeholder=ASK)
    return title


def _box(draw: Callable, label: str, key: str, default: str = "", **more) -> None:
    if not inputs.value(key):  # an emptied title is the suggested one again
        inputs.forget(key)
    inputs.widget(draw, label, key, default, words=True, **more)


def typed_words(prefix: str) -> dict[str, Any]:
    """What the boxes hold, as a case study takes it."""
    title, tags, notes = (inputs.value(f"{prefix}.{name}", "") for name in WORDS)
    return {"title": title, "tags": tags.split(","), "notes": notes}


def attempt(write: Callable[[], None]) -> bool:
    """Whether a write went well; what stands in its way is said in its place, and nothing typed is lost."""
    try:
        write()
    except EffectiveDepthError as error:
        show.error(error)
        return False
    return True


ABOUT = "Keep this view as a case study: its numbers, your notes, and a link that opens without the model."
ASK = "What should a reader notice here? Markdown."
NOT_SHIPPED = "This case study comes with the app and stays as it is: duplicate it and change the copy."
