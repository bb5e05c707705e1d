"""How this prompt compares: its curves over those of other prompts on the same model, and a button that measures
some."""

from __future__ import annotations

import streamlit as st

from ed_core import figures
from ed_core.depth import among_others
from ed_core.probes import Probe
from ed_core.prompts import read_jsonl
from ed_core.results import lookup
from ed_core.shelf import Shelf
from ed_core.sources import controls
from ed_core.sources.bundled import MIXED, SETS, default_set, mixed_prompts
from ed_core.types import ModelSpec, ProbeResult, Prompt, Request
from ed_ui import chart, live, running, show

ENOUGH = 12  # bundled prompts that the button measures


_asked: Shelf[list[Request]] = Shelf(64)


def _bundled(probe: Probe, spec: ModelSpec, files: tuple[tuple[str, str], ...]) -> list[Request]:
    """What the button asks for, and one more. `files`: the hashes of those that the probe names, as they are now."""
    if default_set(spec.source) == MIXED:
        prompts = read_jsonl(SETS / f"{MIXED}.jsonl")[: ENOUGH + 1]  # kinds take turns in it
    else:
        prompts = [Prompt(p["text"], p["answer"]) for p in mixed_prompts(ENOUGH + 1)]
    return [probe.request(spec, prompt) for prompt in prompts]


def section(probe: Probe, result: ProbeResult, control: ProbeResult | None = None, against: str = "") -> None:
    """Below a complete result; `control`: the same of a control of the model, and what it says `against` the model.
    The bundled prompts run one at a time, so that a Run of one's own waits for one of them at most."""
    spec, here = result.request.models[0], result.request.prompts[0]
    others = [
        r
        for r in _asked.made(_bundled, probe, spec, result.request.files)
        if r.prompts[0].identity() != here.identity()
    ][:ENOUGH]
    batch = running.batch(
        f"others.{probe.name}", {f"{probe.name}.{i}": asked for i, asked in enumerate(others)}, at_once=1
    )
    st.markdown("#### How this prompt compares")
    live.follow(batch, _panels, probe, result, control, against)


def _panels(batch: running.Batch, probe: Probe, result: ProbeResult, control: ProbeResult | None, against: str) -> None:
    others, first_token = lookup.alike(result.request), getattr(probe, "first_token", True)
    with st.container(key="others"):
        st.markdown(among_others.sentence(probe, result.summary, others, first_token))
        _more(batch, len(others), result)
    if against:
        st.markdown(f"**{against}**")
    behind = among_others.curves_of(probe, control.summary, first_token) if control is not None else {}
    name = controls.label(control.request.models[0]) if control is not None else ""
    spreads = among_others.spreads(probe, result.summary, others, first_token)
    for column, spread in zip(st.columns(2), spreads, strict=False):
        curve, told = spread.curve, " over the others" if len(spread.quantiles) else ""
        twin = {name: behind[curve.name]} if behind else {}
        look = dict(x=curve.x, others=f"{spread.n} others", log=curve.log, behind=twin)
        fig = chart.once(figures.spread_curve, spread.values, spread.quantiles, curve.unit, **look)
        show.figure(f"spread-{curve.name}", fig, f"{curve.title}: this prompt{told}", results=[result], place=column)


def _more(batch: running.Batch, n_others: int, result: ProbeResult) -> None:
    """How many others there are, and how to get some."""
    row = st.container(horizontal=True, vertical_alignment="center")
    if batch.running:
        done = sum(r.complete for r in batch.results.values())
        row.markdown(
            f"**{done} of {len(batch.requests)} bundled prompts measured** · {running.status(batch)}", width="content"
        )
        look = {"icon": ":material/stop:", "type": "tertiary", "on_click": running.cancel, "args": (batch,)}
        row.button("Stop", key=f"stop.{result.request.probe}", **look)
        return
    if n_others < among_others.FEWEST:
        few = (
            f"Only {n_others} other prompt{'s have' if n_others > 1 else ' has'}" if n_others else "No other prompt has"
        )
        row.markdown(f"{few} been measured with these parameters: measure the bundled set.", width="content")
    else:
        row.caption(
            f"Others: {n_others} prompts on this model, with the same probe and parameters, in this store or shipped "
            "with the app.",
            width="content",
        )
    if batch.missing:
        seconds = lookup.estimate([batch.requests[name] for name in batch.missing], result.n_tokens)
        obstacle = running.outlook_of(batch, result.n_tokens).obstacle
        told = "" if seconds is None else f" (about {max(seconds, 1):.0f} s)"
        look = {"icon": ":material/group_add:", "disabled": bool(obstacle)}
        label = f"Measure {len(batch.missing)} bundled prompts{told}"
        if row.button(label, key=f"measure.{result.request.probe}", **look):
            running.submit(batch)
            st.rerun()
    for message, which in running.troubles(batch).items():
        st.warning(show.plain(f"{len(which)} could not be measured: {message}"), icon=":material/error:")
