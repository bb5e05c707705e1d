"""At which depth the tokens settle that the model itself writes."""

from dataclasses import replace

import streamlit as st

from ed_core import figures
from ed_core.depth import writing
from ed_core.figures import View
from ed_core.figures.pictures import pictures
from ed_core.probes import Generation
from ed_core.results.aggregate import probe_of
from ed_core.types import ProbeResult
from ed_ui import control_model, probe_page, remembered, running, show

WINDOW = 40  # tokens on the map


def drawn(result: ProbeResult, view: View) -> None:
    """The text so far and the map."""
    told(result)
    n, begin = len(result["ids"]), figures.first_position(result)
    chosen = remembered.value("token")
    step = chosen - begin if chosen is not None and 0 <= chosen - begin < n else None
    window = remembered.window("writing.window", n, WINDOW)
    if not result.complete and window is not None:  # the token that is being written stays in sight
        last = max(writing.written({"ids": result["ids"]}), WINDOW)
        window = (last - WINDOW, last - 1)
    seen = replace(view, window=window, selected=step, sinks=())
    (one,) = pictures(result)
    fig, caption = figures.writing_map(result, seen), one.caption[:1].upper() + one.caption[1:]
    show.figure("map", fig, caption, result, "jsd", one.reading, select=True)
    if window is not None and result.complete:
        limits = dict(min_value=0, max_value=n - 1, width=420)
        remembered.widget(st.slider, "Tokens shown", "writing.window", window, **limits)


def told(result: ProbeResult) -> None:
    """What is written, and what it comes down to; while it is written, a way to stop there."""
    probe, n = probe_of(result), writing.written({"ids": result["ids"]})
    values = {name: measure.values for name, measure in result.measures.items()}
    st.markdown(writing.sentence(values, result.n_layers, probe.rho, probe.threshold))
    text = "".join(result.token_text.get(i, "") for i in result["ids"][:n].tolist())
    left, right = st.columns([6, 1], vertical_alignment="center")
    left.code(result.provenance.get("written", text) or " ", language=None, wrap_lines=True)
    if result.complete or not n:
        return
    if right.button("Stop here", icon=":material/stop_circle:", on_click=stop, args=(result, n), help=STOP):
        st.rerun()


def stop(result: ProbeResult, n: int) -> None:
    """Ask for the tokens written so far: a result like any other, and there in a moment."""
    remembered.replace({"generation.n_tokens": n})
    (model,), (prompt,) = result.request.models, result.request.prompts
    fewer = replace(probe_of(result), n_tokens=n).request(model, prompt)
    batch = running.batch(Generation.name, control_model.with_control({Generation.name: fewer}))
    if batch.missing:
        running.submit(batch)


def more(result: ProbeResult, view: View) -> None:
    left, right = st.columns(2)
    look = dict(x="token written", height=280)
    depths = {"settles": result["settle_depth"], "would leave": result["exit_depth"]}
    fig = figures.layer_curves(depths, "", "depth", **look)
    show.figure("depths", fig, "Depth at which each token settles, and would leave", result, "settle_depth", place=left)
    fig = figures.layer_curves({"deep-thinking ratio": result["deep_thinking_ratio"]}, "", "share", **look)
    fig.update_yaxes(range=[-0.02, 1.02])
    caption = "Deep-thinking ratio of the tokens so far"
    show.figure("ratio", fig, caption, result, "deep_thinking_ratio", RATIO, place=right)


TEACH = """Not computed yet. **Run** lets the model continue the question, and shows for every token at which depth it
settles."""
STOP = """Ends the text here and keeps it: the same tokens, as a result of its own."""
RATIO = "Chen et al. 2026 find more such tokens where a model reasons rightly; the claim is about long answers."
TEXTS = {
    "The papers saw": "The share of generated tokens that settle late goes with accuracy over prompts, better than "
    "length does (Chen et al. 2026, arXiv 2602.13517).",
    "Look for": "columns that stay dark up to the top: tokens the model needs all of its depth for.",
    "By construction": "The top row is the output: divergence 0. Every token is predicted at the position before "
    "its own.",
    "Beware": "The head was trained for the last layer only, and where embedding and head share their weights, depth 0 "
    "is sure of the token just read: a cross there is no knowledge.",
}

probe_page.Page(
    Generation,
    TEACH,
    TEXTS,
    more,
    figure=drawn,
    over_tokens=False,
    height=lambda n_layers: figures.lens_height(n_layers, View(height=probe_page.MAP_HEIGHT)),
).show()
