"""The main job: one model, one prompt, four live heatmaps, the verdict on depth."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import streamlit as st

from ed_core import figures, lenses
from ed_core.depth import say, sinks
from ed_core.depth.answer import first_choice, is_right
from ed_core.depth.published import published, published_marks
from ed_core.depth.rules import RULES, tenth
from ed_core.depth.sample import ALL, ANSWER, Sample, positions
from ed_core.depth.verdict import Verdict, verdict
from ed_core.figures import View
from ed_core.figures.pictures import Look
from ed_core.models import remote
from ed_core.models.ref import ModelRef
from ed_core.probes import Continuation, Contributions, Generation, LayerSkip, Lenses, LogitLens
from ed_core.probes.base import Picture
from ed_core.probes.lenses import LENSES
from ed_core.results import lookup
from ed_core.types import ModelSpec, ProbeResult, Request
from ed_ui import (
    control_model,
    inputs,
    link,
    live,
    picker,
    probe_page,
    prompt_box,
    prompt_panels,
    running,
    session,
    show,
)
from ed_ui.inputs import BRANCHES, OF, SHADES, TOKEN, choice, of_probe, span, value

WINDOW = 48
NONE, LOGIT = "none", "logit"
PUBLISHED = (NONE, *dict.fromkeys(p.model.rsplit("/", 1)[-1] for p in published()))
PROBES = {  # in the order of computing: maps in a moment, then the model's own words, then what takes longer
    "contributions": Contributions(),
    "continuation": Continuation(),
    "logit_lens": LogitLens(),
    "layer_skip": LayerSkip(),
}


MAPS = (  # key, probe, picture
    ("norms", "contributions", Contributions.pictures[0]),
    ("cosine", "contributions", Contributions.pictures[1]),
    ("skip", "layer_skip", LayerSkip.pictures[0]),
    ("lens", "logit_lens", LogitLens.pictures[0]),
)
WIDE = 1100  # pixels of the page, about
LOW = 260  # pixels of the map of written tokens
HIGH = 92  # pixels of the ruler
BESIDE = choice("published", "published", NONE, PUBLISHED, "Published figures on the ruler")
TOKENS = span("tokens", "window")
PARAMETERS = (
    inputs.BRANCH,
    inputs.SHADE,
    inputs.KL,
    inputs.OVERLAP,
    inputs.FIRST_TOKEN,
    inputs.COUNT_SINKS,
    inputs.LENS,
    OF,
    BESIDE,
    TOKENS,
    inputs.DEPTHS,
    *of_probe(Generation),
)


def page() -> None:
    link.own(PARAMETERS)
    if (spec := picker.current().spec) is not None:
        link.among(inputs.LENS, lenses_of(spec), "lens")
    link.say_troubles()
    with st.container(key="home-top"):
        with st.container(key="home-inputs"):
            prompt_box.draw_boxes()
            batch = asked()
            prompt_box.say_trouble()
        # above the inputs on the screen, after them for the keyboard: Run is a few steps away
        with st.container(horizontal=True, vertical_alignment="center", key="home-title"):
            prompt_box.draw_examples()
            about = dict(
                icon=":material/help:", type="tertiary", help="What is this? How a word forms, depth by depth."
            )
            st.button("What is this?", key="what", on_click=_ask_what, **about)
    live.follow(batch, panels)
    welcome(batch)


def asked() -> running.Batch:
    """The batch of what stands in the boxes, with Run and Options; where the chosen model is unavailable, the
    batch shown last and a word on it: why is said above."""
    batch = again()
    if picker.current().spec is None:
        st.info(show.plain(STILL.format(first(batch).name)), icon=":material/history:")
        return batch
    row = probe_page.top_row("home", batch)
    options(row, batch)
    return batch


def wanted(spec: ModelSpec) -> dict[str, Request]:
    """The four probes of what stands in the boxes, and what is chosen beside them: a fitted lens, the depth of each
    token that the model writes, a control."""
    there = {name: probe for name, probe in PROBES.items() if remote.measures(spec, probe.name)}
    asked = {name: probe.request(spec, prompt_box.prompt()) for name, probe in there.items()}
    measured = {name: request for name, request in asked.items() if name != "continuation"}
    if (fit := fitted(spec)) is not None:
        asked["lenses"] = Lenses(fit=fit.path.stem).request(spec, prompt_box.prompt())
    if inputs.DEPTHS.value and remote.measures(spec, Generation.name):
        asked["generation"] = prompt_panels.generation().request(spec, prompt_box.prompt())
    return asked | control_model.with_twins(measured)


def fitted(spec: ModelSpec) -> lenses.Fit | None:
    """The fitted lens that the lens panel is asked for; None for the logit lens, or where this model has no such."""
    name = inputs.LENS.value
    return next((fit for fit in lenses.of_model(spec) if fit.path.stem == name), None) if name != LOGIT else None


def lenses_of(spec: ModelSpec) -> list[str]:
    """The names of the lenses that this model can be read through."""
    return [LOGIT, *(fit.path.stem for fit in lenses.of_model(spec))]


def maps_of(batch: running.Batch) -> list[tuple[str, str, Picture]]:
    """The maps: key, probe and picture; the lens panel's is that of the lens that was chosen."""
    asked = batch.requests.get("lenses")
    if asked is None:
        return list(MAPS)
    kind = lenses.find(dict(asked.parameters)["fit"]).kind
    one = next(one for one in Lenses.pictures if one.title == LENSES[kind])
    return [*MAPS[:-1], ("lens", "lenses", one)]


