"""At which depth the tokens settle that the model itself writes."""

import streamlit as st

from ed_core import figures
from ed_core.depth import exits as leaving
from ed_core.depth import say
from ed_core.figures import View
from ed_core.probes import Generation
from ed_core.statistics import units
from ed_core.types import ProbeResult
from ed_ui import control_model, exits, probe_page, prompt_panels, running, show


def drawn(result: ProbeResult, view: View) -> None:
    def new_batch() -> running.Batch:
        request = prompt_panels.generation().request(result.request.models[0], result.request.prompts[0])
        return running.batch(Generation.name, control_model.with_control({Generation.name: request}))

    prompt_panels.written("map", result, view, new_batch)


def more(result: ProbeResult, view: View) -> None:
    left, right = st.columns(2)
    look = dict(x="token written", height=280)
    depths = {"for good": result["settle_depth"], "would leave": result["exit_depth"]}
    fig = figures.layer_curves(depths, "", "depth", **look)
    title = "From which depth each token is the best guess for good, and where it would leave"
    show.figure("depths", fig, title, result, "settle_depth", place=left)
    if leaving.written(result["ids"]):
        room = leaving.headroom([leaving.Tokens.of(result)], units(1))
        show.figure("spared", figures.spared_layers(room), say.headroom(room), result, "confidence")
    fig = figures.layer_curves({"deep-thinking ratio": result["deep_thinking_ratio"]}, "", "share", **look)
    fig.update_yaxes(range=[-0.02, 1.02])
    caption = "Deep-thinking ratio of the tokens so far"
    show.figure("ratio", fig, caption, result, "deep_thinking_ratio", RATIO, place=right)
    exits.panel(result)


def verdict(result: ProbeResult) -> tuple[str, str]:
    first, _, rest = say.exits(leaving.exits(result)).partition(". ")
    return f"{first.rstrip('.')}.", rest


TEACH = """Not computed yet. **Run** lets the model continue the question, and shows for every token the depth
from which its final best guess leads for good."""
RATIO = (
    "Chen et al. 2026 find a larger share of tokens whose divergence falls late where a model reasons correctly, in "
    "long answers."
)
TEXTS = {
    "The papers saw": "The share of generated tokens whose divergence falls late correlates with accuracy over "
    "prompts, more than length does (Chen et al. 2026, arXiv 2602.13517).",
    "Look for": "columns that stay dark up to the top: tokens whose divergence falls late.",
    "By construction": "The top row is the output: divergence 0. Every token is predicted at the position before "
    "its own.",
    "Beware": "The head was trained for the last layer only, and where embedding and head share their weights, depth 0 "
    "repeats the token just read: a cross there is an echo, not a prediction.",
}

probe_page.Page(
    Generation,
    TEACH,
    verdict,
    TEXTS,
    more,
    figure=drawn,
    over_tokens=False,
    height=lambda n_layers: figures.lens_height(n_layers, View(height=probe_page.MAP_HEIGHT)),
).show()
