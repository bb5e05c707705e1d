"""Home: what the model says, from which layer on, and how sure that is; the answer's course, and four maps."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from ed_core import figures
from ed_core.depth import say, sinks
from ed_core.depth.answer import Course, is_right
from ed_core.depth.rules import RULES, tenth
from ed_core.depth.sample import ALL, READS, Results, Sample
from ed_core.depth.verdict import Verdict, verdict
from ed_core.figures import View, pictures
from ed_core.figures.pictures import Look
from ed_core.models import remote
from ed_core.models.ref import ModelRef
from ed_core.probes import Continuation, Contributions, LayerSkip, LogitLens, Patching
from ed_core.probes.base import Picture
from ed_core.results import lookup
from ed_core.types import ModelSpec, ProbeResult, Request
from ed_ui import control_model, inputs, link, live, navigation, picker, probe_page, prompt_box, running, session, show
from ed_ui.inputs import OF, TOKEN

WORDS = show.words(__file__)
PROBES = {  # in the order of computing: maps in a moment, then the model's own words, then what takes longer
    "contributions": Contributions(),
    "continuation": Continuation(),
    "logit_lens": LogitLens(),
    "layer_skip": LayerSkip(),
}
MAPS = (  # key, probe, picture, the question it answers, what its colours mean
    ("norms", "contributions", Contributions.pictures[0], "How much does each layer add?", "bright: much"),
    (
        "cosine",
        "contributions",
        Contributions.pictures[1],
        "Does it erase or strengthen?",
        ":blue[blue: erases] · :orange[orange: strengthens]",
    ),
    (
        "skip",
        "layer_skip",
        LayerSkip.pictures[0],
        "What breaks without it?",
        "bright: much · row: left out · column: changed",
    ),
    ("lens", "logit_lens", LogitLens.pictures[0], "What would the model say?", "bright: sure of its next word"),
)
ONE_PAGE = Contributions.pictures  # whose page shows one measure at a time
COURSE, SMALL = 274, 172  # pixels of the figures
PARAMETERS = (OF, inputs.KL, inputs.OVERLAP, inputs.FIRST_TOKEN, inputs.COUNT_SINKS)


def page() -> None:
    """Draw the page: prompt, answer, checks on other prompts, and figures."""
    link.own(PARAMETERS)
    link.say_troubles()
    prompt_box.draw()
    shown = readable(asked())
    control_model.start(shown)
    copies = control_model.copies(shown)
    followed = copies if copies is not None and copies.running and not shown.running else shown
    live.follow(followed, lambda _: panels(shown))


# ---------------------------------------------------------------- what is measured


def asked() -> running.Batch:
    """Return the batch of what the boxes contain, after drawing Run and Options; where the chosen model is unavailable,
    the batch shown last, with a word on it."""
    if picker.current().spec is None and (last := session.current().batches.get("home")) is not None:
        st.info(show.plain(WORDS["still"].format(model_of(last).name)), icon=":material/history:")
        return last
    batch = running.batch("home", wanted(picker.required()))
    place = running.row_begins()
    with probe_page.options(place, PARAMETERS):
        options(batch)
    probe_page.top_row("home", batch, place=place)
    return batch


def wanted(spec: ModelSpec) -> dict[str, Request]:
    """Return the requests of the four probes on the prompt in the box, and of the chosen control."""
    prompt = prompt_box.prompt()
    requests = {name: one.request(spec, prompt) for name, one in PROBES.items() if remote.measures(spec, one.name)}
    measured = {name: request for name, request in requests.items() if name != "continuation"}
    return requests | control_model.with_control(measured)


def readable(batch: running.Batch) -> running.Batch:
    """Return the batch to show: the batch itself, or where it has nothing yet and only an answer was typed, that of the
    same text without one, which has what the model says."""
    known = session.current()
    former = known.read
    if batch.results or batch.running or batch.errors or former is None or not former.results:
        known.read = batch
        return batch
    now, before = (one.requests["contributions"] for one in (batch, former))
    if before.models != now.models or before.prompts[0] != replace(now.prompts[0], answer=""):
        known.read = batch
        return batch
    former.page = ""  # another batch is the page's now
    return former


def model_of(batch: running.Batch) -> ModelRef:
    """Return the model of a batch."""
    return ModelRef.of(batch.requests["contributions"].models[0])


def judged(batch: running.Batch) -> Verdict | None:
    """Return the verdict with what is chosen under Options; None until both of its probes are complete."""
    needed = [result for name in READS if (result := batch.complete(name)) is not None]
    if len(needed) < len(READS):
        return None
    twins, control = control_model.twins(batch)
    return verdict_on(needed, twins=twins, control=control, of=read_for(needed[1]))


def verdict_on(needed: Sequence[Results], **more: Any) -> Verdict:
    """Return the verdict on these results (contributions, logit lens) with the chosen thresholds. `more`: as
    `Sample.of` takes it."""
    sample = Sample.of(*needed, first_token=inputs.FIRST_TOKEN.value, **more)
    return verdict(sample, inputs.KL.value, inputs.OVERLAP.value)


def read_for(lens: ProbeResult) -> str | int:
    """Return for which tokens the depths are read: all, the answer's, or a token's position (from 0)."""
    token = inputs.token(lens.n_tokens) if OF.value == TOKEN else OF.value
    return ALL if token is None else token


def options(batch: running.Batch) -> None:
    """Draw what changes how the verdict is read, and the choice of a control."""
    OF.draw(st.segmented_control)
    inputs.KL.draw(st.slider, step=0.05)
    inputs.OVERLAP.draw(st.slider, step=0.05)
    inputs.FIRST_TOKEN.draw(st.toggle)
    inputs.COUNT_SINKS.draw(st.toggle, "Count attention sinks in the averages of the maps")
    if (some := next(iter(batch.results.values()), None)) is not None:
        show.token_box(st, some.tokens, "stretch")
    control_model.picker(st, batch)


# ---------------------------------------------------------------- the answer, and how sure it is


def panels(batch: running.Batch) -> None:
    """Draw all that a batch shows, in one part of the page: two would ask the server twice as often."""
    with st.container(key="answer-slot"):
        answer(batch)
        if (more := others(batch)) is not None:
            # a part in a part only while it runs alone: Streamlit may send the inner one's news without the outer one's
            live.follow(more, checked, batch) if more.running else checked(more, batch)
    figures_of(batch)


def answer(batch: running.Batch) -> None:
    """Draw what the model says in one sentence, and below it how sure that is."""
    link.write(batch.requests["contributions"].key if "contributions" in batch.results and not batch.running else "")
    reached, lens = judged(batch), batch.complete("logit_lens")
    with st.container(key="headline"):
        for message in (troubles := running.troubles(batch)):
            show.error(message)
        if lens is not None and reached is not None:
            st.markdown(f"## {sentence(batch, lens)}")
        elif batch.running or not troubles:
            st.markdown(f"## {show.plain(WORDS['teach'].format(model_of(batch).name))}")
        if batch.running and reached is None:
            live.status(batch, "{}".format)
        elif reached is None and not troubles:
            st.markdown(WORDS["cancelled"] if batch.errors else WORDS["about"])
        if lens is not None and reached is not None:
            copies = control_model.copies(batch)
            for message in running.troubles(copies) if copies is not None else ():
                show.error(message)
            with st.container(horizontal=True, vertical_alignment="center", gap="small", key="how-sure"):
                sure(batch, reached, lens)


def sentence(batch: running.Batch, lens: ProbeResult) -> str:
    """Return the page's answer as Markdown."""
    written, wanted = batch.complete("continuation"), prompt_box.prompt().answer
    right, word = None, ""
    if written is not None:
        prompt = replace(written.request.prompts[0], answer=wanted)
        right = is_right(replace(written, request=replace(written.request, prompts=(prompt,))))
        word = (written.provenance["continuation"].split() or [""])[0].strip(".,;:")
    text = show.plain(say.headline(model_of(batch).name, Course.of(lens), right, word, wanted))
    return text.replace(", correctly,", ", :green[correctly],", 1) if right else text