def welcome(batch: running.Batch) -> None:
    """What this is, and how the next word forms in this very prompt, for whoever came without a link or asks for it;
    gone once it was closed, in this browser until it is asked for."""
    known = session.current()
    if not known.asked_what and (known.welcomed or not link.state().bare):
        return
    with st.container(key="welcome", border=True):
        st.markdown(WELCOME)
        if (lens := batch.complete("logit_lens")) is not None:
            beside, _ = control_model.twins(batch)
            prompt_panels.story(lens, [twin for _, twin in beside], judged(batch))
        st.markdown(STEPS)
        if st.button("Got it", key="welcomed", type="tertiary", icon=":material/check:"):
            known.welcomed, known.asked_what = True, False
            st.rerun()


def _ask_what() -> None:
    session.current().asked_what = True


def _harder(example: str, batch: running.Batch) -> None:
    """Step up, keeping the present verdict as a ghost on the ruler."""
    if (reached := judged(batch)) is not None:
        session.current().ghost = session.Ghost(reached, first(batch).key, example)
    prompt_box.pick(example)


def first(batch: running.Batch) -> ModelRef:
    """The batch's model."""
    return ModelRef.of(next(iter(batch.requests.values())).models[0])


def judged(batch: running.Batch) -> Verdict | None:
    """The verdict with what is chosen under Options, with the control or stored twins, once both of its probes are
    complete."""
    needed = [batch.complete("contributions"), batch.complete("logit_lens")]
    if None in needed:
        return None
    twins, control = control_model.twins(batch)
    chosen = dict(first_token=inputs.FIRST_TOKEN.value, of=read_for(needed[1]))
    sample = Sample.of(*needed, twins=twins, control=control, **chosen)
    return verdict(sample, inputs.KL.value, inputs.OVERLAP.value)


def read_for(lens: ProbeResult) -> str | int:
    """For which tokens the depths are read: all, the answer's, or a token's position."""
    found = inputs.token(lens.n_tokens) if OF.value == TOKEN else OF.value
    return ALL if found is None else found


def panels(batch: running.Batch) -> None:
    """Everything that fills while jobs run."""
    stored = "contributions" in batch.results and not batch.running
    link.write(batch.requests["contributions"].key if stored else "")
    reached = judged(batch)
    with st.container(key="home-verdict"):
        headline(batch, reached)
        ruler(batch, reached)
    view = viewer(batch, reached)
    look = Look(BRANCHES[inputs.BRANCH.value], SHADES[inputs.SHADE.value], first_token=inputs.FIRST_TOKEN.value)
    maps = st.container(key="home-maps")
    upper, (left, right) = maps.columns(2), maps.columns(2)
    below, wide = maps.container(), maps.container()
    parts = [
        (place, partial(panel, batch, key, probe, one, view, look))
        for place, (key, probe, one) in zip((*upper, left, wide), maps_of(batch), strict=True)
    ]
    chosen = inputs.token(_n_tokens(batch)) is not None
    parts.insert(3, (right, partial(course if chosen else towards_answer, batch, view)))
    for place, draw in parts:  # from the top of the page, so that nothing moves
        with place:
            live.guarded(draw)
    if (token := inputs.token(_n_tokens(batch))) is not None and not batch.running:
        with below:
            prompt_panels.drawer(batch, token, reached.layers if reached else {})
    if "continuation" in batch.requests:
        live.guarded(partial(what_it_says, batch))
    if "generation" in batch.requests:
        with st.container(key="home-written"):
            live.guarded(partial(depths, batch))


