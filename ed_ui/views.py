"""How a page is looked at, as a case study keeps it: which inputs make a view, read from the session and put back into it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from ed_core.cases import Case, Item, Shown
from ed_core.prompts import to_jsonl
from ed_ui import controlling, prompt_set, scope

BRANCHES = {"both": "layer", "attention": "attn", "MLP": "mlp"}
SHADES = {"probability": "prob", "KL to output": "kl", "Jensen–Shannon": "jsd", "entropy": "entropy", "rank of the output": "rank"}
THRESHOLDS = ("kl_threshold", "overlap_threshold")


@dataclass(frozen=True)
class Place:
    """A page: its file; its inputs as (name in a case study, key of the widget, what the widget's labels stand for); the beginning of its window's
    key; the key of its "count the first token"."""

    path: str
    settings: tuple[tuple[str, str, Mapping[str, str]], ...] = ()
    window: str = "window.page"
    first_token: str = ""


PLACES: dict[str, Place] = {
    "home": Place("pages/look/home.py", (("branch", "branch", BRANCHES), ("shade", "shade", SHADES)), "window", "first_token"),
    "contributions": Place("pages/look/contributions.py", (("measure", "contributions.measure", {}),), first_token="kept.contributions.first_token"),
    "logit_lens": Place("pages/look/logit_lens.py", (("shade", "logit_lens.shade", SHADES),)),
    "numerics": Place("pages/look/numerics.py"),
    "layer_skip": Place("pages/intervene/skip.py", (("boundary", "skip.boundary", {}),)),
    "residual_erasure": Place("pages/intervene/erase.py"),
    "integrated_gradients": Place("pages/intervene/gradients.py"),
    "prune": Place("pages/intervene/prune.py"),
    "audit": Place("pages/compare/audit.py"),
}


def shown(page: str, n_tokens: int) -> Shown:
    """How `page` shows a prompt of `n_tokens` now."""
    state, place = st.session_state, PLACES[page]
    window, token = state.get(f"{place.window}.{n_tokens}"), state.get("token")
    settings = tuple((name, labels.get(state[key], state[key])) for name, key, labels in place.settings if state.get(key) is not None)
    return Shown(page, tuple(window) if window else None, token if token is not None and token < n_tokens else None, settings)


def judged(page: str) -> dict[str, float | bool]:
    """Thresholds, and whether the first token counts, as `ed_core.cases.make` takes them."""
    state, place = st.session_state, PLACES[page]
    found = {name: state[name] for name in THRESHOLDS if page == "home" and name in state}
    return found | ({"first_token": state[place.first_token]} if place.first_token and place.first_token in state else {})


def open_live(case: Case) -> str:
    """Put what a case study was kept from into the boxes of its page, and give the page's file; only from a callback. Its first model that is no
    control is the one in the sidebar."""
    requests = [item.result.request for item in case.items]
    first = next((item for item in case.items if not item.result.request.models[0].control), case.items[0])
    twin = next((m for request in requests for m in request.models if m.control), None)
    for request in [r for r in requests if r.models == first.result.request.models and r.prompts == first.result.request.prompts]:
        scope.open_live(request)
    state, page = st.session_state, first.shown.page if first.shown.page in PLACES else "home"
    state.update({"kept.control": twin.control if twin else controlling.NONE, "kept.control.seed": twin.control_seed if twin else 0})
    prompts = list(dict.fromkeys(prompt for request in requests for prompt in request.prompts))
    state["kept.prompts.source"] = prompt_set.ONE if len(prompts) == 1 else prompt_set.LINES
    state["kept.prompts.lines"] = to_jsonl(prompts) if len(prompts) > 1 else scope.kept("prompts.lines", "")
    if page == "audit":
        state["kept.audit.precisions"] = list(dict.fromkeys(m.precision for request in requests for m in request.models))
    _look(case, first, page)
    return PLACES[page].path


def _look(case: Case, item: Item, page: str) -> None:
    """The page's own inputs, so that it looks as it did."""
    state, place, seen = st.session_state, PLACES[page], item.shown
    held = dict(seen.settings)
    for name, key, labels in place.settings:
        if name in held:
            state[key] = {value: label for label, value in labels.items()}.get(held[name], held[name])
    if page == "home":
        state.update(kl_threshold=case.kl_threshold, overlap_threshold=case.overlap_threshold)
    if place.first_token:
        state[place.first_token] = case.first_token
    if seen.window is not None:
        state[f"{place.window}.{item.result.n_tokens}"] = seen.window
    state["token"] = seen.selected
