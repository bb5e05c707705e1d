"""Case studies: every write to their folder comes through here; which inputs make a page's view, read from the session
and put back into it; and the Save button next to Run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core.cases import case_study
from ed_core.cases.case_study import ITEMS, Case, Shown
from ed_core.cases.export import exported
from ed_core.cases.kept import Kept
from ed_core.depth import say
from ed_core.errors import CaseError, EffectiveDepthError
from ed_core.prompts import to_jsonl
from ed_core.types import ProbeResult, Request
from ed_ui import inputs, link, navigation, prompt_box, prompt_set, running, session, show, visitor

GALLERY, CASE = (str(navigation.ROOT / "pages" / "case_studies" / name) for name in ("gallery.py", "case.py"))
WORDS = ("title", "tags", "notes")
WINDOW = "window.page", 64  # of every page: its key, and how many tokens it holds


@st.cache_resource
def kept() -> Kept:
    """Return this server's folder of case studies, one object for all sessions."""
    return Kept()


# -------------------------------------------------------------------- writing


def writable(id: str = "") -> Kept:
    """Return the folder of case studies; raise a `CaseError` where this visitor may not write `id` ("": a new one)."""
    if reason := why_not(id):
        raise CaseError(reason)
    return kept()


def why_not(id: str = "") -> str:
    """Return why this visitor may not change the case study `id` ("": save a new one); "" where they may."""
    return visitor.why_not() or (NOT_SHIPPED if id and kept().is_shipped(id) else "")


# -------------------------------------------------------------------- how a page is looked at


JUDGED = {"kl": "kl_threshold", "overlap": "overlap_threshold", "first_token": "first_token"}  # arguments of `make`


def view_of(page: str, n_tokens: int) -> Shown:
    """Return how `page` shows a prompt of `n_tokens` tokens now: its window, selected token, and its choices
    that are off their defaults, by their names in a link."""
    chosen = ((one.name, one.value) for one in link.state().own if one.bounded and one.value != one.default)
    settings = tuple((name, value) for name, value in chosen if name not in JUDGED)
    return Shown(page, inputs.window(WINDOW[0], n_tokens, WINDOW[1]), inputs.token(n_tokens), settings)


def judged() -> dict[str, Any]:
    """Return the thresholds of the page, and whether its first token counts, as keyword arguments of `case_study.make`;
    only those that are off their defaults."""
    return {JUDGED[one.name]: one.value for one in link.state().own if one.name in JUDGED and one.value != one.default}


def open_live(case: Case) -> tuple[str, dict[str, str]]:
    """Put the models and prompts of a case study into the boxes of the page it was saved from; return that page's file,
    and the URL parameters that set its other inputs. The chosen model becomes the first one that is no control."""
    requests = [item.result.request for item in case.items]
    item = next((item for item in case.items if not item.result.request.models[0].control), case.items[0])
    first, shown = item.result.request, item.shown
    page = shown.page if shown.page in navigation.KEPT_FROM else "home"
    prompts = list(dict.fromkeys(request.prompts[0] for request in requests))
    twin = next((m for request in requests for m in request.models if m.control), None)
    settings: dict[str, Any] = {"prompts": prompt_set.ONE if len(prompts) == 1 else prompt_set.LINES}
    for request in requests:
        if (request.models, request.prompts) == (first.models, first.prompts):
            link.open_run(request)
            settings |= {name: inputs.boxed(value) for name, value in request.parameters}
    settings["fits"] = settings.get("fit")  # a link names fits, and no files
    settings |= {name: getattr(case, argument) for name, argument in JUDGED.items()}
    settings |= dict(shown.settings) | {"token": shown.selected, "control": twin.control if twin else inputs.NONE}
    settings |= {"control_seed": twin.control_seed if twin else 0}
    settings |= {"tokens": f"{shown.window[0]}-{shown.window[1]}"} if shown.window else {}
    if settings["prompts"] == prompt_set.LINES:
        inputs.put({"prompts.lines": to_jsonl(prompts)})
    if page == "two":
        settings |= _side_b(first, requests) | {"control": inputs.NONE}
    given = {name: v for name, v in settings.items() if v not in (None, "") or (name, v) == ("fits", "")}
    return navigation.KEPT_FROM[page], {name: inputs.written(value) for name, value in given.items()}


def _side_b(first: Request, requests: list[Request]) -> dict[str, Any]:
    """Put the prompt of side B of *A | B* into its box; return the page's URL parameters with the model or prompt in
    which `requests` differ from the `first` one."""
    other = next((r for r in requests if (r.models, r.prompts) != (first.models, first.prompts)), first)
    model, prompt = other.models[0], other.prompts[0]
    prompt_box.fill(prompt.text, prompt.answer, side="two.")
    return {
        "compare": "models" if other.prompts == first.prompts else "prompts",
        "second": model.source,
        "second_precision": model.precision,
        "second_control": model.control or inputs.NONE,
        "second_seed": model.control_seed,
        "measures": ",".join(dict.fromkeys(r.probe for r in requests)),
    }


# -------------------------------------------------------------------- the button next to Run


def save_button(box: DeltaGenerator, page: str, batch: running.Batch) -> None:
    """Draw the form that saves a page's results as a case study, in the `box` of Share, or say why nothing can be
    saved. `page`: one of `navigation.KEPT_FROM`."""
    candidates = [r for name in batch.requests if (r := batch.results.get(name)) is not None and r.complete]
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
        f"This view has {len(first)} results of {probes[0]} alone, a case study holds {ITEMS}: choose fewer prompts "
        "to keep it."
    )


def suggestion(results: Sequence[ProbeResult]) -> str:
    """Return a suggested title: the model's name, and how the prompt begins or how many prompts it is about."""
    prompts = list(dict.fromkeys(r.request.prompts[0] for r in results))
    name = results[0].request.models[0].name[:30]
    what = case_study.cut(prompts[0].text, 50 - len(name)) if len(prompts) == 1 else f"{len(prompts)} prompts"
    title = f"{name}: {what}"
    return case_study.tidy("".join(c for c in title if c not in case_study.REORDERING))


def _form(page: str, results: list[ProbeResult], left_out: list[str]) -> None:
    """Draw the boxes for title, tags and notes, with Save and Download; once saved, a link to the case study."""
    lengths, saved = {r.n_tokens for r in results}, session.current().saved
    # prompts of several lengths have no window in common
    shown = view_of(page, lengths.pop() if len(lengths) == 1 else 0)
    state = (tuple(r.request.key for r in results), shown, tuple(judged().items()))
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
    return case_study.make(results=results, shown=shown, **typed, **judged())


def _save(page: str, results: list[ProbeResult], shown: Shown, state: tuple[object, ...], title: str) -> None:
    """Store the case study, empty its boxes and run the page again. `state`: what is saved, offered once."""
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
