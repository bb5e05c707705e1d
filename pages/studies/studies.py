"""Studies: many prompts on several models, with the uncertainty over prompts; beside what is published."""

from functools import partial

import streamlit as st

from ed_core import figures
from ed_core.depth.rules import RULES
from ed_core.depth import say
from ed_core.errors import EffectiveDepthError
from ed_core.models.catalogue import CAVEATS, CITATION, published, published_marks
from ed_core.statistics import FEWEST, FEWEST_FORMS
from ed_core.studies import agreement as estimators
from ed_core.studies import bundle, report, tables
from ed_core.studies.items import Folder, home
from ed_core.studies.plan import PLAN
from ed_ui import browser, inputs, link, live, runs, show, studies, study_panels
from ed_ui.inputs import text

STUDY = text("study", "studies.study", label="Study")
SET = text("set", "studies.set", label="Prompt set")
MODEL = text("models", "studies.model", label="Model")
CURVE = text("curve", "studies.curve", label="Curve")


def page() -> None:
    link.own([STUDY, SET, MODEL, CURVE, *study_panels.LINKED])
    known = studies.known()
    link.among(STUDY, known, "study")
    link.say_troubles()
    new(bool(known))
    if not known:
        st.info("There is no study yet: choose models and prompts above, then **Run**.", icon=":material/science:")
        return
    row = st.container(horizontal=True, vertical_alignment="bottom", key="run-row-top")
    name = STUDY.draw_of(row.selectbox, list(known))
    link.write()
    browser.share(row, prompt=False)
    out = known[name]
    live.fragment(lambda: body(out), runs.pause(out))()


def new(folded: bool) -> None:
    """A study to begin, or somebody else's to open."""
    with st.expander("New study", expanded=not folded, icon=":material/add:"):
        studies.form()
        st.file_uploader(
            "Or open one of somebody else's, .edstudy", type="edstudy", key="studies.bundle", on_change=taken
        )
        if refused := inputs.value("studies.refused"):
            show.error(refused)


def taken() -> None:
    """Open the study that was just chosen, and go to it."""
    file = st.session_state.get("studies.bundle")
    try:
        inputs.put({"studies.refused": ""})
        if file is not None:
            inputs.put({STUDY.key: studies.take_in(file.getvalue())})
    except EffectiveDepthError as error:
        inputs.put({"studies.refused": str(error)})


def body(out) -> None:
    """All of one study; drawn again every second while it runs, and when one of its own choices changes, which the
    address then tells."""
    panel(out)
    if not (out / PLAN).is_file():
        return
    folder, verdict, summary = studies.read(out)
    failures(folder)
    rows = verdict or summary
    if not rows:
        st.info("Nothing is computed yet; figures come with the first prompts.", icon=":material/hourglass_empty:")
        return
    sets = list(dict.fromkeys(r["set"] for r in rows))
    link.among(SET, sets, "prompt set")
    link.among(MODEL, {r["model"] for r in rows}, "model")
    link.among(CURVE, {f"{r['probe']}.{r['measure']}" for r in summary}, "curve")
    link.say_troubles()
    row = st.container(horizontal=True, vertical_alignment="bottom")
    name = SET.draw_of(row.selectbox, sets, width=320)
    of_set = [r for r in verdict if r["set"] == name]
    if study_panels.over_training(row, folder):
        study_panels.training(row, folder, verdict, summary, name)
        exports(folder)
        link.write()
        return
    if of_set:
        depths(row, of_set)
        agreement(folder, of_set, name)
    curves(folder, summary, name)
    if of_set:
        study_panels.beside_published(folder, name)
        words(folder, of_set, name)
    exports(folder)
    link.write()


def panel(out) -> None:
    """How far a study is, and the buttons that end it and go on with it; of one that is complete, or was not begun
    here, how large it is."""
    told = ""
    there, planned = 0, 1
    if (out / PLAN).is_file():
        folder, _, _ = studies.read(out)
        there, planned = map(sum, zip(*folder.progress().values(), strict=True))
        prompts = sum(len(one["ids"]) for one in folder.sets.values())
        counts = {"model": len(folder.models), "set": len(folder.sets), "prompt": prompts}
        told = " · ".join(say.count(n, what) for what, n in counts.items())
        told += f" · {'complete' if there == planned else f'{there} of {planned} parts computed'}"
        if folder.plan["note"]:
            st.markdown(show.plain(folder.plan["note"]))
    if runs.under_way(out) or (out.parent == home() and (out / runs.STUDY).is_file() and there < planned):
        begin = {"studies": ("Run", lambda: runs.resume_study(out))}
        runs.panel(out, "studies", begin, told, linked=False, unfinished=0 < there < planned)
    else:
        runs.watch(out, "studies")
        st.caption(told)


def failures(folder: Folder) -> None:
    """The models that failed, and why."""
    for label, why in folder.failures().items():
        st.warning(f"{show.plain(label)} failed: {show.plain(why)}", icon=":material/error:")


def depths(row, rows: list[dict]) -> None:
    """Every model's mean depth and its depth by the papers' rules, beside published ones."""
    models = ["", *dict.fromkeys(one.model.rsplit("/", 1)[-1] for one in published())]
    beside = inputs.one_of(
        row.selectbox, "Published beside", "studies.published", models, format_func=lambda m: m or "none", width=280
    )
    marks = published_marks(beside) if beside else []
    fig = show.once(figures.study_depths, [r for r in rows if r["variant"] in tables.LEADING], "model", marks)
    show.figure("study-depths", fig, DEPTHS, reading=READING)
    if marks:
        st.caption(f"Published: {CITATION}. {' '.join(CAVEATS)}")


