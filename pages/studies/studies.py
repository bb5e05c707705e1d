"""Studies: a list with a finding each, and the report of one: many prompts on several models, filling in as it runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.depth import say
from ed_core.errors import EffectiveDepthError
from ed_core.studies import bundle, estimators, precisions, report, steps, tables
from ed_core.studies.items import Folder, home
from ed_core.studies.plan import PLAN
from ed_ui import browser, inputs, link, new_study, runs, show, studies, study_panels
from ed_ui.inputs import choice, text

WORDS = show.words(__file__)

STUDY = text("study", "studies.study", label="Study")
SET = text("set", "studies.set", label="Prompt set")
MODEL = text("models", "studies.model", label="Model")
CURVE = text("curve", "studies.curve", label="Curve")
DIFFICULTY, ESTIMATORS, PRECISIONS, CURVES, PUBLISHED, FILES = TABS = (
    "Difficulty",
    "Estimators",
    "Precisions",
    "Curves",
    "Published",
    "Files",
)
TAB = choice("tab", "studies.tab", ESTIMATORS, TABS, "More of this study")


def page() -> None:
    """Draw the list of studies, or the report of the chosen one."""
    link.own([STUDY, SET, MODEL, CURVE, TAB, *study_panels.LINKED])
    known = studies.known()
    link.among(STUDY, known, "study")
    link.say_troubles()
    if STUDY.value not in known:
        inputs.forget(STUDY.key)
        listed(known)
        return
    row = st.container(horizontal=True, vertical_alignment="center", key="run-row-top")
    row.button("All studies", icon=":material/arrow_back:", type="tertiary", on_click=open_study, args=("",))
    row.markdown(f"**{show.plain(STUDY.value)}**", width="content")
    browser.share(row, prompt=False)
    out = known[STUDY.value]
    runs.follow(out, lambda: body(out))
    link.write()


def open_study(name: str) -> None:
    """Show the study `name`; "" shows the list."""
    inputs.forget(SET.key, MODEL.key, CURVE.key)
    inputs.put({STUDY.key: name})


# -------------------------------------------------------------------- the list


def listed(known: dict[str, Path]) -> None:
    """Draw the list of studies, each with its finding, and the buttons for a new one and for somebody else's file."""
    show.finding(f"{say.count(len(known), 'study')} here: many prompts on several models." if known else NONE)
    row = st.container(horizontal=True, vertical_alignment="center", key="run-row-list")
    row.button("New study", type="primary", icon=":material/add:", key="studies.new", on_click=new_study.go, args=(1,))
    if new_study.is_open():
        new_study.dialog()
    with row.popover("Open a file", icon=":material/upload_file:", type="tertiary"):
        st.file_uploader("A study of somebody else's, .edstudy", "edstudy", key="studies.bundle", on_change=taken)
    if refused := inputs.value("studies.refused"):
        show.error(refused)
    for name, out in known.items():
        with st.container(border=True, gap="xxsmall", key=f"study-{runs.on_disk(name)}"):
            st.button(f"**{show.plain(name)}**", type="tertiary", on_click=open_study, args=(name,), key=f"open.{name}")
            try:
                line, extent = studies.line(out)
            except EffectiveDepthError as error:
                line, extent = str(error), "damaged"
            st.markdown(show.plain(line))
            st.caption(show.plain(" · ".join(filter(None, [extent, "running" * runs.under_way(out)]))))
    link.write()


def taken() -> None:
    """Open the study that was just uploaded, or remember why it is refused."""
    file = st.session_state.get("studies.bundle")
    try:
        inputs.put({"studies.refused": ""})
        if file is not None:
            open_study(studies.take_in(file.getvalue()))
    except EffectiveDepthError as error:
        inputs.put({"studies.refused": str(error)})


# -------------------------------------------------------------------- the report


def body(out: Path) -> None:
    """Draw the report of one study, again every second while it runs."""
    if not (out / PLAN).is_file():
        show.finding(f"The study {out.name} has begun: models and prompts are looked up.")
        progress(out, False)
        return
    folder, verdict = studies.read(out)
    sets = [name for name in folder.every_group if any(len(folder.read(m, name)) for m in folder.models)]
    if not sets:
        show.finding("Nothing is computed yet; the figures come with the first prompts.", studies.extent(folder))
        progress(out, False)
        return
    link.among(SET, sets, "prompt set")
    link.among(MODEL, folder.models, "model")
    link.say_troubles()
    name = SET.value if SET.value in sets else sets[0]
    rows = [row for row in verdict if row["set"] == name]
    training = bool(steps.series(folder))
    over = next((row["over"] for row in rows if row["over"]), "")
    show.finding(
        studies.finding(folder, rows), " · ".join(filter(None, [studies.extent(folder, over), studies.day(out)]))
    )
    progress(out, studies.complete(folder))
    for label, why in folder.failures().items():
        st.warning(f"{show.plain(label)} failed: {show.plain(why)}", icon=":material/error:")
    place = st.container(horizontal=True, vertical_alignment="bottom", key="study-inputs")
    if len(sets) > 1:
        SET.draw_of(place.selectbox, sets, width=260)
    if training:
        study_panels.training(place, folder, rows, name)
    elif rows:
        points = studies.looked(out, studies.forest, name)
        fig = show.once(figures.forest, points, OVER if any(row.said for row in points) else "")
        show.figure("study-forest", fig, "", reading=WORDS["Average depth"])
    show.bullets(studies.also(folder, rows))
    if note := folder.plan["note"]:
        st.caption(show.plain(note))
    tabs(folder, rows, name)
    link.write()


