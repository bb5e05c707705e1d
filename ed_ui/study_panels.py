"""Parts of a study's report: depth over a training, precisions, difficulty, and what is published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

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
from ed_core.studies.points import MEASURED, PUBLISHED, Point
from ed_ui import inputs, show, studies
from ed_ui.inputs import choice, text

WORDS = show.words(__file__)

# -------------------------------------------------------------------- over training

BRANCHES = {"layer": "layer", "attn": "attention", "mlp": "MLP"}
MAPS = {  # title and reading, by measure
    "contributions.{branch}_ratio": (
        "**Contributions** over the stream",
        "What the {branch} adds, relative to the stream: the mean over tokens.",
    ),
    "contributions.{branch}_cos": (
        "**Cosine** with the stream",
        "Blue: the {branch} writes against the stream; orange: along it. Mean over tokens.",
    ),
    "logit_lens.kl": (
        "**Lens**: divergence from the output",
        "KL divergence of the lens, in nats: where it is small at every depth, an average depth has little to measure.",
    ),
}
SERIES = text("series", "studies.series", label="Training")
STEP = text("step", "studies.step", label="Step")
BRANCH = choice("branch", "studies.branch", "layer", BRANCHES, "Maps of", BRANCHES)
AXIS = choice("axis", "studies.axis", "logarithmic", ["logarithmic", "linear"], "Steps' axis")


def training(row: DeltaGenerator, folder: Folder, verdict: studies.Rows, name: str) -> None:
    """Draw depth over a training's steps with sentences on its course, and maps of layers over steps, for `name`, a set
    of the study or one of its levels; the choices are in `row`."""
    every = steps.series(folder)
    series = SERIES.draw_of(row.selectbox, list(every), width=320) if len(every) > 1 else next(iter(every))
    depths = steps.depths(verdict, every[series], name)
    if not depths:
        st.info("Nothing of this training is computed on this set yet.", icon=":material/hourglass_empty:")
        return
    stored = {step: every[series][step] for step in sorted({one["step"] for one in depths})}
    log, branch = AXIS.draw(row.segmented_control) == "logarithmic", BRANCH.draw(row.segmented_control)
    step = max(stored)
    if len(stored) > 1:
        if STEP.value not in map(str, stored):
            inputs.put({STEP.key: str(step)})
        step = int(STEP.draw(st.select_slider, options=[str(one) for one in stored]))
    sinks = {number: tables.sinks(folder, label, name) for number, label in stored.items()}
    fig = show.once(figures.depth_over_steps, depths, depths[0]["n_layers"], sinks, log, step)
    reading = WORDS["Reading of training"].format(forms=FEWEST_FORMS, prompts=FEWEST)
    show.figure("depth-steps", fig, WORDS["Depth over training"], reading=reading)
    show.bullets(steps.course(depths))
    index, places = list(stored).index(step), st.container(key="steps-maps").columns(len(MAPS))
    for place, (measure, (title, reading)) in zip(places, MAPS.items(), strict=True):
        probe, _, quantity = measure.format(branch=branch).partition(".")
        z = studies.looked(folder.out, steps.over_layers, tuple(stored.values()), name, f"{probe}.{quantity}")
        if len(z):
            unit = tables.unit_of(folder, f"{probe}.{quantity}")
            fig = show.once(figures.layers_over_steps, z, list(stored), quantity, unit, index, width_px=380)
            reading = f"{reading.format(branch=BRANCHES[branch])} {WORDS['Columns']}"
            show.figure(f"steps-{quantity.rpartition('_')[2]}", fig, title, reading=reading, place=place)


# -------------------------------------------------------------------- precisions


def precisions(folder: Folder, name: str) -> None:
    """Draw how far each precision of a model moves its curves and depths on a set; nothing where all are of one."""
    if not (moves := studies.looked(folder.out, shifts.shifts, name)):
        return
    show.bullets(shifts.sentence(list(own)) for _, own in groupby(moves, lambda one: (one.model, one.precision)))
    head, *rows = shifts.rows(moves)
    show.table("precisions", [dict(zip(head, row)) for row in rows], 400)
    st.caption(WORDS["Precisions"])


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
        title = "**Do harder prompts go deeper?** · dots: single prompts"
        show.figure("study-levels", fig, title, reading=WORDS["Difficulty"])
    show.bullets(one.sentence for one in looks)
    for why in silent:
        st.caption(show.plain(why))


# -------------------------------------------------------------------- next to what is published

EVERY = "all"
MEANS = {name: f"average depth, {RULES[rule].label}" for name, rule in points.MEANS.items()}
CRITERIA = MEANS | {name: f"{rule.heading} rule" for name, rule in RULES.items()}
SETS = [EVERY, *dict.fromkeys(p.dataset for p in published())]
SET = choice("beside", "studies.published_set", EVERY, SETS, "Published set")
RULE = choice("rule", "studies.criterion", "mean_kl", CRITERIA, "Depth", CRITERIA)
LINKED = (SERIES, STEP, BRANCH, AXIS, SET, RULE, KIND)  # what a link carries
BILLIONS = "parameters, billions"
_slopes: Shelf[trends.Slope] = Shelf(256)  # what resampling has found, of these very points
_sentences: Shelf[str] = Shelf(256)  # and of pairs


def beside_published(folder: Folder, group: str) -> None:
    """Draw measured depths next to published ones, for `group`, a set of a study or one of its levels: a table, depth
    against size, and pairs of models."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    dataset, criterion = SET.draw(row.selectbox, width=200), RULE.draw(row.segmented_control)
    measured = studies.looked(folder.out, points.measured_points, group)
    others = [p for p in points.published_points() if dataset in (EVERY, p.set)]
    st.markdown(WORDS["Published"])
    if rows := [_row(*one) for one in points.side_by_side(measured, others).items()]:
        columns = [name for name in dict.fromkeys((*_HEAD, *_DEPTHS)) if any(name in one for one in rows)]
        show.table("depths", [{name: one.get(name, "") for name in columns} for one in rows], 400, {BILLIONS: ".3g"})
    st.caption(f"Published: {CITATION}. {' '.join(CAVEATS)}" if rows else "Nothing fits this choice.")
    by_source = {
        source: [p for p in some if p.criterion == criterion]
        for source, some in ((MEASURED, measured), (PUBLISHED, others))
    }
    _against_size(folder, by_source, criterion in MEANS)
    _pairs(folder, **by_source)


