"""Case studies: every write to their folder comes through here; which inputs make a page's view, read from the session
and put back into it; and the Save button next to Run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core.cases import case_study
from ed_core.cases.case_study import ITEMS, Case, Item, Shown
from ed_core.cases.export import exported
from ed_core.cases.kept import Kept
from ed_core.depth import say
from ed_core.errors import CaseError, EffectiveDepthError
from ed_core.prompts import to_jsonl
from ed_core.types import ProbeResult, Request
from ed_ui import inputs, link, navigation, prompt_set, running, session, show, visitor
from ed_ui.inputs import Input

GALLERY, CASE = (str(navigation.ROOT / "pages" / "case_studies" / name) for name in ("gallery.py", "case.py"))
WORDS = ("title", "tags", "notes")
THRESHOLDS = ("kl_threshold", "overlap_threshold")


@st.cache_resource
def kept() -> Kept:
    """Return this server's folder of case studies, one object for all sessions."""
    return Kept()


# -------------------------------------------------------------------- writing


def writable(id: str = "") -> Kept:
    """Return the folder of case studies; raise a `CaseError` where this visitor may not write the case study `id` ("":
    a new one)."""
    if reason := why_not(id):
        raise CaseError(reason)
    return kept()


def why_not(id: str = "") -> str:
    """Return why this visitor may not change the case study `id` ("": save a new one), in a sentence; "" where they
    may."""
    return visitor.why_not() or (NOT_SHIPPED if id and kept().is_shipped(id) else "")


# -------------------------------------------------------------------- how a page is looked at


INPUTS: dict[str, Mapping[str, Input]] = {  # of a page, by their names in a case study
    "home": {"of": inputs.OF, "count_sinks": inputs.COUNT_SINKS},
    "contributions": {"measure": inputs.MEASURE, "count_sinks": inputs.COUNT_SINKS},
    "logit_lens": {"shade": inputs.LENS_SHADE, "count_sinks": inputs.COUNT_SINKS},
    "lenses": {"shade": inputs.LENSES_SHADE},
    "residual_erasure": {"count_sinks": inputs.COUNT_SINKS},
    "layer_skip": {"boundary": inputs.BOUNDARY},
    "two": {
        "overlaid": inputs.OVERLAID,
        "count_sinks": inputs.COUNT_SINKS,
        "branch": inputs.SIDES_BRANCH,
        "shade": inputs.SIDES_SHADE,
        **{one.name: one for one in inputs.SIDES_MAPS.values()},
    },
}
FIRST_TOKEN = {"home": inputs.FIRST_TOKEN.key, "contributions": inputs.COUNTED.key}  # whether the first token counts
WINDOW = "window.page", 64  # of every page: its key, and how many tokens it holds


def view_of(page: str, n_tokens: int) -> Shown:
    """Return how `page` shows a prompt of `n_tokens` tokens now: its window, selected token and chosen settings."""
    chosen = ((name, inputs.value(one.key)) for name, one in INPUTS.get(page, {}).items())
    settings = tuple((name, value) for name, value in chosen if value is not None)
    key, most = WINDOW
    return Shown(page, inputs.window(key, n_tokens, most), inputs.token(n_tokens), settings)


def judged(page: str) -> dict[str, Any]:
    """Return the thresholds of `page`, and whether its first token counts, as keyword arguments of `case_study.make`;
    only those that the visitor has set."""
    named = {name: name for name in THRESHOLDS if page == "home"}
    named |= {"first_token": FIRST_TOKEN[page]} if page in FIRST_TOKEN else {}
    return {name: value for name, key in named.items() if (value := inputs.value(key)) is not None}


def open_live(case: Case) -> str:
    """Put the models, prompts and settings of a case study into the boxes of the page it was saved from, and return
    that page's file; only from a callback. The chosen model becomes the first one that is no control."""
    requests = [item.result.request for item in case.items]
    first = next((item for item in case.items if not item.result.request.models[0].control), case.items[0])
    shown_of = first.result.request
    for request in requests:
        if (request.models, request.prompts) == (shown_of.models, shown_of.prompts):
            link.open_run(request)
    twin = next((m for request in requests for m in request.models if m.control), None)
    prompts = list(dict.fromkeys(request.prompts[0] for request in requests))
    inputs.put(
        {
            "control": twin.control if twin else inputs.NONE,
            "control.seed": twin.control_seed if twin else 0,
            "prompts.source": prompt_set.ONE if len(prompts) == 1 else prompt_set.LINES,
        }
    )
    if len(prompts) > 1:
        inputs.put({"prompts.lines": to_jsonl(prompts)})
    page = first.shown.page if first.shown.page in navigation.KEPT_FROM else "home"
    if page == "two":
        _side_b(shown_of, requests)
    _look(case, first, page)
    return navigation.KEPT_FROM[page]


