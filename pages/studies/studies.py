"""Studies: many prompts on several models, with the uncertainty over prompts; beside what is published."""

from functools import partial

import streamlit as st

from ed_core import figures
from ed_core.depth import say
from ed_core.depth.published import CAVEATS, CITATION, published, published_marks
from ed_core.depth.say import count
from ed_core.errors import EffectiveDepthError
from ed_core.statistics import FEWEST, FEWEST_FORMS
from ed_core.studies import bundle, estimators, report, tables
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
    address then carries."""
    panel(out)
    if not (out / PLAN).is_file():
        return
    folder, verdict = studies.read(out)
    failures(folder)
    sets = [name for name in folder.every_group if any(len(folder.some(m, name)[1]) for m in folder.models)]
    if not sets:
        st.info("Nothing is computed yet; figures come with the first prompts.", icon=":material/hourglass_empty:")
        return
    link.among(SET, sets, "prompt set")
    link.among(MODEL, folder.models, "model")
    link.say_troubles()
    row = st.container(horizontal=True, vertical_alignment="bottom")
    name = SET.draw_of(row.selectbox, sets, width=320)
    of_set = [r for r in verdict if r["set"] == name]
    if study_panels.over_training(row, folder):
        study_panels.training(row, folder, verdict, name)
        exports(folder)
        link.write()
        return
    if of_set:
        depths(row, of_set)
        estimates(folder, of_set, name)
        study_panels.precisions(folder, name)
    curves(folder, name)
    if of_set:
        study_panels.beside_published(folder, name)
    exports(folder)
    link.write()


def panel(out) -> None:
    """How far a study is, and the buttons that end it and go on with it; of one that is complete, or was not begun
    here, how large it is."""
    told = ""
    there, planned = 0, 1
    if (out / PLAN).is_file():
        folder, _ = studies.read(out)
        there, planned = map(sum, zip(*folder.progress().values(), strict=True))
        prompts = sum(len(one["ids"]) for one in folder.sets.values())
        counts = {"model": len(folder.models), "set": len(folder.sets), "prompt": prompts}
        told = " · ".join(count(n, what) for what, n in counts.items())
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


def estimates(folder: Folder, rows: list[dict], name: str) -> None:
    """One model, every estimator of depth, and how robust each rule is."""
    place = st.container(horizontal=True, vertical_alignment="bottom")
    model = MODEL.draw_of(place.selectbox, list(dict.fromkeys(r["model"] for r in rows)), width=420)
    found = studies.looked(folder.out, estimators.estimates, model, name)
    drawn = [one for one in found if one["depth"] is not None]
    bands = {one["label"]: tuple((end + 1) / one["n_layers"] for end in one["band"]) for one in found if one["band"]}
    fig = show.once(figures.study_depths, drawn, "label", thresholds=bands)
    show.figure("study-agreement", fig, AGREEMENT, reading=READING + BANDS)
    if (verdict := studies.looked(folder.out, tables.verdict_on, model, name)) is not None:
        st.markdown(show.plain(say.verdict(verdict)))
        show.table("rules", say.rule_table(verdict), 200)


def curves(folder: Folder, name: str) -> None:
    """One aggregate of all models over relative depth."""
    if not (measures := studies.looked(folder.out, tables.measures, name)):
        return
    link.among(CURVE, measures, "curve")
    place = st.container(horizontal=True, vertical_alignment="bottom")
    default = [m for m in ("logit_lens.kl", "contributions.layer_cos") if m in measures]
    measure = CURVE.draw_of(place.selectbox, [*default, *(m for m in measures if m not in default)], width=420)
    found = {label: studies.looked(folder.out, tables.curve, label, name, measure) for label in folder.models}
    found = {label: drawn for label, drawn in found.items() if drawn is not None}
    layers = {label: folder.models[label]["n_layers"] for label in found}
    fig = show.once(figures.study_curves, found, layers, tables.unit_of(measure))
    show.figure("study-curves", fig, f"**{measure}** · over relative depth; shaded: 5 to 95 %")


def exports(folder: Folder) -> None:
    """The tables and the report as files, made when asked for."""

    def table_of(name: str, kind: str) -> bytes:
        return tables.as_file(tables.TABLES[name](folder), kind)

    def page_of() -> str:
        return report.page(folder.plan["name"], report.body(report.markdown(folder, folder.digest())))

    with st.expander("Export", icon=":material/download:"):
        row = st.container(horizontal=True)
        for name in tables.TABLES:
            for kind in ("csv", "parquet"):
                row.download_button(
                    f"{name}.{kind}", partial(table_of, name, kind), f"{name}.{kind}", key=f"studies.{name}.{kind}"
                )
        row.download_button("report.html", page_of, "report.html", "text/html", key="studies.report")
        name = f"{folder.out.name}{bundle.ENDING}"
        row.download_button(name, partial(bundle.packed, folder.out), name, key="studies.edstudy")
        st.code("python -m ed_core study FILE.toml --out DIR", language="bash")


DEPTHS = "**Depth by model** · circles: mean depth; diamonds: the papers' three rules; bars: 5 to 95 %"
AGREEMENT = "**Do the estimators agree?** · all of one model on one axis; grey: what other thresholds give"
READING = (
    "Mean depth is the mean over all thresholds of the depth from which the lens stays within the threshold of the "
    "output, drawn as `depth / layers`; a rule's layer stands at `(layer + 1) / layers`. Bars say how sure it is: 5 to "
    f"95 % when the forms of the prompts (from {FEWEST_FORMS} up), else the prompts (from {FEWEST} up), are drawn "
    "anew. The cosine reads what a layer writes, KL and overlap what stands before it: one layer apart by "
    "definition. The estimators are not averaged with one another."
)
BANDS = (
    " The grey band is what a rule gives as its threshold moves: the cosine's 0 by 0.05 either way, KL's half "
    "from a quarter to three quarters, the overlap's 0.3 from 0.1 to 0.5; a mean depth has no threshold. The first "
    "choice is the mean over tokens of the depth from which it stays, less one; the depth score weighs each "
    "layer's number by what changes without it."
)

page()
