"""How much each sub-layer writes, and in which direction."""

import streamlit as st

from ed_core import figures
from ed_core.depth import say, sinks
from ed_core.depth.rules import COSINES
from ed_core.figures import View, pictures
from ed_core.probes import Contributions
from ed_core.results import aggregate
from ed_core.types import ProbeResult
from ed_ui import probe_page, show
from ed_ui.inputs import COUNTED, MEASURE


def figure(result: ProbeResult, view: View) -> None:
    """Draw the map of the chosen measure, ratios or cosines, with its caption."""
    measure = MEASURE.value
    spec = Contributions.spec(measure)
    draw = figures.cosine_map if spec.unit == "cosine" else figures.contribution_norms
    one = Contributions.pictures[1 if measure in COSINES else 0]
    text = spec.meaning[:1].upper() + spec.meaning[1:] + pictures.curve_of(one, view)
    fig = show.once(draw, result, view, measure, COUNTED.value)
    show.figure("map", fig, text, result, measure, select=True)


def more(result: ProbeResult, view: View) -> None:
    """Draw the selected token's course, and means over tokens of length and cosine by layer."""
    measure = MEASURE.value
    probe_page.profile(result, measure, view)
    if not result.complete:
        return
    if long := say.long_at_end(sinks.long_at_end(result), result.tokens):
        st.caption(show.plain(long))
    curves = aggregate.without(result, view.uncounted, COUNTED.value)
    for place, (key, suffix, unit, caption) in zip(st.columns(2), MEANS, strict=True):
        lines = {name: curves[f"{short}_{suffix}"] for name, short in BRANCHES.items()}
        controls = probe_page.behind(view, f"layer_{suffix}", COUNTED.value)
        fig = show.once(figures.layer_curves, lines, "", unit, log=unit == "ratio", behind=controls)
        show.figure(key, fig, caption + probe_page.of_sinks(view), results=[result], place=place)


BRANCHES = {"attention": "attn", "MLP": "mlp", "both": "layer"}
MEANS = (
    ("mean-ratio", "ratio", "ratio", "Mean length of what a layer adds, relative to the stream"),
    ("mean-cosine", "cos", "cosine", "Mean cosine per layer: below 0 against the stream, above 0 along it"),
)

probe_page.Page(
    Contributions,
    show.words(__file__),
    say.contributions,
    more,
    figure=figure,
    inputs=lambda: MEASURE.draw(st.selectbox, width=260, label_visibility="collapsed"),
    over_sinks=True,
    parameters=(MEASURE,),
).show()