def panel(
    batch: running.Batch, key: str, probe: str, one: Picture, view: Callable[[str, str], View], look: Look
) -> None:
    seen, result = view(key, probe), batch.result(probe)
    caption = f"**{one.title}** · {one.caption}"
    if seen.window and result is not None and key in ("norms", "lens"):  # once a row, where there is room
        caption += " · tokens {}–\u2060{}".format(*seen.span(result.n_tokens))
    if key == "lens":
        n_layers = ModelRef.of(batch.requests[probe].models[0]).n_layers or 0
        seen = replace(seen, width_px=WIDE, height=figures.lens_height(n_layers, seen))
        if probe == "lenses":  # the rules were read off the logit lens
            seen = replace(seen, depth_lines={})
    show.picture(key, one, result, seen, look, caption)


def towards_answer(batch: running.Batch, view: Callable[[str, str], View]) -> None:
    """Where no token is selected, the answer beside the maps: how the lens comes to what the model says there."""
    result, seen = batch.result("logit_lens"), view("token", "logit_lens")
    if result is None:
        return show.empty(
            "Where the answer is predicted", "How the lens comes to the model's own best guess, depth by depth."
        )
    at = min(positions(result, ANSWER))
    said = show.code(result.token_text[int(result["top_ids"][-1, at, 0])], 20) if result.complete else "the answer"
    where = say.read_for(ANSWER, result.answer_start is not None)
    caption = f"**{where[0].upper()}{where[1:]}** · rank of {said} in the lens *(click a cell: that token)*"
    fig = show.once(figures.rank_curve, result, at, seen.height)
    show.figure("token", fig, caption, result, "rank", READ_RANK)


def course(batch: running.Batch, view: Callable[[str, str], View]) -> None:
    """The selected token beside the maps: its cosines over the layers."""
    result, seen = batch.result("contributions"), view("token", "contributions")
    if result is None or seen.selected is None:
        return show.empty("One token", "Its course through the layers.")
    curves = {name: result[measure][:, seen.selected] for name, measure in prompt_panels.COSINES.items()}
    more = dict(depth_lines=seen.depth_lines, height=seen.height)
    fig = show.once(figures.layer_curves, curves, "", "cosine", **more)
    caption = f"**Token {seen.selected}** {show.code(result.tokens[seen.selected], 20)} · its cosines with the stream"
    show.figure("token", fig, caption, result, "layer_cos")


def headline(batch: running.Batch, reached: Verdict | None) -> None:
    """Status, or what is seen at the answer and where the lens settles: the same height whatever stands in it."""
    with st.container(key="headline"):
        for message in (troubles := running.troubles(batch)):
            show.error(message)
        if batch.running:
            live.status(batch)
        elif reached is not None:
            if lead := say.lead(reached):
                written = batch.complete("continuation")
                st.markdown(f"**{show.plain(lead)}**{WRITES[is_right(written) if written else None]}")
            st.markdown(show.plain(f"{say.average(reached)} {say.turn(reached.turn)}"))
        elif batch.missing and not troubles:
            st.markdown(CANCELLED if batch.errors else TEACH)


def what_it_says(batch: running.Batch) -> None:
    """What the model says, as far as it is written, and whether the depth of each token stands below it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="says"):
        if said := says(batch):
            st.markdown(said, width="content")
        # always there: nothing moves when there is something to say
        gone = picker.current().spec is None
        off = gone or any(name != "generation" for name in (*batch.jobs, *batch.waiting))
        look = dict(help=ABOUT_DEPTHS, disabled=off, changed=write_on)
        if inputs.DEPTHS.draw(st.toggle, **look) != ("generation" in batch.requests) and not gone:
            st.rerun()


def again() -> running.Batch:
    """This page's batch for what stands in the boxes now; the one shown last where the chosen model is unavailable."""
    if picker.current().spec is None and (last := session.current().batches.get("home")) is not None:
        return last
    return running.batch("home", wanted(picker.required()))


def write_on(key: str) -> None:
    """The depth of each token was asked for: where nothing else is missing it is computed at once, if it can be."""
    inputs.note(key)
    if picker.current().spec is None:
        return
    batch = again()
    if batch.missing == ["generation"] and not running.outlook_of(batch, prompt_box.n_tokens()).obstacle:
        running.submit(batch)


def depths(batch: running.Batch) -> None:
    """At which depth each token settles that the model writes, and how many it is to write."""
    if (result := batch.result("generation")) is None:
        return show.empty("Depth of each token", TEACH_DEPTHS, LOW)
    prompt_panels.written("written", result, View(width_px=WIDE, height=LOW, uirevision="written"), again, small=True)


