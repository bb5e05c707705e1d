"""Which layers can go: what the cheapest stretches cost over a set of prompts, and maps of all that can be moved."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.api import bridges
from ed_core.cards import card
from ed_core.cards import page as card_page
from ed_core.cases import drawings
from ed_core.depth import among_others, say, surgery
from ed_core.figures import View
from ed_core.figures.canvas import size
from ed_core.models.ref import Gguf, ModelRef
from ed_core.probes import ExactAnswers, Prune, Surgery
from ed_core.results import aggregate
from ed_core.types import ProbeResult, Prompt, Request
from ed_ui import case_studies, control_model, inputs, link, live, picker, probe_page, prompt_set, running, runs, show
from ed_ui.inputs import SURGERY_LENGTH as LENGTH
from ed_ui.inputs import SURGERY_MAP as MAP
from ed_ui.inputs import SURGERY_VALUE as VALUE
from ed_ui.inputs import number, of_probe
from ed_ui.session import Batch

WORDS = probe_page.words(__file__)

LENGTHS = (1, 2, 4, 8, 16)  # layers that are removed together
ENOUGH = 10  # prompts from which layers may be chosen by the table
HEIGHT = 420
OWN = of_probe(Prune, ("drop",))
SPARED = replace(number("removed", "prune.removed", 1, 1, 16, int, "Layers to remove"), box={})
SHAPE = of_probe(Surgery, ("longest", "seed"))
Rows = Mapping[int, Mapping[str, Any]]  # `measured`, by layers removed


def page() -> None:
    """Draw the page: prompts, Run, the answer with its table and pictures, and maps of all that can be moved."""
    link.own([*prompt_set.parameters(), *OWN, SPARED, *SHAPE, MAP, VALUE, LENGTH])
    link.say_troubles()
    if not (prompts := prompt_set.choose()):
        return
    place, spec = running.row_begins(), picker.required()
    more = probe_page.options(place, (*OWN, *SHAPE))
    chosen = probe_page.form(Prune, more, ("drop",))
    moved = probe_page.form(Surgery, more, ("longest", "seed"))
    assert isinstance(chosen, Prune) and isinstance(moved, Surgery)
    probes = lengths(spec, chosen)
    known = prompt_set.run_when(spec, prompts)
    batch = running.batch("prune", control_model.with_control(requests(spec, probes, prompts)))
    share = running.run_row("prune", batch, place=place, **known)
    control_model.picker(more, batch)
    single = {name: request for name, request in batch.requests.items() if " 1." in name}
    case_studies.save_button(share, "prune", Batch(single, results=batch.results))
    link.write()
    live.follow(batch, panels, probes, spec, len(prompts))
    maps(spec, moved, prompts, known["n_tokens"])
    everything = [*probes.values(), *(ExactAnswers(n) for n in probes)]
    prompt_set.command(batch, everything[:1], prompts)
    with st.expander("What this measures, exactly"):
        for probe in (Prune, ExactAnswers, Surgery):
            probe_page.explanation(probe)


def lengths(spec: ModelRef, chosen: Prune) -> dict[int, Prune]:
    """Return the probes of the table, by how many layers they remove; the visitor's own set (`chosen`) is measured with
    1."""
    n_layers = spec.n_layers or 2
    chosen.check_layers(n_layers)
    return {n: chosen if n == 1 else Prune(n) for n in LENGTHS if n == 1 or 2 * n <= n_layers}


def requests(spec: ModelRef, asked: Mapping[int, Prune], prompts: Sequence[Prompt]) -> dict[str, Request]:
    """Return the requests of every length on every prompt by name, and of what is written without the layers where the
    answer is known."""
    wanted: dict[str, Request] = {}
    for n, probe in asked.items():
        wanted |= {f"prune {n}.{i}": probe.request(spec, prompt) for i, prompt in enumerate(prompts)}
        answered = ((i, prompt) for i, prompt in enumerate(prompts) if prompt.answer.strip())
        wanted |= {f"exact answers {n}.{i}": ExactAnswers(n).request(spec, prompt) for i, prompt in answered}
    return wanted


def panels(batch: running.Batch, asked: Mapping[int, Prune], spec: ModelRef, n_prompts: int) -> None:
    """Draw the answer, the table, files and pictures over the prompts that are measured. `asked`: probes by layers
    removed."""
    every = {n: measured(batch, n, probe, n_prompts) for n, probe in asked.items()}
    rows = {n: row for n, row in every.items() if row is not None}
    its_card = runs.card_of(spec)
    with st.container(key="prune-answer"):
        answer(batch, rows, its_card, spec, n_prompts)
    place = show.place("prune-table", 250)
    with place:
        if rows:
            show.few_rows(HEAD, [cells(n, row, spec) for n, row in rows.items()])
            if (drop := asked[1].drop) and 1 in rows:
                cost = surgery.costs(rows[1]["curves"], None)
                own = ", ".join(str(layer + 1) for layer in sorted(drop))
                st.caption(f"Your own set (counted from 1, layers {own}): {say.cost(cost)}.")
        else:
            show.empty("What do the cheapest stretches cost?", TEACH, 200)
    for message, which in running.troubles(batch).items():
        show.error(f"Prompt{'s' * (len(which) > 1)} {', '.join(which)}: {message}")
    if not rows:
        return probe_page.texts(WORDS)
    hand_over(batch, rows, n_prompts)
    pictures(rows)
    probe_page.texts(WORDS)


def measured(batch: running.Batch, n: int, probe: Prune, n_prompts: int) -> dict[str, Any] | None:
    """Return what removing `n` layers comes to over the complete prompts; None while none is complete. `curves`: mean
    by first layer; `start`: first layer (from 0) of the cheapest stretch; `exact`: answers; `copy`: the control's
    curves."""
    names = [name for i in range(n_prompts) if batch.complete(name := f"prune {n}.{i}") is not None]
    results = [batch.results[name] for name in names]
    if not results:
        return None
    curves = among_others.curves_of(probe, [r.summary for r in results])
    start = surgery.best_stretch(curves["kl"], n)[0]
    named = (batch.complete(f"exact answers {n}.{i}") for i in range(n_prompts))
    written = [result for result in named if result is not None]
    exact = aggregate.aggregate(ExactAnswers(n), [r.summary for r in written]) if written else None
    copies = control_model.results(batch, names)
    copy = among_others.curves_of(probe, [r.summary for r in copies]) if copies else None
    return {"curves": curves, "start": start, "results": results, "exact": exact, "written": written, "copy": copy}


def answer(batch: running.Batch, rows: Rows, its_card: card.Card | None, spec: ModelRef, n_prompts: int) -> None:
    """Show the cheapest layer in a sentence, how sure that is, and what the model's card says. `rows`: `measured` by
    layers removed."""
    note = (
        f"its card says layer {its_card.cuts[0].start + 1}: {of_card(its_card)}" if its_card and its_card.cuts else ""
    )
    under_way = running.status(batch) if batch.running else ""
    if 1 not in rows:
        text = f"Which layers of {spec.name} can go is not measured here yet."
        if its_card and its_card.cuts:
            text, note = (
                f"Layer {its_card.cuts[0].start + 1} is the cheapest to remove.",
                f"Its card: {of_card(its_card)}",
            )
        return show.finding(text, " · ".join(filter(None, [note, under_way or "Run measures these prompts"])))
    row = rows[1]
    done = len(row["results"])
    text = say.cheapest_cut(row["curves"], 1, row["results"][0])
    over = f"{done} of {say.count(n_prompts, 'prompt')}" if done < n_prompts else say.count(done, "prompt")
    tokens = say.count(sum(r.n_tokens for r in row["results"]), "token")
    show.finding(text, " · ".join(filter(None, [f"{over}, {tokens}", under_way, note])))
    if n_prompts < ENOUGH:
        st.warning(f"{say.count(n_prompts, 'prompt')} {FEW}", icon=":material/warning:")


def of_card(its_card: card.Card) -> str:
    """Return what a model's card says of its cheapest layer."""
    kept = card_page.value(its_card.cuts[0].kept, ".0f", 100, " %")
    return f"{kept} of first choices stay over {say.count(len(its_card.set.prompts), 'prompt')} of {its_card.set.name}"


