"""Two sections of *Model*: whether its numbers can be trusted on a prompt, and what its loops do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from ed_core.cases import drawings
from ed_core.depth import certificate, exactness, say, sinks
from ed_core.figures.pictures import CURVES_HEIGHT, pictures
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, Loops, Numerics, Probe
from ed_core.results.aggregate import aggregate
from ed_core.types import ModelSpec
from ed_ui import inputs, live, probe_page, prompt_box, running, show
from ed_ui.inputs import of_probe

WORDS = show.words(__file__)  # how to read the figures, by their keys
CHECKED: dict[str, Probe] = {"numerics": Numerics(), "contributions": Contributions()}
PARAMETERS = (*of_probe(Loops), probe_page.TOKENS)


def draw(model: ModelRef) -> None:
    """Draw both sections, folded until something of them is measured; that on loops for a looped model."""
    if (model.n_passes or 1) > 1:
        probe = Loops.make({one.name: inputs.value(one.key, one.default) for one in of_probe(Loops)})
        section(model, "What do its loops do?", "loops", {"loops": probe}, loops)
    section(model, "Do the sums hold on a prompt?", "numerics", CHECKED, numerics)


def section(
    model: ModelSpec, title: str, name: str, probes: dict[str, Probe], panels: Callable[[running.Batch], None]
) -> None:
    """Draw a section of *Model*: Run for these probes on the prompt in the box, and below what `panels` draws of the
    batch. `name`: of the batch, and in the button's key."""
    prompt = prompt_box.prompt()
    batch = running.batch(name, {probe: one.request(model, prompt) for probe, one in probes.items()})
    with st.expander(title, expanded=batch.running or batch.begun > 0):
        where = f"on {show.code(prompt.text + prompt.answer, 90)}"
        running.section_row(batch, name, prompt_box.n_tokens(), prompt_box.ready(), where)
        live.follow(batch, panels)


def loops(batch: running.Batch) -> None:
    """Draw what each pass of a looped model does: a sentence and six curves."""
    probe_page.status(batch)
    if (result := batch.complete("loops")) is None:
        return
    show.conclusion("loops", say.loops(aggregate(Loops(), [result.summary])))
    drawn = list(drawings.of_several([result]))
    for i in range(0, len(drawn), 2):
        for j, column in enumerate(st.columns(2), i):
            with column:
                show.drawing(f"loops-{j}", drawn[j])


def numerics(batch: running.Batch) -> None:
    """Draw whether the residual sums and the tokens' text are exact, and where the errors are."""
    probe_page.status(batch)
    if (result := batch.complete("numerics")) is None:
        return
    holds = all(check.holds for check in exactness.checks(result))
    (st.success if holds else st.error)(show.plain(say.checks(result)))
    contributions = batch.complete("contributions")
    prompt_sinks = (sinks.of_result(contributions) if contributions is not None else None) or ()
    st.caption(show.plain(say.sinks(prompt_sinks, result.tokens)))
    if rows := certificate.text_rows(result.provenance):
        show.few_rows(("text", "found"), rows)
    view = replace(probe_page.view(result), sinks=probe_page.sinks_of(result))
    low = replace(view, height=CURVES_HEIGHT)
    places = (st.container(), *st.columns(2), st.container())
    for key, one, place in zip(("sums", "miss", "slopes", "norms"), pictures(result), places, strict=True):
        reading = replace(one, reading=WORDS.get(key, ""))
        show.picture(key, reading, result, view if key == "sums" else low, place=place)
        if key == "sums":
            with place:
                probe_page.window(result, view)
