"""Do harder prompts use more of the depth? Depth by level, from the studies that are there."""

import streamlit as st

from ed_core import figures
from ed_core.depth.rules import OF_LENS
from ed_core.errors import EffectiveDepthError
from ed_core.studies import difficulty
from ed_core.studies.items import Folder, open_folder
from ed_ui import browser, link, probe_page, show, studies
from ed_ui.inputs import choice, text


def page() -> None:
    link.own((STUDY, SET, KIND))
    known = {name: out for name, out in studies.known().items() if graded(out)}
    link.among(STUDY, known, "study")
    link.say_troubles()
    if not known:
        st.info(NONE, icon=":material/stairs:")
        return
    row = st.container(horizontal=True, vertical_alignment="bottom", key="run-row-top")
    folder = open_folder(known[STUDY.draw_of(row.selectbox, list(known), width=320)])
    sets = levelled(folder)
    link.among(SET, sets, "prompt set")
    link.say_troubles()
    name = SET.draw_of(row.selectbox, sets, width=320)
    there = difficulty.kinds(folder)
    kind = KIND.draw_of(row.segmented_control, there)
    link.write()
    browser.share(row, prompt=False)
    body(folder, name, kind or there[0])
    probe_page.texts(TEXTS)


def graded(out) -> bool:
    """Whether a study can say something here."""
    try:
        return bool(levelled(open_folder(out)))
    except EffectiveDepthError:
        return False


def levelled(folder: Folder) -> list[str]:
    """The sets with two levels or more, of a study that reads depths."""
    return [name for name in folder.sets if difficulty.kinds(folder) and len(folder.groups(name)) > 2]


def body(folder: Folder, name: str, kind: str) -> None:
    """Figure and sentences of all models."""
    found, silent = [], []
    for label in folder.models:
        try:
            found.append(studies.looked(folder.out, difficulty.look, label, name, kind))
        except EffectiveDepthError as error:
            silent.append(str(error))
    with st.container(key="headline"):
        for one in found:
            st.markdown(f"- **{show.plain(one.sentence)}**")
        for why in silent:
            st.caption(show.plain(why))
    if found:
        scores = {one.label: [{key: getattr(l, key) for key in DRAWN} for l in one.levels] for one in found}
        layers = {one.label: one.n_layers for one in found}
        fig = show.once(figures.study_levels, scores, layers, difficulty.called(kind), kind in difficulty.DEPTHS)
        caption, reading = CAPTIONS[kind in difficulty.DEPTHS]
        show.figure("study-levels", fig, caption, reading=reading + PAIRED)


SHORT = {name: rule.label for name, rule in OF_LENS.items()} | {"effect": "skips, layers", "output": "skips, output"}
STUDY = text("study", "difficulty.study", label="Study")
SET = text("set", "difficulty.set", label="Prompt set")
KIND = choice("effect", "difficulty.kind", "kl", tuple(SHORT), "Depth by", SHORT)
DRAWN = ("name", "mean", "low", "high", "own")  # of a level, in the figure
NONE = (
    "No study here has prompts of two levels or more and measures depth. Start one on the page Studies, with the probe "
    "logit_lens or layer_skip and a set with levels."
)
CAPTIONS = {
    True: (
        "**Mean depth by level** · as a share of the layers, over all tokens; dots: single prompts",
        "Mean depth is the mean over all thresholds of the depth from which the lens stays within the threshold of the "
        "output. ",
    ),
    False: (
        "**Depth score by level** · where the effect of leaving a layer out is centred; dots: single prompts",
        "The depth score is the mean layer, weighted by how much leaving it out changes later layers, or the "
        "prediction. The effect is that on all tokens unless the study asks for later ones, and the mean over a "
        "level's prompts; the papers look at later tokens, and take the maximum. ",
    ),
}
PAIRED = (
    "Bars say how sure a level's depth is: 5 to 95 % when its prompts, or their forms where enough are known, are "
    "drawn anew, cut where they pass all of its prompts (dots). The line joins what the levels' mean curves give. The "
    "sentence gives a straight line's slope; where the set has groups of a prompt from each level (in bundled sets the "
    "i-th prompt of every level: the form is the same, nothing else), it is of the prompts' own depths (dots), and can "
    "differ from the line. It says so if the whole interval lies within 2 % of the depth a level."
)
TEXTS = {
    "Look for": "A slope whose interval lies above 0: depth rises with the level.",
    "The literature": "Two answers stand side by side. Static: depth scores do not rise with the number of hops or the "
    "level of a problem (Csordás et al. 2025 §5), nor effective depth from set to harder set (Hu et al. "
    "2025). Adaptive: some increase is seen where one looks at "
    "the first depth at which the answer is among the best tokens (Curth et al. 2026, arXiv 2604.12426).",
    "Beware": "A level is as hard as whoever wrote the set says. Prompts of harder levels are often longer, which "
    "alone may move a depth: compare sets of matched length, and an untrained twin.",
}

page()
