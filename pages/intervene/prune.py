"""Which layers can go: what the cheapest stretches cost over a set of prompts, and maps of all that can be moved."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import cleandoc
from typing import Any

import streamlit as st

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
from ed_core.types import Prompt, Request
from ed_ui import case_studies, control_model, link, live, picker, probe_page, prompt_set, running, runs, show
from ed_ui.inputs import SURGERY_MAP as MAP
from ed_ui.inputs import SURGERY_VALUE as VALUE
from ed_ui.inputs import number, of_probe
from ed_ui.session import Batch

WORDS = show.words(__file__)

LENGTHS = (1, 2, 4, 8, 16)  # layers that are removed together
ENOUGH = 10  # prompts from which layers may be chosen by the table
HEIGHT = 420
OWN = of_probe(Prune, ("drop",))
SPARED = replace(number("removed", "prune.removed", 1, 1, 16, int, "Layers to remove"), box={})
SHAPE = of_probe(Surgery, ("longest", "seed"))
Rows = Mapping[int, Mapping[str, Any]]  # `measured`, by layers removed
FEW = f"are too few to choose layers by: measure {ENOUGH} or more."
UNKNOWN = "Which layers of {} can go is not measured here yet."
HEAD = (
    "Remove",
    "Which",
    "First choices kept",
    "Known answers kept",
    "Perplexity",
    "Parameters saved",
    "Time saved, about",
)


def page() -> None:
    """Draw the page: prompts, Run, the answer with its table and pictures, and maps of all that can be moved."""
    link.own([*prompt_set.PARAMETERS, *OWN, SPARED, *SHAPE, MAP, VALUE])
    link.say_troubles()
    if not (prompts := prompt_set.choose()):
        return
    place, spec = running.row_begins(), picker.required()
    more = probe_page.options(place, (*OWN, *SHAPE))
    chosen = probe_page.form(Prune, more, ("drop",))
    moved = probe_page.form(Surgery, more, ("longest", "seed"))
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
            st.markdown(cleandoc(probe.__doc__ or ""))


def lengths(spec: ModelRef, chosen: Prune) -> dict[int, Prune]:
    """Return the probes of the table by layers removed; the visitor's own set (`chosen`) is measured with 1."""
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
    """Draw the answer, the table, files and pictures, as measured. `asked`: probes by layers removed."""
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
            show.empty("What do the cheapest stretches cost?", WORDS[""], 200)
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
    cut = its_card.cuts[0].start + 1 if its_card and its_card.cuts else None
    says = of_card(its_card) if its_card and cut else ""
    under_way = running.status(batch) if batch.running else ""
    if 1 not in rows:
        text = f"Layer {cut} is the cheapest to remove." if cut else UNKNOWN.format(spec.name)
        note = under_way or "Run measures these prompts"
        return show.finding(text, f"Its card: {says} · {note}" if cut else note)
    results = rows[1]["results"]
    over = f"{len(results)} of {n_prompts} prompts" if len(results) < n_prompts else say.count(n_prompts, "prompt")
    over += f", {say.count(sum(r.n_tokens for r in results), 'token')}"
    note = f"its card says layer {cut}: {says}" if cut else ""
    text = say.cheapest_cut(rows[1]["curves"], 1, results[0])
    show.finding(text, " · ".join(filter(None, [over, under_way, note])))
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
    """Draw files for other tools, from `ENOUGH` prompts up: a list of layers and a merge; for a model that came
    as a GGUF file also the command that writes one without the others. `rows`: `measured` by layers removed."""
    if n_prompts < ENOUGH:
        return
    box = st.popover("Use in other tools", icon=":material/content_cut:", type="tertiary", key="offers")
    n = SPARED.draw_of(box.selectbox, list(rows), width=150)
    row, results = rows[n], rows[n]["results"]
    model, n_layers = ModelRef.of(results[0].request.models[0]), results[0].n_layers
    order = [layer for layer in range(n_layers) if not row["start"] <= layer < row["start"] + n]
    evidence = surgery.costs(row["curves"], row["start"])
    evidence |= {"n_prompts": len(results), "n_tokens": sum(r.n_tokens for r in results)}
    looped, ready = model.n_passes not in (1, None), not batch.running and len(results) == n_prompts
    off = looped or not ready or not order
    look: dict[str, Any] = {"icon": ":material/download:", "disabled": off}
    look["help"] = WORDS["Looped" if looped else "Exports"]
    layers = partial(bridges.order_list, n_layers, order, model.source, evidence)
    box.download_button("Layers kept", layers, "layers.json", "application/json", key="json", **look)
    merge = partial(bridges.passthrough, order, model.source, evidence)
    box.download_button("mergekit", merge, "merge.yaml", "text/yaml", key="yaml", **look)
    file = model.file.name if not off and isinstance(model, Gguf) and model.packing else ""
    if file and (command := bridges.llama_quantize(order, n_layers, file)):
        box.code(command, language=None, wrap_lines=True)


def pictures(rows: Rows) -> None:
    """Draw what each stretch costs, by length, and how well the proxies rank the stretches."""
    drawn = drawings.prune({n: row["curves"] for n, row in rows.items()}, next(iter(rows.values()))["results"])
    for column, drawing, key, reading in zip(st.columns(2), drawn, ("kl", "proxies"), ("Stretches", ""), strict=True):
        with column:
            show.drawing(key, drawing, WORDS[reading] if reading else "")


# -------------------------------------------------------------------- maps


def maps(spec: ModelRef, asked: Surgery, prompts: Sequence[Prompt], n_tokens: int | None) -> None:
    """Draw the section in which every stretch is dropped or run twice, or every pair swapped, on these prompts."""
    link.among(MAP, surgery.KINDS, "map")
    probe = replace(asked, kind=MAP.value or surgery.KINDS[0])
    batch = running.batch("surgery", {f"surgery.{i}": probe.request(spec, one) for i, one in enumerate(prompts)})
    unfolded = bool(MAP.value or batch.results or batch.running)
    with st.expander("What if layers are dropped, swapped or run twice?", expanded=unfolded):
        MAP.draw(st.segmented_control, default=probe.kind, label_visibility="collapsed")
        running.section_row(batch, "surgery", n_tokens, True, f"on {say.count(len(prompts), 'prompt')}")
        live.follow(batch, moved, probe)


def moved(batch: running.Batch, probe: Surgery) -> None:
    """Draw the map of one kind (drop, swap, repeat), and by length what costs least."""
    probe_page.status(batch)
    results = [result for name in batch.requests if (result := batch.complete(name)) is not None]
    curves = among_others.curves_of(probe, [r.summary for r in results]) if results else {}
    kind = probe.kind
    if kind not in surgery.kinds_of(curves):
        return
    value = VALUE.draw(st.segmented_control, label_visibility="collapsed")
    if kind != "drop":  # the table says which layers can go
        rows = surgery.rows(curves, kind, drawings.random_layers(kind, results))
        show.conclusion("surgery", say.cheapest(float(curves["loss_whole"]), kind, rows))
    drawn = drawings.moved(curves, kind, results, value, View(height=HEIGHT, width_px=660))
    for column, drawing, key, reading in zip(st.columns([11, 9]), drawn, ("map", "added"), (value, kind), strict=False):
        with column:
            show.drawing(key, drawing, WORDS[reading])


page()
