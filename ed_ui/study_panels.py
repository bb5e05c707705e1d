"""Parts of a study's report: depth over a training, precisions, difficulty, and what is published."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ed_core import figures
from ed_core.depth.published import CAVEATS, CITATION, INSTRUCT_PAIRS, PAIRS, published
from ed_core.depth.rules import OF_LENS, RULES
from ed_core.errors import EffectiveDepthError, StudyError
from ed_core.results.shelf import Shelf
from ed_core.statistics import FEWEST, FEWEST_FORMS
from ed_core.studies import difficulty as levels
from ed_core.studies import points, steps, tables, trends
from ed_core.studies import precisions as shifts
from ed_core.studies.items import Folder
from ed_core.studies.points import Point
from ed_ui import inputs, show, studies
from ed_ui.inputs import choice, text

# -------------------------------------------------------------------- over training

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
SERIES = text("series", "studies.series", label="Training")
STEP = text("step", "studies.step", label="Step")
BRANCH = choice("branch", "studies.branch", "layer", list(BRANCHES), "Maps of", BRANCHES)
AXIS = choice("axis", "studies.axis", "logarithmic", ["logarithmic", "linear"], "Steps' axis")


def training(row: DeltaGenerator, folder: Folder, verdict: studies.Rows, name: str) -> None:
    """Draw depth over a training's steps and maps of layers over steps, for `name`, a set of the study or one of its
    levels; the choices are in `row`."""
    every = steps.series(folder)
    series = next(iter(every))
    if len(every) > 1:
        series = SERIES.draw_of(row.selectbox, list(every), width=320)
    depths = steps.depths(verdict, every[series], name)
    if not depths:
        st.info("Nothing of this training is computed on this set yet.", icon=":material/hourglass_empty:")
        return
    stored = sorted({one["step"] for one in depths})
    axis, branch = AXIS.draw(row.segmented_control), BRANCH.draw(row.segmented_control)
    step = _slider(stored)
    _chart(folder, {s: every[series][s] for s in stored}, depths, name, axis == "logarithmic", step)
    _layers(folder, {s: every[series][s] for s in stored}, name, branch, step)


def _slider(stored: Sequence[int]) -> int:
    """Draw the choice of the step that all figures mark, and return it; the last one unless another is chosen."""
    options = [str(step) for step in stored]
    if len(options) == 1:
        return stored[0]
    if STEP.value not in options:
        inputs.put({STEP.key: options[-1]})
    return int(STEP.draw(st.select_slider, options=options))


def _chart(folder: Folder, stored: Mapping[int, str], rows: studies.Rows, name: str, log: bool, step: int) -> None:
    """Draw depth over the steps of a training, with sentences on its course. `stored`: labels by step. `log`: of the
    axis."""
    sinks = {number: tables.sinks(folder, label, name) for number, label in stored.items()}
    fig = show.once(figures.depth_over_steps, rows, rows[0]["n_layers"], sinks, log, step)
    show.figure("depth-steps", fig, DEPTHS, reading=READING)
    for sentence in steps.course(rows):
        st.markdown(f"- {show.plain(sentence)}")


def _layers(folder: Folder, stored: Mapping[int, str], name: str, branch: str, step: int) -> None:
    """Draw three maps of layers over steps: contribution, cosine, and the lens's divergence. `stored`: labels by step.
    `branch`: layer, attn or mlp."""
    index, maps = list(stored).index(step), [(f"contributions.{branch}_{end}", end) for end in ("ratio", "cos")]
    places = st.container(key="steps-maps").columns(3)
    for place, (measure, key) in zip(places, [*maps, ("logit_lens.kl", "kl")], strict=True):
        z = studies.looked(folder.out, steps.over_layers, tuple(stored.values()), name, measure)
        if len(z):
            quantity, unit = measure.partition(".")[2], tables.unit_of(folder, measure)
            fig = show.once(figures.layers_over_steps, z, list(stored), quantity, unit, index, width_px=WIDTH)
            title, reading = MAPS[key][0], f"{MAPS[key][1].format(branch=BRANCHES[branch])} {COLUMNS}"
            show.figure(f"steps-{key}", fig, title, reading=reading, place=place)


WIDTH = 380  # pixels of a map, about
COLUMNS = "A column is a step, whatever is between two; the one chosen is next to the map, the first dashed."
DEPTHS = (
    "**Depth over training** · lines: average depth, shaded 5 to 95 %; stars: the switch; diamonds: published rules; "
    "below: sinks per prompt"
)
READING = (
    "A mean depth is the mean over all thresholds of the depth from which the lens stays within the threshold of the "
    "output. A turn or a rule's layer is drawn where that layer ends; where one is not defined, there is a gap. Ranges "
    f"are over the forms of the prompts from {FEWEST_FORMS} forms up, else over prompts from {FEWEST} up: they say how "
    "sure a step is, not how another seed would train."
)


# -------------------------------------------------------------------- precisions


def precisions(folder: Folder, name: str) -> None:
    """Draw how far each precision of a model moves its curves and depths, on the set `name`; nothing where all are of
    one precision."""
    if not (moves := studies.looked(folder.out, shifts.shifts, name)):
        return
    for _, own in groupby(moves, lambda one: (one.model, one.precision)):
        st.markdown(f"- {show.plain(shifts.sentence(list(own)))}")
    head, *rows = shifts.rows(moves)
    show.table("precisions", [dict(zip(head, row)) for row in rows], 400)
    st.caption(ABOUT_SHIFTS)


ABOUT_SHIFTS = (
    "A depth's shift is in layers; a curve's is the mean over the layers of the absolute difference, in the curve's "
    "own unit. In brackets 5 to 95 % over the prompts, which both precisions have read."
)


# -------------------------------------------------------------------- difficulty

SHORT = {name: rule.label for name, rule in OF_LENS.items()} | {"effect": "skips, layers", "output": "skips, output"}
KIND = choice("effect", "difficulty.kind", "kl", tuple(SHORT), "Depth by", SHORT)
DRAWN = ("name", "mean", "low", "high", "own")  # of a level, in the figure


def graded(folder: Folder, name: str) -> bool:
    """Return whether a set of a study has levels of difficulty, and a depth is measured on them."""
    return bool(levels.kinds(folder)) and len(folder.groups(name)) > 2


def difficulty(folder: Folder, name: str) -> None:
    """Draw the depth of all models by level of difficulty, with a sentence each."""
    kind = KIND.draw_of(st.segmented_control, levels.kinds(folder))
    looks, silent = [], []
    for label in folder.models:
        try:
            looks.append(studies.looked(folder.out, levels.look, label, name, kind))
        except EffectiveDepthError as error:
            silent.append(str(error))
    if looks:
        scores = {one.label: [{key: getattr(l, key) for key in DRAWN} for l in one.levels] for one in looks}
        layers = {one.label: one.n_layers for one in looks}
        fig = show.once(figures.study_levels, scores, layers, levels.CALLED[kind], kind in levels.DEPTHS)
        show.figure("study-levels", fig, "**Do harder prompts go deeper?** · dots: single prompts", reading=PAIRED)
    for one in looks:
        st.markdown(f"- {show.plain(one.sentence)}")
    for why in silent:
        st.caption(show.plain(why))


PAIRED = (
    "Average depth as a share of the layers, or the depth score: the mean layer, weighted by how much leaving it out "
    "changes later layers or the prediction. Bars: 5 to 95 % over a level's prompts or their templates. The line joins "
    "what the levels' mean curves give. Where the set has a prompt of each template on every level, the slope is "
    "of the prompts' own depths. A level is as hard as the author of the set says, and harder prompts are often longer."
)


# -------------------------------------------------------------------- next to what is published

EVERY = "all"
MEANS = {name: f"average depth, {RULES[rule].label}" for name, rule in points.MEANS.items()}
CRITERIA = MEANS | {name: f"{rule.heading} rule" for name, rule in RULES.items()}
SETS = [EVERY, *dict.fromkeys(p.dataset for p in published())]
SET = choice("beside", "studies.published_set", EVERY, SETS, "Published set")
RULE = choice("rule", "studies.criterion", "mean_kl", list(CRITERIA), "Depth", CRITERIA)
LINKED = (SERIES, STEP, BRANCH, AXIS, SET, RULE, KIND)  # what a link carries
_slopes: Shelf[trends.Slope] = Shelf(256)  # what resampling has found, of these very points
_found: Shelf[list[trends.Difference | EffectiveDepthError]] = Shelf(256)  # and of pairs


def beside_published(folder: Folder, group: str) -> None:
    """Draw measured depths next to published ones, for `group`, a set of a study or one of its levels: a table, depth
    against size, and pairs of models."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    dataset = SET.draw(row.selectbox, width=200)
    criterion = RULE.draw(row.segmented_control)
    measured = studies.looked(folder.out, points.measured_points, group)
    others = [p for p in points.published_points() if dataset in (EVERY, p.set)]
    table(measured, others)
    by_rule = [[p for p in some if p.criterion == criterion] for some in (measured, others)]
    against_size(folder, criterion, *by_rule)
    pairs(folder, *by_rule)