def cells(n: int, row: Mapping[str, Any], spec: ModelRef) -> list[str]:
    """Return a row of the table: how many layers are removed, which, what stays, and what is saved."""
    cost = surgery.costs(row["curves"], row["start"])
    which = say.stretch(row["start"], row["start"] + n)
    if surgery.whole_passes(n, row["results"][0]):
        which = "any: whole passes"
    if not math.isfinite(cost["kl"]):
        return [say.count(n, "layer"), "none gives finite predictions", *["–"] * (len(HEAD) - 2)]
    answers = "–"
    if row["exact"] is not None:
        total, exact = len(row["written"]), row["exact"]
        baseline, same = (round(float(v) * total) for v in (exact["exact_whole"], exact["exact"][row["start"]]))
        answers = f"{same} of {baseline}" if baseline else f"0 of {total}: the model writes none"
    sizes = spec.size()
    saved = n * sizes.block / sizes.parameters if sizes.passes == 1 else 0.0
    work = n * sizes.block / (sizes.n_layers * sizes.block + sizes.d_vocab * sizes.d_model)
    loss = f"{size(cost['perplexity_whole'])} → {size(cost['perplexity'])}" if "perplexity" in cost else "–"
    kept = say.share(cost["top1_kept"])
    if row["copy"] is not None:
        kept += f" (copy {say.share(float(row['copy']['top1_kept'].max()))})"
    return [say.count(n, "layer"), which, kept, answers, loss, say.share(saved) if saved else "–", say.share(work)]