def sure(batch: running.Batch, reached: Verdict, lens: ProbeResult) -> None:
    """Draw how sure the answer is, what is behind it, and buttons that make it surer."""
    st.markdown(show.plain(say.how_sure(reached, Course.of(lens), lens["kl"].mean(1))), width="content")
    with st.popover("Why?", type="tertiary", key="why"):
        why(batch, reached)
    if batch.running:
        return live.status(batch, "{}".format)
    copies = control_model.copies(batch)
    if copies is not None and copies.running:
        live.status(copies, "{}".format)
        st.button("Stop", key="stop.copies", type="tertiary", on_click=running.cancel, args=(copies,))
    elif copies is not None and (seconds := control_model.offered(batch)) is not None:
        label = f"Compare untrained copies ({running.about(seconds)})"
        if st.button(label, type="tertiary", key="copies"):
            running.submit(copies)
            st.rerun()
    if (more := others(batch)) is not None and more.missing and not more.running:
        seconds = running.outlook_of(more, lens.n_tokens).seconds
        time = f" ({running.about(seconds)})" if seconds is not None else ""
        label = f"Check on {len(more.requests) // len(READS)} more{time}"
        if st.button(label, type="tertiary", key="check"):
            running.submit(more)
            st.rerun()


def others(batch: running.Batch) -> running.Batch | None:
    """Return the batch of the verdict's probes on bundled prompts; None before the answer, or without prompts to read
    it from."""
    if judged(batch) is None or any(name not in batch.requests for name in READS):
        return None
    requests = {}
    for name in READS:
        current = batch.requests[name]
        for i, request in enumerate(probe_page.others_of(PROBES[name], current)):
            requests[f"{name}.{i}"] = request
    return running.batch("home.others", requests) if requests else None


