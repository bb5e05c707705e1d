"""Two sections of *Model*: whether its numbers can be trusted on a prompt, and what its loops do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from ed_core import figures
from ed_core.depth import certificate, exactness, say, sinks
from ed_core.models.ref import ModelRef
from ed_core.probes import Contributions, Loops, Numerics, Probe
from ed_core.results.aggregate import aggregate
from ed_core.types import ModelSpec
from ed_ui import inputs, live, probe_page, prompt_box, running, show
from ed_ui.inputs import of_probe

CHECKED: dict[str, Probe] = {"numerics": Numerics(), "contributions": Contributions()}
PARAMETERS = (*of_probe(Loops), probe_page.TOKENS)


def draw(model: ModelRef) -> None:
    """Draw the sections on a looped model's passes and on numerical errors, folded until something of them is
    measured."""
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
    values = aggregate(Loops(), [result.summary])
    show.conclusion("loops", say.loops(values))
    curves = figures.loop_curves(values)
    for i in range(0, len(curves), 2):
        for column, (key, caption, measure, x, name, line) in zip(st.columns(2), curves[i : i + 2], strict=True):
            fig = figures.layer_curves({name: line}, "", result.measures[measure].spec.unit, x=x)
            show.figure(f"loops-{key}", fig, caption, result, measure, place=column)


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
    caption = "Error of every layer's sum against what leaves it, token by token"
    show.figure("sums", figures.miss_map(result, view), caption, result, "miss", READ_ERROR)
    probe_page.window(result, view)
    left, right = st.columns(2)
    caption = "Largest error per layer, against rounding and the limit"
    show.figure("miss", figures.miss_curves(result), caption, result, "rounding", place=left)
    fig, caption = figures.slope_curves(result), "Slopes: what the stream moves per unit that is read"
    show.figure("slopes", fig, caption, result, "slope_attn", READ_SLOPE, place=right)
    caption = "Length of the stream, first token against the others"
    show.figure("norms", figures.first_token_norm(result), caption, result, "resid_norm", READ_SINK)


READ_ERROR = """Colour is the power of ten. In float32 most errors are near 3e-8, in bfloat16 near 1e-3: that is the
dtype. One bright row or column far above the rest points to a term that is not read, or a token whose
stream cancels."""
READ_SLOPE = """In bfloat16 a small branch drowns in the stream's rounding, and the error cannot see a forgotten factor;
rounding does not correlate with the branch, a forgotten factor does. A branch below rounding has no mark."""
READ_SINK = """In many models the first token's norm is a hundred times the others', and attention rests on it (Xiao et
al. 2024, Sun et al. 2024): means of lengths that count it may reflect little else."""
