"""Does the deeper model do the same over more layers? Linear maps between two models, and in a layer's place."""

import json
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core import figures
from ed_core.depth import say
from ed_core.errors import ParameterError
from ed_core.lenses import measured
from ed_core.models.ref import ModelRef
from ed_ui import inputs, link, picker, probe_page, prompt_set, runs, show, two_sides
from ed_ui.inputs import choice
from ed_ui.runs import Fitted, distinct

WORDS = show.words(__file__)
WITHIN = show.words(str(Path(__file__).with_name("within.md")))

KINDS = {"between": "Between two models", "within": "Within one model"}
RINGS = "; a mark on each row's best match, hollow where its error is not a tenth below both controls"
APART = "tap 0, the embedding, apart"
SHOWN = {"error": "Relative error", "r2": "R²", "shuffled": "Error of the shuffled control"}


def page() -> None:
    """Draw the page: models, prompts, and the fit of linear maps between or within them."""
    link.own(PARAMETERS)
    link.say_troubles()
    row = st.container(horizontal=True, vertical_alignment="center", key="maps-inputs")
    kind = KIND.draw(row.segmented_control, label_visibility="collapsed")
    models = chosen_models(kind, row)
    prompts = prompt_set.to_fit("maps", row)
    place, file = st.container(), opened()
    with place:
        if file is not None:
            shown(file, "opened")
        elif prompts:
            wanted = Fitted(models, distinct(prompts))
            runs.follow(wanted.out, lambda: body(wanted))
    link.write()


def chosen_models(kind: str, row: DeltaGenerator) -> tuple[ModelRef, ...]:
    """Return the chosen model, and for maps between two models the second one too, from its box in the `row`."""
    a = picker.required()
    if kind == "within":
        return (a,)
    if not SECOND[0].value:
        inputs.put(two_sides.first_model("maps"))
    return a, two_sides.second_model(a, row, "maps")


def body(wanted: Fitted) -> None:
    """Draw a fit: Run, what it takes, how far it is, and what came of it; again every second while it runs."""
    if missing := [model.name for model in wanted.models if not model.weights_here]:
        raise ParameterError(WORDS["Not here"].format(name=missing[0]))
    result = runs.fit_panel(wanted, "maps")
    if isinstance(result, (measured.Maps, measured.Replacement)):
        shown(result, "maps")
    elif not runs.under_way(wanted.out):
        within_one = len(wanted.models) == 1
        question = "Which layers" + (" are needed" if within_one else " of one are those of the other")
        show.finding(f"{question} is not measured yet.", (WITHIN if within_one else WORDS)[""])
        probe_page.texts(WITHIN if within_one else WORDS)
    else:
        under_way(wanted.so_far())
    with st.expander("The same from the command line"):
        runs.fit_command(wanted, f"{wanted.kind}{measured.ENDING}")
    link.write()


def under_way(found: measured.Maps | measured.Replacement | None) -> None:
    """Draw the maps that are solved while others are not; None for none."""
    if found is None:
        return show.finding("The maps are being fitted.", "They appear one part after the other")
    curve = found.error[:, -1] if isinstance(found, measured.Maps) else found.loss
    done, n = sum(map(isfinite, curve)), len(curve)
    what = "of the first model's layers" if isinstance(found, measured.Maps) else "layers"
    show.finding(f"{done} of {n} {what} are mapped.", "What it comes to is said when all are")
    if isinstance(found, measured.Maps):
        a, b = map(show.plain, found.names)
        show.figure("maps-map", figures.map_between(found), f"**{SHOWN['error']}** · {a} → {b}; {APART}")
    else:
        show.figure("maps-replaced", figures.replacement_bars(found), WITHIN["Replaced"])


def shown(found: measured.Maps | measured.Replacement, key: str) -> None:
    """Draw everything in a file of maps. `key`: in the widgets' keys."""
    show.notes(found.certificate.get("notes", ()))
    if isinstance(found, measured.Maps):
        between(found, key)
    else:
        within(found, key)


def fitted(found: measured.Maps | measured.Replacement) -> str:
    """Return in words how many tokens a fit was made on and judged on."""
    return f"Fitted on {found.tokens} tokens, judged on {found.test_tokens} of other prompts, each without its first"


def between(found: measured.Maps, key: str) -> None:
    """Draw maps between two models: the answer, the error of every pair of layers, best matches and controls."""
    text, _, unsure = say.matching(found).partition(" (")
    show.finding(f"{text.rstrip('.')}.", f"{fitted(found)}{f' · {unsure}'.rstrip(').') if unsure else ''}")
    which = replace(MEASURE, key=f"{key}.measure").draw(st.segmented_control, label_visibility="collapsed")
    measure, control = ("error", True) if which == "shuffled" else (which, False)
    (a, b), about = map(show.plain, found.names), lambda: details(found, key)
    fig, rings = figures.map_between(found, measure, control), "" if control else RINGS
    text = f"**{SHOWN[which]}** · {a} → {b}{rings}; {APART}"
    show.figure(f"{key}-map", fig, text, about=about, alt="" if control else say.matching(found))
    left, right = st.columns(2)
    show.figure(f"{key}-best", figures.best_matches(found), WORDS["Best"], reading=WORDS["Best matches"], place=left)
    show.figure(f"{key}-errors", figures.best_errors(found), WORDS["Errors"], reading=WORDS["Controls"], place=right)
    probe_page.texts(WORDS)


def within(found: measured.Replacement, key: str) -> None:
    """Draw the loss with each layer of a model replaced by a linear map."""
    sentence = say.replacement(found)
    show.finding(sentence, fitted(found))
    fig = figures.replacement_bars(found)
    show.figure(f"{key}-replaced", fig, WITHIN["Replaced"], about=lambda: details(found, key), alt=sentence)
    probe_page.texts(WITHIN)


def details(found: measured.Maps | measured.Replacement, key: str) -> None:
    """Fill Details: what the numbers are, the numbers as files, and where they came from."""
    st.markdown(type(found).__doc__)
    row = st.container(horizontal=True)
    look: dict[str, Any] = {"icon": ":material/download:", "on_click": "ignore"}
    name = f"{found.kind}{measured.ENDING}"
    archive, table = partial(measured.packed, found), partial(measured.csv, found)
    row.download_button(name, archive, name, "application/octet-stream", key=f"npz-{key}", **look)
    row.download_button("CSV", table, f"{found.kind}.csv", "text/csv", key=f"csv-{key}", **look)
    st.markdown("**Where it came from**")
    st.json(json.dumps(dict(found.certificate)), expanded=False)


def opened() -> measured.Maps | measured.Replacement | None:
    """Draw the upload of a file that the command line made, perhaps on another machine, and return what it holds."""
    with st.expander("Open a file that the command line made"):
        file = st.file_uploader("maps.npz or replacement.npz", type="npz", key="maps.file")
        return None if file is None else measured.unpacked(file.getvalue(), file.name)


KIND = choice("maps", "maps.kind", "between", KINDS.keys(), "What is mapped", KINDS)
SECOND = two_sides.of_model("maps")
MEASURE = choice("shown", "maps.measure", "error", SHOWN.keys(), "Shown", SHOWN)
PARAMETERS = (KIND, *SECOND, *prompt_set.of_fit("maps"), MEASURE)
page()
