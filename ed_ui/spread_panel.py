"""How this prompt compares: its curves over those of other prompts on the same model, and a button that measures
some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from ed_core import figures
from ed_core.depth import among_others
from ed_core.depth.among_others import Likeness
from ed_core.probes import Probe
from ed_core.prompts import read_jsonl
from ed_core.results import lookup
from ed_core.results.aggregate import Summary
from ed_core.results.shelf import Shelf
from ed_core.sources import controls
from ed_core.sources.bundled import MIXED, SETS, default_set, mixed_prompts
from ed_core.types import ModelSpec, ProbeResult, Prompt, Request
from ed_ui import chart, inputs, live, running, show

ENOUGH = 12  # bundled prompts that the button measures


_asked: Shelf[list[Request]] = Shelf(64)
_left_out: Shelf[list[Summary]] = Shelf(32)  # by probe and run ids


def _bundled(probe: Probe, spec: ModelSpec, files: tuple[tuple[str, str], ...]) -> list[Request]:
    """What the button asks for, and one more. `files`: the hashes of those that the probe names, as they are now."""
    if default_set(spec.source) == MIXED:
        prompts = read_jsonl(SETS / f"{MIXED}.jsonl")[: ENOUGH + 1]  # kinds take turns in it
    else:
        prompts = [Prompt(p["text"], p["answer"]) for p in mixed_prompts(ENOUGH + 1, model=spec.source)]
    return [probe.request(spec, prompt) for prompt in prompts]


def section(
    probe: Probe, result: ProbeResult, control: ProbeResult | None = None, alike: Sequence[Sequence[Likeness]] = ()
) -> None:
    """Below a complete result; `control`: the same of a control of the model, and how `alike` its curves and those of
    the stored controls of other seeds are (`control_model.alike`). The bundled prompts run one at a time, so that a Run
    of one's own waits for one of them at most."""
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
    live.follow(batch, _panels, probe, result, control, alike)


def _panels(
    batch: running.Batch,
    probe: Probe,
    result: ProbeResult,
    control: ProbeResult | None,
    alike: Sequence[Sequence[Likeness]],
) -> None:
    stored, first_token = lookup.alike(result.request), getattr(probe, "first_token", True)
    with st.container(key="others"):
        _said(probe, result, list(stored.values()), alike, control)
        _more(batch, len(stored), result)
    name = controls.label(control.request.models[0]) if control is not None else ""
    results = [result, *([control] if control is not None else [])]
    summaries, first_token, told_of_sinks = _counted(probe, results, stored, first_token)
    this, *others = summaries
    behind = among_others.curves_of(probe, others.pop(0), first_token) if control is not None else {}
    spreads = among_others.spreads(probe, this, others, first_token)
    for column, spread in zip(st.columns(2), spreads, strict=False):
        curve, told = spread.curve, f"{' over the others' if len(spread.quantiles) else ''}{told_of_sinks}"
        twin = {name: behind[curve.name]} if behind else {}
        look = dict(x=curve.x, others=among_others.spread_of(spread.n, "others"), log=curve.log, behind=twin)
        fig = chart.once(figures.spread_curve, spread.values, spread.quantiles, curve.unit, **look)
        show.figure(f"spread-{curve.name}", fig, f"{curve.title}: this prompt{told}", results=[result], place=column)


def _said(
    probe: Probe,
    result: ProbeResult,
    others: Sequence[Summary],
    alike: Sequence[Sequence[Likeness]],
    control: ProbeResult | None,
) -> None:
    """One sentence: what the control shows where there is one, else where this prompt lies; the rest behind a click."""
    first_token = getattr(probe, "first_token", True)
    said = among_others.sentence(probe, result.summary, others, first_token)
    reasons = among_others.reasons(probe, result.summary, others, first_token)
    if alike and control is not None:
        reasons = [*(one.text for of_one in alike for one in of_one if one.shape is not None), said, *reasons]
        said = among_others.against_control(control.request.models[0].control, alike)
    show.conclusion(f"others-{probe.name}", said, reasons)


def _counted(
    probe: Probe, results: Sequence[ProbeResult], stored: Mapping[str, Summary], first_token: bool
) -> tuple[list[Summary], bool, str]:
    """The summaries that curves and spreads are drawn of, whether these still hold the first token, and what their
    captions say: without the sinks, where these do not count and are known of every prompt."""
    every = [r.summary for r in results] + list(stored.values())
    if not among_others.over_tokens(probe):
        return every, first_token, ""
    found = [*results, *(lookup.by_key(key) for key in stored)]
    if inputs.COUNT_SINKS.value or None in found:
        return every, first_token, ", sinks counted"
    left = _left_out.get(
        (probe, tuple(r.request.key for r in found)), lambda: among_others.without_sinks(probe, found, first_token)
    )
    if left is None:
        return every, first_token, ", all tokens counted"
    fewer = any(int(s["n_tokens"]) < r.n_tokens - (not first_token) for s, r in zip(left, found, strict=True))
    return left, True, ", sinks left out" if fewer else ""


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
        told = "" if seconds is None else f" ({running.about(seconds)})"
        look = {"icon": ":material/group_add:", "disabled": bool(obstacle)}
        label = f"Measure {len(batch.missing)} bundled prompts{told}"
        if row.button(label, key=f"measure.{result.request.probe}", **look):
            running.submit(batch)
            st.rerun()
    for message, which in running.troubles(batch).items():
        st.warning(show.plain(f"{len(which)} could not be measured: {message}"), icon=":material/error:")