def agreement(folder: Folder, rows: list[dict], name: str) -> None:
    """One model, every estimator of depth: where they disagree, and what moves them."""
    place = st.container(horizontal=True, vertical_alignment="bottom")
    model = MODEL.draw_of(place.selectbox, list(dict.fromkeys(r["model"] for r in rows)), width=420)
    of_model = [r for r in rows if r["model"] == model]
    own = [r | {"rule": estimators.MEANS[f"mean_{r['criterion']}"]} for r in of_model if r["variant"] == tables.MEAN]
    own += [
        r | {"rule": RULE.format(RULES[r["criterion"]].heading, figures.VARIANTS[r["variant"]])}
        for r in of_model
        if r["variant"] in RULES[r["criterion"]].variants
    ]
    found = studies.looked(folder.out, studies.estimates, model, name)
    papers = {one.name: RULE.format(RULES[one.name].heading, figures.VARIANTS["paper"]) for one in found if one.instead}
    others = [
        vars(one) | {"rule": one.label, "criterion": one.name, "variant": "", "ratio": one.ratio, "undefined": None}
        for one in found
        if one.depth is not None and one.name in estimators.OTHERS
    ]
    bands = {
        papers[one.name]: tuple((end + 1) / one.n_layers for end in one.thresholds)
        for one in found
        if one.thresholds and one.name in papers
    }
    fig = show.once(figures.study_depths, [*own, *others], "rule", thresholds=bands)
    show.figure("study-agreement", fig, AGREEMENT, reading=READING + BANDS)
    st.markdown(show.plain(studies.looked(folder.out, tables.settles, model, name)))
    if rest := estimators.sentences(found):
        with st.expander("Where they differ, and what moves them", icon=":material/compare_arrows:"):
            st.markdown("\n".join(f"- {show.plain(one)}" for one in rest))


def curves(folder: Folder, summary: list[dict], name: str) -> None:
    """One aggregate of all models over relative depth."""
    rows = [r for r in summary if r["set"] == name and r["skipped"] is None and r["layer"] is not None]
    measures = list(dict.fromkeys(f"{r['probe']}.{r['measure']}" for r in rows))
    if not measures:
        return
    place = st.container(horizontal=True, vertical_alignment="bottom")
    default = [m for m in ("logit_lens.kl", "contributions.layer_cos") if m in measures]
    measure = CURVE.draw_of(place.selectbox, [*default, *(m for m in measures if m not in default)], width=420)
    found = {}
    for label, model in folder.models.items():
        own = [r for r in rows if r["model"] == label and f"{r['probe']}.{r['measure']}" == measure]
        values = [[r[k] for r in own] for k in ("value", "low", "high")]
        if own and model.get("n_layers") and len(own) in (model["n_layers"], model["n_layers"] + 1):
            found[label] = tuple(values)
    if found:
        layers = {label: model.get("n_layers") for label, model in folder.models.items()}
        fig = show.once(figures.study_curves, found, layers, tables.unit_of(measure))
        show.figure("study-curves", fig, f"**{measure}** · over relative depth; shaded: 5 to 95 %")


def words(folder: Folder, rows: list[dict], name: str) -> None:
    """The report's sentences on this set."""
    with st.expander("In words", icon=":material/notes:"):
        for label in dict.fromkeys(r["model"] for r in rows):
            st.markdown(f"**{show.plain(label)}** on {show.plain(name)}")
            said = studies.looked(folder.out, tables.statements, label, name)
            told = [
                studies.looked(folder.out, tables.settles, label, name),
                *(one.sentence for one in said.values()),
            ]
            st.markdown("\n".join(f"- {show.plain(one)}" for one in told if one))


def exports(folder: Folder) -> None:
    """The tables and the report as files, made when asked for."""

    def table_of(name: str, kind: str) -> bytes:
        return tables.as_file(tables.stored(folder, name), kind)

    def words_of() -> str:
        return report.markdown(folder, tables.stored(folder, "verdict"), folder.digest())

    with st.expander("Export", icon=":material/download:"):
        row = st.container(horizontal=True)
        for name in tables.TABLES:
            for kind in ("parquet", "csv"):
                row.download_button(
                    f"{name}.{kind}", partial(table_of, name, kind), f"{name}.{kind}", key=f"studies.{name}.{kind}"
                )
        row.download_button("report.md", words_of, "report.md", "text/markdown", key="studies.report")
        name = f"{folder.out.name}{bundle.ENDING}"
        row.download_button(name, partial(bundle.packed, folder.out), name, key="studies.edstudy")
        st.code("python -m ed_core study FILE.toml --out DIR", language="bash")


RULE = "{}, {}"
DEPTHS = "**Depth by model** · circles: mean depth; diamonds: the papers' three rules; bars: 5 to 95 %"
AGREEMENT = (
    "**Do the estimators agree?** · all of one model on one axis; hollow: a variant; grey: what other thresholds tried "
    "give"
)
READING = (
    "Mean depth is the mean over all thresholds of the depth from which the lens stays within the threshold of the "
    "output, drawn as `depth / layers`; a rule's layer stands at `(layer + 1) / layers`. Bars say how sure it is: 5 to "
    f"95 % when the forms of the prompts (from {FEWEST_FORMS} up), else the prompts (from {FEWEST} up), are drawn "
    "anew. The cosine reads what a layer writes, KL and overlap what stands before it: one layer apart by "
    "definition. The estimators are not averaged with one another."
)
BANDS = (
    " The grey band is what a rule gives as its threshold moves: the cosine's 0 by 0.05 either way, KL's half "
    "from a quarter to three quarters, the overlap's 0.3 from 0.1 to 0.5; a mean depth has no threshold. The settle "
    "depth is the mean over tokens, its mark the layer before it; the depth score weighs each layer's number by what "
    "changes without it."
)

page()