def _side_b(first: Request, requests: list[Request]) -> None:
    """Fill side B of the page *A | B* with the model or prompt in which `requests` differ from the `first` one."""
    other = next((r for r in requests if (r.models, r.prompts) != (first.models, first.prompts)), first)
    model, prompt = other.models[0], other.prompts[0]
    values = {
        "mode": "models" if other.prompts == first.prompts else "prompts",
        "model": model.source,
        "precision": model.precision,
        "control": model.control or inputs.NONE,
        "control.seed": model.control_seed,
        "text": prompt.text,
        "answer": prompt.answer,
        "example": "",
        "probes": list(dict.fromkeys(r.probe for r in requests)),
    }
    inputs.put({f"two.{name}": value for name, value in values.items()} | {"control": inputs.NONE})


def _look(case: Case, item: Item, page: str) -> None:
    """Set the page's own inputs (window, token, thresholds, settings) to those that the item was saved with."""
    shown, settings = item.shown, dict(item.shown.settings)
    values: dict[str, object] = {"token": shown.selected, WINDOW[0]: shown.window}
    values |= {one.key: settings.get(name) for name, one in INPUTS.get(page, {}).items()}
    if page == "home":
        values |= {name: getattr(case, name) for name in THRESHOLDS}
    if page in FIRST_TOKEN:
        values[FIRST_TOKEN[page]] = case.first_token
    inputs.forget(*values)
    inputs.put({key: value for key, value in values.items() if value is not None})


# -------------------------------------------------------------------- the button next to Run


def save_button(box: DeltaGenerator, page: str, batch: running.Batch) -> None:
    """Draw the form that saves a page's results as a case study, in the `box` of Share, or say why nothing can be
    saved. `page`: one of `navigation.KEPT_FROM`."""
    # untrained copies that were measured without being chosen as the control are stored, and no part of the view
    controlled = any(name.endswith(running.CONTROL) for name in batch.requests)
    own = [name for name in batch.requests if controlled or running.TWIN not in name]
    candidates = [r for name in own if (r := batch.results.get(name)) is not None and r.complete]
    results = list({r.request.key: r for r in candidates}.values())  # both sides of a comparison may rest on one result
    reason, fits, left_out = why_not(), list[ProbeResult](), list[str]()
    try:
        fits, left_out = fitting(results) if results else ([], [])
    except CaseError as error:
        reason = reason or str(error)
    reason = reason or ("" if fits else "Nothing is complete yet: press Run, then save what it shows.")
    with box.container(key=f"keep.{page}", width=400):
        st.markdown("**Save as a case study**", help=ABOUT)
        if reason:
            st.caption(show.plain(reason))
        else:
            _form(page, fits, left_out)


def fitting(results: Sequence[ProbeResult]) -> tuple[list[ProbeResult], list[str]]:
    """Return as many results as one case study may have, and the names of the probes left out. Probes stay whole and in
    order, so that every prompt has the same ones. Raises a `CaseError` where not even one probe fits."""
    probes = list(dict.fromkeys(r.request.probe for r in results))
    for n in range(len(probes), 0, -1):
        if len(first := [r for r in results if r.request.probe in probes[:n]]) <= ITEMS:
            return first, probes[n:]
    raise CaseError(
        f"This view has {len(first)} results of {probes[0]} alone, a case study holds {ITEMS}: choose fewer prompts or "
        "precisions to keep it."
    )


def suggestion(results: Sequence[ProbeResult]) -> str:
    """Return a suggested title: the model's name, and how the prompt begins or how many prompts it is about."""
    prompts = list(dict.fromkeys(r.request.prompts[0] for r in results))
    name = results[0].request.models[0].name[:40]
    what = case_study.cut(prompts[0].text, 78 - len(name)) if len(prompts) == 1 else f"{len(prompts)} prompts"
    title = f"{name}: {what}"
    return case_study.tidy("".join(c for c in title if c not in case_study.REORDERING))