def hand_over(batch: running.Batch, rows: Rows, n_prompts: int) -> None:
    """Draw files for other tools, from `ENOUGH` prompts up. `rows`: `measured` by layers removed."""
    if n_prompts < ENOUGH:
        return
    if SPARED.value not in rows:
        inputs.put({SPARED.key: next(iter(rows))})
    row = st.popover("Use in other tools", icon=":material/content_cut:", type="tertiary", key="offers")
    n = SPARED.draw(row.selectbox, options=list(rows), width=150)
    chosen, ready = rows[n], not batch.running and len(rows[n]["results"]) == n_prompts
    results, start = chosen["results"], chosen["start"]
    order = [layer for layer in range(results[0].n_layers) if not start <= layer < start + n]
    offer(row, results, order, surgery.costs(chosen["curves"], start), "best", ready)


def offer(
    row: Any,
    results: Sequence[ProbeResult],
    order: Sequence[int],
    cost: Mapping[str, float],
    key: str,
    ready: bool,
) -> None:
    """Draw the downloads of an order of layers for other tools, with what it costs: a list and a merge; for a model
    that came as a GGUF file also the command that writes one without the layers left out. `key`: in the widgets' keys.
    `ready`: every prompt is measured."""
    model, n_layers = ModelRef.of(results[0].request.models[0]), results[0].n_layers
    evidence = {**cost, "n_prompts": len(results), "n_tokens": sum(r.n_tokens for r in results)}
    looped = model.n_passes not in (1, None)
    off = looped or not (ready and order)
    look = {"icon": ":material/download:", "disabled": off, "help": LOOPED if looped else EXPORTS}
    layers = partial(bridges.order_list, n_layers, order, model.source, evidence)
    row.download_button("Layers kept", layers, f"layers-{key}.json", "application/json", key=f"json-{key}", **look)
    merge = partial(bridges.passthrough, order, model.source, evidence)
    row.download_button("mergekit", merge, f"merge-{key}.yaml", "text/yaml", key=f"yaml-{key}", **look)
    file = model.file.name if not off and isinstance(model, Gguf) and model.packing else ""
    if file and (command := bridges.llama_quantize(order, n_layers, file)):
        st.code(command, language=None, wrap_lines=True)


def pictures(rows: Rows) -> None:
    """Draw what each stretch costs, by length, and how well the proxies rank the stretches."""
    curves = {n: row["curves"] for n, row in rows.items()}
    drawn = drawings.prune(curves, next(iter(rows.values()))["results"])
    for column, drawing, key, reading in zip(st.columns(2), drawn, ("kl", "proxies"), (READING, ""), strict=True):
        with column:
            show.drawing_of_many(key, drawing, reading)


# -------------------------------------------------------------------- maps


