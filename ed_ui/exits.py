"""Where a model could have stopped: early exit through the lens, on the prompt."""

from __future__ import annotations

import streamlit as st

from ed_core import figures
from ed_core.depth import exits, say
from ed_core.probes import EarlyExit
from ed_core.results import aggregate
from ed_core.types import ProbeResult
from ed_ui import finding, live, probe_page, prompt_box, running, show
from ed_ui.inputs import of_probe

PARAMETERS = of_probe(EarlyExit)


def panel(of: ProbeResult) -> None:
    """Agreement and confidence by depth on the prompt and the model of another result, and what a threshold gives."""
    st.markdown("##### Could it have stopped earlier?")
    row = st.container(horizontal=True, vertical_alignment="bottom", key="form-exit")
    request = probe_page.form(EarlyExit, row=row).request(of.request.models[0], of.request.prompts[0])
    batch = running.batch("early_exit", {"early_exit": request})
    finding.run(batch, "early_exit", prompt_box.n_tokens(), True, "on this prompt")
    live.follow(batch, _exits)


def _exits(batch: running.Batch) -> None:
    if batch.running:
        live.status(batch)
    for message in running.troubles(batch):
        show.error(message)
    if (result := batch.complete("early_exit")) is None:
        return
    curves = aggregate.aggregate(EarlyExit, [result.summary])
    leaves = exits.exits_of_prompts([result], aggregate.probe_of(result).threshold)
    show.conclusion("exit", say.exits(leaves))
    fig = figures.layer_curves({name: curves[name] for name in ("agreement", "confidence")}, "", "share", x="depth")
    show.figure("exit", fig, "How often does a layer already say the final word?", result, "agreement", READING)
    agrees = say.share(float(curves["exit_agrees"]))
    depth = f"after layer {float(curves['exit_depth']):.1f} of {result.n_layers}"
    st.caption(f"At this threshold words leave {depth} on average; {agrees} are those of the whole model.")


READING = """Agreement at a depth is the share of tokens for which the first choice there is the whole model's. No exit
was trained for this. Confident is not correct: where embedding and head share their weights, depth 0 is confident of
the token it has just read. Choose a threshold by the agreement."""