def _form(page: str, results: list[ProbeResult], left_out: list[str]) -> None:
    """Draw the boxes for title, tags and notes, with Save and Download; once saved, a link to the case study."""
    lengths, saved = {r.n_tokens for r in results}, session.current().saved
    # prompts of several lengths have no window in common
    shown = view_of(page, lengths.pop() if len(lengths) == 1 else 0)
    state = (tuple(r.request.key for r in results), shown, tuple(judged(page).items()))
    saved_state, id, its_title = saved.get(page, (None, "", ""))
    if saved_state == state:
        st.success(f"Saved: **{show.plain(its_title)}**", icon=":material/bookmark_added:")
        st.page_link(CASE, label="Open the case study", icon=":material/open_in_new:", query_params={"id": id})
        return
    title = suggestion(results)
    word_boxes(f"keep.{page}", title)
    without = f" without {', '.join(left_out)} (at most {ITEMS} fit)" if left_out else ""
    st.caption(f"Keeps copies of {say.count(len(results), 'result')}{without}.")
    row = st.container(horizontal=True)
    if row.button("Save", type="primary", key=f"keep.{page}.save"):
        attempt(lambda: _save(page, results, shown, state, title))
    row.download_button(
        "Download for a colleague",
        lambda: exported(_made(page, results, shown, title), ".html"),
        "report.html",
        "text/html",
        icon=":material/download:",
        on_click="ignore",
        key=f"keep.{page}.report",
        help="One page with the figures, the numbers and how to compute them again; it needs no app.",
    )


def _made(page: str, results: list[ProbeResult], shown: Shown, title: str) -> Case:
    """Return the case study of the shown results with the typed title, tags and notes; `title` where none is typed."""
    typed = typed_words(f"keep.{page}")
    typed["title"] = typed["title"].strip() or title
    return case_study.make(results=results, shown=shown, **typed, **judged(page))


def _save(page: str, results: list[ProbeResult], shown: Shown, state: tuple[object, ...], title: str) -> None:
    """Store the case study, empty its boxes and run the page again. `state`: what was saved, so that it is not offered
    twice."""
    case = _made(page, results, shown, title)
    writable().add(case)
    inputs.forget(*(f"keep.{page}.{name}" for name in WORDS))
    session.current().saved[page] = (state, case.id, case.title)
    st.toast(f"Saved: {show.plain(case.title)}", icon=":material/bookmark_added:")
    st.rerun()


def word_boxes(prefix: str, title: str) -> None:
    """Draw the boxes for title, tags and notes, which keep what is typed over page changes. `prefix`: of the inputs'
    keys. `title`: the suggestion shown while nothing is typed."""
    _box(st.text_input, "Title", f"{prefix}.title", title, max_chars=case_study.TITLE)
    about = f"At most {case_study.TAGS}. The search of case studies finds them."
    _box(st.text_input, "Tags", f"{prefix}.tags", placeholder="separated by commas", help=about)
    _box(st.text_area, "Notes", f"{prefix}.notes", height=90, max_chars=case_study.NOTES, placeholder=ASK)


def _box(draw: Callable[..., Any], label: str, key: str, default: str = "", **more: Any) -> None:
    """Draw one of these boxes with the widget `draw`; an emptied one shows its `default` again."""
    if not inputs.value(key):  # an emptied title is the suggested one again
        inputs.forget(key)
    inputs.widget(draw, label, key, default, words=True, **more)


def typed_words(prefix: str) -> dict[str, Any]:
    """Return the title, tags and notes that are typed in the boxes, as keyword arguments of `case_study.make`."""
    title, tags, notes = (inputs.value(f"{prefix}.{name}", "") for name in WORDS)
    return {"title": title, "tags": tags.split(","), "notes": notes}


def attempt(write: Callable[[], None]) -> bool:
    """Call `write` and return whether it succeeded; show its error otherwise, and lose nothing typed."""
    try:
        write()
    except EffectiveDepthError as error:
        show.error(error)
        return False
    return True


ABOUT = "Keep this view as a case study: its numbers, your notes, and a link that opens without the model."
ASK = "What should a reader notice here? Markdown."
NOT_SHIPPED = "This case study comes with the app and stays as it is: duplicate it and change the copy."