def progress(out: Path, complete: bool) -> None:
    """Draw how far a study is, with the buttons that end it and continue it; nothing for a complete one."""
    if not complete and (runs.under_way(out) or (out.parent == home() and (out / runs.STUDY).is_file())):
        runs.panel(out, "studies", lambda: runs.resume_study(out), found=False, linked=False)
    else:
        runs.watch(out, "studies")


def tabs(folder: Folder, rows: list[dict[str, Any]], name: str) -> None:
    """Draw the choice of further views of a study, and the chosen one. `rows`: verdicts on the set `name`."""
    views: dict[str, Callable[[], None]] = {
        DIFFICULTY: lambda: study_panels.difficulty(folder, folder.set_of(name)),
        ESTIMATORS: lambda: estimates(folder, rows, name),
        PRECISIONS: lambda: study_panels.precisions(folder, name),
        CURVES: lambda: curves(folder, name),
        PUBLISHED: lambda: study_panels.beside_published(folder, name),
        FILES: lambda: files(folder),
    }
    if not study_panels.graded(folder, folder.set_of(name)):
        views.pop(DIFFICULTY)
    if not rows:
        views.pop(ESTIMATORS), views.pop(PUBLISHED)
    if not precisions.pairs(folder):
        views.pop(PRECISIONS)
    if TAB.value not in views:
        inputs.put({TAB.key: next(iter(views))})
    tab = TAB.draw(st.segmented_control, options=list(views), label_visibility="collapsed")
    with st.container(key="study-tab"):
        views[tab]()


def estimates(folder: Folder, rows: list[dict[str, Any]], name: str) -> None:
    """Draw every estimator of depth of one model, and how robust each rule is."""
    model = MODEL.draw_of(st.selectbox, list(dict.fromkeys(r["model"] for r in rows)), width=420)
    items = studies.looked(folder.out, estimators.estimates, model, name)
    bands = {one["label"]: tuple((end + 1) / one["n_layers"] for end in one["band"]) for one in items if one["band"]}
    fig = show.once(figures.study_depths, items, "label", thresholds=bands)
    show.figure("study-agreement", fig, AGREEMENT, reading=f"{WORDS['Average depth']} {WORDS['Thresholds']}")
    if (verdict := studies.looked(folder.out, tables.verdict_on, model, name)) is not None:
        st.markdown(show.plain(say.verdict(verdict)))
        show.table("rules", say.rule_table(verdict), 200)


def curves(folder: Folder, name: str) -> None:
    """Draw one aggregate of all models over relative depth."""
    if not (measures := studies.looked(folder.out, tables.measures, name)):
        return
    link.among(CURVE, measures, "curve")
    default = [m for m in ("logit_lens.kl", "contributions.layer_cos") if m in measures]
    options = [*default, *(m for m in measures if m not in default)]
    measure = CURVE.draw_of(st.selectbox, options, width=420)
    lines = {label: studies.looked(folder.out, tables.curve, label, name, measure) for label in folder.models}
    lines = {label: line for label, line in lines.items() if line is not None}
    layers = {label: folder.models[label]["n_layers"] for label in lines}
    fig = show.once(figures.study_curves, lines, layers, tables.unit_of(folder, measure))
    show.figure("study-curves", fig, f"**{measure}** · over relative depth; shaded: 5 to 95 %")


def files(folder: Folder) -> None:
    """Draw the downloads of the report, the tables and the study itself, made when asked for."""

    def table_of(name: str, kind: str) -> bytes:
        return tables.as_file(tables.TABLES[name](folder), kind)

    def page_of() -> str:
        return report.page(folder.plan["name"], report.body(report.markdown(folder, folder.digest())))

    name = f"{folder.out.name}{bundle.ENDING}"
    row = st.container(horizontal=True)
    row.download_button("report.html", page_of, "report.html", "text/html", key="studies.report")
    row.download_button(name, partial(bundle.packed, folder.out), name, key="studies.edstudy")
    row = st.container(horizontal=True)
    for name in tables.TABLES:
        for kind in ("csv", "parquet"):
            file = f"{name}.{kind}"
            row.download_button(file, partial(table_of, name, kind), file, key=f"studies.{name}.{kind}")
    st.code("python -m ed_core study FILE.toml --out DIR", language=None)


OVER = "over the untrained copy"
NONE = "No study is here yet."
AGREEMENT = "**Do the estimators agree?** · all of one model on one axis; grey: what other thresholds give"

page()