def checked(more: running.Batch, batch: running.Batch) -> None:
    """Draw what this prompt and the others (`more`) come to together, or how many are measured."""
    own = [result for name in READS if (result := batch.complete(name)) is not None]
    n = len(more.requests) // len(READS)
    every = [[more.complete(f"{name}.{i}") for name in READS] for i in range(n)]
    pairs = [pair for some in every if len(pair := [r for r in some if r is not None]) == len(READS)]
    if more.running:
        with st.container(horizontal=True, vertical_alignment="center", key="checking"):
            st.progress(len(pairs) / n, f"{len(pairs)} of {n} more prompts")
            st.button("Stop", key="stop.others", type="tertiary", on_click=running.cancel, args=(more,))
    elif len(pairs) > 1:
        together = verdict_on(list(zip(own, *pairs, strict=True)))
        with st.container(key="together"):
            with_more = f"**With {say.count(len(pairs), 'more prompt')}:**"
            st.markdown(f"{with_more} {show.plain(f'{say.lead(together)} {say.average(together)}')}")


def why(batch: running.Batch, reached: Verdict) -> None:
    """Draw the published rules in a table, what each asks, what else is behind the verdict, and what the model
    writes."""
    rows = say.rule_table(reached)
    st.markdown(show.plain(say.rules(reached)))
    show.few_rows(list(rows[0]), [list(row.values()) for row in rows])
    thresholds = {"kl": inputs.KL.value, "overlap": inputs.OVERLAP.value}
    moved = any(value != RULES[name].threshold for name, value in thresholds.items())
    margin = tenth(reached.n_layers)
    st.markdown(
        WORDS[""].format(
            moved=", with thresholds of your own for their 50 % and 30 %" if moved else "",
            near=f" (±\u00a0{say.count(margin, 'layer')})" if margin else "",
            kl=100 * thresholds["kl"],
            overlap=100 * thresholds["overlap"],
        )
    )
    lines = [show.plain(line) for line in (say.turn(reached.turn), *say.why(reached)) if line]
    if known := reached.sample.sinks[0]:
        lines.append(show.plain(say.sinks(known, batch.results["contributions"].tokens)))
    if not inputs.FIRST_TOKEN.value:
        lines.append("The cosine rule and the switch leave the first token out; KL and overlap count it.")
    if (written := batch.complete("continuation")) is not None:
        lines.append(says(written))
    st.markdown("\n".join(f"- {line}" for line in lines))
    st.markdown(
        WORDS["depths"].format(
            copies=WORDS["shuffled"] if control_model.chosen()[0] == "shuffled" else WORDS["untrained"]
        )
    )


def says(written: ProbeResult) -> str:
    """Return in Markdown what the model writes, whether that is right, and its best next tokens."""
    expected = show.code(written.request.prompts[0].answer, 60)
    mark = {True: " :green[✓ correct]", False: f" :orange[✗ expected {expected}]", None: ""}[is_right(written)]
    best = ", ".join(
        f"{show.code(written.token_text[int(i)], 60)} {say.share(float(p))}"
        for i, p in zip(written["top_ids"][0], written["top_probs"][0], strict=True)
    )
    return f"The model writes {show.code(written.provenance['continuation'], 60)}{mark}; its next token: {best}."


# ---------------------------------------------------------------- the figures


