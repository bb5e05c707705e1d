"""How a page is looked at, as a case study keeps it: which inputs make a view, read from the session and put back into
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ed_core.cases.case_study import Case, Item, Shown
from ed_core.prompts import to_jsonl
from ed_core.types import Request
from ed_ui import control_model, inputs, link, navigation, prompt_set
from ed_ui.inputs import Input, boxed

THRESHOLDS = ("kl_threshold", "overlap_threshold")


@dataclass(frozen=True)
class Place:
    """A page's inputs by their names in a case study; the key of its window and how many tokens that holds; that of its
    "count the first token"."""

    settings: Mapping[str, Input] = field(default_factory=dict)
    window: tuple[str, int] = ("window.page", 64)
    first_token: str = ""


PLACES: dict[str, Place] = {
    "home": Place(
        {
            "branch": inputs.BRANCH,
            "shade": inputs.SHADE,
            "lens": inputs.LENS,
            "depths": inputs.DEPTHS,
            "count_sinks": inputs.COUNT_SINKS,
        },
        ("window", 48),
        inputs.FIRST_TOKEN.key,
    ),
    "contributions": Place(
        {"measure": inputs.MEASURE, "count_sinks": inputs.COUNT_SINKS}, first_token=inputs.COUNTED.key
    ),
    "logit_lens": Place({"shade": inputs.LENS_SHADE, "count_sinks": inputs.COUNT_SINKS}),
    "lenses": Place({"shade": inputs.LENSES_SHADE}),
    "residual_erasure": Place({"count_sinks": inputs.COUNT_SINKS}),
    "layer_skip": Place({"boundary": inputs.BOUNDARY}),
    "two": Place(
        {
            "swapped": inputs.SWAPPED,
            "overlaid": inputs.OVERLAID,
            "by_number": inputs.BY_NUMBER,
            "count_sinks": inputs.COUNT_SINKS,
        }
    ),
}


def place_of(page: str) -> Place:
    """A page's inputs; a page that is not in the table has none of its own."""
    return PLACES.get(page, Place())


def shown(page: str, n_tokens: int) -> Shown:
    """How `page` shows a prompt of `n_tokens` now."""
    place = place_of(page)
    chosen = {name: one.kept for name, one in place.settings.items()}
    settings = tuple((name, value) for name, value in chosen.items() if value is not None)
    return Shown(page, inputs.window(place.window[0], n_tokens, place.window[1]), inputs.token(n_tokens), settings)


def judged(page: str) -> dict[str, float | bool]:
    """Thresholds, and whether the first token counts, as `ed_core.cases.case_study.make` takes them."""
    first = place_of(page).first_token
    named = {name: name for name in THRESHOLDS if page == "home"} | ({"first_token": first} if first else {})
    return {name: value for name, key in named.items() if (value := inputs.value(key)) is not None}


def open_live(case: Case) -> str:
    """Put what a case study was kept from into the boxes of its page, and give the page's file; only from a callback.
    Its first model that is no control is the one that is chosen."""
    requests = [item.result.request for item in case.items]
    first = next((item for item in case.items if not item.result.request.models[0].control), case.items[0])
    shown_of = first.result.request
    for request in requests:
        if (request.models, request.prompts) == (shown_of.models, shown_of.prompts):
            link.open_run(request)
    twin = next((m for request in requests for m in request.models if m.control), None)
    prompts = list(dict.fromkeys(prompt for request in requests for prompt in request.prompts))
    inputs.put(
        {
            "control": twin.control if twin else control_model.NONE,
            "control.seed": twin.control_seed if twin else 0,
            "prompts.source": prompt_set.ONE if len(prompts) == 1 else prompt_set.LINES,
        }
    )
    if len(prompts) > 1:
        inputs.put({"prompts.lines": to_jsonl(prompts)})
    page = first.shown.page if first.shown.page in navigation.KEPT_FROM else "home"
    if page == "audit":
        precisions = dict.fromkeys(m.precision for request in requests for m in request.models)
        inputs.put({"audit.precisions": list(precisions)})
    if page == "two":
        _side_b(shown_of, requests)
    _look(case, first, page)
    return navigation.KEPT_FROM[page]


def _side_b(first: Request, requests: list[Request]) -> None:
    """Side B of Compare two: what differs from the first in model, prompt or parameters."""
    other = next((r for r in requests if (r.models, r.prompts) != (first.models, first.prompts)), None)
    again = next((r for i, r in enumerate(requests) if r.probe in {before.probe for before in requests[:i]}), first)
    model, prompt = (other or first).models[0], (other or first).prompts[0]
    found = {
        "mode": "parameters" if other is None else "models" if other.prompts == first.prompts else "prompts",
        "model": model.source,
        "precision": model.precision,
        "control": model.control or control_model.NONE,
        "control.seed": model.control_seed,
        "text": prompt.text,
        "answer": prompt.answer,
        "example": "",
        "probes": list(dict.fromkeys(r.probe for r in requests)),
        "probe": again.probe,
    }
    if other is None:
        found |= {f"{again.probe}.{name}": boxed(value) for name, value in again.parameters}
        link.open_run(next(r for r in requests if r.probe == again.probe))
    inputs.put({f"two.{name}": value for name, value in found.items()} | {"control": control_model.NONE})


def _look(case: Case, item: Item, page: str) -> None:
    """The page's own inputs, so that it looks as it did."""
    place, seen = place_of(page), item.shown
    held, found = dict(seen.settings), {"token": seen.selected, place.window[0]: seen.window}
    found |= {one.key: one.of_kept(held.get(name)) for name, one in place.settings.items()}
    if page == "home":
        found |= {name: getattr(case, name) for name in THRESHOLDS}
    if place.first_token:
        found[place.first_token] = case.first_token
    inputs.forget(*found)
    inputs.put({key: value for key, value in found.items() if value is not None})
