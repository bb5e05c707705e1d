"""The same prompt on two models, or two prompts on one model, side by side."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.depth import say, side_by_side
from ed_core.depth.sample import READS, Sample
from ed_core.depth.side_by_side import SIDES
from ed_core.depth.verdict import Verdict, verdict
from ed_core.models import tokens
from ed_core.results import lookup
from ed_ui import (
    control_model,
    inputs,
    link,
    live,
    navigation,
    picker,
    probe_page,
    prompt_box,
    running,
    show,
    two_sides,
)
from ed_ui.two_sides import MODE, RUN, Both, Side

WORDS = show.words(__file__)
Verdicts = tuple[Verdict | None, Verdict | None]


def page() -> None:
    """Draw the page: the inputs of both sides, Run, and all panels."""
    two_sides.open_link()
    link.say_troubles()
    with st.container(horizontal=True, vertical_alignment="center", key="two-inputs"):
        mode = MODE.draw(st.selectbox, label_visibility="collapsed", width=190)
    look: dict[str, Any] = {}
    if mode == "models":
        prompt_box.draw()
        look = {"border": True, "horizontal": True, "vertical_alignment": "center"}
    boxes = [column.container(key=f"side-{side}", **look) for side, column in zip(SIDES, st.columns(2), strict=True)]
    if mode == "prompts":
        with boxes[0]:
            st.caption("A")
            prompt_box.draw()
    place = running.row_begins()
    both, probes = two_sides.ask(picker.required(), place.row, *boxes)
    requests = {
        f"{side.letter}.{name}": probe.request(side.model, side.prompt)
        for side in both
        for name, probe in probes.items()
    }
    batch = running.batch("two", requests)
    if (both[0].model, both[0].prompt.identity()) == (both[1].model, both[1].prompt.identity()):
        write_link(batch)
        st.info(SAME[mode], icon=":material/compare_arrows:")
        return
    lengths = (tokens.preview(side.model, side.prompt) for side in both)
    n_tokens = max((len(encoding) for encoding in lengths if encoding), default=None)
    probe_page.top_row("two", batch, n_tokens=n_tokens, place=place)
    live.follow(batch, panels, both, probes)
    with st.expander("What is compared, exactly"):
        st.markdown(f"{side_by_side.__doc__}\n\n{two_sides.WORDS['Relative depth']}")


def write_link(batch: running.Batch) -> None:
    """Write both sides into the URL: bundled prompts by id, others by a complete result of that side."""
    done = {} if batch.running else {name: r.request.key for name, r in batch.results.items() if r.complete}
    a, b = (next((key for name, key in done.items() if name.startswith(side)), "") for side in SIDES)
    inputs.put({RUN.key: "" if inputs.value("two.example") else b[: lookup.SHORT]})
    link.write(a)


def panels(batch: running.Batch, both: Both, names: Collection[str]) -> None:
    """Draw all that fills while jobs run: verdicts, ruler, and a section for each probe."""
    write_link(batch)
    a, b = (
        replace(side, results={n: r for n in names if (r := batch.result(f"{side.letter}.{n}")) is not None})
        for side in both
    )
    verdicts = judged(a), judged(b)
    headline(batch, (a, b), verdicts)
    if a.n_layers and b.n_layers and set(READS) <= set(names):
        fig = figures.pair_ruler(verdicts, (a.n_layers, b.n_layers), (a.name, b.name))
        text = " ".join(reasons(verdicts)) or "Depth ruler of both sides: no verdict yet."
        show.draw("ruler-two", show.made(fig), text)  # without marks until they are known, so that nothing moves
    else:
        st.caption("No ruler: the three criteria are read from contributions and logit lens, and not both are shown.")
    two_sides.map_inputs(list(names), (a, b))
    for name in names:
        two_sides.section(name, (a, b), [v.layers if v else {} for v in verdicts], batch.running)
    if a.model != b.model and replace(a.model, precision=b.model.precision) == b.model:
        st.page_link(str(navigation.ROOT / "pages/studies/studies.py"), label="Precisions over many prompts: Studies")
    for side in (a, b):
        show.notes((note for r in side.results.values() for note in r.notes), f"**{side.letter}:** ")
    probe_page.texts(WORDS)


def judged(side: Side) -> Verdict | None:
    """Return a side's verdict, next to stored untrained copies; None until both of its probes are complete."""
    needed = [r for n in READS if (r := side.results.get(n)) is not None and r.complete]
    if len(needed) < len(READS):
        return None
    twins = control_model.stored_twins({r.request.probe: r.request for r in needed})
    return verdict(Sample.of(*needed, twins=twins))


def reasons(verdicts: Verdicts) -> list[str]:
    """Return the verdict of each side that has one, in words."""
    return [f"{side}: {say.verdict(one)}" for side, one in zip(SIDES, verdicts, strict=True) if one]


def headline(batch: running.Batch, both: Both, verdicts: Verdicts) -> None:
    """Show what differs in depth; below it what the sides are or what is going on, and both verdicts."""
    for message in running.troubles(batch):
        show.error(message)
    a, b = verdicts
    sentence, note = say.both(a, b) if a and b else "", " · ".join(f"{side.letter}: {side.name}" for side in both)
    if batch.running:
        sentence, note = sentence or "Both sides are being measured.", running.status(batch)
    elif batch.missing and not batch.errors:
        sentence = sentence or "Not measured yet: Run measures both sides."
    show.finding(sentence or "What differs is read from the curves below.", note, reasons(verdicts))


SAME = {
    "models": "Both sides are the same model: choose another one, another precision, or a control.",
    "prompts": "Both sides are the same prompt: choose or type another one.",
}

page()
