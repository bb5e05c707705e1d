"""What becomes of the model when layers are left out, exchanged or run twice."""

import math

import streamlit as st

from ed_core import figures
from ed_core.depth import among_others, say, surgery
from ed_core.figures import View
from ed_core.figures.skips import ADDED as REACHES
from ed_core.models import controls
from ed_core.probes import Surgery
from ed_core.results import aggregate
from ed_ui import (
    control_model,
    inputs,
    link,
    live,
    picker,
    probe_page,
    prompt_set,
    running,
    show,
)
from ed_ui.inputs import SURGERY_LENGTH as LENGTH
from ed_ui.inputs import SURGERY_MAP as MAP
from ed_ui.inputs import SURGERY_VALUE as VALUE
from ed_ui.inputs import of_probe


def page() -> None:
    link.own([*prompt_set.parameters(), *of_probe(Surgery), MAP, VALUE, LENGTH])
    link.say_troubles()
    if not (prompts := prompt_set.choose()):
        return
    place = running.row_begins()
    more = probe_page.options(place, of_probe(Surgery))
    asked, spec = probe_page.form(Surgery, row=more), picker.required()
    known = prompt_set.run_when(spec, prompts)
    requests = {f"surgery.{i}": asked.request(spec, prompt) for i, prompt in enumerate(prompts)}
    batch = running.batch("surgery", control_model.with_control(requests))
    probe_page.top_row("surgery", batch, more, place=place, **known)
    stored = len(prompts) == 1 and "surgery.0" in batch.results and not batch.running
    link.write(requests["surgery.0"].key if stored else "")
    live.follow(batch, panels, asked, len(prompts))
    if len(prompts) == 1 and "drop" in asked.kinds and batch.complete("surgery.0") is not None:
        probe_page.compared(batch, "surgery.0", asked)
    prompt_set.command(batch, [asked], prompts)
    probe_page.exactly(Surgery)


def panels(batch: running.Batch, asked: Surgery, n_prompts: int) -> None:
    """Everything that fills while jobs run: over the prompts that are done, or over the first one as far as it is."""
    names = [name for name in (f"surgery.{i}" for i in range(n_prompts)) if batch.complete(name) is not None]
    done, twins = [batch.results[name] for name in names], control_model.results(batch, names)
    prompt_set.status(batch, done, n_prompts)
    shown = done or [aggregate.summarize(r) for r in [batch.result("surgery.0")] if r is not None]
    ready = bool(done) and not batch.running and len(done) == n_prompts
    place = show.place("map", HEIGHT)
    if not shown or not {"loss_whole", *surgery.PROXIES} <= shown[0].measures.keys():
        with place:
            show.empty(Surgery.title, "" if batch.running else TEACH, HEIGHT, first=True)
        return probe_page.texts(TEXTS)
    curves = among_others.over_prompts(asked, [r.summary for r in shown])
    if kinds := surgery.kinds_of(curves):
        with place:
            maps(curves, kinds, shown, twins, asked, ready)
    show.notes([say.worse_than_uniform(float(curves["loss_whole"]), shown[0].provenance.get("d_vocab"))])
    probe_page.texts(TEXTS)
    show.notes(note for result in shown for note in result.notes)


def maps(curves: dict, kinds: list[str], results: list, twins: list, asked: Surgery, ready: bool) -> None:
    """One map at a time, what it says, and by length what costs least."""
    row = st.container(horizontal=True, vertical_alignment="bottom", key="map-inputs")
    link.among(MAP, kinds, "map")
    link.say_troubles()
    if MAP.value not in (None, *kinds):
        inputs.put({MAP.key: kinds[0]})
    kind = MAP.draw(row.segmented_control, default=kinds[0], options=kinds)
    value = VALUE.draw(row.segmented_control)
    drawn = results[0]["random_layer"].tolist() if kind == "repeat" else ()
    found = surgery.rows(curves, kind, drawn)
    with st.container(key="said"):
        if ready:
            show.conclusion("surgery", say.cheapest(float(curves["loss_whole"]), kind, found))
        else:
            st.markdown("&nbsp;")
    left, right = st.columns([11, 9])
    with left:
        one_map("map", curves, kind, value, found, results, CAPTION[kind])
    behind, twin = {}, {}
    if twins and found:
        twin = among_others.over_prompts(asked, [r.summary for r in twins])
        its_own = surgery.added(twin, kind, surgery.rows(twin, kind))
        behind = {controls.label(twins[0].request.models[0]): its_own["least"]} if its_own else {}
    with right:
        if found:
            x, lines = ALONG[kind], surgery.added(curves, kind, found)
            fig = figures.added_curves(lines, x, HEIGHT, behind=behind)
            title = f"Loss above the whole model's, by {x}"
            of = (f"surgery.{kind}_loss", x, lines["least"], LEAST, ADDED[kind])
            show.figure_of_many("added", fig, title, results, *of)
    if twin:
        with left:
            label = controls.label(twins[0].request.models[0])
            one_map("control", twin, kind, value, surgery.rows(twin, kind), twins, f"The same of the {label}")
    if found:
        table(found, kind, curves)
        if done_lengths := [row.length for row in found]:
            export(curves, kind, found, done_lengths, results, ready)