_HEAD = ("model", BILLIONS, "training", "layers", "set")
_DEPTHS = {f"{title}, {source}": f"{c} {source}" for c, title in CRITERIA.items() for source in (MEASURED, PUBLISHED)}


def _row(where: tuple[str, str], found: dict[str, Point]) -> dict[str, object]:
    """Return a row of the table of depths: a model on a set (`where`), with its depths by criterion and source."""
    p = next(iter(found.values()))
    size = None if p.parameters is None else p.parameters / 1e9
    row: dict[str, object] = dict(zip(_HEAD, (where[0], size, p.training, p.n_layers, where[1]), strict=True))
    for title, name in _DEPTHS.items():
        if (p_of := found.get(name)) is not None:
            ends = (None if math.isnan(ratio) else p_of.at(ratio) for ratio in (p_of.ratio, p_of.low, p_of.high))
            variant = tables.MEAN if p_of.criterion in MEANS else ""
            row[title] = tables.cell(dict(zip(("depth", "low", "high"), ends), variant=variant))
    return row


def _against_size(folder: Folder, by_source: dict[str, list[Point]], is_mean: bool) -> None:
    """Draw relative depth over the number of parameters, with a line and its sentence for measured and for published
    points. `is_mean`: it is an average depth, of which nothing is published."""
    sentences, lines, dots = [], {}, []
    for source, some in by_source.items():
        some = [p for p in some if source == PUBLISHED or not folder.models[p.model].get("control")]
        dots += [vars(p) for p in some if p.parameters and math.isfinite(p.ratio)]
        if source == PUBLISHED and is_mean:
            sentences.append(WORDS["Rules alone"])
            continue
        try:
            slope = _slopes.made(trends.slope, some)
            lines[source] = (slope.start, slope.end)
            sentences.append(slope.sentence)
        except StudyError as error:
            sentences.append(f"{source.capitalize()}: {error if some else 'nothing fits this choice.'}")
    if dots:
        fig = figures.study_sizes(dots, lines)
        show.figure("study-sizes", fig, WORDS["Size"], reading=WORDS["Reading of size"])
    show.bullets(sentences)


def _pairs(folder: Folder, measured: Sequence[Point], published: Sequence[Point]) -> None:
    """Show the difference in depth of pairs of models in sentences: of the study its known pairs and its first two
    models, then the published pairs."""
    st.markdown(WORDS["Pairs"])
    labels = list(dict.fromkeys(p.model for p in measured))
    known = (*PAIRS, *INSTRUCT_PAIRS)
    own = {folder.models[l].get("name"): l for l in reversed(labels) if not folder.models[l].get("control")}
    pairs = [(own[base], own[other]) for base, other in known if base in own and other in own]
    pairs += [(labels[0], labels[1])] if len(labels) > 1 else []
    show.bullets(_sentences.made(_sentence, measured, *pair) for pair in dict.fromkeys(pairs))
    if not published:
        st.caption(WORDS["Rules alone"])
        return
    with st.expander("The published pairs", icon=":material/compare_arrows:"):
        show.bullets(_sentences.made(_sentence, published, *pair) for pair in known)
        st.caption(WORDS["Published pairs"])


def _sentence(some: Sequence[Point], base: str, other: str) -> str:
    """Return the difference in depth of two models in a sentence, or why there is none."""
    try:
        return trends.difference(some, base, other).sentence
    except EffectiveDepthError as error:
        return str(error)