def figures_of(batch: running.Batch) -> None:
    """Draw the answer's course and the four maps, as they fill."""
    reached, made = judged(batch), batch.complete("contributions")
    known = sinks.of_result(made) if made is not None else None
    with show.place("course", COURSE):
        live.guarded(partial(course, batch, reached))
    with st.container(key="home-maps", gap="xxsmall"):
        marked = say.sinks_in_maps(known or (), made.tokens if made is not None else (), inputs.COUNT_SINKS.value)
        st.caption(f"{WORDS['maps']} {show.plain(marked)}")
        for column, one in zip(st.columns(4), MAPS, strict=True):
            with column:
                live.guarded(partial(small_map, batch, tuple(s.pos for s in known or ()), *one))


def course(batch: running.Batch, reached: Verdict | None) -> None:
    """Draw the rank of the model's own word after each layer, with Play; an empty place until the logit lens is
    complete."""
    if (lens := batch.complete("logit_lens")) is None:
        return show.empty("", "", COURSE - show.CAPTION)
    path = Course.of(lens)
    twins, _ = control_model.twins(batch)
    copies = [twin["rank"][:, path.at] for _, twin in twins if "rank" in twin.measures]
    with st.container(key="box-course", gap=None):
        show.mount("story", json.dumps({"story": story(lens, path)}).encode(), 34)
        ready = show.once(figures.course, path, reached, copies, COURSE, decided=decided(lens))
        alt = f"Rank of {path.word} after each layer. {show.bare(say.headline('The model', path, None, ''))}"
        show.draw("course", ready, alt, caption=f"Rank of {path.word.strip()} after each layer", results=[lens])


def decided(lens: ProbeResult) -> int | None:
    """Return the depth at which an answer that was patched into this prompt is decided; None where *Patch* has measured
    none."""
    request = lens.request
    patch = (
        None if request.models[0].precision == remote.SERVED else lookup.patched(request.models[0], request.prompts[0])
    )
    return None if patch is None else Patching.depths(patch)["decided"]


def story(lens: ProbeResult, found: Course) -> dict[str, Any]:
    """Return what Play tells, layer by layer: the prompt's end, and the word, probability and rank that the lens reads
    there."""
    prompt = lens.request.prompts[0]  # its tokens may each be a part of a letter
    start = lens.answer_start
    is_prompt = prompt.template == "raw" and (start is None or found.at == start - 1)
    before = prompt.text if is_prompt else "".join(lens.tokens[: found.at + 1])
    steps = [
        {"word": word, "share": share, "rank": int(rank)}
        for word, share, rank in zip(found.words, found.shares.tolist(), found.ranks, strict=True)
    ]
    before = before if len(before) <= LAST else f"…{before[-LAST:]}"
    return {"before": before, "final": found.word, "at": found.at, "steps": steps}


def small_map(
    batch: running.Batch, at_sinks: tuple[int, ...], key: str, probe: str, one: Picture, question: str, colours: str
) -> None:
    """Draw one map with its question; a click opens its tab at that token. `at_sinks`: positions of attention sinks."""
    st.markdown(f"**{question}**")
    result, measure = batch.result(probe), pictures.measures(one, Look())[0]
    with show.place(key, SMALL - show.CAPTION):
        if result is None:
            st.container(height=SMALL, border=True)
        else:
            over_tokens = "pos" in result.measures[measure].spec.dims
            view = View(width_px=280, height=SMALL, sinks=at_sinks, answer_start=result.answer_start)
            ready = show.once(drawn, one, result, view, at_sinks if over_tokens else ())
            with st.container(key=f"box-{key}"):
                cell = show.draw(key, ready, f"{question} {figures.describe(result, measure)}", clickable=True)
            if cell and over_tokens:
                inputs.put(probe_page.around(int(cell[1]), result.n_tokens))
                inputs.put({inputs.MEASURE.key: measure} if one in ONE_PAGE else {})
            if cell:
                page = navigation.KEPT_FROM[probe]
                own = link.carried([inputs.MEASURE, probe_page.TOKENS] if one in ONE_PAGE else [probe_page.TOKENS])
                st.switch_page(page, query_params=link.to(Path(page).stem) | own)
    st.caption(colours)


def drawn(one: Picture, result: ProbeResult, view: View, at_sinks: tuple[int, ...]) -> Any:
    """Return the small figure of a picture that a probe declares."""
    return figures.small_map(pictures.draw(one, result, view), view.height, at_sinks)


LAST = 60  # characters of the prompt that Play repeats
page()