def one_map(key: str, curves: dict, kind: str, value: str, found: list, results: list, caption: str) -> None:
    view = View(height=HEIGHT, width_px=660, uirevision=key)
    fig, name = figures.surgery_map(curves, kind, view, value, found), f"{kind}_{value}"
    spec = Surgery.spec(name)
    of = (f"surgery.{name}", ",".join(spec.dims), curves[name], spec.meaning, READING[value])
    show.figure_of_many(key, fig, caption, results, *of)


def table(found: list[surgery.Row], kind: str, curves: dict) -> None:
    """By length: what costs least, and what else would have been chosen."""
    whole, rows = float(curves["loss_whole"]), []
    for row in found:
        one = {
            "Distance" if kind == "swap" else "Length": row.length,
            "Costs least": "all alike" if row.alike else say.variant(row.best),
            "Loss": row.best.loss,
            "Added": row.best.loss - whole,
            "KL": row.best.kl,
            KEPT: 100 * row.best.top1_kept,
            "Median": row.median - whole,
        }
        for name, chosen in row.chosen.items():
            called = surgery.PROXIES[name][0]
            one[f"{called[0].upper()}{called[1:]} chooses"] = f"{say.variant(chosen)}{added(chosen.loss - whole)}"
        if kind == "repeat":
            one["Random layer as often"] = f"{row.random_layer}{added(row.random_loss - whole)}"
        rows.append(one)
    formats = {name: ".0f" if name == KEPT else ".3g" for name in rows[0] if isinstance(rows[0][name], float)}
    show.table("best", rows, 260, formats)
    st.caption("Added, median and figures in brackets: nats above the whole model's loss.")


def added(loss: float) -> str:
    """What a choice costs, in brackets; nothing of one that is not computed yet."""
    return "" if math.isnan(loss) else f" ({say.number(loss, '+.0f' if abs(loss) >= 99.5 else '+.2g')})"


def export(curves: dict, kind: str, found: list, lengths: list[int], results: list, ready: bool) -> None:
    """What costs least at a chosen length, for other tools."""
    row = st.container(horizontal=True, vertical_alignment="bottom", key="offers")
    link.among(LENGTH, [*map(str, lengths)], "length")
    link.say_troubles()
    held = min(lengths, key=lambda one: abs(one - LENGTH.value))
    if held != LENGTH.value:
        inputs.put({LENGTH.key: held})
    label = "Distance exported" if kind == "swap" else "Length exported"
    limits = dict(min_value=min(lengths), max_value=max(lengths), width=170)
    length = LENGTH.draw(row.number_input, label, **limits)
    best = next((one.best for one in found if one.length == length), None)
    if best is None:
        return
    cost = {"loss": best.loss, "loss_whole": float(curves["loss_whole"]), "kl": best.kl, "top1_kept": best.top1_kept}
    row.markdown(f"**{say.variant(best).capitalize()}** {figures.DONE[kind]}")
    probe_page.offer(row, results, best.order(results[0].n_layers), cost, kind, ready, "Layer list", EXPORTS)


HEIGHT = 460
KEPT = "Kept, %"
ALONG = {"drop": "length of the stretch", "swap": "distance", "repeat": "length of the stretch"}
TEACH = """Not computed yet. **Run** leaves out every stretch of layers, exchanges every pair of layers and runs every
stretch twice, and measures how the model then predicts the text."""
MARKED = f"marked up to +{REACHES[-1]:g} nats"
CAPTION = {
    "drop": "**Left out**: layers from a row to a column · ring: least loss at its length, cross: angular distance's "
    f"choice, {MARKED}",
    "swap": f"**Exchanged**: the layers of a row and a column · ring: least loss at its distance, {MARKED}",
    "repeat": f"**Run twice**: layers from a row to a column · ring: least loss at its length, {MARKED}",
}
READING = {
    "loss": "Colours are centred on the whole model's loss: orange is worse, blue is better.",
    "kl": "KL(whole || changed): dark cells change the predictions least.",
    "top1_kept": "The darker a cell, the more tokens keep the whole model's best guess.",
}
LEAST = "loss above the whole model's, of the variant that costs least; length 0 is the whole model"
ADDED = {
    "drop": "A proxy is a good guide where its line meets the lowest line.",
    "swap": "Neighbours cost little where the order of the layers matters little.",
    "repeat": "Below 0 a repeat lowers the loss. The control runs one random layer as many times more.",
}
EXPORTS = """Made from the figures over all chosen prompts; the file says how many prompts and tokens it rests on. Where
layers run twice the slices of the merge overlap."""
TEXTS = {
    "The papers saw": "Exchanging or leaving out middle layers costs little, the first and last layers much (Lad et "
    "al. 2024); deep contiguous stretches go first (Gromov et al. 2024). Models with a stretch run twice have led "
    "public leaderboards without training (community, 2024 to 2026).",
    "Look for": "a block of cells that cost little (pale or blue by loss, dark by KL and by best guesses kept): layers "
    "that can go, or change places, together. In the repeats: blue cells.",
    "By construction": "Cells above the diagonal hold no stretch: it would end before it begins. Leaving out all "
    "layers reads the embedding. Exchanges are symmetric, and only layers of one kind are exchanged.",
    "Beware": "The best of hundreds of variants on one text is partly luck: measure the chosen one on other prompts. "
    "Loss on a given text and what the model writes by itself can tell different stories (2510.02091).",
}

page()