def table(measured: Sequence[Point], others: Sequence[Point]) -> None:
    """Draw a table with one line per model and set: measured depths with their ranges, published ones next to them."""
    rows = points.side_by_side(measured, list(others))
    st.markdown(
        "**Depths, measured and published** · rules' layers in the papers' count, from 0; 5 to 95 % in brackets"
    )
    if not rows:
        st.caption("Nothing measured or published fits this choice.")
        return
    columns = {f"{c} {s}": f"{CRITERIA[c]}, {s}" for c in CRITERIA for s in (points.MEASURED, points.PUBLISHED)}
    used = {name for row in rows.values() for name in row}
    shown = []
    for (model, where), row in rows.items():
        p = next(iter(row.values()))
        size = None if p.parameters is None else p.parameters / 1e9
        head = {"model": model, BILLIONS: size, "training": p.training, "layers": p.n_layers, "set": where}
        shown.append(head | {t: _depth(row.get(c)) for c, t in columns.items() if c in used})
    show.table("depths", shown, 400, {BILLIONS: ".3g"})
    st.caption(f"Published: {CITATION}. {' '.join(CAVEATS)}")


def _depth(p: Point | None) -> str:
    """Return a depth with its range over prompts as text; "" for None."""
    if p is None:
        return ""
    depth, low, high = (None if math.isnan(ratio) else p.at(ratio) for ratio in (p.ratio, p.low, p.high))
    variant = tables.MEAN if p.criterion in MEANS else ""
    return tables.cell({"depth": depth, "low": low, "high": high, "variant": variant})