def ruler(batch: running.Batch, reached: Verdict | None) -> None:
    """The depth ruler with what the published rules give; without marks until there is a verdict, so that nothing
    moves when it comes."""
    some = next(iter(batch.results.values()), None)
    n_layers = some.n_layers if some is not None else first(batch).n_layers
    if n_layers is None:
        st.container(height=HIGH + show.CAPTION, border=False, key="ruler-place")
        return
    ghost = session.current().ghost
    here = ghost and (ghost.model, ghost.example) == (first(batch).key, value("example", ""))
    fig = show.once(
        figures.depth_ruler,
        reached,
        n_layers,
        height=HIGH,
        passes=first(batch).n_passes or 1,
        published=published_marks(BESIDE.value) if reached and BESIDE.value != NONE else (),
        ghost=ghost.verdict.means if ghost and here else {},
    )
    caption = show.plain(say.rules(reached)) if reached else "Depth ruler"
    said = say.verdict(reached) if reached else "Depth ruler: no verdict yet."
    made = [batch.results[name] for name in ("contributions", "logit_lens") if name in batch.results]
    about = partial(why, batch, reached)
    show.figure("ruler", fig, caption, results=made, alt=said, about=about, more="Why?")


def why(batch: running.Batch, reached: Verdict | None) -> None:
    """The published rules in a table, what else is behind the verdict, and how to read the ruler."""
    if reached:
        rows = say.rule_table(reached)
        show.markdown_table("why-rules", list(rows[0]), [list(map(show.plain, row.values())) for row in rows])
    lines = say.why(reached) if reached else []
    if reached and reached.sinks[0]:
        counted = inputs.COUNT_SINKS.value
        shown = [s for s in reached.sinks[0] if s.pos or not counted or inputs.FIRST_TOKEN.value]
        lens, tokens = batch.results["logit_lens"], batch.results["contributions"].tokens
        read = positions(lens, read_for(lens))
        counts = all((read is None or s.pos in read) and (s.pos or inputs.FIRST_TOKEN.value) for s in shown)
        lines.append(say.sinks_in_curves(shown, tokens, counted, counts))
    if reached and not inputs.FIRST_TOKEN.value:
        lines.append("The cosine rule and the switch leave the first token out; KL and overlap count it.")
    if lines:
        st.markdown("\n".join(f"- {show.plain(line)}" for line in lines))
    at = {"kl": inputs.KL.value, "overlap": inputs.OVERLAP.value}
    moved = any(value != RULES[name].threshold for name, value in at.items())
    papers = ", with thresholds of your own (Hu et al. take 50 % and 30 %)" if moved else ""
    shuffled = control_model.chosen()[0] == "shuffled"
    beside = SHUFFLED if shuffled else UNTRAINED
    wide = tenth(reached.n_layers) if reached else 0
    near = f" (± {say.count(wide, 'layer')})" if wide else ""
    st.markdown(
        ABOUT_RULES.format(moved=papers, twins=beside, near=near, kl=100 * at["kl"], overlap=100 * at["overlap"])
    )


def says(batch: running.Batch) -> str:
    """The model's own continuation, token by token; once it is there, whether it is right, and its best next tokens."""
    if (result := batch.complete("continuation")) is None:
        if (result := batch.result("continuation")) is None:
            return ""
        text = "".join(result.token_text.get(i, "") for i in result["ids"].tolist() if i >= 0)
        return f"The model continues {show.code(text, 60)} …" if text else ""
    mark = {
        True: " :green[✓ the known answer]",
        False: f" :orange[✗ expected {show.code(result.request.prompts[0].answer, 60)}]",
        None: "",
    }[is_right(result)]
    best = ", ".join(
        f"{show.code(result.token_text[int(i)], 60)} {say.share(float(p), signs=True)}"
        for i, p in zip(result["top_ids"][0], result["top_probs"][0], strict=True)
    )
    source = ":gray-badge[stored example] " if lookup.is_shipped(result.request.key) else ""
    return f"{source}The model continues {show.code(result.provenance['continuation'], 60)}{mark} · next token: {best}"


