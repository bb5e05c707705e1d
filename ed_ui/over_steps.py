"""A study whose models are steps of a training: depth at each of them, and the layers, one step after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from ed_core import figures
from ed_core.statistics import FEWEST, FEWEST_FORMS
from ed_core.studies import steps, tables
from ed_core.studies.items import Folder
from ed_ui import inputs, show
from ed_ui.inputs import choice, text

OVER, BESIDE = "over training", "side by side"
BRANCHES = {"layer": "layer", "attn": "attention", "mlp": "MLP"}
MAPS = {
    "ratio": (
        "**Contributions** over the stream",
        "What the {branch} adds, relative to the stream: the mean over tokens.",
    ),
    "cos": (
        "**Cosine** with the stream",
        "Blue: the {branch} writes against the stream; orange: along it. Mean over tokens.",
    ),
    "kl": (
        "**Lens**: divergence from the output",
        "KL divergence of the lens, in nats: where it is small at every depth, a mean depth has little to measure.",
    ),
}
VIEW = choice("view", "studies.view", OVER, [OVER, BESIDE], "Steps")
SERIES = text("series", "studies.series", label="Training")
STEP = text("step", "studies.step", label="Step")
BRANCH = choice("branch", "studies.branch", "layer", list(BRANCHES), "Maps of", BRANCHES)
AXIS = choice("axis", "studies.axis", "logarithmic", ["logarithmic", "linear"], "Steps' axis")
LINKED = (VIEW, SERIES, STEP, BRANCH, AXIS)  # what a link to the page carries of it


def chosen(row, folder: Folder) -> bool:
    """Whether the study has a training and is looked at as one: a switch that other studies do not have."""
    if not steps.series(folder):
        return False
    return bool(VIEW.draw(row.segmented_control, help=ABOUT_VIEW) == OVER)


def panel(row, folder: Folder, verdict: Sequence[Mapping], summary: Sequence[Mapping], name: str) -> None:
    """All of it, for a set of the study or one of its levels; its choices stand in `row`."""
    every = steps.series(folder)
    of = next(iter(every))
    if len(every) > 1:
        of = SERIES.draw_of(row.selectbox, list(every), width=320)
    depths = steps.depths(verdict, every[of], name)
    if not depths:
        st.info("Nothing of this training is computed on this set yet.", icon=":material/hourglass_empty:")
        return
    there = sorted({one["step"] for one in depths})
    axis, branch = AXIS.draw(row.segmented_control), BRANCH.draw(row.segmented_control)
    step = _slider(there)
    _depths(folder, {s: every[of][s] for s in there}, depths, name, axis == "logarithmic", step)
    _layers({s: every[of][s] for s in there}, summary, name, branch, step)


def _slider(there: Sequence[int]) -> int:
    """The step that all figures mark; the last one unless another is chosen."""
    options = [str(step) for step in there]
    if len(options) == 1:
        return there[0]
    if STEP.value not in options:
        inputs.put({STEP.key: options[-1]})
    return int(STEP.draw(st.select_slider, options=options))


def _depths(folder: Folder, there: Mapping[int, str], rows: Sequence[Mapping], name: str, log: bool, step: int) -> None:
    sinks = dict(zip(there, steps.sinks(folder, there, name), strict=True))
    fig = show.once(figures.depth_over_steps, rows, rows[0]["n_layers"], sinks, log, step)
    show.figure("depth-steps", fig, DEPTHS, reading=READING)
    for said in steps.course(rows):
        st.markdown(f"- {show.plain(said)}")


def _layers(there: Mapping[int, str], summary: Sequence[Mapping], name: str, branch: str, step: int) -> None:
    at, maps = list(there).index(step), [(f"contributions.{branch}_{end}", end) for end in ("ratio", "cos")]
    places = st.container(key="steps-maps").columns(3)
    for place, (measure, key) in zip(places, [*maps, ("logit_lens.kl", "kl")], strict=True):
        z = steps.over_layers(summary, there, name, measure)
        if len(z):
            of, unit = measure.partition(".")[2], tables.unit_of(measure)
            fig = show.once(figures.layers_over_steps, z, list(there), of, unit, at, width_px=WIDTH)
            title, reading = MAPS[key][0], f"{MAPS[key][1].format(branch=BRANCHES[branch])} {COLUMNS}"
            show.figure(f"steps-{key}", fig, title, reading=reading, place=place)


WIDTH = 380  # pixels of a map, about
COLUMNS = "A column is a step, whatever lies between two; the one chosen stands beside the map, the first dashed."
DEPTHS = (
    "**Depth over training** · lines: mean depth, shaded 5 to 95 %; stars: a turn; diamonds: the papers' rules; below: "
    "sinks per prompt"
)
READING = (
    "A mean depth is the mean over all thresholds of the depth from which the lens stays within the threshold of the "
    "output. A turn or a rule's layer is drawn where that layer ends; where one is not defined, there is a gap. Ranges "
    f"are over the forms of the prompts from {FEWEST_FORMS} forms up, else over prompts from {FEWEST} up: they say how "
    "sure a step is, not how another seed would train."
)
ABOUT_VIEW = "This study's models are steps of a training: in their order, or beside each other as other models are."