def against_size(folder: Folder, criterion: str, measured: Sequence[Point], others: Sequence[Point]) -> None:
    """Draw relative depth over the number of parameters, with a line and its sentence for measured and for published
    points."""
    learned = [p for p in measured if not folder.models[p.model].get("control")]
    sentences, lines, dots = [], {}, []
    for source, some in ((points.MEASURED, learned), (points.PUBLISHED, others)):
        dots += [p for p in some if p.parameters and math.isfinite(p.ratio)]
        if source == points.PUBLISHED and criterion in MEANS:
            sentences.append(RULES_ALONE)
            continue
        try:
            slope = _slopes.made(trends.slope, some)
            lines[source] = (slope.start, slope.end)
            sentences.append(slope.sentence)
        except StudyError as error:
            sentences.append(
                f"{source.capitalize()}: {error}" if some else f"{source.capitalize()}: nothing fits this choice."
            )
    if dots:
        fig = show.once(figures.study_sizes, [_plain(p) for p in dots], lines)
        show.figure("study-sizes", fig, AGAINST_SIZE, reading=READING_SIZE)
    for sentence in sentences:
        st.markdown(f"- {show.plain(sentence)}")


def pairs(folder: Folder, measured: Sequence[Point], others: Sequence[Point]) -> None:
    """Show the difference in depth of pairs of models: the study's first two and its known pairs, then the published
    pairs."""
    st.markdown("**One model against another** · the difference in depth with its interval")
    labels = list(dict.fromkeys(p.model for p in measured))
    known = [p for pair in (*PAIRS, *INSTRUCT_PAIRS) if (p := _in_study(folder, pair, labels))]
    own = dict.fromkeys([*known, *([(labels[0], labels[1])] if len(labels) > 1 else [])])
    _say(measured, own)
    if not others:
        st.caption(RULES_ALONE)
        return
    with st.expander("The published pairs", icon=":material/compare_arrows:"):
        _say(others, (*PAIRS, *INSTRUCT_PAIRS))
        st.caption(ABOUT_PAIRS)


def _say(some: Sequence[Point], pairs: Iterable[tuple[str, str]]) -> None:
    """Show the difference in depth of each pair, in a sentence."""
    for difference in _found.made(_differences, some, list(pairs)):
        sentence = str(difference) if isinstance(difference, EffectiveDepthError) else difference.sentence
        st.markdown(f"- {show.plain(sentence)}")


def _differences(
    some: Sequence[Point], pairs: Sequence[tuple[str, str]]
) -> list[trends.Difference | EffectiveDepthError]:
    """Return for each pair the difference in depth, or the error that says why it has none."""
    result: list[trends.Difference | EffectiveDepthError] = []
    for base, other in pairs:
        try:
            result.append(trends.difference(some, base, other))
        except EffectiveDepthError as error:
            result.append(error)
    return result


def _in_study(folder: Folder, pair: tuple[str, str], labels: Sequence[str]) -> tuple[str, str] | None:
    """Return the study's labels of a known pair of models; None where it lacks one of them."""
    members = [
        next((l for l in labels if folder.models[l].get("name") == name and not folder.models[l].get("control")), "")
        for name in pair
    ]
    return (members[0], members[1]) if all(members) else None


def _plain(p: Point) -> dict[str, Any]:
    """Return the fields of a point that the figure needs, as a dict."""
    return {k: getattr(p, k) for k in ("model", "parameters", "ratio", "low", "high", "training", "set", "source")}


BILLIONS = "parameters, billions"
RULES_ALONE = "Published depths exist for published rules alone; choose one to see them."
AGAINST_SIZE = (
    "**Depth against size** · shape: kind of training; filled: measured, with the range over prompts; hollow, dashed "
    "line: published"
)
READING_SIZE = (
    "The line is fitted by least squares to the ratio over `log10(parameters)`, each set with a height of its own; "
    "measured and published points never share one. What is published has no prompts to draw, so its line has no "
    "interval; a measured one draws prompts and holds for these models "
    "alone. The published models are of one family, in four sizes and three depths. The KL and overlap rules "
    "can reach `(L − 1) / L` at most, which is 0.96 with 28 layers and 0.98 with 64."
)
ABOUT_PAIRS = (
    "Each distilled model next to what it was trained from (DeepSeek-AI 2025, arXiv 2501.12948), then next to the "
    "instruct model of its shape. The interval is Student's t over the sets, three at most, as if they were drawn "
    "from sets like them; it is wide for that reason."
)
