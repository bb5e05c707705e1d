"""The same prompt on two models, two prompts on one model, or one probe with two sets of parameters, side by side."""

from dataclasses import replace
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.depth import say, side_by_side
from ed_core.depth.sample import READS, Sample
from ed_core.depth.side_by_side import SIDES
from ed_core.depth.verdict import Verdict, verdict
from ed_core.models.ref import ModelRef
from ed_ui import (
    control_model,
    inputs,
    link,
    live,
    picker,
    probe_page,
    prompt_box,
    running,
    show,
    two_sides,
)
from ed_ui.two_sides import Shown, Side

WORDS = probe_page.words(__file__)


def page() -> None:
    """Draw the page: the inputs of both sides, Run, and all panels."""
    two_sides.open_link()
    link.say_troubles()
    mode = two_sides.mode()
    if mode != "prompts":
        prompt_box.draw()
    look: dict[str, Any] = (
        {"border": True, "horizontal": True, "vertical_alignment": "center"} if mode != "prompts" else {}
    )
    boxes = [column.container(key=f"side-{side}", **look) for side, column in zip(SIDES, st.columns(2), strict=True)]
    if mode == "prompts":
        with boxes[0]:
            st.caption("A")
            prompt_box.draw()
    place = running.row_begins()
    both = two_sides.sides(picker.required(), place.row, *boxes)
    batch = running.batch(
        "two",
        {
            f"{place}.{name}": request
            for place, side in zip(SIDES, both, strict=True)
            for name, request in side.requests.items()
        },
    )
    if both[0].requests == both[1].requests and both[0].probes == both[1].probes:
        write_link(batch)
        st.info(SAME[mode], icon=":material/compare_arrows:")
        return
    n_tokens = max((len(t) for t in two_sides.previews(*both) if t), default=None)
    probe_page.top_row("two", batch, n_tokens=n_tokens, place=place)
    live.follow(batch, panels, both)
    with st.expander("What is compared, exactly"):
        st.markdown(f"{side_by_side.__doc__}\n\n{two_sides.RELATIVE}")


def write_link(batch: running.Batch) -> None:
    """Name a complete result of each side in the URL, once nothing runs."""
    done = {} if batch.running else {name: r.request.key for name, r in batch.results.items() if r.complete}
    a, b = (next((key for name, key in done.items() if name.startswith(place)), "") for place in SIDES)
    two_sides.write_link((a, b))


def panels(batch: running.Batch, both: tuple[two_sides.Side, two_sides.Side]) -> None:
    """Draw all that fills while jobs run: verdicts, ruler, and a section for each probe."""
    write_link(batch)
    names = two_sides.labels(*both)
    of_side = [
        {n: Shown(side, batch.result(f"{place}.{n}"), name) for n in side.probes}
        for side, place, name in zip(both, SIDES, names, strict=True)
    ]
    shown = [two_sides.PROBE.value] if two_sides.MODE.value == "parameters" else list(both[0].probes)
    done = [n for n in shown if all(batch.complete(f"{place}.{n}") is not None for place in SIDES)]
    pairs = {n: found_pairs(n, of_side) for n in done}
    verdicts = judged(of_side[0]), judged(of_side[1])
    headline(batch, names, verdicts)
    ruler(names, verdicts, of_side)
    two_sides.map_inputs(shown, [[s.result for s in side.values()] for side in of_side])
    for name in shown:
        lines = [v.layers if v else {} for v in verdicts]
        two_sides.section(name, [side[name] for side in of_side], pairs.get(name, ()), lines, batch.running)
    if by_precision(*both):
        st.page_link("pages/studies/studies.py", label="Precisions over many prompts: Studies")
    for side, of_one in zip(SIDES, of_side, strict=True):
        results = (s.result for s in of_one.values() if s.result is not None)
        show.notes((note for result in results for note in result.notes), f"**{side}:** ")
    probe_page.texts(WORDS)


def by_precision(a: Side, b: Side) -> bool:
    """Return whether the sides are one model in two precisions."""
    return a.model != b.model and replace(a.model, precision=b.model.precision) == b.model


def found_pairs(name: str, of_side: list[dict[str, Shown]]) -> list[side_by_side.Pair]:
    """Return the pairs of curves of a probe that is complete on both sides. `of_side`: of each side what is shown, by
    probe."""
    a, b = (side[name] for side in of_side)
    assert a.result is not None and b.result is not None
    sinks = ((), ()) if inputs.COUNT_SINKS.value else (probe_page.sinks_of(a.result), probe_page.sinks_of(b.result))
    return side_by_side.pairs((a.side.probes[name], b.side.probes[name]), a.result, b.result, sinks)


def judged(side: dict[str, Shown]) -> Verdict | None:
    """Return a side's verdict, next to the same stored untrained copies as on Home; None until both of its probes are
    complete."""
    needed = [r for n in READS if n in side and (r := side[n].result) is not None and r.complete]
    if len(needed) < len(READS):
        return None
    first_token = getattr(side["contributions"].side.probes["contributions"], "first_token", True)
    twins = control_model.stored_twins({r.request.probe: r.request for r in needed})
    return verdict(Sample.of(*needed, first_token=first_token, twins=twins))


def headline(batch: running.Batch, names: tuple[str, str], verdicts: tuple[Verdict | None, Verdict | None]) -> None:
    """Show what differs in depth, in a sentence; below it what the sides are or what is going on, and both verdicts
    behind a click."""
    for message in running.troubles(batch):
        show.error(message)
    a, b = verdicts
    sentence = say.both(a, b) if a and b else ""
    note = " · ".join(f"{side}: {name}" for side, name in zip(SIDES, names, strict=True))
    if batch.running:
        sentence = sentence or "Both sides are being measured."
        note = running.status(batch)
    elif batch.missing and not batch.errors:
        sentence = sentence or "Not measured yet: Run measures both sides."
    reasons = [f"{side}: {say.verdict(one)}" for side, one in zip(SIDES, verdicts, strict=True) if one]
    show.finding(sentence or "What differs is read from the curves below.", note, reasons)


def ruler(
    names: tuple[str, str], verdicts: tuple[Verdict | None, Verdict | None], of_side: list[dict[str, Shown]]
) -> None:
    """Draw both verdicts on relative depth; without marks until they are known, so that nothing moves when they
    come."""
    some = [next((s.result for s in side.values() if s.result is not None), None) for side in of_side]
    a, b = (
        r.n_layers if r is not None else ModelRef.of(next(iter(side.values())).side.model).n_layers
        for r, side in zip(some, of_side, strict=True)
    )
    if a is None or b is None or not set(READS) <= set(of_side[0]):
        st.caption("No ruler: the three criteria are read from contributions and logit lens, and not both are shown.")
        return
    fig = figures.pair_ruler(verdicts, (a, b), names)
    text = " ".join(f"{side}: {say.verdict(v)}" for side, v in zip(SIDES, verdicts, strict=True) if v)
    show.draw("ruler-two", show.made(fig), text or "Depth ruler of both sides: no verdict yet.")


SAME = {
    "models": "Both sides are the same model: choose another one, another precision, or a control.",
    "prompts": "Both sides are the same prompt: choose or type another one.",
    "parameters": "Both sides have the same parameters: change one of the second set.",
}

page()
