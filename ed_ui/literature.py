"""A study beside what is published: the table, the ratio against size, one model against another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import streamlit as st

from ed_core import figures
from ed_core.depth.criteria import RULES
from ed_core.errors import EffectiveDepthError, StudyError
from ed_core.shelf import Shelf
from ed_core.sources.published import CAVEATS, CITATION, INSTRUCT_PAIRS, PAIRS, TRAINING, published
from ed_core.studies import points, trends
from ed_core.studies.folder import Folder
from ed_core.studies.points import Point
from ed_ui import chart, remembered, show, studies
from ed_ui.inputs import choice

EVERY = "all"
SIZES = {
    EVERY: (0.0, math.inf),
    "under 3B": (0.0, 3e9),
    "3B to 10B": (3e9, 1e10),
    "10B and more": (1e10, math.inf),
}  # parameters
MEANS = {name: f"mean depth, {RULES[of].label}" for name, of in points.MEANS.items()}
CRITERIA = MEANS | {name: f"papers: {rule.label}" for name, rule in RULES.items()}
SETS = [EVERY, *dict.fromkeys(p.dataset for p in published())]
LINKED = (
    choice("beside", "studies.published_set", EVERY, SETS),
    choice("training", "studies.training", EVERY, [EVERY, *TRAINING]),
    choice("size", "studies.size", EVERY, list(SIZES)),
    choice("rule", "studies.criterion", "mean_kl", list(CRITERIA)),
)  # what a link to the page carries of it
_told: Shelf = Shelf(256)  # what resampling has found, of these very points
KINDS = {"base": PAIRS, "instruct": INSTRUCT_PAIRS}


def panel(folder: Folder, group: str) -> None:
    """All of it, for a set of a study or one of its levels."""
    st.subheader("Beside what is published", anchor=False)
    row = st.container(horizontal=True, vertical_alignment="bottom")
    dataset = remembered.one_of(row.selectbox, "Published set", "studies.published_set", SETS, width=200)
    training = remembered.one_of(row.selectbox, "Training", "studies.training", [EVERY, *TRAINING], width=200)
    band = remembered.one_of(row.selectbox, "Size", "studies.size", list(SIZES), width=200)
    criterion = remembered.widget(
        row.segmented_control,
        "Depth",
        "studies.criterion",
        "mean_kl",
        options=list(CRITERIA),
        format_func=CRITERIA.get,
        required=True,
    )
    measured = studies.points(folder.out, group)
    others = [p for p in points.published_points() if dataset in (EVERY, p.set)]
    shown = [[p for p in some if training in (EVERY, p.training) and _fits(p, band)] for some in (measured, others)]
    table(*shown)
    against_size(folder, criterion, *([p for p in some if p.criterion == criterion] for some in shown))
    pairs(folder, *([p for p in some if p.criterion == criterion] for some in (measured, others)))


def table(measured: Sequence[Point], others: Sequence[Point]) -> None:
    """One line per model and set: measured depths with their ranges, published ones beside them."""
    rows = points.side_by_side(measured, others)
    st.markdown("**Depths, measured and published** · the papers' layers counted from 0; 5 to 95 % in brackets")
    if not rows:
        st.caption("Nothing measured or published fits this choice.")
        return
    columns = [f"{c} {s}" for c in CRITERIA for s in (points.MEASURED, points.PUBLISHED)]
    there = [name for name in columns if any(name in row for row in rows)]
    st.dataframe(
        [dict.fromkeys(there, "") | row for row in rows],
        hide_index=True,
        height=min(36 * (len(rows) + 1) + 3, 400),
        column_order=["model", "parameters", "training", "layers", "set", *there],
        column_config={
            "parameters": st.column_config.NumberColumn("parameters, billions", format="%.3g"),
            **{name: f"{CRITERIA[name.split()[0]]}, {name.split()[1]}" for name in there},
        },
    )
    st.caption(f"Published: {CITATION}. {' '.join(CAVEATS)}")


def against_size(folder: Folder, criterion: str, measured: Sequence[Point], others: Sequence[Point]) -> None:
    """The ratio over the number of parameters, with a line and its sentence for each source."""
    learned = [p for p in measured if not folder.models[p.model].get("control")]
    said, lines, drawn = [], {}, []
    for source, some in ((points.MEASURED, learned), (points.PUBLISHED, others)):
        drawn += [p for p in some if p.parameters and math.isfinite(p.ratio)]
        if source == points.PUBLISHED and criterion in MEANS:
            said.append(RULES_ALONE)
            continue
        try:
            found = _told.made(trends.slope, some)
            lines[source] = (found.start, found.end)
            said.append(found.sentence)
        except StudyError as error:
            said.append(
                f"{source.capitalize()}: {error}" if some else f"{source.capitalize()}: nothing fits this choice."
            )
    if drawn:
        fig = chart.once(figures.study_sizes, [_plain(p) for p in drawn], lines)
        show.figure("study-sizes", fig, AGAINST_SIZE, reading=READING_SIZE)
    for sentence in said:
        st.markdown(f"- {show.plain(sentence)}")


def pairs(folder: Folder, measured: Sequence[Point], others: Sequence[Point]) -> None:
    """One model against another: two of the study, and the published pairs."""
    st.markdown("**One model against another** · the difference in depth with its interval")
    labels = list(dict.fromkeys(p.model for p in measured))
    if len(labels) > 1:
        named = [tuple(pair) for pair in folder.plan.get("pairs", []) if set(pair) <= set(labels)]
        known = [p for pair in (*PAIRS, *INSTRUCT_PAIRS) if (p := _in_study(folder, pair, labels))]
        first, second = next(iter([*named, *known]), (labels[0], labels[1]))
        row = st.container(horizontal=True, vertical_alignment="bottom")
        base = remembered.one_of(
            row.selectbox, "From", "studies.base", [first, *(label for label in labels if label != first)], width=300
        )
        rest = [label for label in (second, *labels) if label != base]
        other = remembered.one_of(row.selectbox, "To", "studies.other", list(dict.fromkeys(rest)), width=300)
        _say(measured, dict.fromkeys([*named, *known, (base, other)]))
    if not others:
        st.caption(RULES_ALONE)
        return
    for kind, of_kind in KINDS.items():
        try:
            told = _told.made(
                trends.over_pairs, others, of_kind, f"the {kind} model", "the long-chain-of-thought model"
            )
            st.markdown(f"- {show.plain(told.sentence)}")
        except StudyError:
            st.caption(f"No published pair of {kind} and long-chain-of-thought model fits this choice.")
    with st.expander("The published pairs one by one", icon=":material/compare_arrows:"):
        _say(others, (*PAIRS, *INSTRUCT_PAIRS))
        st.caption(ABOUT_PAIRS)


def _say(some: Sequence[Point], pairs: Iterable[tuple[str, str]]) -> None:
    for found in _told.made(_differences, some, list(pairs)):
        if isinstance(found, EffectiveDepthError):
            st.caption(show.plain(str(found)))
        else:
            st.markdown(f"- {show.plain(found.sentence)}")


def _differences(
    some: Sequence[Point], pairs: Sequence[tuple[str, str]]
) -> list[trends.Difference | EffectiveDepthError]:
    """Of each pair the difference in depth, or why there is none."""
    found: list[trends.Difference | EffectiveDepthError] = []
    for base, other in pairs:
        try:
            found.append(trends.difference(some, base, other))
        except EffectiveDepthError as error:
            found.append(error)
    return found


def _in_study(folder: Folder, pair: tuple[str, str], labels: Sequence[str]) -> tuple[str, str] | None:
    """The labels of a known pair, where the study has both."""
    found = [
        next((l for l in labels if folder.models[l].get("name") == name and not folder.models[l].get("control")), "")
        for name in pair
    ]
    return (found[0], found[1]) if all(found) else None


def _fits(p: Point, band: str) -> bool:
    low, high = SIZES[band]
    return band == EVERY or (p.parameters is not None and low <= p.parameters < high)


def _plain(p: Point) -> dict:
    return {k: getattr(p, k) for k in ("model", "parameters", "ratio", "low", "high", "training", "set", "source")}


RULES_ALONE = "Of the papers' rules alone there are published depths: choose one to see them."
AGAINST_SIZE = "**Depth against size** · filled: measured, with the range over prompts; hollow, dashed line: published"
READING_SIZE = (
    "The line is fitted by least squares to the ratio over `log10(parameters)`, each set with a height of its own; "
    "measured and published points never share one. What is published has no prompts to draw anew, so its interval "
    "draws models (from eight up); a measured one draws prompts and holds for these models alone. The published models "
    "are of one family, in four sizes and three depths. KL and overlap can reach `(L − 1) / L` at most, which is "
    "0.96 with 28 layers and 0.98 with 64."
)
ABOUT_PAIRS = (
    "Each distilled model beside what it was trained from (DeepSeek-AI 2025, arXiv 2501.12948), then beside the "
    "instruct model of its shape. The interval is Student's t over three sets, as if they were drawn from sets like "
    "them; it is wide for that reason."
)