def maps(spec: ModelRef, asked: Surgery, prompts: Sequence[Prompt], n_tokens: int | None) -> None:
    """Draw the section in which every stretch is dropped, every pair swapped, or every stretch run twice, on the same
    prompts."""
    link.among(MAP, surgery.KINDS, "map")
    kind = MAP.value or surgery.KINDS[0]
    probe = Surgery(kind, asked.longest, asked.seed)
    batch = running.batch("surgery", {f"surgery.{i}": probe.request(spec, one) for i, one in enumerate(prompts)})
    with st.expander(
        "What if layers are dropped, swapped or run twice?", expanded=bool(batch.results) or batch.running
    ):
        MAP.draw(st.segmented_control, default=kind, label_visibility="collapsed")
        running.section_row(batch, "surgery", n_tokens, True, f"on {say.count(len(prompts), 'prompt')}")
        live.follow(batch, moved, probe, kind)


def moved(batch: running.Batch, probe: Surgery, kind: str) -> None:
    """Draw the map of one kind (drop, swap, repeat), and by length what costs least."""
    probe_page.status(batch)
    results = [result for name in batch.requests if (result := batch.complete(name)) is not None]
    if not results:
        return
    curves = among_others.curves_of(probe, [r.summary for r in results])
    if kind not in surgery.kinds_of(curves):
        return
    rows = surgery.rows(curves, kind, drawings.random_layers(kind, results))
    value = VALUE.draw(st.segmented_control, label_visibility="collapsed")
    if kind != "drop":  # the table says which layers can go
        show.conclusion("surgery", say.cheapest(float(curves["loss_whole"]), kind, rows))
    drawn = drawings.moved(curves, kind, results, value, View(height=HEIGHT, width_px=660))
    readings = ("map", READING_OF[value]), ("added", ADDED[kind])
    for column, drawing, (key, reading) in zip(st.columns([11, 9]), drawn, readings, strict=False):
        with column:
            show.drawing_of_many(key, drawing, reading)
    if not rows:
        return
    ready = not batch.running and len(results) == len(batch.requests) >= ENOUGH
    export(curves, kind, rows, results, ready)


def export(
    curves: Mapping[str, Any], kind: str, found: Sequence[surgery.Row], results: list[ProbeResult], ready: bool
) -> None:
    """Draw the cheapest variant of a length, with files for other tools. `found`: the cheapest of each length."""
    known = [row.length for row in found]
    nearest = min(known, key=lambda one: abs(one - LENGTH.value))
    if nearest != LENGTH.value:
        inputs.put({LENGTH.key: nearest})
    row = st.container(horizontal=True, vertical_alignment="bottom", key="offers-map")
    label = "Distance" if kind == "swap" else "Length"
    length = LENGTH.draw(row.number_input, label, min_value=min(known), max_value=max(known), width=130)
    best = next((one.best for one in found if one.length == length), None)
    if best is None:
        return
    cost = {"loss": best.loss, "loss_whole": float(curves["loss_whole"]), "kl": best.kl, "top1_kept": best.top1_kept}
    row.markdown(f"**{say.variant(best).capitalize()}** {figures.DONE[kind]}")
    if ready:
        order = best.order(results[0].n_layers)
        offer(row, results, order, cost, kind, ready)
    else:
        row.caption(f"Files from {ENOUGH} prompts up.")


LOOPED = "Not for a looped model: its file holds each layer once, and layers are counted here pass by pass."
HEAD = (
    "Remove",
    "Which",
    "First choices kept",
    "Known answers kept",
    "Perplexity",
    "Parameters saved",
    "Time saved, about",
)
FEW = f"are too few to choose layers by: measure {ENOUGH} or more."
TEACH = "**Run** removes each stretch of 1, 2, 4 … layers in turn and measures what the model then predicts and writes."
READING = "Low is cheap: the predictions hardly change without the stretch that begins there. One line a length."
EXPORTS = "Made from the figures over all chosen prompts; the file says how many prompts and tokens it rests on."
READING_OF = {
    "loss": "Colours are centred on the whole model's loss: orange is worse, blue is better.",
    "kl": "KL(whole || changed): dark cells change the predictions least.",
    "top1_kept": "The darker a cell, the more tokens keep the whole model's first choice.",
}
ADDED = {
    "drop": "A proxy is a good guide where its line meets the lowest line.",
    "swap": "Neighbours cost little where the order of the layers matters little.",
    "repeat": "Below 0 a repeat lowers the loss. The control runs one random layer as many times more.",
}

page()
