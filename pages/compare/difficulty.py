"""Do harder prompts use more of the depth? Depth scores by level, from the studies that are there."""

from dataclasses import asdict

import streamlit as st

from ed_core import figures
from ed_core.errors import EffectiveDepthError
from ed_core.studies import difficulty
from ed_core.studies.folder import Folder, open_folder
from ed_ui import chart, common_link, link, probe_page, remembered, show, study_runs
from ed_ui.link_parameters import choice, text


def page() -> None:
    st.subheader("Depth and difficulty", anchor=False)
    names = [text(name, f"difficulty.{name}") for name in ("study", "set")]
    link.own([*names, choice("effect", "difficulty.kind", "effect", tuple(difficulty.KINDS))])
    common_link.say_troubles()
    known = {name: out for name, out in study_runs.known().items() if graded(out)}
    if not known:
        st.info(NONE, icon=":material/stairs:")
        return
    row = st.container(horizontal=True, vertical_alignment="bottom", key="run-row")
    folder = open_folder(known[remembered.one_of(row.selectbox, "Study", "difficulty.study", list(known), width=320)])
    name = remembered.one_of(row.selectbox, "Prompt set", "difficulty.set", levelled(folder), width=320)
    kind = remembered.widget(
        row.segmented_control,
        "Effect of a skip",
        "difficulty.kind",
        "effect",
        options=list(difficulty.KINDS),
        format_func=difficulty.KINDS.get,
        required=True,
    )
    common_link.write()
    link.share(row)
    body(folder, name, kind or "effect")
    probe_page.texts(TEXTS)


def graded(out) -> bool:
    """Whether a study can say something here."""
    try:
        return bool(levelled(open_folder(out)))
    except EffectiveDepthError:
        return False


def levelled(folder: Folder) -> list[str]:
    """The sets with two levels or more, of a study that skips layers."""
    skips = any(probe["name"] == difficulty.PROBE for probe in folder.plan["probes"])
    return [name for name in folder.sets if skips and len(folder.groups(name)) > 2]


def body(folder: Folder, name: str, kind: str) -> None:
    """Figure and sentences of all models."""
    found, silent = [], []
    for label in folder.models:
        try:
            found.append(study_runs.looked(folder.out, difficulty.look, label, name, kind))
        except EffectiveDepthError as error:
            silent.append(str(error))
    with st.container(key="headline"):
        for one in found:
            st.markdown(f"- **{show.plain(one.sentence)}**")
        for why in silent:
            st.caption(show.plain(why))
    if found:
        scores = {one.label: [asdict(level) for level in one.levels] for one in found}
        fig = chart.once(figures.study_levels, scores, {one.label: one.n_layers for one in found})
        show.figure("study-levels", fig, CAPTION, reading=READING)


NONE = (
    "No study here has prompts of two levels or more and skips layers. Start one on the page Studies, with the probe "
    "layer_skip and a set with levels."
)
CAPTION = "**Depth score by level** · where the effect of leaving a layer out is centred; dots: single prompts"
READING = (
    "The depth score is the mean layer, weighted by how much leaving it out changes: later layers, or the prediction. "
    "Bars are the 5 to 95 % range of a bootstrap over prompts. The line goes through the levels' means; the sentence "
    "says what a straight line through them rises by, paired where prompts of different levels belong together."
)
TEXTS = {
    "Look for": "A line that rises by more than its bars: harder prompts use later layers.",
    "The literature": "Two answers stand side by side. Static: depth scores do not rise with the number of hops or the "
    "level of a problem (Csordás et al. 2025 §5; Hu et al. 2025). Adaptive: some increase is seen where one looks at "
    "the first depth at which the answer is among the best tokens (Curth et al. 2026, arXiv 2604.12426).",
    "Beware": "A level is as hard as whoever wrote the set says. Longer prompts have more tokens whose maximum is "
    "taken: compare sets of matched length, and a twin in which nothing was learned.",
}

page()