def options(row, batch: running.Batch) -> None:
    """Everything that changes what is drawn, the control, and a step up in difficulty."""
    some, n = next(iter(batch.results.values()), None), _n_tokens(batch)
    with row.popover("Options", icon=":material/tune:", type="tertiary", key="options"):
        inputs.BRANCH.draw(st.segmented_control)
        inputs.SHADE.draw(st.selectbox)
        if inputs.LENS.value not in (names := lenses_of(first(batch))):
            inputs.forget(inputs.LENS.key)
        inputs.LENS.draw(st.selectbox, options=names)
        if (window := inputs.window(TOKENS.key, n, WINDOW)) is not None:
            TOKENS.draw(st.slider, default=window, min_value=0, max_value=n - 1)
        if some is not None:
            show.token_box(st, some.tokens)
        inputs.KL.draw(st.slider, step=0.05)
        inputs.OVERLAP.draw(st.slider, step=0.05)
        OF.draw(st.segmented_control)
        inputs.FIRST_TOKEN.draw(st.toggle)
        inputs.COUNT_SINKS.draw(st.toggle, "Count the sinks (◆) in the strips beside the maps")
        BESIDE.draw(st.selectbox)
        control_model.picker(st, batch)
        if "generation" in batch.requests:
            probe_page.form(Generation, ("n_tokens", "temperature", "seed"))
        if (above := prompt_box.harder(value("example", ""))) is not None:
            look = {"icon": ":material/trending_up:", "type": "tertiary"}
            st.button("Same task, harder", key="harder", on_click=_harder, args=(above, batch), **look)
        st.caption("Thresholds: the defaults are those of Hu et al. 2025.")


def _n_tokens(batch: running.Batch) -> int:
    return next((result.n_tokens for result in batch.results.values()), 0)


def viewer(batch: running.Batch, reached: Verdict | None) -> Callable[[str, str], View]:
    """A maker of views, by panel and probe."""
    some, n = next(iter(batch.results.values()), None), _n_tokens(batch)
    window, token = inputs.window(TOKENS.key, n, WINDOW), inputs.token(n)
    made, of = batch.complete("contributions"), reached.read_for if reached else ALL
    found = sinks.of_result(made) if made is not None else None
    best = first_choice(reached.answers[0]) if reached else None
    line = {"answer": best - 1} if best else {}
    answered = some is None or some.answer_start is not None

    def view(panel: str, probe: str) -> View:
        return View(
            window=window,
            selected=token,
            answer_start=some.answer_start if some is not None else None,
            depth_lines=reached.layers | line if reached else {},
            uirevision=panel,
            control=control_model.result(batch, probe),
            control_name=control_model.name(),
            sinks=tuple(s.pos for s in found or ()),
            count_sinks=inputs.COUNT_SINKS.value,
            read_at=positions(some, of) if some is not None else None,
            read_for=say.read_for(of, answered),
        )

    return view


ABOUT_DEPTHS = "The model keeps writing; below each token, the depth from which its final best guess leads for good."
WRITES = {True: " :green[✓ correct]", False: " :orange[✗ wrong answer]", None: ""}  # sixty words are all there is
TEACH_DEPTHS = (
    "**Run** lets the model continue the question, and shows for every token the depth from which its final best guess "
    "leads for good."
)
ABOUT_RULES = """**Average depth** (● KL, overlap): the layer from which the lens stays within a threshold of the
output, mean over all thresholds.

**Switch** (● cosine): two levels fitted to the mean cosine, the first below 0 (layers erase), the second above (they
strengthen); random orders of the layers split as well in at most 5 %.

**Published rules** of Hu et al. (◆, hollow: not robust here){moved}. *Cosine*: the last layer whose mean cosine is
below 0 before one where it is not. *KL*: the first layer before which the divergence is below {kl:.0f} % of its
largest. *Overlap*: the first before which more than {overlap:.0f} % of the best tokens are the output's. *Robust*:
nearby thresholds and variants (thin bar) give a layer within a tenth of the depth{near}, it lasts, and fewer than half
of five untrained copies give it too.

{twins}"""
UNTRAINED = "**Untrained copies** (grey band): the same shape, random weights. What they show too needs no training."
SHUFFLED = "**Copies with shuffled layers** (grey band): the trained layers in random order."
READ_RANK = """The rank, in the lens at the token that predicts the answer (without one the last token), of the
model's final prediction. A click on a cell shows that token's cosines here instead."""
WELCOME = """**How much of its depth does a language model use?** Every layer adds to a stream that carries each token
upwards. Move through the depths, and see what the model would say if it ended there."""
STEPS = """1. Choose a model at the top, and a prompt or an example below it.
2. **Run**, or Ctrl+Enter in the prompt.
3. Point at a map to mark a depth in all of them; click a token to follow it.

*Effective depth* is the papers' name for the layer up to which a model does new work
before it only refines; *Why?* gives their rules, and how sure they are."""
STILL = "Still shown: {}. The chosen model is unavailable, as said above."
CANCELLED = "Cancelled. **Run** measures what is missing."
TEACH = """Not computed yet. **Run** traces this prompt through the model: what each layer adds and in which direction,
what the model would predict at each depth, and what changes without each layer."""
page()
